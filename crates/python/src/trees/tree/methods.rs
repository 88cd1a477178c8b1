//! The methods that both classes have, said once: the classes differ in their keys and in a few names that the originals
//! gave them.

use kvatlas_trees::tree::EvictionPolicy;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::scalars::string;
use crate::text::grouped;

/// Bytes of a key that take about 10 µs to match or insert.
const LONG_KEY: usize = 1 << 15;

pub(super) fn is_long<K: ?Sized>(key: &K) -> bool {
    size_of_val(key) >= LONG_KEY
}

/// A tenant's name.
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

/// What `__reduce__` gives: who makes it, of what, and the attributes to be set.
pub(super) type Reduced = (Py<PyAny>, (Py<PyBytes>,), (Option<()>, Py<PyDict>));

/// The sizes in a repr.
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

            /// The sizes in the repr.
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

        #[pymethods]
        impl $name {
            $($methods)*

            /// str: The order in which leaves are evicted.
            #[getter]
            fn policy(&self) -> &'static str {
                self.core.eviction_policy().as_str()
            }

            /// int or None: The bytes that the tree may take, enforced at the end of every insert. Setting it evicts at
            /// once what is too much, over all tenants by the policy; then an insert evicts when there is too much.
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

            /// A tenant has been sent this prompt, and so has what it begins with. What it has already is not counted again.
            ///
            /// An empty key, or one shorter than a page, changes nothing.
            ///
            /// Args:
            #[doc = $about_key]
            ///     tenant: The tenant's name. The first insert makes it known.
            ///     priority: What it is worth: of the policy "priority", lower ones are evicted first. A node keeps the
            ///         greatest of the inserts of its tenant that went through it.
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

            /// The same under the name that both trees have.
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

            /// How much every tenant has of a prompt. Asking changes nothing, not even who was used last.
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

            /// find(...).scores(): how much every tenant has of a prompt.
            ///
            /// Returns:
            ///     dict of tenant to depth, deepest first, equals by name; only tenants that have anything.
            ///
            /// Raises:
            ///     InvalidTypeError: The key is of the wrong type.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn depths<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
                self.find(py, key)?.scores(py)
            }

            /// Whose prefix of this prompt is the longest. That tenant has then used it.
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

            /// match_prefix_with_counts(key).tenant: None if nothing matched.
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

            /// match_prefix_with_counts(), then an insert for this tenant, in one call.
            ///
            /// Args:
            #[doc = $about_key]
            ///     tenant: For whom to insert.
            ///
            /// Returns:
            ///     TreeMatch: The match as of before the insert.
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

            /// match_prefix_with_counts(), then an insert for the tenant that `select` makes of the match, in one call.
            ///
            /// `select` is called once, with no lock held: it may use the tree, and so may others meanwhile. What it
            /// raises is passed on, and nothing is inserted; that the match was a use of its tenant stays.
            ///
            /// Args:
            #[doc = $about_key]
            ///     select: Takes the TreeMatch, and returns the tenant to insert for, or None to insert nothing.
            ///
            /// Returns:
            ///     TreeMatch: The match that `select` was given.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type, or what `select` returned.
            ///     InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
            fn match_and_insert_with(
                &self,
                py: Python<'_>,
                $key: &Bound<'_, PyAny>,
                select: &Bound<'_, PyAny>,
            ) -> PyResult<TreeMatch> {
                let (key, select) = ($own($key)?, Select::new(select)?);
                let key = &*key;
                let choose = |found: &_| select.call(found);
                let found =
                    self.writers.write(py, is_long(key), || self.core.try_match_and_insert_with(key, choose))?;
                Ok(TreeMatch::from(&found))
            }

            /// The size of a tenant: the sum of the edges that it is on. 0 for one that is not known.
            ///
            /// Returns:
            ///     int, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: tenant is not a str.
            fn $size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                self.tenant_size(py, tenant)
            }

            /// The same under the name that both trees have.
            fn tenant_size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                let tenant = name(tenant)?;
                Ok(self.writers.write(py, false, || self.core.tenant_size(tenant)))
            }

            /// The size of every tenant, as kept up to date.
            ///
            /// Returns:
            ///     dict of tenant to size, by name.
            fn $sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.tenant_sizes(py)
            }

            /// The same under the name that both trees have.
            fn tenant_sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let sizes = self.writers.write(py, false, || self.core.tenant_sizes());
                to_dict(py, &sizes)
            }

            /// The size of every tenant, counted anew by a walk of the whole tree. Equal to what is kept up to date.
            ///
            /// Returns:
            ///     dict of tenant to size, by name.
            fn get_used_size_per_tenant<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let sizes = self.writers.write(py, true, || self.core.recount());
                to_dict(py, &sizes)
            }

            /// int: The sum of the sizes of all tenants.
            #[getter]
            fn total_size(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.total_size())
            }

            /// int: The nodes of the tree, without the root.
            #[getter]
            fn node_count(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.node_count())
            }

            /// int: The memory that the tree takes, in bytes.
            #[getter]
            fn bytes(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.bytes())
            }

            /// Numbers about the contents.
            ///
            /// Returns:
            ///     dict of str to int: "tenants", "nodes", "size" over all tenants, "bytes".
            fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let stats = self.writers.write(py, false, || {
                    let core = &self.core;
                    [core.tenant_count(), core.node_count(), core.total_size(), core.bytes()]
                });
                let numbers = PyDict::new(py);
                for (name, number) in ["tenants", "nodes", "size", "bytes"].into_iter().zip(stats) {
                    numbers.set_item(name, number)?;
                }
                Ok(numbers)
            }

            /// The tenants that have anything.
            ///
            /// Returns:
            ///     list of str, sorted.
            fn tenants(&self, py: Python<'_>) -> Vec<String> {
                let tenants = self.writers.write(py, false, || self.core.tenants());
                tenants.iter().map(|tenant| tenant.as_ref().to_owned()).collect()
            }

            /// Evicts leaves of a tenant, in the order of the policy, until it is no larger than this.
            ///
            /// A leaf goes whole: a node of the tenant below which it has no other. O(log n) for each.
            ///
            /// Args:
            ///     tenant: Whose. One that is not known has nothing to evict.
            ///     max_size: In characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: How much was evicted, in the same units.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type.
            ///     InvalidArgumentError: max_size is negative.
            fn evict_tenant(
                &self,
                py: Python<'_>,
                tenant: &Bound<'_, PyAny>,
                max_size: &Bound<'_, PyAny>,
            ) -> PyResult<usize> {
                let (tenant, most) = (name(tenant)?, size(max_size, "max_size")?);
                Ok(self.writers.write(py, true, || self.core.evict_tenant(tenant, most)))
            }

            /// evict_tenant() for every tenant that is larger than this.
            ///
            /// Args:
            ///     max_size: For each tenant, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: How much was evicted, in the same units.
            ///
            /// Raises:
            ///     InvalidTypeError: max_size is not an int.
            ///     InvalidArgumentError: max_size is negative.
            fn evict_tenant_by_size(&self, py: Python<'_>, max_size: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_size, "max_size")?;
                Ok(self.writers.write(py, true, || self.core.evict_tenant_by_size(most)))
            }

            /// Evicts leaves of all tenants, in the order of the policy, until all together are no larger than this.
            ///
            /// Args:
            ///     max_size: In characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: How much was evicted, in the same units.
            ///
            /// Raises:
            ///     InvalidTypeError: max_size is not an int.
            ///     InvalidArgumentError: max_size is negative.
            fn evict_to_size(&self, py: Python<'_>, max_size: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_size, "max_size")?;
                Ok(self.writers.write(py, true, || self.core.evict_to_size(most)))
            }

            /// Evicts leaves of all tenants, in the order of the policy, until the tree takes no more than these bytes.
            ///
            /// Args:
            ///     max_bytes: What bytes may be afterwards.
            ///
            /// Returns:
            ///     int: How much was evicted, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: max_bytes is not an int.
            ///     InvalidArgumentError: max_bytes is negative.
            fn evict_to_bytes(&self, py: Python<'_>, max_bytes: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_bytes, "max_bytes")?;
                Ok(self.writers.write(py, true, || self.core.evict_to_bytes(most)))
            }

            /// Evicts the node whose whole path has this hash, and everything below it: what another router says by
            /// eight bytes. A path that ends inside an edge is no node, and nobody's hash.
            ///
            /// Args:
            ///     path_hash: Of hash_node_path() or hash_token_path(); GLOBAL_EVICTION_HASH for everything.
            ///     tenant: For this tenant only; None for all.
            ///
            /// Returns:
            ///     int: How much was evicted, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type.
            ///     InvalidArgumentError: A hash out of range.
            #[pyo3(signature = (path_hash, tenant=None))]
            fn evict_by_path_hash(
                &self,
                py: Python<'_>,
                path_hash: &Bound<'_, PyAny>,
                tenant: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<usize> {
                let (hash, tenant) = (self::path_hash(path_hash)?, tenant.map(name).transpose()?);
                Ok(self.writers.write(py, true, || self.core.evict_by_path_hash(hash, tenant)))
            }

            /// A tenant is gone, with everything it has. One that is not known changes nothing. O(what it has).
            ///
            /// Returns:
            ///     int: Its size, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: tenant is not a str.
            fn remove_tenant(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                let tenant = name(tenant)?;
                Ok(self.writers.write(py, true, || self.core.remove_tenant(tenant)))
            }

            /// Forgets everything.
            fn clear(&self, py: Python<'_>) {
                self.writers.write(py, true, || self.core.clear());
            }

            /// Every node, those above before those below and siblings in the order of their first character or page.
            ///
            /// Made one by one, and not one moment's state: what changes meanwhile may be in it or not.
            ///
            /// Returns:
            ///     iterator of (path from the root, list of (tenant, when it last used the node) by name). Times are
            ///     a counter of this tree's.
            fn iter_entries(slf: &Bound<'_, Self>) -> $entries {
                let (tree, cursor) = (slf.clone().unbind(), Mutex::new(slf.get().core.entries()));
                $entries::new(move |py| {
                    let $name { core, writers } = tree.get();
                    writers.write(py, false, || cursor.lock().unwrap_or_else(PoisonError::into_inner).next(core))
                })
            }

            /// The tree as bytes: the same tree makes the same bytes. The budget is not in them.
            fn snapshot<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                let bytes = self.writers.write(py, true, || self.core.snapshot());
                PyBytes::new(py, &bytes)
            }

            /// pickle and copy, by a snapshot and the budget.
            fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<Reduced> {
                let py = slf.py();
                let state = PyDict::new(py);
                state.set_item("budget_bytes", slf.get().budget_bytes())?;
                let make = slf.get_type().getattr("from_snapshot")?.unbind();
                // A state in two parts is set by attributes.
                Ok((make, (slf.get().snapshot(py).unbind(),), (None, state.unbind())))
            }

            /// The tree that a snapshot was made of, with its policy and times.
            ///
            /// Args:
            ///     snapshot: What snapshot() gave: bytes, or anything that has them in one piece.
            ///     budget_bytes: As of the constructor.
            ///
            /// Returns:
            ///     A new tree.
            ///
            /// Raises:
            ///     InvalidTypeError: Not bytes, or budget_bytes is not an int.
            ///     InvalidArgumentError: Not a snapshot of such a tree, or damaged; budget_bytes is negative.
            #[classmethod]
            #[pyo3(signature = (snapshot, *, budget_bytes=None))]
            fn from_snapshot(
                _cls: &Bound<'_, PyType>,
                py: Python<'_>,
                snapshot: &Bound<'_, PyAny>,
                budget_bytes: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<Self> {
                let (bytes, budget) = (bytes(snapshot, "snapshot")?, budget(budget_bytes)?);
                let made = py.detach(|| <$core>::from_snapshot(&bytes).map(|core| Self::with(core, budget)));
                made.map_err(|error| refused(&error))
            }
        }
    };
}

pub(super) use tree;
