//! The methods common to `StringTree` and `TokenTree`, defined once by macros. The classes differ in their keys and in
//! a few names taken from SMG.

use kvatlas_trees::tree::EvictionPolicy;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::scalars::string;
use crate::stats::grouped;

/// Number of bytes of a key whose matching or insertion takes about 10 µs, long enough to detach from the interpreter.
const LONG_KEY: usize = 1 << 15;

pub(super) fn is_long<K: ?Sized>(key: &K) -> bool {
    size_of_val(key) >= LONG_KEY
}

/// Reads an argument that is a tenant's name.
pub(super) fn name<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    string(value, "tenant")
}

pub(super) fn quoted(policy: EvictionPolicy) -> String {
    format!("'{}'", policy.as_str())
}

pub(super) fn to_dict<'py>(py: Python<'py>, sizes: &[(std::sync::Arc<str>, usize)]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (tenant, size) in sizes {
        dict.set_item(&**tenant, size)?;
    }
    Ok(dict)
}

/// Result of `__reduce__`: the function that restores the object, its argument, and the attributes to set.
pub(super) type PickleParts = (Py<PyAny>, (Py<PyBytes>,), (Option<()>, Py<PyDict>));

/// Sizes of a tree as text for its `repr`.
pub(super) fn sizes(tenants: usize, nodes: usize, size: usize) -> String {
    let [tenants, nodes, size] = [tenants, nodes, size].map(|number| grouped(number as u64));
    format!("tenants={tenants}, nodes={nodes}, size={size}")
}

macro_rules! tree {
    (
        $(#[$about:meta])*
        $name:ident($core:ty, $entries:ident),
        key: $key:ident by $read:path, owned by $own:path, in $unit:literal,
        about: $about_key:literal,
        insert: $insert:ident by $insert_by:ident as $insert_signature:literal,
        sizes: $size:ident, $sizes:ident,
        $($methods:tt)*
    ) => {
        $(#[$about])*
        #[pyclass(frozen, module = "kvatlas._native")]
        pub(crate) struct $name {
            pub(super) core: $core,
            pub(super) writers: Writers,
        }

        impl $name {
            fn with(core: $core, budget: Option<usize>) -> Self {
                core.set_budget_bytes(budget);
                Self { core, writers: Writers::default() }
            }

            /// Sizes of this tree as text for its `repr`.
            fn contents(&self, py: Python<'_>) -> String {
                let core = &self.core;
                let [tenants, nodes, size] =
                    self.writers.write(py, false, || [core.tenant_count(), core.node_count(), core.total_size()]);
                sizes(tenants, nodes, size)
            }

            fn add(&self, py: Python<'_>, key: &Bound<'_, PyAny>, tenant: &str, priority: i32) -> PyResult<()> {
                let key = $own(key)?;
                let key = &*key;
                self.writers.write(py, is_long(key), || self.core.$insert_by(key, tenant, priority));
                Ok(())
            }
        }

        with_sizes! {
            $name($core, $entries), sizes: $size, $sizes,
            $($methods)*

            /// str: The order in which leaves are evicted.
            #[getter]
            fn policy(&self) -> &'static str {
                self.core.eviction_policy().as_str()
            }

            /// int or None: The memory limit of the tree in bytes, enforced at the end of every insert. Setting it
            /// evicts at once everything beyond the limit, from all tenants in the order of the policy.
            #[getter]
            fn budget_bytes(&self) -> Option<usize> {
                self.core.budget_bytes()
            }

            #[setter]
            fn set_budget_bytes(&self, py: Python<'_>, budget_bytes: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
                let budget = budget(budget_bytes)?;
                self.writers.write(py, true, || self.core.set_budget_bytes(budget));
                Ok(())
            }

            /// Records that a prompt was sent to a tenant. Prefixes that the tenant has already are not counted again.
            ///
            /// An empty key, or a key shorter than a page, changes nothing.
            ///
            /// Args:
            #[doc = $about_key]
            ///     tenant: The tenant's name. The first insert makes it known.
            ///     priority: With the policy "priority", nodes of lower priority are evicted first. A node keeps the
            ///         greatest priority of its tenant's inserts that went through it.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a number out of range.
            #[pyo3(signature = ($key, tenant, *, priority=Priority(0)))]
            #[pyo3(text_signature = $insert_signature)]
            fn $insert(
                &self,
                py: Python<'_>,
                $key: &Bound<'_, PyAny>,
                tenant: &Bound<'_, PyAny>,
                priority: Priority,
            ) -> PyResult<()> {
                self.add(py, $key, name(tenant)?, priority.0)
            }

            /// Records that a prompt was sent to a tenant, under a name common to StringTree and TokenTree.
            #[pyo3(signature = (key, tenant, *, priority=Priority(0)))]
            #[pyo3(text_signature = "($self, key, tenant, *, priority=0)")]
            fn insert(
                &self,
                py: Python<'_>,
                key: &Bound<'_, PyAny>,
                tenant: &Bound<'_, PyAny>,
                priority: Priority,
            ) -> PyResult<()> {
                self.add(py, key, name(tenant)?, priority.0)
            }

            /// Finds the length of a prompt's beginning that each tenant has. This changes nothing, not even times of
            /// last use.
            ///
            /// Args:
            #[doc = $about_key]
            ///
            /// Returns:
            ///     TreeDepths
            ///
            /// Raises:
            ///     InvalidTypeError: The key is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            #[pyo3(signature = (*, $key))]
            fn find(&self, py: Python<'_>, $key: &Bound<'_, PyAny>) -> PyResult<TreeDepths> {
                let key = $read($key)?;
                let key = &*key;
                let depths = self.writers.write(py, is_long(key), || self.core.match_all(key));
                Ok(TreeDepths::new(depths, self.paged(key), $unit))
            }

            /// Finds the length of a prompt's beginning that each tenant has, like find(...).scores().
            ///
            /// Returns:
            ///     dict of tenant to depth, deepest first, equal depths by name; only tenants that have anything.
            ///
            /// Raises:
            ///     InvalidTypeError: The key is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn depths<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
                self.find(py, key)?.scores(py)
            }

            /// Finds the tenant with the longest prefix of a prompt. This counts as a use by the tenant.
            ///
            /// Returns:
            ///     TreeMatch
            ///
            /// Raises:
            ///     InvalidTypeError: The key is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn match_prefix_with_counts(&self, py: Python<'_>, $key: &Bound<'_, PyAny>) -> PyResult<TreeMatch> {
                let key = $read($key)?;
                let key = &*key;
                let found = self.writers.write(py, is_long(key), || self.core.match_prefix_with_counts(key));
                Ok(TreeMatch::from(&found))
            }

            /// Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(key).tenant; None if
            /// nothing matched.
            ///
            /// Raises:
            ///     InvalidTypeError: The key is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn prefix_match(&self, py: Python<'_>, $key: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
                let key = $read($key)?;
                let key = &*key;
                let tenant = self.writers.write(py, is_long(key), || self.core.prefix_match(key));
                Ok(tenant.map(|tenant| tenant.as_ref().to_owned()))
            }

            /// Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
            /// prompt for the given tenant, in one call.
            ///
            /// Args:
            #[doc = $about_key]
            ///     tenant: The tenant to insert for.
            ///
            /// Returns:
            ///     TreeMatch: The match before the insert.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn match_and_insert(
                &self,
                py: Python<'_>,
                $key: &Bound<'_, PyAny>,
                tenant: &Bound<'_, PyAny>,
            ) -> PyResult<TreeMatch> {
                let (key, tenant) = ($own($key)?, name(tenant)?);
                let key = &*key;
                let found = self.writers.write(py, is_long(key), || self.core.match_and_insert(key, tenant));
                Ok(TreeMatch::from(&found))
            }

            /// Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
            /// prompt for the tenant that `select` chooses, in one call.
            ///
            /// `select` is called once, without a lock: `select` and other threads may use the tree meanwhile. If
            /// `select` raises an error, the call raises the error and inserts nothing; the match still counts as a
            /// use.
            ///
            /// Args:
            #[doc = $about_key]
            ///     select: Function of the TreeMatch that returns the tenant to insert for, or None to insert nothing.
            ///
            /// Returns:
            ///     TreeMatch: The match that `select` was given.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument, or what `select` returned, is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn match_and_insert_with(
                &self,
                py: Python<'_>,
                $key: &Bound<'_, PyAny>,
                select: &Bound<'_, PyAny>,
            ) -> PyResult<TreeMatch> {
                let (key, select) = ($own($key)?, Selector::new(select)?);
                let key = &*key;
                let choose = |found: &_| select.call(found);
                let found =
                    self.writers.write(py, is_long(key), || self.core.try_match_and_insert_with(key, choose))?;
                Ok(TreeMatch::from(&found))
            }
        }
    };
}

pub(super) use tree;
