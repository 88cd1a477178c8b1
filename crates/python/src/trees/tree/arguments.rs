//! The arguments of the trees: keys, sizes, policies, callbacks.

use std::ops::Deref;

use kvatlas_trees::tree::{EvictionPolicy, PrefixMatch, TreeError};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::answers::TreeMatch;
use crate::errors;
use crate::scalars::{describe, int, string};
use crate::sequences::{Tokens, tokens};

/// The exception for a refusal of a tree.
pub(super) fn refused(error: &TreeError) -> PyErr {
    errors::argument(error.code(), &error.to_string())
}

/// A text, in place: strings do not change.
pub(super) fn text_key<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    string(value, "text")
}

/// Tokens, in place if they are in an array.
pub(super) struct TokensKey(Tokens);

impl Deref for TokensKey {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.0.as_slice()
    }
}

pub(super) fn tokens_key(value: &Bound<'_, PyAny>) -> PyResult<TokensKey> {
    tokens(value).map(TokensKey)
}

/// Copies tokens into memory of our own. Others may write to an array while a call waits without the GIL: a tree must
/// see one state of it.
pub(super) fn own_tokens_key(value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    Ok(match tokens(value)? {
        Tokens::Items(items) => items,
        array => array.as_slice().to_vec(),
    })
}

/// A number of units or bytes.
pub(super) fn size(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(0)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 0, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}

/// A number of bytes at most; `None` for no limit.
pub(super) fn budget(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    value.filter(|value| !value.is_none()).map(|value| size(value, "budget_bytes")).transpose()
}

/// The priority of an insert: nodes of lower priority are evicted first.
pub(super) struct Priority(pub(super) i32);

impl FromPyObject<'_, '_> for Priority {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value = int(&value, || "priority".to_owned())?;
        let wrong = || format!("priority must be from {} to {}, got {value}", i32::MIN, i32::MAX);
        value.extract().map(Self).map_err(|_| errors::argument("out_of_range", &wrong()))
    }
}

/// The order in which leaves go.
pub(super) struct Policy(pub(super) EvictionPolicy);

impl Default for Policy {
    fn default() -> Self {
        Self(EvictionPolicy::Lru)
    }
}

impl FromPyObject<'_, '_> for Policy {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value: &Bound<'_, PyAny> = &value;
        let name = string(value, "policy")?;
        let known = || EvictionPolicy::ALL.map(|policy| format!("\"{}\"", policy.as_str())).join(", ");
        let unknown =
            |_| errors::argument("unknown_policy", &format!("unknown policy {name:?}: it is one of {}", known()));
        name.parse().map(Self).map_err(unknown)
    }
}

/// The number of tokens in a page.
pub(super) struct PageSize(pub(super) usize);

impl FromPyObject<'_, '_> for PageSize {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let value = int(&value, || "page_size".to_owned())?;
        let wrong = || format!("page_size must be a power of two from 1 to 128, got {value}");
        value.extract().map(Self).map_err(|_| errors::argument("invalid_page_size", &wrong()))
    }
}

/// The hash of a path, as hash_node_path() and hash_token_path() give it.
pub(super) fn path_hash(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let value = int(value, || "path_hash".to_owned())?;
    value.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(value.py()) {
        true => errors::argument("out_of_range", &format!("path_hash must be from 0 to 2**64 - 1, got {value}")),
        false => error,
    })
}

/// The caller's choice between a match and an insert, callable from wherever the tree does its work.
pub(super) struct Selector(Py<PyAny>);

impl Selector {
    pub(super) fn new(select: &Bound<'_, PyAny>) -> PyResult<Self> {
        if select.is_callable() {
            return Ok(Self(select.clone().unbind()));
        }
        Err(errors::wrong_type(&format!("select must be callable, got {}", describe(select))))
    }

    /// Asks the caller for a tenant, given this match. Takes the interpreter back if the tree works without it.
    pub(super) fn call(&self, found: &PrefixMatch) -> PyResult<Option<String>> {
        Python::attach(|py| {
            let chosen = self.0.bind(py).call1((TreeMatch::from(found),))?;
            if chosen.is_none() {
                return Ok(None);
            }
            let wrong = |_| {
                let given = describe(&chosen);
                errors::wrong_type(&format!("select must return the tenant as a str, or None; it returned {given}"))
            };
            chosen.cast::<pyo3::types::PyString>().map_err(wrong)?;
            string(&chosen, "what select returned").map(|tenant| Some(tenant.to_owned()))
        })
    }
}
