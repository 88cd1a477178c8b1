//! `StringTree` and `TokenTree` as Python classes, with the methods that only one of them has.

use kvatlas_trees::{string_tree, token_tree};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

use super::methods::{PickleParts, is_long, name, quoted, sizes, to_dict, tree};
use super::sizes::with_sizes;
use super::{
    PageSize, Policy, Priority, Selector, StringEntries, TokenEntries, TreeDepths, TreeMatch, budget, own_tokens_key,
    path_hash, refused, size, text_key, tokens_key,
};
use crate::gil::Writers;
use crate::sequences::bytes;

tree! {
    /// A radix tree over characters of the texts sent to each tenant, for routers that see text.
    ///
    /// It records which text was sent to which tenant, and finds the longest prefix of a text: an estimate of what
    /// engines have cached. Characters are Unicode scalar values; nothing is normalized.
    ///
    /// Any number of threads may use it at once. A refused call changes nothing.
    ///
    /// Args:
    ///     policy: Order of eviction: "lru", "lfu", "fifo", "mru", "filo" or "priority".
    ///     budget_bytes: Memory limit of the tree in bytes; None for no limit.
    ///
    /// Raises:
    ///     InvalidTypeError: policy is not a str, or budget_bytes is not an int.
    ///     InvalidArgumentError: policy is unknown, or budget_bytes is negative.
    StringTree(string_tree::StringTree, StringEntries),
    key: text by text_key, owned by text_key, in "characters",
    about: "     text: The prompt.",
    insert: insert_text by insert_text_with_priority as "($self, text, tenant, *, priority=0)",
    sizes: tenant_char_size, get_tenant_char_count,

    #[new]
    #[pyo3(signature = (*, policy=Policy::default(), budget_bytes=None))]
    #[pyo3(text_signature = "(*, policy='lru', budget_bytes=None)")]
    fn new(policy: Policy, budget_bytes: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self::with(string_tree::StringTree::with_policy(policy.0), budget(budget_bytes)?))
    }

    /// Finds the longest prefix as text, and its tenant: an older form of match_prefix_with_counts().
    ///
    /// Returns:
    ///     (the text that matched, the tenant or None)
    ///
    /// Raises:
    ///     InvalidTypeError: text is not a str.
    ///     InvalidArgumentError: A str with a lone surrogate in it.
    fn prefix_match_legacy<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyString>, Option<String>)> {
        let text = text_key(text)?;
        let (matched, tenant) = self.writers.write(py, is_long(text), || self.core.prefix_match_legacy(text));
        Ok((PyString::new(py, matched), tenant.map(|tenant| tenant.as_ref().to_owned())))
    }

    /// Finds the longest prefix of a text that a tenant has. This counts as a use by the tenant.
    ///
    /// Returns:
    ///     str: The leading part of the text that the tenant has; "" if nothing.
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is not a str.
    ///     InvalidArgumentError: A str with a lone surrogate in it.
    fn prefix_match_tenant<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
        tenant: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyString>> {
        let (text, tenant) = (text_key(text)?, name(tenant)?);
        let depth = self.writers.write(py, is_long(text), || self.core.prefix_match_tenant(text, tenant));
        let end = text.char_indices().nth(depth).map_or(text.len(), |(at, _)| at);
        Ok(PyString::new(py, &text[..end]))
    }

    /// Evicts leaves like evict_tenant(), under the name that the method has in SMG.
    fn evict_by_tenant(
        &self,
        py: Python<'_>,
        tenant: &Bound<'_, PyAny>,
        max_size: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        self.evict_tenant(py, tenant, max_size)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("StringTree(policy={}, {})", quoted(self.core.eviction_policy()), self.contents(py))
    }
}

tree! {
    /// A radix tree over pages of the tokens sent to each tenant, for routers that have a tokenizer.
    ///
    /// It records which tokens were sent to which tenant, and finds the longest prefix of a prompt: an estimate of what
    /// engines have cached. Keys are cut to whole pages, and match in whole pages.
    ///
    /// Any number of threads may use it at once. A refused call changes nothing.
    ///
    /// Args:
    ///     page_size: Number of tokens in a page: a power of two from 1 to 128. Use the block size of the engines.
    ///     policy: Order of eviction: "lru", "lfu", "fifo", "mru", "filo" or "priority".
    ///     budget_bytes: Memory limit of the tree in bytes; None for no limit.
    ///
    /// Raises:
    ///     InvalidTypeError: page_size is not an int, policy is not a str, or budget_bytes is not an int.
    ///     InvalidArgumentError: page_size is not one of these, policy is unknown, or budget_bytes is negative.
    TokenTree(token_tree::TokenTree, TokenEntries),
    key: tokens by tokens_key, owned by own_tokens_key, in "tokens",
    about: "     tokens: The prompt, shape (n,), as content_hashes() takes tokens.",
    insert: insert_tokens by insert_tokens_with_priority as "($self, tokens, tenant, *, priority=0)",
    sizes: tenant_token_size, get_tenant_token_counts,

    #[new]
    #[pyo3(signature = (page_size=PageSize(16), *, policy=Policy::default(), budget_bytes=None))]
    #[pyo3(text_signature = "(page_size=16, *, policy='lru', budget_bytes=None)")]
    fn new(page_size: PageSize, policy: Policy, budget_bytes: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let core = token_tree::TokenTree::with_config(page_size.0, policy.0).map_err(|error| refused(&error))?;
        Ok(Self::with(core, budget(budget_bytes)?))
    }

    /// int: The number of tokens in a page.
    #[getter]
    fn page_size(&self) -> usize {
        self.core.page_size()
    }

    /// Finds the longest prefix as tokens, and its tenant: an older form of match_prefix_with_counts().
    ///
    /// Returns:
    ///     (list of the tokens that matched, the tenant or None)
    ///
    /// Raises:
    ///     InvalidTypeError: The argument is not tokens.
    ///     InvalidArgumentError: A token out of range, or an array of more than one dimension.
    fn prefix_match_legacy(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<(Vec<u32>, Option<String>)> {
        let tokens = tokens_key(tokens)?;
        let tokens = &*tokens;
        let (matched, tenant) = self.writers.write(py, is_long(tokens), || self.core.prefix_match_legacy(tokens));
        Ok((matched.to_vec(), tenant.map(|tenant| tenant.as_ref().to_owned())))
    }

    /// Finds the longest prefix of a prompt that a tenant has. This counts as a use by the tenant.
    ///
    /// Returns:
    ///     int: The number of leading tokens that the tenant has, in whole pages.
    ///
    /// Raises:
    ///     InvalidTypeError: The prompt is not tokens, or tenant is not a str.
    ///     InvalidArgumentError: A token out of range, or an array of more than one dimension.
    fn prefix_match_tenant(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        tenant: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (tokens, tenant) = (tokens_key(tokens)?, name(tenant)?);
        let tokens = &*tokens;
        Ok(self.writers.write(py, is_long(tokens), || self.core.prefix_match_tenant(tokens, tenant)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let policy = quoted(self.core.eviction_policy());
        format!("TokenTree(page_size={}, policy={policy}, {})", self.core.page_size(), self.contents(py))
    }
}

impl StringTree {
    fn paged(&self, text: &str) -> usize {
        text.chars().count()
    }
}

impl TokenTree {
    fn paged(&self, tokens: &[u32]) -> usize {
        tokens.len() / self.core.page_size() * self.core.page_size()
    }
}
