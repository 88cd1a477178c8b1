//! Trie of runs, the writer's data structure for all stored blocks.
//!
//! A run is a list of consecutive blocks of one chain. Runs are never split and blocks never move within them: (run,
//! offset) identifies a block as long as any holder has it. A chain that diverges after `fork` blocks of a run becomes
//! a child, found by (run, fork, content hash). Run 0 is the empty prompt, which every chain continues.

mod children;
mod pages;

use std::mem;
use std::sync::Arc;

use self::children::{Forks, NextChildren};
use self::pages::{NO_PAGE, PAGE, Pages};
use crate::position::{Place, Position, ROOT};
use crate::raw::{Children, Level, LevelsNow, Readers, Run, Spares, SwapCell, WriterToken, prefetch};
use crate::retire::{Garbage, Trash};
use crate::roster::Roster;
use crate::segmented::ChunkedList;

/// Largest number of blocks in a run (a list of consecutive blocks). A longer chain continues in a child, which limits
/// the cost of moving a run.
pub(crate) const MAX_RUN: usize = 1 << 16;
/// Number of blocks below which a run's memory grows by half instead of an eighth.
const SHORT_RUN: usize = 64;
const NO_RUN: u32 = u32::MAX;

/// Writer's data about a run of blocks, in addition to the data that readers access.
struct Entry {
    /// Run of blocks with this number; None if the number is unused.
    run: Option<Run>,
    /// Number of blocks from the beginning of the prompt to the run's first block.
    start: u32,
    /// Next child run that continues the same parent run after the same number of blocks. `previous`: the previous one,
    /// unset for the first.
    next: u32,
    previous: u32,
    /// True if the content hashes of removed blocks, which once followed the run's last block, are lost. Then no block
    /// may be appended: a reader that has read the old blocks may be about to search for children at the same offsets.
    cut: bool,
    /// True if the run of blocks is in its parent's list of children; otherwise its holders (ranks' caches) count it.
    listed: bool,
    /// Number of the run's last page, a group of 16 blocks.
    page: u32,
    /// Forks of the run of blocks: the numbers of blocks after which child runs continue the run.
    forks: Option<Box<Forks>>,
}

/// Pointers at which lookups start, on one cache line: to the table of child runs, and to the roster (table of the
/// holders' workers and ranks).
pub(crate) struct ReaderEntry {
    pub(crate) children: SwapCell<Children>,
    pub(crate) roster: SwapCell<Roster>,
}

/// Trie of all runs, the lists of consecutive blocks in which chains are stored.
pub(crate) struct Runs {
    entries: ChunkedList<Entry>,
    pages: Pages,
    free: ChunkedList<u32>,
    /// Pointers at which lookups start, to the table of child runs and the roster of holders; shared with the readers.
    pub(crate) shown: Arc<ReaderEntry>,
    /// New table of child runs (runs that continue another run), while it is being built; None otherwise.
    next_children: Option<NextChildren>,
    live: usize,
    positions: usize,
    bytes: usize,
    /// Size of all lists of forks (places where runs are continued by child runs), in bytes.
    fork_bytes: usize,
    /// Freed memory for lists of levels (numbers of first blocks with their holders) that do not fit into the head of a
    /// run.
    pub(crate) spare_levels: Spares<(), Level>,
    pub(crate) token: WriterToken,
}

impl Runs {
    pub(crate) fn new(readers: &Readers) -> Self {
        let token = WriterToken::of(readers);
        Self {
            entries: Entry::of_root(),
            pages: Pages::new(),
            free: ChunkedList::default(),
            shown: Arc::new(ReaderEntry {
                children: SwapCell::new(Children::with_room_for(6, &token), &token),
                roster: SwapCell::new(Roster::default(), &token),
            }),
            next_children: None,
            live: 0,
            positions: 0,
            bytes: 0,
            fork_bytes: 0,
            spare_levels: Spares::new(),
            token,
        }
    }

    /// Number of runs (lists of consecutive blocks) that exist in the index.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn pages_for_tests(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// True if the index can number `more` further runs of blocks.
    pub(crate) fn can_number(&self, more: usize) -> bool {
        self.entries.len().saturating_add(more) < NO_RUN as usize && self.pages.can_add(more)
    }

    /// Total number of blocks in all runs (lists of consecutive blocks).
    pub(crate) fn positions(&self) -> usize {
        self.positions
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
            + self.pages.bytes()
            + self.entries.bytes()
            + self.free.bytes()
            + self.fork_bytes
            + self.spare_levels.bytes()
            + self.shown.children.get(&self.token).bytes()
            + self.next_children.as_ref().map_or(0, |next| next.table.bytes())
    }

    /// Places of all runs of blocks that are not in their parent's list of children, each with the run's first level
    /// (number of first blocks with their holders).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = (Place, Option<Level>)> {
        let unlisted = (0..self.entries.len() as u32).filter(|&id| self.is_unlisted(id));
        unlisted.map(|id| (self.origin(id), self.levels(id).first().copied()))
    }

    /// True if the counters of the bytes that runs use are correct, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        let forks: usize = self.entries.iter().flat_map(|e| &e.forks).map(|forks| forks.bytes()).sum();
        let runs: usize = self.entries.iter().flat_map(|e| &e.run).map(Run::bytes).sum();
        self.fork_bytes == forks && self.bytes == runs
    }

    pub(crate) fn is_live(&self, id: u32) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.run.is_some())
    }

    /// True if a run of blocks exists and is not in its parent's list of children.
    pub(crate) fn is_unlisted(&self, id: u32) -> bool {
        self.is_live(id) && !self.entries[id as usize].listed
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Run {
        self.entries[id as usize].run.as_ref().expect("a run that is referred to is live")
    }

    #[inline]
    fn get_mut(&mut self, id: u32) -> &mut Run {
        self.entries[id as usize].run.as_mut().expect("a run that is referred to is live")
    }

    /// Number of blocks from the beginning of the prompt to the first block of the run (a list of consecutive blocks).
    #[inline]
    pub(crate) fn start(&self, id: u32) -> u32 {
        self.entries[id as usize].start
    }

    #[inline]
    pub(crate) fn levels(&self, id: u32) -> LevelsNow<'_> {
        self.get(id).head().levels_now(&self.token)
    }

    pub(crate) fn content(&self, at: Position) -> u64 {
        self.get(at.run).contents()[at.offset as usize]
    }

    pub(crate) fn name(&self, at: Position) -> u64 {
        self.get(at.run).names()[at.offset as usize]
    }

    /// Prefetches the memory that [`Self::name`] reads for a position (run of blocks and offset).
    #[inline]
    pub(crate) fn ask_for_name(&self, at: Position) {
        prefetch(&self.get(at.run).names()[at.offset as usize]);
    }

    pub(crate) fn set_name(&mut self, at: Position, name: u64) {
        self.get_mut(at.run).set_name(at.offset as usize, name);
    }

    /// Place where a run of blocks continues its parent: the parent's number, and the number of the parent's blocks
    /// before this run.
    pub(crate) fn origin(&self, id: u32) -> Place {
        let head = self.get(id).head();
        Place { run: head.parent, blocks: head.fork }
    }

    /// Position (run of blocks and offset) of the preceding block; None for the first block of a prompt.
    pub(crate) fn parent(&self, at: Position) -> Option<Position> {
        match at.offset {
            0 => self.origin(at.run).before(),
            offset => Some(Position { run: at.run, offset: offset - 1 }),
        }
    }

    /// Number of the child run of blocks that begins at `place` (a run and a number of its blocks) with the content
    /// hash `content`; None if there is none.
    #[inline]
    pub(crate) fn child(&self, place: Place, content: u64) -> Option<u32> {
        if place.run != ROOT && self.entries[place.run as usize].forks.is_none() {
            return None;
        }
        self.shown.children.get(&self.token).find_id(place.run, place.blocks, content, &self.token)
    }

    /// Position of the block with the content hash `content` that comes next after `place` (a run and a number of its
    /// blocks), in the run itself or in a child; None if there is none.
    pub(crate) fn next(&self, place: Place, content: u64) -> Option<Position> {
        if place.run != ROOT && self.get(place.run).contents().get(place.blocks as usize) == Some(&content) {
            return Some(Position { run: place.run, offset: place.blocks });
        }
        self.child(place, content).map(|run| Position { run, offset: 0 })
    }

    /// True if blocks with these content hashes can be appended to the run of blocks at `place` itself, rather than to
    /// a child run. This is not possible if the run ever had other blocks there, as (run, offset) identifies one prefix
    /// as long as the run lives.
    pub(crate) fn can_append(&self, place: Place, contents: &[u64]) -> bool {
        place.run != ROOT && {
            let run = self.get(place.run);
            let at_end = run.len() == place.blocks as usize && run.len() < MAX_RUN;
            at_end && !self.entries[place.run as usize].cut && run.continues_with(contents)
        }
    }

    /// Appends blocks to a run of blocks, as many as it can take. The new blocks have no holders (ranks' caches) yet.
    /// Returns the number of blocks appended.
    ///
    /// `names`: block hashes shared by all holders; None if there are none. `more`: number of blocks that will follow
    /// soon, for which space is reserved if the run must be moved.
    pub(crate) fn append(
        &mut self,
        id: u32,
        contents: &[u64],
        names: Option<&[u64]>,
        more: usize,
        trash: &mut Trash,
    ) -> usize {
        let len = self.get(id).len();
        let contents = &contents[..contents.len().min(MAX_RUN - len)];
        let room = len + contents.len();
        if !self.get(id).has_room_for(contents) {
            // An eighth more, so that decoding block by block moves each block about eight times in all; half as much
            // again while the run is short, as the move itself costs more than its blocks then.
            let slack = if len < SHORT_RUN { len / 2 + 2 } else { len / 8 + 2 };
            self.entries[id as usize].cut = self.get(id).written() > room;
            self.relocate(id, (room + more).max(len + slack).min(MAX_RUN), trash);
        }
        for _ in len.div_ceil(PAGE as usize)..room.div_ceil(PAGE as usize) {
            self.entries[id as usize].page = self.pages.add(id, self.entries[id as usize].page);
        }
        self.get_mut(id).extend(contents, names);
        self.positions += contents.len();
        contents.len()
    }

    /// Removes those blocks at the end of a run of blocks that never had a holder (a rank's cache).
    pub(crate) fn take_back(&mut self, id: u32, len: usize) {
        self.cut_off(id, len);
        self.get_mut(id).truncate(len);
    }

    /// Frees the pages (groups of 16 blocks) of a run of blocks beyond its first `len` blocks.
    fn cut_off(&mut self, id: u32, len: usize) {
        let was = self.get(id).len();
        self.positions -= was - len;
        for _ in len.div_ceil(PAGE as usize)..was.div_ceil(PAGE as usize) {
            self.entries[id as usize].page = self.pages.remove(self.entries[id as usize].page);
        }
    }

    fn relocate(&mut self, id: u32, room: usize, trash: &mut Trash) {
        let entry = &mut self.entries[id as usize];
        let old = entry.run.as_ref().expect("live");
        let new = old.moved(room, &mut self.spare_levels, &self.token);
        self.bytes = self.bytes + new.bytes() - old.bytes();
        if let Some(&first) = new.contents().first() {
            self.shown.children.get(&self.token).replace(old, &new, first, &mut self.token);
            if let Some(next) = NextChildren::of(self.next_children.as_ref(), id) {
                next.replace(old, &new, first, &mut self.token);
            }
        }
        trash.push(Garbage::Run(mem::replace(entry.run.as_mut().expect("live"), new)));
    }

    /// Creates a run for blocks that come after `place` (another run and a number of its blocks), with the first of
    /// these blocks, as many as fit. The blocks have no holders (ranks' caches) yet. Returns the run's number.
    pub(crate) fn create(
        &mut self,
        place: Place,
        contents: &[u64],
        names: Option<&[u64]>,
        more: usize,
        trash: &mut Trash,
    ) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::free());
            (self.entries.len() - 1) as u32
        });
        let contents = &contents[..contents.len().min(MAX_RUN)];
        let mut run = Run::new(id, place.run, place.blocks, (contents.len() + more).min(MAX_RUN));
        run.extend(contents, names);
        self.bytes += run.bytes();
        self.live += 1;
        self.positions += contents.len();
        let start = if place.run == ROOT { 0 } else { self.start(place.run) + place.blocks };
        self.entries[id as usize] = {
            let mut page = NO_PAGE;
            for _ in 0..contents.len().div_ceil(PAGE as usize) {
                page = self.pages.add(id, page);
            }
            Entry { run: Some(run), start, next: NO_RUN, previous: NO_RUN, cut: false, listed: true, page, forks: None }
        };
        // The run is linked by its own copy of the blocks, so that the caller's list is not read twice.
        let run = self.entries[id as usize].run.as_ref().expect("live");
        self.shown.children.get(&self.token).insert(run, run.contents()[0], &mut self.token);
        if let Some(next) = NextChildren::of(self.next_children.as_ref(), id) {
            next.insert(run, run.contents()[0], &mut self.token);
        }
        self.hang(id, place);
        self.reserve_children(trash);
        id
    }

    /// Publishes `levels` (numbers of blocks with their holders) as the run's levels, and removes the blocks beyond the
    /// last level, which have no holders.
    pub(crate) fn publish(&mut self, id: u32, levels: &[Level], trash: &mut Trash) {
        let run = self.entries[id as usize].run.as_mut().expect("live");
        if let Some(old) = run.head().publish(levels, &mut self.spare_levels, &mut self.token) {
            trash.push(Garbage::Levels(old));
        }
        let len = levels.last().map_or(0, |level| level.end as usize);
        if len == run.len() {
            return;
        }
        self.cut_off(id, len);
        if len == 0 {
            self.unlink(id, trash);
            return;
        }
        let run = self.get_mut(id);
        run.truncate(len);
        if run.room() > 2 * len + 8 {
            self.entries[id as usize].cut = true;
            self.relocate(id, len + 2, trash);
        }
    }

    fn unlink(&mut self, id: u32, trash: &mut Trash) {
        let place = self.origin(id);
        self.unhang(id, place);
        let run = mem::replace(&mut self.entries[id as usize], Entry::free()).run.expect("live");
        self.shown.children.get(&self.token).remove(&run, run.contents()[0], &mut self.token);
        if let Some(next) = NextChildren::of(self.next_children.as_ref(), id) {
            next.remove(&run, run.contents()[0], &mut self.token);
        }
        self.bytes -= run.bytes();
        self.live -= 1;
        trash.push(Garbage::Run(run));
        // A reader may still be about to look for children by this number.
        trash.push(Garbage::RunId(id));
        self.reserve_children(trash);
    }

    /// Upper limit of the numbers of runs of blocks: all runs that exist or existed have smaller numbers.
    pub(crate) fn numbers(&self) -> usize {
        self.entries.len()
    }

    /// Makes the number of a removed run of blocks available again, when no reader can refer to the run any longer.
    pub(crate) fn reuse(&mut self, id: u32) {
        self.free.push(id);
        if self.live == 0 && self.free.len() + 1 == self.entries.len() {
            self.entries = Entry::of_root();
            self.free = ChunkedList::default();
        }
    }
}

impl Entry {
    /// Creates a list of runs with only the root, the run that represents the empty prompt.
    fn of_root() -> ChunkedList<Self> {
        let mut entries = ChunkedList::default();
        entries.push(Self::free());
        entries
    }

    fn free() -> Self {
        Self {
            run: None,
            start: 0,
            next: NO_RUN,
            previous: NO_RUN,
            cut: false,
            listed: true,
            page: NO_PAGE,
            forks: None,
        }
    }
}
