//! The methods both trees have, written once.

/// Defines a tree: its docs, name, units, key, owned key, the ways from a key to items and from items to a key, the
/// names of its inserts, and its kind in snapshots.
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

        /// A place in an iteration of a tree, for callers that cannot keep the tree borrowed.
        pub struct EntryCursor(Cursor<<$units as super::tree::Units>::Item>);

        impl EntryCursor {
            /// The next node of the tree this came from; `None` at the end.
            pub fn next(&mut self, tree: &$name) -> Option<Entry<$owned>> {
                self.0.next(&tree.tree).map(|entry| Entry { path: ($own)(entry.path), tenants: entry.tenants })
            }
        }

        impl $name {
            /// Puts `key` in the tree for `tenant`, as an access. Nothing happens for a key without a whole unit
            /// (page).
            ///
            /// O(length of the key); the tree is locked only to splice what is new.
            pub fn $insert(&self, key: &$key, tenant: &str) {
                self.$insert_with_priority(key, tenant, 0);
            }

            /// Does the same with a priority: that of a node is the largest of its tenant's inserts that went through
            /// it. Only [`EvictionPolicy::Priority`] asks for it.
            pub fn $insert_with_priority(&self, key: &$key, tenant: &str, priority: i32) {
                let $arg = key;
                self.tree.insert($items, tenant, priority);
            }

            /// Returns the tenant with the longest prefix of `key`, `None` iff nothing matches. Of several that hold
            /// the deepest node, it is the one that has held it longest: hits stay where they are, and copies nobody is
            /// sent to age. This is an access of that tenant.
            #[must_use]
            pub fn prefix_match(&self, key: &$key) -> Option<TenantId> {
                let $arg = key;
                self.tree.prefix($items).1
            }

            /// Does the same as [`prefix_match`](Self::prefix_match), and returns the lengths as well.
            #[must_use]
            pub fn match_prefix_with_counts(&self, key: &$key) -> PrefixMatch {
                let $arg = key;
                self.tree.match_prefix($items)
            }

            /// Matches, then inserts for `tenant`, in one descent. Returns the match as of before the insert.
            pub fn match_and_insert(&self, key: &$key, tenant: &str) -> PrefixMatch {
                self.match_and_insert_with(key, |_| Some(tenant))
            }

            /// Matches, then inserts for the tenant that `select` names, if any, in one descent. `select` is called
            /// once, while no lock is held: it may take its time, and call the tree.
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

            /// Does the same as [`match_and_insert_with`](Self::match_and_insert_with), with a `select` that may fail.
            ///
            /// # Errors
            /// The error that `select` returns; then nothing is inserted.
            pub fn try_match_and_insert_with<S: AsRef<str>, E>(
                &self,
                key: &$key,
                select: impl FnOnce(&PrefixMatch) -> Result<Option<S>, E>,
            ) -> Result<PrefixMatch, E> {
                let $arg = key;
                self.tree.match_and_insert_with($items, select)
            }

            /// The depth to which `tenant` holds `key`, in units. This is an access of the tenant if it holds any.
            #[must_use]
            pub fn prefix_match_tenant(&self, key: &$key, tenant: &str) -> usize {
                let $arg = key;
                self.tree.match_tenant($items, tenant)
            }

            /// The depth to which each tenant holds `key`, in units: the deepest first, equal depths by name; those
            /// that hold nothing of it are left out. This is no access of anybody.
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

            /// Number of units that each tenant holds, by name, counted anew by a walk of the whole tree: for tests.
            #[must_use]
            pub fn recount(&self) -> Vec<(TenantId, usize)> {
                self.tree.recount()
            }

            /// Number of units held by all tenants together.
            #[must_use]
            pub fn total_size(&self) -> usize {
                self.tree.total()
            }

            /// The tenants that hold something, by name.
            #[must_use]
            pub fn tenants(&self) -> Vec<TenantId> {
                self.tree.sizes().into_iter().map(|(name, _)| name).collect()
            }

            /// Number of tenants that hold something.
            #[must_use]
            pub fn tenant_count(&self) -> usize {
                self.tree.tenant_count()
            }

            /// True if a tenant holds something.
            #[must_use]
            pub fn contains_tenant(&self, tenant: &str) -> bool {
                self.tree.contains_tenant(tenant)
            }

            /// Number of nodes, the root not counted.
            #[must_use]
            pub fn node_count(&self) -> usize {
                self.tree.node_count()
            }

            /// Number of bytes of memory the tree holds, as it counts them itself: what the allocator adds is not known
            /// to it.
            #[must_use]
            pub fn bytes(&self) -> usize {
                self.tree.bytes()
            }

            /// The policy evictions follow.
            #[must_use]
            pub fn eviction_policy(&self) -> EvictionPolicy {
                self.tree.policy()
            }

            /// Evicts whole leaves of `tenant` by the policy until the tenant holds at most `max_units`. Returns the
            /// units evicted.
            ///
            /// O(log n) for each leaf evicted and each access since the eviction before. Others get their turn between
            /// slices of a long eviction.
            pub fn evict_tenant(&self, tenant: &str, max_units: usize) -> usize {
                self.tree.evict_tenant(tenant, max_units)
            }

            /// Evicts whole leaves, as [`evict_tenant`](Self::evict_tenant) does, of every tenant that holds more than
            /// `max_units`.
            pub fn evict_tenant_by_size(&self, max_units: usize) -> usize {
                self.tree.evict_each(max_units)
            }

            /// Evicts leaves, of whichever tenants have the first by the policy, until all tenants together hold at
            /// most `max_units`. Returns the units evicted.
            pub fn evict_to_size(&self, max_units: usize) -> usize {
                self.tree.evict_to_size(max_units)
            }

            /// Evicts leaves in the same order until [`bytes`](Self::bytes) is at most `max_bytes`, or the tree is
            /// empty.
            pub fn evict_to_bytes(&self, max_bytes: usize) -> usize {
                self.tree.evict_to_bytes(max_bytes)
            }

            /// Limits [`bytes`](Self::bytes): at once, and at the end of each insert that goes over the limit, which
            /// then evicts down to 31/32 of it.
            pub fn set_budget_bytes(&self, bytes: Option<usize>) {
                self.tree.set_budget(bytes);
            }

            /// The limit of [`bytes`](Self::bytes).
            #[must_use]
            pub fn budget_bytes(&self) -> Option<usize> {
                self.tree.budget()
            }

            /// Evicts the node whose whole path has this hash, and all below it, for a tenant or for everybody. Returns
            /// the units evicted, 0 if no node ends there. [`GLOBAL_EVICTION_HASH`](super::GLOBAL_EVICTION_HASH) names
            /// all the tenant or everybody holds.
            ///
            /// O(bytes stored), in a walk beside which matches go on.
            pub fn evict_by_path_hash(&self, hash: u64, tenant: Option<&str>) -> usize {
                self.tree.evict_path(hash, tenant)
            }

            /// Takes everything from a tenant, and forgets it. Returns the units that it held. O(n log n) for its n
            /// nodes.
            pub fn remove_tenant(&self, tenant: &str) -> usize {
                self.tree.evict_tenant(tenant, 0)
            }

            /// Empties the tree.
            pub fn clear(&self) {
                self.tree.clear();
            }

            /// All nodes, each before its children, siblings by their first unit (page). Each entry is right at the
            /// moment it is given; nodes that others add or evict meanwhile may or may not be there.
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

            /// The tree as bytes: the same tree gives the same bytes. The budget is not part of it.
            #[must_use]
            pub fn snapshot(&self) -> Vec<u8> {
                self.tree.snapshot()
            }

            /// Restores the tree of a snapshot.
            ///
            /// # Errors
            /// [`TreeError::Snapshot`] if these are not the bytes of one.
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
