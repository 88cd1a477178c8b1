//! [`TokenTree`]: a radix tree that finds the tenant with the longest prefix of a prompt's tokens, in pages.

use super::tree::{
    Cursor, Entry, EvictionPolicy, PrefixMatch, SharedTree, TenantId, Tokens, TreeError, snapshot_header,
};

/// Default number of tokens in a page.
const PAGE: usize = 16;

tree_methods! {
    /// A radix tree of token ids shared by many tenants, for routers that estimate each worker's cache from their own
    /// decisions.
    ///
    /// Engines reuse whole pages, so prompts are cut to whole pages, and edges divide at pages. Sizes and depths are in
    /// tokens. May be shared by threads; no lock is held while a caller's function runs.
    ///
    /// ```
    /// use kvatlas_trees::token_tree::TokenTree;
    /// use kvatlas_trees::EvictionPolicy;
    ///
    /// let tree = TokenTree::with_config(4, EvictionPolicy::Lru)?;
    /// tree.insert_tokens(&[1, 2, 3, 4, 5, 6, 7, 8, 9], "http://w0");
    /// let found = tree.match_prefix_with_counts(&[1, 2, 3, 4, 5, 0]);
    /// assert_eq!((found.matched, found.paged, found.input), (4, 4, 6));
    /// assert_eq!(tree.tenant_size("http://w0"), 8);
    /// # Ok::<(), kvatlas_trees::TreeError>(())
    /// ```
    TokenTree, Tokens, [u32], Vec<u32>, |tokens| tokens, |path: Vec<u32>| path,
    insert_tokens, insert_tokens_with_priority, b'T'
}

impl TokenTree {
    /// Creates an empty tree with pages of 16 tokens that evicts the least recently used leaf first.
    #[must_use]
    pub fn new() -> Self {
        Self::with_policy(EvictionPolicy::Lru)
    }

    /// Creates an empty tree with pages of 16 tokens that evicts in the order of `policy`.
    #[must_use]
    pub fn with_policy(policy: EvictionPolicy) -> Self {
        Self { tree: SharedTree::new(Tokens::of(PAGE), policy) }
    }

    /// Creates an empty tree with pages of `page_size` tokens that evicts in the order of `policy`.
    ///
    /// # Errors
    /// [`TreeError::PageSize`] if `page_size` is not a power of two from 1 to 128.
    pub fn with_config(page_size: usize, policy: EvictionPolicy) -> Result<Self, TreeError> {
        Ok(Self { tree: SharedTree::new(Tokens::new(page_size)?, policy) })
    }

    /// Number of tokens in a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.tree.units().page()
    }

    /// Number of tokens that a tenant holds; the same as [`tenant_size`](Self::tenant_size).
    #[must_use]
    pub fn tenant_token_size(&self, tenant: &str) -> usize {
        self.tenant_size(tenant)
    }

    /// Finds the longest prefix of `tokens` in the tree, and its tenant like [`prefix_match`](Self::prefix_match).
    #[must_use]
    pub fn prefix_match_legacy<'a>(&self, tokens: &'a [u32]) -> (&'a [u32], Option<TenantId>) {
        let (length, tenant) = self.tree.prefix(tokens);
        (&tokens[..length], tenant)
    }

    fn units(page: usize) -> Result<Tokens, TreeError> {
        Tokens::new(page)
    }
}
