//! Methods common to `StringTree` and `TokenTree`, defined once by a macro.

/// Defines a tree type with its methods. Arguments: its docs, name, units, key type, owned key type, conversions
/// between keys and items, the names of its insert methods, and its kind in snapshots.
macro_rules! tree_methods {
    (
        $(#[$docs:meta])*
        $name:ident, $units:ty, $key:ty, $owned:ty, |$arg:ident| $items:expr, $own:expr,
        $insert:ident, $insert_with_priority:ident, $kind:expr
    ) => {
        $(#[$docs])*
        pub struct $name {
            tree: SharedTree<$units>,
        }

        /// Position of an iteration over a tree, for callers that cannot keep the tree borrowed.
        pub struct EntryCursor(Cursor<<$units as super::tree::Units>::Item>);

        impl EntryCursor {
            /// Returns the next node of the tree for which the cursor was created; `None` at the end.
            pub fn next(&mut self, tree: &$name) -> Option<Entry<$owned>> {
                self.0.next(&tree.tree).map(|entry| Entry { path: ($own)(entry.path), tenants: entry.tenants })
            }
        }

        impl $name {
            /// Records that the tenant `tenant` has the prompt `key`, which counts as an access. A key shorter than one
            /// unit (page) has no effect.
            ///
            /// O(length of the key); the tree is locked only to add new parts.
            pub fn $insert(&self, key: &$key, tenant: &str) {
                self.$insert_with_priority(key, tenant, 0);
            }

            /// Inserts a prompt with a priority. A node's priority is the largest of its tenant's inserts through it.
            /// Only [`EvictionPolicy::Priority`] uses priorities.
            pub fn $insert_with_priority(&self, key: &$key, tenant: &str, priority: i32) {
                let $arg = key;
                self.tree.insert($items, tenant, priority);
            }

            /// Finds the tenant with the longest prefix of `key`; `None` if nothing matches.
            ///
            /// Among several holders of the deepest node, the one that has held it longest is returned: hits stay with
            /// one tenant, and unused copies age. The match counts as an access of the tenant.
            #[must_use]
            pub fn prefix_match(&self, key: &$key) -> Option<TenantId> {
                let $arg = key;
                self.tree.prefix($items).1
            }

            /// Finds the tenant with the longest prefix like [`prefix_match`](Self::prefix_match), and the lengths of
            /// prefix and key.
            #[must_use]
            pub fn match_prefix_with_counts(&self, key: &$key) -> PrefixMatch {
                let $arg = key;
                self.tree.match_prefix($items)
            }

            /// Finds the longest prefix of `key`, then inserts `key` for `tenant`, in one descent. Returns the match
            /// before the insert.
            pub fn match_and_insert(&self, key: &$key, tenant: &str) -> PrefixMatch {
                self.match_and_insert_with(key, |_| Some(tenant))
            }

            /// Finds the longest prefix of `key`, then inserts `key` for the tenant that `select` returns, if any, in
            /// one descent. `select` is called once, without a lock: it may block, and use the tree.
            pub fn match_and_insert_with<S: AsRef<str>>(
                &self,
                key: &$key,
                select: impl FnOnce(&PrefixMatch) -> Option<S>,
            ) -> PrefixMatch {
                let done = self.try_match_and_insert_with(key, |found| Ok::<_, std::convert::Infallible>(select(found)));
                match done {
                    Ok(found) => found,
                    Err(never) => match never {},
                }
            }

            /// Matches and inserts like [`match_and_insert_with`](Self::match_and_insert_with), with a `select` that
            /// may fail.
            ///
            /// # Errors
            /// The error of `select`; then nothing is inserted.
            pub fn try_match_and_insert_with<S: AsRef<str>, E>(
                &self,
                key: &$key,
                select: impl FnOnce(&PrefixMatch) -> Result<Option<S>, E>,
            ) -> Result<PrefixMatch, E> {
                let $arg = key;
                self.tree.match_and_insert_with($items, select)
            }

            /// Depth to which `tenant` holds `key`, in units (characters or tokens). Counts as an access of the tenant
            /// if the depth is above 0.
            #[must_use]
            pub fn prefix_match_tenant(&self, key: &$key, tenant: &str) -> usize {
                let $arg = key;
                self.tree.match_tenant($items, tenant)
            }

            /// Depth to which each tenant holds `key`, in units (characters or tokens): deepest first, equal depths by
            /// name, without tenants of depth 0. Does not count as an access.
            #[must_use]
            pub fn match_all(&self, key: &$key) -> Vec<(TenantId, usize)> {
                let $arg = key;
                self.tree.match_all($items)
            }

            /// Number of units (characters or tokens) that `tenant` holds. O(1).
            #[must_use]
            pub fn tenant_size(&self, tenant: &str) -> usize {
                self.tree.size(tenant)
            }

            /// Number of units (characters or tokens) that each tenant holds, sorted by name.
            #[must_use]
            pub fn tenant_sizes(&self) -> Vec<(TenantId, usize)> {
                self.tree.sizes()
            }

            /// Number of units (characters or tokens) that each tenant holds, sorted by name, counted by a walk over
            /// the whole tree, for tests.
            #[must_use]
            pub fn recount(&self) -> Vec<(TenantId, usize)> {
                self.tree.recount()
            }

            /// Sum of the units (characters or tokens) held by all tenants.
            #[must_use]
            pub fn total_size(&self) -> usize {
                self.tree.total()
            }

            /// Names of the tenants that hold at least one node, sorted.
            #[must_use]
            pub fn tenants(&self) -> Vec<TenantId> {
                self.tree.sizes().into_iter().map(|(name, _)| name).collect()
            }

            /// Number of tenants that hold at least one node.
            #[must_use]
            pub fn tenant_count(&self) -> usize {
                self.tree.tenant_count()
            }

            /// True if a tenant holds at least one node.
            #[must_use]
            pub fn contains_tenant(&self, tenant: &str) -> bool {
                self.tree.contains_tenant(tenant)
            }

            /// Number of nodes in the tree, without the root.
            #[must_use]
            pub fn node_count(&self) -> usize {
                self.tree.node_count()
            }

            /// Memory of the tree in bytes, by its own count, without the allocator's overhead.
            #[must_use]
            pub fn bytes(&self) -> usize {
                self.tree.bytes()
            }

            /// Policy that decides which of the leaves, the ends of stored prompts, are evicted first.
            #[must_use]
            pub fn eviction_policy(&self) -> EvictionPolicy {
                self.tree.policy()
            }

            /// Evicts whole leaves of `tenant` in the order of the policy until the tenant holds at most `max_units`
            /// units (characters or tokens). Returns the number of units evicted.
            ///
            /// O(log n) per evicted leaf and per access since the previous eviction. Other threads get the lock between
            /// slices of a long eviction.
            pub fn evict_tenant(&self, tenant: &str, max_units: usize) -> usize {
                self.tree.evict_tenant(tenant, max_units)
            }

            /// Evicts whole leaves, like [`evict_tenant`](Self::evict_tenant), of every tenant that holds more than
            /// `max_units` units (characters or tokens). Returns the number of units evicted.
            pub fn evict_tenant_by_size(&self, max_units: usize) -> usize {
                self.tree.evict_each(max_units)
            }

            /// Evicts leaves of all tenants, in the order of the policy, until the tenants together hold at most
            /// `max_units` units (characters or tokens). Returns the number of units evicted.
            pub fn evict_to_size(&self, max_units: usize) -> usize {
                self.tree.evict_to_size(max_units)
            }

            /// Evicts leaves of all tenants, in the order of the policy, until [`bytes`](Self::bytes) is at most
            /// `max_bytes`, or the tree is empty. Returns the number of units evicted.
            pub fn evict_to_bytes(&self, max_bytes: usize) -> usize {
                self.tree.evict_to_bytes(max_bytes)
            }

            /// Sets the limit of [`bytes`](Self::bytes), which is enforced at once and after each insert. An insert
            /// beyond the limit evicts down to 31/32 of it. `None` for no limit.
            pub fn set_budget_bytes(&self, bytes: Option<usize>) {
                self.tree.set_budget(bytes);
            }

            /// Limit of the tree's memory, [`bytes`](Self::bytes); `None` for no limit.
            #[must_use]
            pub fn budget_bytes(&self) -> Option<usize> {
                self.tree.budget()
            }

            /// Evicts the node whose path from the root has the given hash, and all nodes below it, for one tenant or,
            /// if `None`, for all.
            ///
            /// Returns the number of units evicted, 0 if no node has the hash.
            /// [`GLOBAL_EVICTION_HASH`](super::GLOBAL_EVICTION_HASH) stands for all nodes. O(bytes stored), in a walk
            /// that does not block matches.
            pub fn evict_by_path_hash(&self, hash: u64, tenant: Option<&str>) -> usize {
                self.tree.evict_path(hash, tenant)
            }

            /// Removes a tenant from all its nodes. Returns the number of units (characters or tokens) that the tenant
            /// held. O(n log n) for n nodes.
            pub fn remove_tenant(&self, tenant: &str) -> usize {
                self.tree.evict_tenant(tenant, 0)
            }

            /// Removes all tenants and nodes from the tree.
            pub fn clear(&self) {
                self.tree.clear();
            }

            /// Iterates over all nodes, each before its children, siblings ordered by their first character or page.
            /// Each entry is exact at the moment when it is returned; nodes added or evicted meanwhile may or may not
            /// be included.
            pub fn iter_entries(&self) -> impl Iterator<Item = Entry<$owned>> + '_ {
                let mut cursor = self.entries();
                std::iter::from_fn(move || cursor.next(self))
            }

            /// Creates a cursor over the same nodes as [`iter_entries`](Self::iter_entries), for callers that cannot
            /// keep the tree borrowed.
            #[must_use]
            pub fn entries(&self) -> EntryCursor {
                EntryCursor(Cursor::new())
            }

            /// Writes the tree as bytes, for [`from_snapshot`](Self::from_snapshot). Equal trees give equal bytes. The
            /// memory limit is not included.
            #[must_use]
            pub fn snapshot(&self) -> Vec<u8> {
                self.tree.snapshot()
            }

            /// Restores a tree from a snapshot.
            ///
            /// # Errors
            /// [`TreeError::Snapshot`] if the bytes are not a valid snapshot.
            pub fn from_snapshot(bytes: &[u8]) -> Result<Self, TreeError> {
                let header = snapshot_header(bytes, $kind)?;
                Ok(Self { tree: SharedTree::restore(Self::units(header.page)?, &header)? })
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("tenants", &self.tenant_count())
                    .field("nodes", &self.node_count())
                    .field("units", &self.total_size())
                    .field("policy", &self.eviction_policy())
                    .finish_non_exhaustive()
            }
        }
    };
}
