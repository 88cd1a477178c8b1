//! Blocks that are not regular.
//!
//! An irregular block is kept literally, by name: under its parent's name, with its content. It is *reachable* when its
//! parent is (regular, or irregular and reachable, or the root); then it has a position, which its holder covers. It is irregular
//! because its chain to the root is broken (a hole, an orphan), or because its position already has a block of the
//! same holder under another name. Chains are linked by name, as the engine announced them: that is the reference
//! model to the letter.
//!
//! Parents of regular blocks are regular; an irregular block whose chain becomes complete turns regular if its position is
//! free.

use hashbrown::HashMap;

use crate::position::Position;

/// A holder's blocks that are not regular, literally as announced.
#[derive(Default)]
pub(crate) struct Irregular {
    pub(crate) blocks: HashMap<u64, IrregularBlock>,
    /// Parent's name → names. Parents may be regular, irregular or unknown.
    pub(crate) children: HashMap<u64, Vec<u64>>,
    /// Positions at which reachable irregular blocks are.
    pub(crate) at: HashMap<Position, IrregularCover>,
}

/// One of them.
pub(crate) struct IrregularBlock {
    pub(crate) parent: Option<u64>,
    pub(crate) content: u64,
    /// Where it is, if its chain to the root is complete.
    pub(crate) at: Option<Position>,
}

/// What covers a position besides or instead of a regular block.
pub(crate) struct IrregularCover {
    /// Irregular blocks there; at least 1.
    pub(crate) blocks: u32,
    /// Whether a regular block is there too.
    pub(crate) regular: bool,
}

impl Irregular {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.allocation_size()
            + self.children.allocation_size()
            + self.children.values().map(|c| c.capacity() * size_of::<u64>()).sum::<usize>()
            + self.at.allocation_size()
    }

    /// Whether a name means nothing here, so that a regular block of that name concerns no irregular one.
    #[inline]
    pub(crate) fn ignores(&self, name: u64) -> bool {
        !self.blocks.contains_key(&name) && !self.children.contains_key(&name)
    }

    pub(crate) fn add_child(&mut self, parent: u64, name: u64) {
        self.children.entry(parent).or_default().push(name);
    }

    pub(crate) fn remove_child(&mut self, parent: u64, name: u64) {
        if let Some(children) = self.children.get_mut(&parent) {
            children.retain(|&child| child != name);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    /// No irregular block below `name` is reachable any more; `left` gets the positions they leave.
    pub(super) fn unreach_below(&mut self, name: u64, left: &mut Vec<Position>) {
        let mut todo = vec![name];
        while let Some(name) = todo.pop() {
            let Some(children) = self.children.get(&name) else { continue };
            for child in children {
                if let Some(block) = self.blocks.get_mut(child) {
                    left.extend(block.at.take());
                    todo.push(*child);
                }
            }
        }
    }

    /// An irregular block has left each of these positions (they may repeat); `bare` gets those that nothing covers now.
    pub(super) fn leave(&mut self, left: &[Position], bare: &mut Vec<Position>) {
        for at in left {
            let Some(cover) = self.at.get_mut(at) else { continue };
            cover.blocks -= 1;
            if cover.blocks == 0 {
                if !cover.regular {
                    bare.push(*at);
                }
                self.at.remove(at);
            }
        }
    }
}
