//! Numbering of positions (a run and an offset in it) with 32 bits.
//!
//! A run has a page for every 16 blocks, and a position's number consists of the page's number and four bits. The table
//! of block hashes keeps these numbers: half the memory of (run, offset), for one more step that is nearly always in
//! cache.

use smallvec::SmallVec;

use super::Runs;
use crate::position::Position;
use crate::raw::prefetch;
use crate::segmented::ChunkedList;
use crate::stats::step;

const BITS: u32 = 4;
/// Number of blocks in a page, a group of consecutive blocks of a run that are numbered together.
pub(crate) const PAGE: u32 = 1 << BITS;
pub(crate) const NO_PAGE: u32 = u32::MAX;
/// Largest number of pages (groups of 16 blocks of a run), so that the number of a position (run and offset) fits into
/// 32 bits.
const MOST_PAGES: usize = 1 << (32 - BITS);

/// Page: 16 consecutive blocks of a run (a list of consecutive blocks), which are numbered together.
#[derive(Clone, Copy)]
struct Page {
    run: u32,
    /// Index of the page (16 blocks) in its run of blocks; in an unused page, the number of the next unused one.
    index: u32,
    /// Number of the preceding page (16 blocks) of the same run of blocks.
    previous: u32,
}

/// Table of all pages, groups of 16 consecutive blocks of a run.
pub(crate) struct Pages {
    pages: ChunkedList<Page>,
    /// Number of the first unused page (a group of 16 blocks of a run).
    free: u32,
    used: usize,
    /// Largest number of pages (groups of 16 blocks of a run) that may exist; lowered in tests.
    most: usize,
}

impl Pages {
    pub(crate) fn new() -> Self {
        Self { pages: ChunkedList::default(), free: NO_PAGE, used: 0, most: MOST_PAGES }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    /// True if the numbers suffice for `more` further pages (groups of 16 blocks of a run).
    pub(crate) fn can_add(&self, more: usize) -> bool {
        self.used.saturating_add(more) < self.most
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Adds a page (16 blocks) after the last page of a run, `previous`; returns the number of the new page.
    pub(crate) fn add(&mut self, run: u32, previous: u32) -> u32 {
        let index = if previous == NO_PAGE { 0 } else { self.pages[previous as usize].index + 1 };
        let page = Page { run, index, previous };
        assert!(self.used < self.most, "refused before it comes to this");
        self.used += 1;
        if self.free == NO_PAGE {
            self.pages.push(page);
            return self.pages.len() as u32 - 1;
        }
        let id = self.free;
        self.free = self.pages[id as usize].index;
        self.pages[id as usize] = page;
        id
    }

    /// Frees the last page (16 blocks) of a run of blocks; returns the number of the page before it.
    pub(crate) fn remove(&mut self, id: u32) -> u32 {
        let previous = self.pages[id as usize].previous;
        self.pages[id as usize] = Page { run: 0, index: self.free, previous: NO_PAGE };
        self.free = id;
        self.used -= 1;
        if self.used == 0 {
            *self = Self { most: self.most, ..Self::new() };
        }
        previous
    }

    /// Number of the position at `offset` in a run of blocks whose last page (a group of 16 blocks) is `last`.
    #[inline]
    pub(crate) fn number(&self, last: u32, offset: u32) -> u32 {
        let mut page = last;
        while self.pages[page as usize].index != offset / PAGE {
            step();
            page = self.pages[page as usize].previous;
        }
        (page << BITS) | (offset % PAGE)
    }

    /// Pages (groups of 16 blocks) of a run, backwards from its last page `last`: number and offset of each page's
    /// first position.
    pub(crate) fn back_from(&self, last: u32) -> impl Iterator<Item = (u32, u32)> {
        let live = |page: u32| (page != NO_PAGE).then_some(page);
        std::iter::successors(live(last), move |&page| live(self.pages[page as usize].previous))
            .map(|page| (page << BITS, self.pages[page as usize].index * PAGE))
    }

    /// Prefetches the page of the position (run of blocks and offset) with this number.
    #[inline]
    pub(crate) fn ask_for(&self, number: u32) {
        prefetch(&self.pages[(number >> BITS) as usize]);
    }

    /// Position (run of blocks and offset) with this number.
    #[inline]
    pub(crate) fn position(&self, number: u32) -> Position {
        let page = self.pages[(number >> BITS) as usize];
        Position { run: page.run, offset: page.index * PAGE + number % PAGE }
    }
}

impl Runs {
    /// Number of a position (run of blocks and offset), in 32 bits.
    #[inline]
    pub(crate) fn number(&self, at: Position) -> u32 {
        self.pages.number(self.entries[at.run as usize].page, at.offset)
    }

    /// Numbers of the positions in a run of blocks, from offset `start` on.
    pub(crate) fn numbers_from(&self, id: u32, start: u32) -> impl Iterator<Item = u32> {
        let mut firsts: SmallVec<[u32; 64]> = SmallVec::new();
        for (number, offset) in self.pages(id) {
            firsts.push(number);
            if offset <= start {
                break;
            }
        }
        let skip = (start % PAGE) as usize;
        firsts.into_iter().rev().flat_map(|first| first..first + PAGE).skip(skip)
    }

    /// Pages (groups of 16 blocks) of a run, the last one first: number and offset of each page's first position.
    pub(crate) fn pages(&self, id: u32) -> impl Iterator<Item = (u32, u32)> {
        self.pages.back_from(self.entries[id as usize].page)
    }

    /// Position (run of blocks and offset) with this number.
    #[inline]
    pub(crate) fn position(&self, number: u32) -> Position {
        self.pages.position(number)
    }

    /// Prefetches the memory that [`Self::position`] reads for the number of a position (run of blocks and offset).
    #[inline]
    pub(crate) fn ask_for_page(&self, number: u32) {
        self.pages.ask_for(number);
    }
}
