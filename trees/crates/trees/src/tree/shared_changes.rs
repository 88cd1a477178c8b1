//! Changes of a tree shared by threads: inserts (compared under the read lock, encoded without a lock, added under the
//! write lock), and evictions in slices without a lock between them.

use std::sync::atomic::Ordering::Relaxed;

use super::nodes::{Core, Descent, Piece, Run};
use super::path_hash::GLOBAL_EVICTION_HASH;
use super::shared::{NONE, START, SharedTree};
use super::units::Units;
use super::{PrefixMatch, TenantId};

/// Number of attempts to insert a prompt under the read lock before an attempt that holds the write lock throughout.
const TRIES: usize = 3;

impl<U: Units> SharedTree<U> {
    pub(crate) fn insert(&self, input: &[U::Item], tenant: &str, priority: i32) {
        self.insert_at(START, self.whole(input), tenant, priority);
    }

    pub(crate) fn match_and_insert_with<S: AsRef<str>, E>(
        &self,
        input: &[U::Item],
        select: impl FnOnce(&PrefixMatch) -> Result<Option<S>, E>,
    ) -> Result<PrefixMatch, E> {
        let (found, result) = self.match_at(input);
        if let Some(tenant) = select(&result)? {
            self.insert_at(found, self.whole(input), tenant.as_ref(), 0);
        }
        Ok(result)
    }

    /// Inserts an input (text or tokens) for a tenant, beginning at the place `found`, where a descent along the input
    /// has ended.
    fn insert_at(&self, mut found: Descent, input: &[U::Item], tenant: &str, priority: i32) {
        if input.is_empty() {
            return;
        }
        for _ in 0..TRIES {
            // Continues from `found`, or from the root if the node has changed.
            {
                let core = self.core.read();
                if !core.still(&found) {
                    found = START;
                }
                found = core.descend(found, input);
                if self.access_only(&core, &found, input, tenant, priority) {
                    return;
                }
            }
            let pieces = self.store(&input[found.items..]);
            let mut core = self.core.write();
            if core.still(&found) {
                self.splice(&mut core, found, &pieces, input, tenant, priority);
                return self.keep_budget(core);
            }
        }
        // Other threads were faster each time: now they wait.
        let mut core = self.core.write();
        let found = core.descend(START, input);
        let pieces = self.store(&input[found.items..]);
        self.splice(&mut core, found, &pieces, input, tenant, priority);
        self.keep_budget(core);
    }

    /// Records an access, which is all that an insert does if the tenant already holds exactly this input. Returns
    /// false, without a change, in any other case.
    fn access_only(&self, core: &Core<U>, found: &Descent, input: &[U::Item], tenant: &str, priority: i32) -> bool {
        if found.items < input.len() || core.policy.access_hastens() {
            return false;
        }
        let node = core.node(found.node);
        let Some(tenant) = core.tenants.number(tenant).filter(|_| found.within == node.items) else { return false };
        let Some(holder) = node.holders.get(tenant).filter(|h| h.priority >= priority) else { return false };
        holder.access(core.tick());
        true
    }

    pub(crate) fn store(&self, mut items: &[U::Item]) -> Vec<Piece<U::Buffer>> {
        let mut pieces = Vec::with_capacity(1);
        while !items.is_empty() {
            let piece = self.units.piece(items);
            let run = Run::new(self.units.store(piece), piece.len());
            pieces.push(Piece { run, items: piece.len(), units: self.units.count(piece) });
            items = &items[piece.len()..];
        }
        pieces
    }

    /// Adds the part of the input after `found` to the tree, given as the prepared runs `pieces`, and attaches the
    /// tenant to the path.
    pub(crate) fn splice(
        &self,
        core: &mut Core<U>,
        found: Descent,
        pieces: &[Piece<U::Buffer>],
        input: &[U::Item],
        tenant: &str,
        priority: i32,
    ) {
        // Other threads may have added some of it below the same node meanwhile.
        let begun = found.items;
        let found = core.descend(found, input);
        let mut node = core.boundary(&found);
        let mut done = found.items;
        let mut start = begun;
        for piece in pieces {
            let end = start + piece.items;
            if done < end {
                let skipped = done - start;
                let items = &input[done..end];
                let (from, units) = if skipped == 0 {
                    (0, piece.units)
                } else {
                    (self.units.seek(&piece.run.buffer, 0, skipped), self.units.count(items))
                };
                node = core.grow(node, self.units.key(items), piece, from, items.len(), units);
                done = end;
            }
            start = end;
        }
        let tenant = core.tenants.intern(tenant);
        let tick = core.tick();
        core.attach(node, tenant, tick);
        core.end_insert(node, tenant, tick, priority);
    }
}

/// Maximum number of leaves evicted at once, before other threads get the tree's lock.
const SLICE: usize = 512;

impl<U: Units> SharedTree<U> {
    pub(crate) fn evict_tenant(&self, tenant: &str, most: usize) -> usize {
        let mut evicted = 0;
        loop {
            let mut core = self.core.write();
            let Some(number) = core.tenants.number(tenant) else { return evicted };
            let units = core.evict_tenant(number, most, SLICE);
            core.shrink();
            evicted += units;
            if units == 0 {
                return evicted;
            }
        }
    }

    pub(crate) fn evict_each(&self, most: usize) -> usize {
        let above: Vec<TenantId> = self
            .with(|core| core.tenants.numbers().filter(|(_, t)| t.units > most).map(|(_, t)| t.name.clone()).collect());
        above.iter().map(|tenant| self.evict_tenant(tenant, most)).sum()
    }

    fn evict_until(&self, done: impl Fn(&Core<U>) -> bool) -> usize {
        let mut evicted = 0;
        loop {
            let mut core = self.core.write();
            let units = core.evict_until(SLICE, &done);
            core.shrink();
            evicted += units;
            if units == 0 {
                return evicted;
            }
        }
    }

    pub(crate) fn evict_to_size(&self, most: usize) -> usize {
        self.evict_until(|core| core.units <= most)
    }

    pub(crate) fn evict_to_bytes(&self, most: usize) -> usize {
        let most = most.saturating_sub(self.units.shared_bytes());
        self.evict_until(|core| core.bytes() <= most)
    }

    pub(crate) fn set_budget(&self, bytes: Option<usize>) {
        self.units.limit_bytes(bytes);
        self.budget.store(bytes.unwrap_or(NONE), Relaxed);
        if let Some(bytes) = bytes {
            self.evict_to_bytes(bytes);
        }
    }

    pub(crate) fn budget(&self) -> Option<usize> {
        Some(self.budget.load(Relaxed)).filter(|&b| b != NONE)
    }

    /// Enforces the memory limit at the end of an insert. Beyond the limit, evicts somewhat more than the excess, so
    /// that not every following insert has to evict.
    pub(crate) fn keep_budget(&self, core: parking_lot::RwLockWriteGuard<'_, Core<U>>) {
        let budget = self.budget.load(Relaxed);
        let stored = core.bytes();
        drop(core);
        if budget != NONE && stored + self.units.shared_bytes() > budget {
            self.evict_to_bytes(budget - budget / 32);
        }
    }

    pub(crate) fn clear(&self) {
        let mut core = self.core.write();
        let ticks = core.ticks.load(Relaxed);
        let empty = Core::new(self.units.clone(), core.policy);
        let old = std::mem::replace(&mut *core, empty);
        core.ticks.store(ticks, Relaxed);
        core.births_from(&old);
        drop(core);
        drop(old);
    }

    /// Evicts the node with the given path hash and all nodes below it, for one tenant or, if `None`, for all.
    pub(crate) fn evict_path(&self, hash: u64, tenant: Option<&str>) -> usize {
        if hash == GLOBAL_EVICTION_HASH {
            return match tenant {
                Some(tenant) => self.evict_tenant(tenant, 0),
                None => {
                    let units = self.total();
                    self.clear();
                    units
                }
            };
        }
        loop {
            // The search takes long, and needs only the read lock.
            let Some((node, birth)) = self.core.read().find_hash(hash) else { return 0 };
            let mut core = self.core.write();
            let Some(found) = core.try_node(node).filter(|n| n.birth == birth) else { continue };
            let tenants: Vec<u32> = match tenant {
                Some(tenant) => core.tenants.number(tenant).into_iter().collect(),
                None => found.holders.iter().map(|h| h.tenant).collect(),
            };
            let gone = tenants.into_iter().map(|t| core.detach_below(node, t)).sum();
            core.shrink();
            return gone;
        }
    }
}
