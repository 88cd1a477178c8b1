//! State of a holder (a rank's cache): its runs (lists of consecutive blocks), its branches (blocks after missing
//! blocks), and the progress of cleaning up its list of runs. Also the state of work done in steps: clearing holders
//! and tables, sorting runs, and recording changes of ranks that are being copied.

pub(in crate::writer) mod irregular;
pub(in crate::writer) mod workers;

use std::collections::{BinaryHeap, VecDeque};

use hashbrown::{HashMap, HashSet};

use self::irregular::IrregularBlocks;
use self::workers::{Copies, OffloadedBlocks, shrink};
use super::names::private::{NameTableBuilder, PrivateNames};
use crate::position::{NO_NAME, Place, Position, ROOT};
use crate::raw::Children;
use crate::runs::Runs;
use crate::stats::step;
use crate::writer::names::private::PlaceNames;

/// State of a holder: a rank's device, or a rank's device with other tiers.
#[derive(Default)]
pub(crate) struct Holder {
    /// True if readers have no name for the holder (a rank's cache) and no rank depends on it yet: a branch (blocks
    /// after a missing block) of another holder, or a view (set of tiers) that is being built.
    pub(super) is_hidden: bool,
    /// Private table of block hashes; None while the holder (a rank's cache) uses the same block hashes as others.
    pub(crate) private: Option<PrivateNames>,
    /// Private table of the holder's block hashes while it is being built in steps; None otherwise.
    pub(super) coming: Option<Box<NameTableBuilder>>,
    /// Blocks of the holder (a rank's cache) that cannot be described by numbers of first blocks of runs (lists of
    /// consecutive blocks); None if there are none.
    pub(crate) irregular: Option<Box<IrregularBlocks>>,
    /// Branches of the holder: large groups of its blocks after missing blocks. None if there are none.
    pub(crate) branches: Option<Box<Branches>>,
    /// Parent of the block that was removed last, a guess for the block that will be removed next.
    pub(crate) resume: Option<Position>,
    /// Number of a run of blocks, and a number of its blocks beyond which the holder (a rank's cache) has no blocks
    /// that branch off the run.
    pub(crate) childless: Option<(u32, u32)>,
    /// Ends of the chains that the holder (a rank's cache) stored last, where it will probably store more blocks.
    pub(crate) tails: Tails,
    /// Runs of blocks in which the holder (a rank's cache) has blocks. May contain runs in which it no longer has any,
    /// and runs twice.
    pub(crate) runs: Vec<u32>,
    /// Progress of removing outdated entries from the list of the holder's runs of blocks; None if no clean-up is under
    /// way.
    pub(super) tidying: Option<Box<ListCleanup>>,
    /// Number of runs of blocks in which the holder (a rank's cache) has blocks.
    pub(crate) entered: u32,
    /// Number of positions (runs of blocks and offsets) at which the holder (a rank's cache) has blocks.
    pub(crate) blocks: u64,
    /// Runs in which the holder (a rank's cache) has blocks, and which the lists of children of their parent runs do
    /// not contain.
    pub(crate) hanging: HangingRuns,
    /// Number of the holder's blocks whose chain to the beginning of the prompt is incomplete, as included in the
    /// writer's total.
    pub(crate) waiting: usize,
}

/// Ends of the chains that were stored last, by block hash: guesses for the places of the next blocks. Engines announce
/// generated blocks one by one, for several sequences at once.
pub(crate) struct Tails([(u64, Position); TAILS]);

const TAILS: usize = 4;

impl Default for Tails {
    fn default() -> Self {
        Self([(NO_NAME, Position { run: ROOT, offset: 0 }); TAILS])
    }
}

impl Tails {
    #[inline]
    fn slot(name: u64) -> usize {
        // Engines' names may be of any kind: a few bits of all of them.
        (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % TAILS
    }

    #[inline]
    pub(crate) fn add(&mut self, name: u64, at: Position) {
        self.0[Self::slot(name)] = (name, at);
    }

    /// Position (run of blocks and offset) of the end of a chain with this block hash. Only a guess, as the position
    /// may have another block by now.
    #[inline]
    pub(crate) fn of(&self, name: Option<u64>) -> Option<Position> {
        let name = name?;
        let (it, at) = self.0[Self::slot(name)];
        (it == name && name != NO_NAME).then_some(at)
    }
}

/// Runs in which a holder (a rank's cache) has blocks, and which are missing in their parent run's list of children,
/// because the parent has too many children to list all.
#[derive(Default)]
pub(crate) struct HangingRuns {
    /// Number of one parent run with child runs missing in its list of children, and the holder's runs among them. Most
    /// holders (ranks' caches) have only these.
    first: (u32, Hangers),
    /// Runs of the holder (a rank's cache) that are missing in the lists of children of other parent runs.
    rest: Option<Box<HashMap<u32, Hangers>>>,
}

/// Runs of a holder (a rank's cache) that continue one parent run and are missing in its list of children: how many
/// they are, and an upper bound for the places where they continue the parent.
#[derive(Clone, Copy, Default)]
struct Hangers {
    count: u32,
    end: u32,
}

impl HangingRuns {
    pub(crate) fn bytes(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| size_of::<HashMap<u32, Hangers>>() + rest.allocation_size())
    }

    fn of(&self, run: u32) -> Option<&Hangers> {
        if self.first.0 == run { Some(&self.first.1) } else { self.rest.as_ref()?.get(&run) }
    }

    fn of_mut(&mut self, run: u32) -> Option<&mut Hangers> {
        if self.first.0 == run { Some(&mut self.first.1) } else { self.rest.as_mut()?.get_mut(&run) }
    }

    /// Adds a run of blocks in which the holder (a rank's cache) has got blocks, and which is missing in its parent
    /// run's list of children. `place`: where the run continues its parent.
    pub(crate) fn add(&mut self, place: Place) {
        if self.first.1.count == 0 && self.of(place.run).is_none() {
            self.first = (place.run, Hangers::default());
        }
        let it = if self.first.0 == place.run {
            &mut self.first.1
        } else {
            self.rest.get_or_insert_default().entry(place.run).or_default()
        };
        it.count += 1;
        it.end = place.blocks.saturating_add(1).max(it.end);
    }

    /// Removes a run of blocks in which the holder (a rank's cache) no longer has blocks, and which is missing in its
    /// parent run's list of children. `place`: where the run continues its parent.
    pub(crate) fn remove(&mut self, place: Place) {
        let Some(it) = self.of_mut(place.run) else { return };
        it.count -= 1;
        if it.count > 0 {
            return;
        }
        if self.first.0 == place.run {
            self.first = (ROOT, Hangers::default());
        } else if let Some(rest) = &mut self.rest {
            rest.remove(&place.run);
            shrink(rest);
            if rest.is_empty() {
                self.rest = None;
            }
        }
    }

    /// True if one of these runs of the holder may continue the parent run of `place` (a run and a number of its
    /// blocks) there, or after more of its blocks.
    #[inline]
    pub(crate) fn may_be_beyond(&self, place: Place) -> bool {
        self.of(place.run).is_some_and(|it| place.blocks < it.end)
    }

    /// Records that none of these runs of the holder continues the parent run of `place` (a run and a number of its
    /// blocks) there, or after more of its blocks.
    pub(crate) fn none_beyond(&mut self, place: Place) {
        if let Some(it) = self.of_mut(place.run) {
            it.end = place.blocks.min(it.end);
        }
    }

    /// True if the counts are correct for runs of the holder that continue their parents at these places, and none does
    /// so beyond the recorded bound; for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self, places: &[Place]) -> bool {
        let rest = self.rest.iter().flat_map(|rest| rest.iter()).map(|(run, it)| (*run, *it));
        let all: Vec<_> = rest.chain((self.first.0 != ROOT).then_some(self.first)).collect();
        let count = |run: u32| places.iter().filter(|place| place.run == run).count();
        places.iter().all(|place| self.may_be_beyond(*place))
            && all.iter().all(|(run, it)| it.count > 0 && count(*run) == it.count as usize)
            && places.len() == all.iter().map(|(_, it)| it.count as usize).sum()
    }
}

impl Holder {
    /// True if the holder (a rank's cache) has only irregular blocks (kept outside runs of blocks), and no regular one,
    /// at a position where it has a block.
    #[inline]
    pub(crate) fn covers_irregularly(&self, at: Position) -> bool {
        self.irregular.as_ref().is_some_and(|irregular| irregular.covers_alone(at))
    }

    /// Parent's block hash and content hash of an irregular block (kept outside runs of blocks); None if there is none
    /// with this block hash.
    pub(crate) fn irregular_block(&self, name: u64) -> Option<(Option<u64>, u64)> {
        let block = self.irregular.as_ref()?.block(name)?;
        Some((block.parent, block.content))
    }

    /// Number of the holder's blocks whose chain to the beginning of the prompt is incomplete.
    pub(crate) fn unlinked(&self) -> usize {
        self.irregular.as_ref().map_or(0, |irregular| irregular.unlinked()) + self.in_branches() as usize
    }

    /// Number of the holder's blocks in branches, the large groups after missing blocks.
    pub(super) fn in_branches(&self) -> u64 {
        self.branches.as_ref().map_or(0, |branches| branches.blocks())
    }

    /// Number of block hashes that the holder (a rank's cache) has.
    pub(crate) fn names(&self) -> u64 {
        let linked = self.blocks + self.in_branches();
        let Some(irregular) = &self.irregular else { return linked };
        linked - irregular.bare() as u64 + irregular.len() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.private.as_ref().map_or(0, PrivateNames::bytes)
            + self.coming.as_ref().map_or(0, |it| it.bytes())
            + self.irregular.as_ref().map_or(0, |o| o.bytes())
            + self.branches.as_ref().map_or(0, |it| it.bytes())
            + self.hanging.bytes()
            + self.tidying.as_ref().map_or(0, |it| it.bytes())
            + self.runs.capacity() * size_of::<u32>()
    }
}

/// Branch: the blocks of a holder (a rank's cache) after a missing block, kept in a hidden holder of their own.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    pub(super) number: u32,
    /// Block hash of the missing block before the branch. `at`: position (run of blocks and offset) of the missing
    /// block.
    pub(super) awaits: u64,
    pub(super) at: Position,
}

/// Branches of a holder (a rank's cache), the large groups of blocks after missing blocks; at least one.
#[derive(Default)]
pub(crate) struct Branches {
    pub(super) all: Vec<Branch>,
    /// Number of blocks in all branches (blocks after missing blocks).
    pub(super) blocks: u64,
}

impl Branches {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.all.capacity() * size_of::<Branch>()
    }
}

/// Progress of removing outdated and repeated entries from the list of the runs of blocks of a holder (a rank's cache).
pub(super) struct ListCleanup {
    /// Index of the next entry in the holder's list of runs of blocks that the clean-up checks. `kept`: number of
    /// entries that were kept so far.
    pub(super) next: usize,
    pub(super) kept: usize,
    /// Runs of blocks that the clean-up has kept in the holder's list so far, as a bit mask.
    pub(super) seen: Vec<u64>,
}

impl ListCleanup {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.seen.capacity() * size_of::<u64>()
    }

    /// Records a run of blocks as kept in the holder's list; returns true if the run was not recorded before.
    pub(super) fn is_first(&mut self, run: u32) -> bool {
        let (word, bit) = (run as usize / 64, 1 << (run % 64));
        if self.seen.len() <= word {
            self.seen.resize(word + word / 8 + 1, 0);
        }
        let is_first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_first
    }
}

/// Holders (ranks' caches) and tables that are no longer used, and whose memory is being freed in steps.
#[derive(Default)]
pub(crate) struct Departures {
    pub(in crate::writer) holders: VecDeque<DepartingHolder>,
    pub(in crate::writer) tables: Vec<Table>,
}

/// Holder (a rank's cache) that is being removed in steps, with the runs of blocks in which it had blocks.
pub(in crate::writer) struct DepartingHolder {
    pub(in crate::writer) number: u32,
    pub(in crate::writer) runs: OrderedRuns,
}

/// Table that is no longer used, and whose memory is being freed in steps.
pub(in crate::writer) enum Table {
    Private(Box<PrivateNames>),
    Places(Box<PlaceNames>),
    Irregular(Box<IrregularBlocks>),
    Copies(Copies),
    Offloaded(OffloadedBlocks),
    Children(Box<Children>),
}

impl Departures {
    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.tables.is_empty()
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        let holders = self.holders.iter().map(|it| it.runs.bytes());
        let tables = self.tables.iter().map(|table| match table {
            Table::Private(it) => it.bytes() + size_of::<PrivateNames>(),
            Table::Places(it) => it.bytes(),
            Table::Irregular(it) => it.bytes(),
            Table::Copies(it) => it.bytes(),
            Table::Offloaded(it) => it.bytes(),
            Table::Children(it) => it.bytes(),
        });
        holders.chain(tables).sum()
    }

    pub(in crate::writer) fn push(&mut self, table: Table) {
        self.tables.push(table);
    }
}

/// Runs of a holder (a rank's cache) in the order of their distance from the beginning of the prompt, sorted in steps.
/// A run may occur twice, or its number may belong to another run by now.
pub(in crate::writer) struct OrderedRuns {
    listed: Vec<u32>,
    /// Heap of those runs of the holder that are sorted already, each with its sort key (distance from the beginning of
    /// the prompt).
    sorted: BinaryHeap<(u32, u32)>,
    is_root_first: bool,
}

impl OrderedRuns {
    pub(in crate::writer) fn leaves_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: false }
    }

    pub(in crate::writer) fn root_first(runs: Vec<u32>) -> Self {
        Self { sorted: BinaryHeap::with_capacity(runs.len()), listed: runs, is_root_first: true }
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.listed.capacity() * size_of::<u32>() + self.sorted.capacity() * size_of::<(u32, u32)>()
    }

    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.sorted.is_empty()
    }

    /// Next run of blocks in the order; None at the end, or when `left` steps are used up. Each run sorted takes one
    /// step.
    pub(in crate::writer) fn next(&mut self, runs: &Runs, left: &mut isize) -> Option<u32> {
        while *left > 0
            && let Some(run) = self.listed.pop()
        {
            step();
            *left -= 1;
            if runs.is_live(run) {
                self.put_back(run, runs);
            }
        }
        if *left > 0 { self.sorted.pop().map(|(_, run)| run) } else { None }
    }

    /// Puts a run of blocks back into this order, so that a later call of `next` returns the run again.
    pub(in crate::writer) fn put_back(&mut self, run: u32, runs: &Runs) {
        let start = runs.start(run);
        self.sorted.push((if self.is_root_first { !start } else { start }, run));
    }
}

/// Record of the changes of one rank while it is being copied.
pub(crate) struct Watch {
    pub(in crate::writer) id: u64,
    /// Holders of the rank's narrowest and widest views (sets of tiers): its device, and all its tiers.
    pub(in crate::writer) holders: [u32; 2],
    /// Block hashes of the rank that changed since they were last fetched by `Writer::take_touched`.
    pub(in crate::writer) touched: HashSet<u64>,
    /// True if all block hashes of the rank changed, so that the copy being made of its blocks is worthless.
    pub(in crate::writer) over: bool,
}

/// Records of the changes of all ranks that are being copied.
#[derive(Default)]
pub(crate) struct Watches {
    pub(in crate::writer) all: Vec<Watch>,
    pub(in crate::writer) last: u64,
}

impl Watches {
    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
