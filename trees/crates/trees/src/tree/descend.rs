//! Descent: following an input down the tree.

use super::nodes::{Core, Descent, ROOT};
use super::units::Units;

/// The place where every descent begins: the root.
pub(crate) const START: Descent = Descent { node: ROOT, birth: 0, shape: 0, within: 0, mark: 0, items: 0, units: 0 };

impl<U: Units> Core<U> {
    /// Follows `input` down from `found` as far as it matches. The rest of the edge at `found` is not compared: the
    /// input differs from it, or is at its end.
    pub(crate) fn descend(&self, mut found: Descent, input: &[U::Item]) -> Descent {
        let units = &*self.units_of;
        let mut at = self.node(found.node);
        while found.within == at.items && found.items < input.len() {
            let rest = &input[found.items..];
            let mut outcome = (0, 0);
            let child = at.children.find(units.key(rest), |child| {
                let child = self.node(child);
                let Some(run) = &child.run else { return false };
                outcome = units.compare(&run.buffer, child.from, child.items as usize, rest);
                // Another first unit with the same key.
                outcome.0 > 0
            });
            let Some(child) = child else { break };
            at = self.node(child);
            let (items, mark) = outcome;
            let whole = items == at.items as usize;
            let more = if whole { at.units as usize } else { units.count(&rest[..items]) };
            found = Descent {
                node: child,
                birth: at.birth,
                shape: at.shape,
                within: items as u32,
                mark,
                items: found.items + items,
                units: found.units + more,
            };
        }
        found
    }

    /// Records an access of a tenant that ends at `node`.
    pub(crate) fn access(&self, node: u32, tenant: u32) {
        if let Some(holder) = self.node(node).holders.get(tenant) {
            holder.access(self.tick());
        }
    }

    /// The deepest node on the path to `found` that a tenant holds, and the number of units matched down to there.
    pub(crate) fn deepest_of(&self, found: &Descent, tenant: u32) -> Option<(u32, usize)> {
        let (mut node, mut depth) = (found.node, found.units);
        while node != ROOT {
            let here = self.node(node);
            if here.holders.get(tenant).is_some() {
                return Some((node, depth));
            }
            // The lowest edge may match in part; above it edges match whole.
            depth = if node == found.node { self.units_above(found) } else { depth - here.units as usize };
            node = here.parent;
        }
        None
    }

    pub(crate) fn units_above(&self, found: &Descent) -> usize {
        let node = self.node(found.node);
        if found.within == node.items {
            return found.units - node.units as usize;
        }
        let mut above = 0;
        let mut at = node.parent;
        while at != ROOT {
            above += self.node(at).units as usize;
            at = self.node(at).parent;
        }
        above
    }

    /// Splits the edge at `found` if needed, and returns the node that ends there.
    pub(crate) fn boundary(&mut self, found: &Descent) -> u32 {
        let node = self.node(found.node);
        if found.within == node.items {
            return found.node;
        }
        let units = found.units - self.units_above(found);
        let mut step = Vec::with_capacity(self.units_of.step_items());
        if let Some(run) = &node.run {
            let left = (node.items - found.within) as usize;
            self.units_of.read(&run.buffer, found.mark, left.min(self.units_of.step_items()), &mut step);
        }
        let key = self.units_of.key(&step);
        self.split(found.node, found.within, units as u32, found.mark, key)
    }
}
