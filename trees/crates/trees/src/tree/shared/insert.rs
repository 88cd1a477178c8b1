//! Inserts: compared under the read lock, stored under none, spliced under the write lock.

use super::tree::SharedTree;
use crate::tree::core::{Core, Descent, Piece, Run, START};
use crate::tree::types::PrefixMatch;
use crate::tree::units::Units;

/// Number of descents without the write lock before one with it.
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

    /// Inserts, starting from the place where a descent has ended.
    fn insert_at(&self, mut found: Descent, input: &[U::Item], tenant: &str, priority: i32) {
        if input.is_empty() {
            return;
        }
        for _ in 0..TRIES {
            // Going on from `found`, or if its node is not the same any more, from the root.
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
        // Others were quicker each time: now they wait.
        let mut core = self.core.write();
        let found = core.descend(START, input);
        let pieces = self.store(&input[found.items..]);
        self.splice(&mut core, found, &pieces, input, tenant, priority);
        self.keep_budget(core);
    }

    /// Records an access, which is all there is to do if the tenant holds exactly this already. Returns false, and does
    /// nothing, in any other case.
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

    /// Puts `pieces`, the input from `found` on, in the tree, and the tenant on their path.
    pub(crate) fn splice(
        &self,
        core: &mut Core<U>,
        found: Descent,
        pieces: &[Piece<U::Buffer>],
        input: &[U::Item],
        tenant: &str,
        priority: i32,
    ) {
        // Others may have added some of it below the same node meanwhile.
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
