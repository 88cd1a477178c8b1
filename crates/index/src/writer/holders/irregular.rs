//! Irregular blocks of a holder (a rank's cache): those that cannot be described by the number of first blocks that the
//! holder has of a run (a list of consecutive blocks).
//!
//! An irregular block is kept as announced, by block hash: with its parent's block hash and its content. It is
//! *reachable* if it begins a prompt, or its parent is regular, or irregular and reachable. Then it has a position (a
//! run and an offset in it), which its holder covers. A block is irregular because its chain to the beginning of the
//! prompt is broken (a block is missing, or the parent is unknown), or because the same holder has another block hash
//! for its position. Chains are linked by block hash, as announced by the engine, exactly as in the reference index.
//!
//! Parents of regular blocks are regular. An irregular block whose chain becomes complete turns regular if its position
//! is free.

use smallvec::SmallVec;

use crate::position::Position;
use crate::segmented::Map;
use crate::stats::step;

/// Irregular blocks of a holder (a rank's cache), as announced. Their counts are updated with each change, so that no
/// walk is needed to read them.
#[derive(Default)]
pub(crate) struct IrregularBlocks {
    blocks: Map<u64, IrregularBlock>,
    /// Block hashes of irregular blocks, by the block hash of their parent; the parent may be stored in a run of
    /// blocks, or be irregular, or unknown.
    children: Map<u64, Siblings>,
    /// Positions of reachable irregular blocks (kept outside runs of blocks), whose chain to the beginning of the
    /// prompt is complete.
    at: Map<Position, IrregularCover>,
    /// Number of positions with irregular blocks (kept outside runs, but with a complete chain of blocks before them)
    /// in each run.
    in_runs: Map<u32, u32>,
    /// Number of irregular blocks (kept outside runs of blocks) whose chain to the beginning of the prompt is
    /// incomplete.
    unlinked: usize,
    /// Number of positions (runs of blocks and offsets) in `at` that have no regular block (stored in a run).
    bare: usize,
    /// Capacity, in block hashes, of those lists in `children` that are allocated separately because they are long.
    room: usize,
}

/// Block hashes of the blocks that continue one parent block, in any order. Nearly all parents have one child.
type Siblings = SmallVec<[u64; 2]>;

fn room(siblings: &Siblings) -> usize {
    if siblings.spilled() { siblings.capacity() } else { 0 }
}

/// Block that a holder (a rank's cache) has but that cannot be described by a number of first blocks of a run (a list
/// of consecutive blocks).
pub(crate) struct IrregularBlock {
    pub(crate) parent: Option<u64>,
    pub(crate) content: u64,
    /// Position (run of blocks and offset) of the block; None if its chain to the beginning of the prompt is
    /// incomplete.
    pub(crate) at: Option<Position>,
    /// Index of the block in the list of the blocks that continue its parent.
    sibling: u32,
}

impl IrregularBlock {
    pub(crate) fn new(parent: Option<u64>, content: u64, at: Option<Position>) -> Self {
        Self { parent, content, at, sibling: 0 }
    }
}

/// Irregular blocks of a holder (a rank's cache) at one position, with or without a regular block (stored in a run)
/// there.
struct IrregularCover {
    /// Number of irregular blocks (kept outside runs of blocks) at this position; at least 1.
    blocks: u32,
    /// True if a regular block (stored in a run) is at the same position too.
    regular: bool,
}

impl IrregularBlocks {
    pub(in crate::writer) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.bytes()
            + self.children.bytes()
            + self.room * size_of::<u64>()
            + self.at.bytes()
            + self.in_runs.bytes()
    }

    /// Frees a part of the tables' memory; returns true if more is left. The tables must not be searched afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        self.children.shed() || self.at.shed() || self.in_runs.shed() || self.blocks.shed()
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Number of irregular blocks (kept outside runs of blocks) whose chain to the beginning of the prompt is
    /// incomplete.
    pub(crate) fn unlinked(&self) -> usize {
        self.unlinked
    }

    /// Number of positions (runs of blocks and offsets) with irregular blocks (kept outside runs) and no regular block.
    pub(crate) fn bare(&self) -> usize {
        self.bare
    }

    /// All irregular blocks (kept outside runs of blocks) with their block hashes, in any order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, &IrregularBlock)> {
        self.blocks.iter().inspect(|_| step()).map(|(name, block)| (*name, block))
    }

    #[inline]
    pub(crate) fn block(&self, name: u64) -> Option<&IrregularBlock> {
        self.blocks.get(&name)
    }

    /// True if any position of a run has irregular blocks (kept outside runs of blocks).
    #[inline]
    pub(crate) fn is_in(&self, run: u32) -> bool {
        self.in_runs.contains_key(&run)
    }

    /// True if a position (run of blocks and offset) has irregular blocks (kept outside runs).
    pub(crate) fn covers(&self, at: Position) -> bool {
        self.at.contains_key(&at)
    }

    /// True if a position (run of blocks and offset) has irregular blocks (kept outside runs), but no regular block.
    #[inline]
    pub(crate) fn covers_alone(&self, at: Position) -> bool {
        self.at.get(&at).is_some_and(|cover| !cover.regular)
    }

    /// Adds an irregular block (kept outside runs of blocks) under a block hash that no other irregular block has.
    pub(crate) fn add(&mut self, name: u64, mut block: IrregularBlock) {
        if let Some(parent) = block.parent {
            let siblings = self.children.get_or_insert_with(parent, SmallVec::new);
            let before = room(siblings);
            block.sibling = siblings.len() as u32;
            siblings.push(name);
            self.room += room(siblings) - before;
        }
        self.unlinked += usize::from(block.at.is_none());
        let old = self.blocks.insert(name, block);
        debug_assert!(old.is_none(), "a name is one block's");
    }

    /// Removes and returns an irregular block (kept outside runs of blocks), but leaves its block hash in the list of
    /// blocks that continue its parent; the caller must update that list. None if there is none.
    fn take(&mut self, name: u64) -> Option<IrregularBlock> {
        let block = self.blocks.remove(&name)?;
        self.unlinked -= usize::from(block.at.is_none());
        Some(block)
    }

    /// Removes and returns the irregular block (kept outside runs of blocks) with this block hash; None if there is
    /// none.
    pub(crate) fn remove(&mut self, name: u64) -> Option<IrregularBlock> {
        let block = self.take(name)?;
        if let Some(parent) = block.parent {
            self.remove_child(parent, block.sibling);
        }
        Some(block)
    }

    /// Removes the irregular blocks (kept outside runs) that continue the block `name`; returns them with their block
    /// hashes.
    pub(crate) fn take_children(&mut self, name: u64) -> Vec<(u64, IrregularBlock)> {
        let Some(children) = self.children.remove(&name) else { return Vec::new() };
        self.room -= room(&children);
        children.into_iter().filter_map(|child| Some((child, self.take(child)?))).collect()
    }

    /// Removes the only irregular block (kept outside runs) that continues the block `name`; returns it with its block
    /// hash. None if there is not exactly one.
    pub(in crate::writer) fn take_only_child(&mut self, name: u64) -> Option<(u64, IrregularBlock)> {
        let &[child] = self.children.get(&name)?.as_slice() else { return None };
        let siblings = self.children.remove(&name)?;
        self.room -= room(&siblings);
        Some((child, self.take(child)?))
    }

    /// Adds an irregular block (kept outside runs of blocks) at a position; its chain to the beginning of the prompt is
    /// complete. `regular`: true if the position also has a regular block (stored in a run).
    pub(crate) fn cover(&mut self, at: Position, regular: bool) {
        let Self { bare, in_runs, .. } = self;
        let cover = self.at.get_or_insert_with(at, || {
            *bare += usize::from(!regular);
            *in_runs.get_or_insert_with(at.run, || 0) += 1;
            IrregularCover { blocks: 0, regular }
        });
        cover.blocks += 1;
    }

    /// Records that a position (run of blocks and offset) no longer has a regular block (stored in the run).
    pub(crate) fn lose_regular(&mut self, at: Position) {
        if let Some(cover) = self.at.get_mut(&at)
            && std::mem::take(&mut cover.regular)
        {
            self.bare += 1;
        }
    }

    /// True if [`Self::unlinked`], [`Self::bare`] and the count of the lists' capacity are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        let lists = || self.children.iter().map(|(_, siblings)| siblings);
        let is_listed = |(name, block): (&u64, &IrregularBlock)| {
            let siblings = block.parent.map(|parent| self.children.get(&parent).expect("a parent lists its children"));
            siblings.is_none_or(|siblings| siblings[block.sibling as usize] == *name)
        };
        self.unlinked == self.blocks.iter().filter(|(_, block)| block.at.is_none()).count()
            && self.bare == self.at.iter().filter(|(_, cover)| !cover.regular).count()
            && self.room == lists().map(room).sum::<usize>()
            && self.blocks.iter().all(is_listed)
            && self.blocks.iter().filter(|(_, block)| block.parent.is_some()).count()
                == lists().map(SmallVec::len).sum()
            && self.blocks.is_counted()
            && self.children.is_counted()
            && self.at.is_counted()
            && self
                .in_runs
                .iter()
                .all(|(run, n)| self.at.iter().filter(|(at, _)| at.run == *run).count() == *n as usize)
            && self.at.iter().all(|(at, _)| self.is_in(at.run))
    }

    /// True if irregular blocks (kept outside runs of blocks) continue the block with this block hash, which need not
    /// be known.
    pub(in crate::writer) fn awaits(&self, name: u64) -> bool {
        self.children.contains_key(&name)
    }

    /// True if no irregular block (kept outside runs of blocks) has this block hash or continues the block with this
    /// block hash.
    #[inline]
    pub(crate) fn ignores(&self, name: u64) -> bool {
        !self.blocks.contains_key(&name) && !self.children.contains_key(&name)
    }

    fn remove_child(&mut self, parent: u64, sibling: u32) {
        let Some(siblings) = self.children.get_mut(&parent) else { return };
        siblings.swap_remove(sibling as usize);
        if siblings.is_empty() {
            self.room -= room(siblings);
            self.children.remove(&parent);
        } else if let Some(moved) = siblings.get(sibling as usize)
            && let Some(moved) = self.blocks.get_mut(moved)
        {
            moved.sibling = sibling;
        }
    }

    /// Makes the irregular blocks (kept outside runs) that continue the block `name`, directly or not, unreachable:
    /// their chain of blocks becomes incomplete. Appends the positions that they had to `left`.
    pub(in crate::writer) fn unreach_below(&mut self, name: u64, left: &mut Vec<Position>) {
        let mut todo = vec![name];
        while let Some(name) = todo.pop() {
            let Some(children) = self.children.get(&name) else { continue };
            for child in children {
                step();
                if let Some(block) = self.blocks.get_mut(child) {
                    if let Some(at) = block.at.take() {
                        self.unlinked += 1;
                        left.push(at);
                    }
                    todo.push(*child);
                }
            }
        }
    }

    /// Removes one irregular block (kept outside runs of blocks) from each of these positions, which may repeat.
    /// Appends the positions that have no block left to `bare`.
    pub(in crate::writer) fn leave(&mut self, left: &[Position], bare: &mut Vec<Position>) {
        for at in left {
            let Some(cover) = self.at.get_mut(at) else { continue };
            cover.blocks -= 1;
            if cover.blocks == 0 {
                if !cover.regular {
                    self.bare -= 1;
                    bare.push(*at);
                }
                self.at.remove(at);
                if let Some(count) = self.in_runs.get_mut(&at.run) {
                    *count -= 1;
                    if *count == 0 {
                        self.in_runs.remove(&at.run);
                    }
                }
            }
        }
    }
}
