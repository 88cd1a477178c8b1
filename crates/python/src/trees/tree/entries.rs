//! The nodes of a tree one after the other, each made when it is asked for.

use std::sync::{Mutex, PoisonError};

use kvatlas_trees::{string_tree, token_tree};
use pyo3::prelude::*;

use super::classes::{StringTree, TokenTree};

/// A node: its whole path, and its tenants with the time of their last use.
type Node<P> = (P, Vec<(String, u64)>);

macro_rules! entries {
    ($name:ident, $tree:ident, $cursor:ty, $path:ty) => {
        /// The nodes of a tree, made by iter_entries(). May be shared by threads: each node goes to one of them.
        #[pyclass(frozen, module = "kvatlas._native")]
        pub(crate) struct $name {
            tree: Py<$tree>,
            cursor: Mutex<$cursor>,
        }

        impl $name {
            pub(super) fn new(tree: Py<$tree>, cursor: $cursor) -> Self {
                Self { tree, cursor: Mutex::new(cursor) }
            }
        }

        #[pymethods]
        impl $name {
            fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }

            fn __next__(&self, py: Python<'_>) -> Option<Node<$path>> {
                let tree = self.tree.get();
                let next = || self.cursor.lock().unwrap_or_else(PoisonError::into_inner).next(&tree.core);
                let entry = tree.writers.write(py, false, next)?;
                let tenants = entry.tenants.into_iter().map(|(tenant, used)| (tenant.as_ref().to_owned(), used));
                Some((entry.path, tenants.collect()))
            }
        }
    };
}

entries!(StringEntries, StringTree, string_tree::EntryCursor, String);
entries!(TokenEntries, TokenTree, token_tree::EntryCursor, Vec<u32>);
