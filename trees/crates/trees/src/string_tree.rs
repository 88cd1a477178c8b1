//! [`StringTree`]: a radix tree that finds the tenant with the longest prefix of a text.

use super::tree::{Cursor, Entry, EvictionPolicy, PrefixMatch, SharedTree, TenantId, Text, TreeError, snapshot_header};

tree_methods! {
    /// A radix tree of text shared by many tenants, for routers that estimate each worker's cache from their own
    /// decisions.
    ///
    /// Sizes and depths are in characters (Unicode scalar values). Text is not normalised, and no character is divided.
    /// May be shared by threads; no lock is held while a caller's function runs.
    ///
    /// ```
    /// use kvatlas_trees::string_tree::StringTree;
    ///
    /// let tree = StringTree::new();
    /// tree.insert_text("You are a helpful assistant.", "http://w0");
    /// tree.insert_text("You are a helpful poet.", "http://w1");
    /// let found = tree.match_prefix_with_counts("You are a helpful pirate.");
    /// assert_eq!((found.tenant.as_deref(), found.matched), (Some("http://w1"), 19));
    /// assert_eq!(tree.match_all("You are a helpful pirate.")[1], ("http://w0".into(), 18));
    /// ```
    StringTree, Text, str, String, |text| text.as_bytes(), |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned(),
    insert_text, insert_text_with_priority, b'S'
}

impl StringTree {
    /// Creates an empty tree that evicts the least recently used leaf first.
    #[must_use]
    pub fn new() -> Self {
        Self::with_policy(EvictionPolicy::Lru)
    }

    /// Creates an empty tree that evicts in the order of `policy`.
    #[must_use]
    pub fn with_policy(policy: EvictionPolicy) -> Self {
        Self { tree: SharedTree::new(Text::new(), policy) }
    }

    /// Number of characters that a tenant holds; the same as [`tenant_size`](Self::tenant_size).
    #[must_use]
    pub fn tenant_char_size(&self, tenant: &str) -> usize {
        self.tenant_size(tenant)
    }

    /// Finds the longest prefix of `text` in the tree, and its tenant like [`prefix_match`](Self::prefix_match).
    #[must_use]
    pub fn prefix_match_legacy<'a>(&self, text: &'a str) -> (&'a str, Option<TenantId>) {
        let (bytes, tenant) = self.tree.prefix(text.as_bytes());
        (&text[..bytes], tenant)
    }

    fn units(_page: usize) -> Result<Text, TreeError> {
        Ok(Text::new())
    }
}
