//! The nodes of a tree one after the other, each made when it is asked for.

use kvatlas_trees::tree::Entry;
use pyo3::prelude::*;

/// A node: its whole path, and its tenants with the time of their last use.
type Node<P> = (P, Vec<(String, u64)>);

/// Gives the next node, from any thread.
type EntrySource<P> = Box<dyn Fn(Python<'_>) -> Option<Entry<P>> + Send + Sync>;

macro_rules! entries {
    ($name:ident, $path:ty) => {
        /// The nodes of a tree, returned by iter_entries(). Threads may share it: each node goes to one of them.
        #[pyclass(frozen, module = "kvatlas._native")]
        pub(crate) struct $name(EntrySource<$path>);

        impl $name {
            pub(super) fn new(next: impl Fn(Python<'_>) -> Option<Entry<$path>> + Send + Sync + 'static) -> Self {
                Self(Box::new(next))
            }
        }

        #[pymethods]
        impl $name {
            fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
                slf
            }

            fn __next__(&self, py: Python<'_>) -> Option<Node<$path>> {
                let entry = (self.0)(py)?;
                let tenants = entry.tenants.into_iter().map(|(tenant, used)| (tenant.as_ref().to_owned(), used));
                Some((entry.path, tenants.collect()))
            }
        }
    };
}

entries!(StringEntries, String);
entries!(TokenEntries, Vec<u32>);
