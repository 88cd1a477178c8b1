//! The methods common to both trees, as a macro.

/// Defines a tree. Arguments: its docs, name, units, key, owned key, conversions between keys and items, the names of
/// its inserts, and its kind in snapshots.
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

        /// A position in an iteration of a tree, for callers that cannot keep the tree borrowed.
        pub struct EntryCursor(Cursor<<$units as super::tree::Units>::Item>);

        impl EntryCursor {
            /// The next node of the tree that made the cursor; `None` at the end.
            pub fn next(&mut self, tree: &$name) -> Option<Entry<$owned>> {
                self.0.next(&tree.tree).map(|entry| Entry { path: ($own)(entry.path), tenants: entry.tenants })
            }
        }

        impl $name {
            /// Inserts `key` for `tenant`, which counts as an access. A key shorter than one unit (page) has no effect.
            ///
            /// O(length of the key); the tree is locked only to splice new parts.
            pub fn $insert(&self, key: &$key, tenant: &str) {
                self.$insert_with_priority(key, tenant, 0);
            }

            /// Inserts with a priority: a node's priority is the largest of its tenant's inserts through it. Only
            /// [`EvictionPolicy::Priority`] uses it.
            pub fn $insert_with_priority(&self, key: &$key, tenant: &str, priority: i32) {
                let $arg = key;
                self.tree.insert($items, tenant, priority);
            }

            /// The tenant with the longest prefix of `key`, `None` iff nothing matches. Among several holders of the
            /// deepest node, the one that has held it longest: hits stay with one tenant, and unused copies age. The
            /// match counts as an access of the tenant.
            #[must_use]
            pub fn prefix_match(&self, key: &$key) -> Option<TenantId> {
                let $arg = key;
                self.tree.prefix($items).1
            }

            /// The same as [`prefix_match`](Self::prefix_match), with the lengths.
            #[must_use]
            pub fn match_prefix_with_counts(&self, key: &$key) -> PrefixMatch {
                let $arg = key;
                self.tree.match_prefix($items)
            }

            /// Matches, then inserts for `tenant`, in one descent. Returns the match before the insert.
            pub fn match_and_insert(&self, key: &$key, tenant: &str) -> PrefixMatch {
                self.match_and_insert_with(key, |_| Some(tenant))
            }

            /// Matches, then inserts for the tenant that `select` returns, if any, in one descent. `select` is called
            /// once, without a lock: it may block, and use the tree.
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

            /// The same as [`match_and_insert_with`](Self::match_and_insert_with), with a `select` that may fail.
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

            /// The depth to which `tenant` holds `key`, in units. Counts as an access of the tenant if the depth is
            /// above 0.
            #[must_use]
            pub fn prefix_match_tenant(&self, key: &$key, tenant: &str) -> usize {
                let $arg = key;
                self.tree.match_tenant($items, tenant)
            }

            /// The depth to which each tenant holds `key`, in units: deepest first, equal depths by name, without
            /// tenants of depth 0. Does not count as an access.
            #[must_use]
            pub fn match_all(&self, key: &$key) -> Vec<(TenantId, usize)> {
                let $arg = key;
                self.tree.match_all($items)
            }

            /// Number of units that `tenant` holds. O(1).
            #[must_use]
            pub fn tenant_size(&self, tenant: &str) -> usize {
                self.tree.size(tenant)
            }

            /// Number of units that each tenant holds, by name.
            #[must_use]
            pub fn tenant_sizes(&self) -> Vec<(TenantId, usize)> {
                self.tree.sizes()
            }

            /// Number of units that each tenant holds, by name, recounted in a walk of the whole tree, for tests.
            #[must_use]
            pub fn recount(&self) -> Vec<(TenantId, usize)> {
                self.tree.recount()
            }

            /// Number of units held by all tenants together.
            #[must_use]
            pub fn total_size(&self) -> usize {
                self.tree.total()
            }

            /// The tenants that hold at least one unit, by name.
            #[must_use]
            pub fn tenants(&self) -> Vec<TenantId> {
                self.tree.sizes().into_iter().map(|(name, _)| name).collect()
            }

            /// Number of tenants that hold at least one unit.
            #[must_use]
            pub fn tenant_count(&self) -> usize {
                self.tree.tenant_count()
            }

            /// True if a tenant holds at least one unit.
            #[must_use]
            pub fn contains_tenant(&self, tenant: &str) -> bool {
                self.tree.contains_tenant(tenant)
            }

            /// Number of nodes, without the root.
            #[must_use]
            pub fn node_count(&self) -> usize {
                self.tree.node_count()
            }

            /// Memory of the tree in bytes, by its own count, without the allocator's overhead.
            #[must_use]
            pub fn bytes(&self) -> usize {
                self.tree.bytes()
            }

            /// The policy of evictions.
            #[must_use]
            pub fn eviction_policy(&self) -> EvictionPolicy {
                self.tree.policy()
            }

            /// Evicts whole leaves of `tenant` by the policy until the tenant holds at most `max_units`. Returns the
            /// units evicted.
            ///
            /// O(log n) per evicted leaf and per access since the previous eviction. Other threads get the lock between
            /// slices of a long eviction.
            pub fn evict_tenant(&self, tenant: &str, max_units: usize) -> usize {
                self.tree.evict_tenant(tenant, max_units)
            }

            /// Evicts whole leaves, as [`evict_tenant`](Self::evict_tenant) does, of every tenant that holds more than
            /// `max_units`.
            pub fn evict_tenant_by_size(&self, max_units: usize) -> usize {
                self.tree.evict_each(max_units)
            }

            /// Evicts leaves of any tenants, the first by the policy, until all tenants together hold at most
            /// `max_units`. Returns the units evicted.
            pub fn evict_to_size(&self, max_units: usize) -> usize {
                self.tree.evict_to_size(max_units)
            }

            /// Evicts leaves in the same order until [`bytes`](Self::bytes) is at most `max_bytes`, or the tree is
            /// empty.
            pub fn evict_to_bytes(&self, max_bytes: usize) -> usize {
                self.tree.evict_to_bytes(max_bytes)
            }

            /// Limits [`bytes`](Self::bytes): at once, and after each insert beyond the limit, which then evicts down
            /// to 31/32 of it.
            pub fn set_budget_bytes(&self, bytes: Option<usize>) {
                self.tree.set_budget(bytes);
            }

            /// The limit of [`bytes`](Self::bytes).
            #[must_use]
            pub fn budget_bytes(&self) -> Option<usize> {
                self.tree.budget()
            }

            /// Evicts the node whose whole path has this hash, and all below it, for one tenant or for all. Returns the
            /// units evicted, 0 if no node ends there. [`GLOBAL_EVICTION_HASH`](super::GLOBAL_EVICTION_HASH) stands for
            /// everything held.
            ///
            /// O(bytes stored), in a walk that does not block matches.
            pub fn evict_by_path_hash(&self, hash: u64, tenant: Option<&str>) -> usize {
                self.tree.evict_path(hash, tenant)
            }

            /// Removes a tenant and everything it holds. Returns the units that it held. O(n log n) for its n nodes.
            pub fn remove_tenant(&self, tenant: &str) -> usize {
                self.tree.evict_tenant(tenant, 0)
            }

            /// Removes everything.
            pub fn clear(&self) {
                self.tree.clear();
            }

            /// All nodes, each before its children, siblings ordered by their first unit (page). Each entry is exact at
            /// the moment it is returned; nodes added or evicted meanwhile may or may not be included.
            pub fn iter_entries(&self) -> impl Iterator<Item = Entry<$owned>> + '_ {
                let mut cursor = self.entries();
                std::iter::from_fn(move || cursor.next(self))
            }

            /// A cursor over the same nodes as [`iter_entries`](Self::iter_entries), for callers that cannot keep the
            /// tree borrowed.
            #[must_use]
            pub fn entries(&self) -> EntryCursor {
                EntryCursor(Cursor::new())
            }

            /// A snapshot of the tree: equal trees give equal bytes. The budget is not included.
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
