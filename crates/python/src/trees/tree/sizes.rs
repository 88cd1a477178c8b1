//! The methods common to `StringTree` and `TokenTree` about sizes, evictions and all nodes. `methods.rs` has lookups
//! and inserts.

/// Defines a class with the given methods and the methods about sizes, evictions and all nodes.
macro_rules! with_sizes {
    ($name:ident($core:ty, $entries:ident), sizes: $size:ident, $sizes:ident, $($methods:tt)*) => {
        #[pymethods]
        impl $name {
            $($methods)*

            /// The size of a tenant: the total length of its edges (pieces of text or tokens between two nodes). 0 for
            /// an unknown tenant.
            ///
            /// Returns:
            ///     int, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: tenant is not a str.
            fn $size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                self.tenant_size(py, tenant)
            }

            /// The size of a tenant, under a name common to StringTree and TokenTree.
            fn tenant_size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                let tenant = name(tenant)?;
                Ok(self.writers.write(py, false, || self.core.tenant_size(tenant)))
            }

            /// The size of every tenant, from counts updated with every change.
            ///
            /// Returns:
            ///     dict of tenant to size, sorted by name.
            fn $sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.tenant_sizes(py)
            }

            /// The size of every tenant, from counts updated with every change, under a name common to StringTree and
            /// TokenTree.
            fn tenant_sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let sizes = self.writers.write(py, false, || self.core.tenant_sizes());
                to_dict(py, &sizes)
            }

            /// The size of every tenant, counted by a walk over the whole tree. Equal to the counts updated with every
            /// change.
            ///
            /// Returns:
            ///     dict of tenant to size, sorted by name.
            fn get_used_size_per_tenant<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let sizes = self.writers.write(py, true, || self.core.recount());
                to_dict(py, &sizes)
            }

            /// int: The sum of the sizes of all tenants.
            #[getter]
            fn total_size(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.total_size())
            }

            /// int: The number of nodes of the tree, without the root.
            #[getter]
            fn node_count(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.node_count())
            }

            /// int: The memory of the tree in bytes.
            #[getter]
            fn bytes(&self, py: Python<'_>) -> usize {
                self.writers.write(py, false, || self.core.bytes())
            }

            /// Statistics of the tree's contents.
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

            /// The tenants that have any node of the tree.
            ///
            /// Returns:
            ///     list of str, sorted.
            fn tenants(&self, py: Python<'_>) -> Vec<String> {
                let tenants = self.writers.write(py, false, || self.core.tenants());
                tenants.iter().map(|tenant| tenant.as_ref().to_owned()).collect()
            }

            /// Evicts leaves of a tenant, in the order of the policy, until its size is at most max_size.
            ///
            /// Leaves are evicted whole. A leaf is a node of the tenant below which the tenant has no other node. O(log
            /// n) for each.
            ///
            /// Args:
            ///     tenant: The tenant. An unknown one has nothing to evict.
            ///     max_size: Maximum size, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: The size of the evicted leaves, in the same units.
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

            /// Evicts leaves of every tenant larger than max_size, like evict_tenant().
            ///
            /// Args:
            ///     max_size: Maximum size of each tenant, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: The size of the evicted leaves, in the same units.
            ///
            /// Raises:
            ///     InvalidTypeError: max_size is not an int.
            ///     InvalidArgumentError: max_size is negative.
            fn evict_tenant_by_size(&self, py: Python<'_>, max_size: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_size, "max_size")?;
                Ok(self.writers.write(py, true, || self.core.evict_tenant_by_size(most)))
            }

            /// Evicts leaves of all tenants, in the order of the policy, until their total size is at most max_size.
            ///
            /// Args:
            ///     max_size: Maximum total size, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Returns:
            ///     int: The size of the evicted leaves, in the same units.
            ///
            /// Raises:
            ///     InvalidTypeError: max_size is not an int.
            ///     InvalidArgumentError: max_size is negative.
            fn evict_to_size(&self, py: Python<'_>, max_size: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_size, "max_size")?;
                Ok(self.writers.write(py, true, || self.core.evict_to_size(most)))
            }

            /// Evicts leaves of all tenants, in the order of the policy, until the tree's memory is at most max_bytes.
            ///
            /// Args:
            ///     max_bytes: Maximum memory of the tree in bytes.
            ///
            /// Returns:
            ///     int: The size of the evicted leaves, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: max_bytes is not an int.
            ///     InvalidArgumentError: max_bytes is negative.
            fn evict_to_bytes(&self, py: Python<'_>, max_bytes: &Bound<'_, PyAny>) -> PyResult<usize> {
                let most = size(max_bytes, "max_bytes")?;
                Ok(self.writers.write(py, true, || self.core.evict_to_bytes(most)))
            }

            /// Evicts the node whose path from the root has a given hash, and all nodes below it. With the hash,
            /// another router can name a node in eight bytes. A path that ends inside an edge is not a node and has no
            /// hash.
            ///
            /// Args:
            ///     path_hash: Hash from hash_node_path() or hash_token_path(); GLOBAL_EVICTION_HASH for all nodes.
            ///     tenant: For this tenant only; None for all.
            ///
            /// Returns:
            ///     int: The size of the evicted nodes, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: An argument is of the wrong type.
            ///     InvalidArgumentError: path_hash is out of range.
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

            /// Removes a tenant with all its nodes. An unknown tenant changes nothing. O(nodes of the tenant).
            ///
            /// Returns:
            ///     int: The tenant's size, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: tenant is not a str.
            fn remove_tenant(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                let tenant = name(tenant)?;
                Ok(self.writers.write(py, true, || self.core.remove_tenant(tenant)))
            }

            /// Removes all tenants and nodes.
            fn clear(&self, py: Python<'_>) {
                self.writers.write(py, true, || self.core.clear());
            }

            /// Iterates over all nodes: parents before children, siblings in the order of their first character or
            /// page.
            ///
            /// Nodes are produced one by one, not as a snapshot: changes made meanwhile may or may not appear.
            ///
            /// Returns:
            ///     iterator of (path from the root, list of (tenant, time of its last use of the node), sorted by
            ///     name). Times are values of the tree's own counter.
            fn iter_entries(slf: &Bound<'_, Self>) -> $entries {
                let (tree, cursor) = (slf.clone().unbind(), Mutex::new(slf.get().core.entries()));
                $entries::new(move |py| {
                    let $name { core, writers } = tree.get();
                    writers.write(py, false, || cursor.lock().next(core))
                })
            }

            /// Writes the tree as bytes. Equal trees give equal bytes. The budget is not included.
            fn snapshot<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                let bytes = self.writers.write(py, true, || self.core.snapshot());
                PyBytes::new(py, &bytes)
            }

            /// Supports pickle and copy, by means of a snapshot and the budget.
            fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<PickleParts> {
                let py = slf.py();
                let state = PyDict::new(py);
                state.set_item("budget_bytes", slf.get().budget_bytes())?;
                let make = slf.get_type().getattr("from_snapshot")?.unbind();
                // A state in two parts is set by attributes.
                Ok((make, (slf.get().snapshot(py).unbind(),), (None, state.unbind())))
            }

            /// Restores a tree from a snapshot, with its policy and the times of last use.
            ///
            /// Args:
            ///     snapshot: Return value of snapshot(): bytes, or any contiguous buffer with the same bytes.
            ///     budget_bytes: Memory limit of the tree in bytes; None for no limit.
            ///
            /// Returns:
            ///     A new tree.
            ///
            /// Raises:
            ///     InvalidTypeError: snapshot is not bytes, or budget_bytes is not an int.
            ///     InvalidArgumentError: snapshot is not a snapshot of a tree of this class, or is damaged; or
            ///         budget_bytes is negative.
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

pub(super) use with_sizes;
