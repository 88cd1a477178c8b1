//! What the writer keeps for one holder.

use hashbrown::HashMap;

use super::names::Private;
use crate::runs::Position;

/// A holder's books.
#[derive(Default)]
pub(crate) struct Holder {
    /// Names of its own; none while it names blocks as the others do.
    pub(crate) private: Option<Box<Private>>,
    /// Blocks that are not regular; none while there are none.
    pub(crate) odd: Option<Box<Odd>>,
    /// The block before the one it lost last: a guess at what it loses next.
    pub(crate) resume: Option<Position>,
    /// A run of whose children it covers none that hang after more than so many blocks.
    pub(crate) childless: Option<(u32, u32)>,
    /// Runs it has entered; may list some that it has left, or twice.
    pub(crate) runs: Vec<u32>,
    /// Runs it is in.
    pub(crate) entered: u32,
    /// Positions it covers.
    pub(crate) blocks: u64,
}

/// A holder's blocks that are not regular, literally as announced.
#[derive(Default)]
pub(crate) struct Odd {
    pub(crate) blocks: HashMap<u64, OddBlock>,
    /// Parent's name → names. Parents may be regular, odd or unknown.
    pub(crate) children: HashMap<u64, Vec<u64>>,
    /// Positions at which reachable odd blocks are.
    pub(crate) at: HashMap<Position, OddCover>,
}

/// One of them.
pub(crate) struct OddBlock {
    pub(crate) parent: Option<u64>,
    pub(crate) content: u64,
    /// Where it is, if its chain to the root is complete.
    pub(crate) at: Option<Position>,
}

/// What covers a position besides or instead of a regular block.
pub(crate) struct OddCover {
    /// Odd blocks there; at least 1.
    pub(crate) blocks: u32,
    /// Whether a regular block is there too.
    pub(crate) regular: bool,
}

impl Holder {
    /// Whether this position, which it covers, is covered by odd blocks alone.
    #[inline]
    pub(crate) fn covers_oddly(&self, at: Position) -> bool {
        self.odd.as_ref().is_some_and(|odd| odd.at.get(&at).is_some_and(|cover| !cover.regular))
    }

    /// Parent and content hash of an odd block.
    pub(crate) fn odd_block(&self, name: u64) -> Option<(Option<u64>, u64)> {
        let block = self.odd.as_ref()?.blocks.get(&name)?;
        Some((block.parent, block.content))
    }

    /// Blocks held whose chain to the root is not complete.
    pub(crate) fn unlinked(&self) -> usize {
        self.odd.as_ref().map_or(0, |odd| odd.blocks.values().filter(|block| block.at.is_none()).count())
    }

    /// Names held.
    pub(crate) fn names(&self) -> u64 {
        let Some(odd) = &self.odd else { return self.blocks };
        let oddly = odd.at.values().filter(|cover| !cover.regular).count();
        self.blocks - oddly as u64 + odd.blocks.len() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.private.as_ref().map_or(0, |p| p.bytes() + size_of::<Private>())
            + self.odd.as_ref().map_or(0, |o| o.bytes())
            + self.runs.capacity() * size_of::<u32>()
    }
}

impl Odd {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.allocation_size()
            + self.children.allocation_size()
            + self.children.values().map(|c| c.capacity() * size_of::<u64>()).sum::<usize>()
            + self.at.allocation_size()
    }

    /// Whether a name means nothing here, so that a regular block of that name concerns no odd one.
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
}
