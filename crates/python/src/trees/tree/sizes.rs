//! The methods of both classes about sizes, evictions and all nodes. `methods.rs` has those that ask and insert.

/// Defines the methods given, and those about sizes, evictions and all nodes.
macro_rules! with_sizes {
    ($name:ident($core:ty, $entries:ident), sizes: $size:ident, $sizes:ident, $($methods:tt)*) => {
        #[pymethods]
        impl $name {
            $($methods)*

            /// The size of a tenant: the total length of the edges that it is on. 0 for an unknown tenant.
            ///
            /// Returns:
            ///     int, in characters of a StringTree, in tokens of a TokenTree.
            ///
            /// Raises:
            ///     InvalidTypeError: tenant is not a str.
            fn $size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                self.tenant_size(py, tenant)
            }

            /// The size of a tenant, under the name that both trees have.
            fn tenant_size(&self, py: Python<'_>, tenant: &Bound<'_, PyAny>) -> PyResult<usize> {
                let tenant = name(tenant)?;
                Ok(self.writers.write(py, false, || self.core.tenant_size(tenant)))
            }

            /// The size of every tenant, from running counts.
            ///
            /// Returns:
            ///     dict of tenant to size, sorted by name.
            fn $sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.tenant_sizes(py)
            }

            /// The size of every tenant, from running counts, under the name that both trees have.
            fn tenant_sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let sizes = self.writers.write(py, false, || self.core.tenant_sizes());
                to_dict(py, &sizes)
            }

            /// The size of every tenant, counted by a walk of the whole tree. Equal to the running counts.
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

            /// Statistics of the contents.
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
            /// Leaves are evicted whole. A leaf is a node of the tenant below which it has no other. O(log n) for each.
            ///
            /// Args:
            ///     tenant: The tenant. An unknown one has nothing to evict.
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

            /// Does evict_tenant() for every tenant that is larger than this.
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

            /// Evicts leaves of all tenants, in the order of the policy, until the tree takes no more bytes than this.
            ///
            /// Args:
            ///     max_bytes: The largest allowed size in bytes.
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

            /// Evicts the node whose whole path has this hash, and everything below it. So another router can name a
            /// node in eight bytes. A path that ends inside an edge is not a node and has no hash.
            ///
            /// Args:
            ///     path_hash: From hash_node_path() or hash_token_path(); GLOBAL_EVICTION_HASH for everything.
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

            /// Removes a tenant with all its nodes. An unknown tenant changes nothing. O(its nodes).
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

            /// Removes everything.
            fn clear(&self, py: Python<'_>) {
                self.writers.write(py, true, || self.core.clear());
            }

            /// Every node: parents before children, siblings in the order of their first character or page.
            ///
            /// Nodes are produced one by one, not as a snapshot: changes made meanwhile may or may not appear.
            ///
            /// Returns:
            ///     iterator of (path from the root, list of (tenant, when it last used the node) by name). Times are
            ///     values of the tree's own counter.
            fn iter_entries(slf: &Bound<'_, Self>) -> $entries {
                let (tree, cursor) = (slf.clone().unbind(), Mutex::new(slf.get().core.entries()));
                $entries::new(move |py| {
                    let $name { core, writers } = tree.get();
                    writers.write(py, false, || cursor.lock().next(core))
                })
            }

            /// Writes the tree as bytes. The same tree gives the same bytes. The budget is not included.
            fn snapshot<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                let bytes = self.writers.write(py, true, || self.core.snapshot());
                PyBytes::new(py, &bytes)
            }

            /// Supports pickle and copy, by a snapshot and the budget.
            fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<PickleParts> {
                let py = slf.py();
                let state = PyDict::new(py);
                state.set_item("budget_bytes", slf.get().budget_bytes())?;
                let make = slf.get_type().getattr("from_snapshot")?.unbind();
                // A state in two parts is set by attributes.
                Ok((make, (slf.get().snapshot(py).unbind(),), (None, state.unbind())))
            }

            /// Restores a tree from a snapshot, with its policy and times.
            ///
            /// Args:
            ///     snapshot: What snapshot() returned: bytes, or any contiguous buffer with the same bytes.
            ///     budget_bytes: As in the constructor.
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

pub(super) use with_sizes;
