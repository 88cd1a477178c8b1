//! Rosters: tables with the worker and rank behind each holder's number (a holder is a rank's cache). The result of a
//! lookup takes its names from a roster.
//!
//! A roster is immutable for readers: the writer publishes a new one when a holder is added or removed. Successive
//! rosters share all chunks that did not change.
//!
//! A chunk has one array per property of its holders. Boolean properties are bit masks, so that a lookup selects, among
//! 64 holders at once, those that count in its view (selection of tiers) by one "and".

use std::sync::{Arc, OnceLock};

use crate::sync::stripe_of_thread;
use crate::types::View;

/// Number of holders (ranks' caches) in a chunk: one for each bit of a word.
const CHUNK: usize = 64;

/// Bit mask of all views (selections of tiers), for a rank with only one holder (a rank's cache). Bit n stands for the
/// view with number n.
pub(crate) const ALL_VIEWS: u8 = 0b1111;

/// Data of a holder (a rank's cache): its worker and rank, and the views (sets of tiers) that it stands for.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) worker: Arc<str>,
    /// Number of the worker, which does not change with the worker's holders (ranks' caches).
    pub(crate) worker_number: u32,
    pub(crate) rank: u32,
    /// Bit mask of the views (selections of tiers) in which the holder (a rank's cache) stands for its rank; at least
    /// one bit is set.
    pub(crate) views: u8,
    /// True if the holder's worker has no other rank.
    pub(crate) is_only_rank: bool,
}

/// Part of a roster: 64 holders (ranks' caches), and the workers with the same numbers. In a chunk's masks, bit i
/// stands for its i-th holder.
#[derive(Clone)]
pub(crate) struct Chunk {
    /// Worker name of each holder (a rank's cache); empty for an unused number, so that a name can be read without a
    /// check.
    workers: [Arc<str>; CHUNK],
    worker_numbers: [u32; CHUNK],
    ranks: [u32; CHUNK],
    /// Bit mask, for each view (selection of tiers), of the holders (ranks' caches) that count in this view.
    views: [u64; View::ALL.len()],
    /// Bit mask of the holders (ranks' caches) whose worker has several ranks. Only for these must a lookup check if
    /// the worker was found before, since a rank has only one holder in each view (set of tiers).
    of_many_ranks: u64,
    /// Names of the workers with the chunk's numbers; None for a number that no worker has.
    names: [Option<Arc<str>>; CHUNK],
}

impl Chunk {
    fn empty() -> Self {
        Self {
            workers: std::array::from_fn(|_| Arc::default()),
            worker_numbers: [0; CHUNK],
            ranks: [0; CHUNK],
            views: [0; View::ALL.len()],
            of_many_ranks: 0,
            names: [const { None }; CHUNK],
        }
    }

    /// Bit mask of the numbers of holders (ranks' caches) in use, as each holder counts in at least one view (set of
    /// tiers).
    fn taken(&self) -> u64 {
        self.views.iter().fold(0, |taken, view| taken | view)
    }

    fn is_empty(&self) -> bool {
        self.taken() == 0 && self.names.iter().all(Option::is_none)
    }

    /// Bit mask of the holders (ranks' caches) that count in a view (selection of tiers).
    #[inline]
    pub(crate) fn in_view(&self, view: View) -> u64 {
        self.views[view as usize]
    }

    /// Bit mask of the holders (ranks' caches) whose worker has several ranks.
    #[inline]
    pub(crate) fn of_many_ranks(&self) -> u64 {
        self.of_many_ranks
    }

    /// Number of the worker of the holder (a rank's cache) at bit `at`.
    #[inline]
    pub(crate) fn worker_number(&self, at: u32) -> u32 {
        self.worker_numbers[at as usize % CHUNK]
    }

    /// Rank of the holder (a rank's cache) at bit `at`.
    #[inline]
    pub(crate) fn rank(&self, at: u32) -> u32 {
        self.ranks[at as usize % CHUNK]
    }

    /// Worker name of the holder (a rank's cache) at bit `at`.
    #[inline]
    pub(crate) fn worker(&self, at: u32) -> &Arc<str> {
        &self.workers[at as usize % CHUNK]
    }
}

/// Table with the worker and rank of each holder (a rank's cache), by the holder's number.
#[derive(Default)]
pub(crate) struct Roster {
    members: Members,
    /// Copies of the table for lookup results that are kept, one for each group of threads, made on first use. Threads
    /// of different groups update the reference counts of different copies, so they do not compete for cache lines.
    copies: [OnceLock<Arc<RosterMembers>>; STRIPES],
}

const STRIPES: usize = 32;

/// Holders (ranks' caches) of a roster, in chunks of 64.
#[derive(Clone, Default)]
pub(crate) struct Members {
    chunks: Vec<Arc<Chunk>>,
    /// Number of holders (ranks' caches) that do not count in every view (set of tiers), because their rank has blocks
    /// beyond its device.
    offloading: usize,
    /// Number of holders (ranks' caches) that no longer belong to a rank but are still in sets of holders.
    leaving: usize,
}

/// Holders (ranks' caches) of a roster, for lookup results that are kept. The alignment gives the reference count cache
/// lines of its own.
#[repr(align(128))]
pub(crate) struct RosterMembers(Members);

impl std::ops::Deref for RosterMembers {
    type Target = Members;

    fn deref(&self) -> &Members {
        &self.0
    }
}

impl Members {
    /// Chunk of the holders (ranks' caches) from number `64 * word` on; None if there are no numbers this high.
    #[inline]
    pub(crate) fn chunk(&self, word: usize) -> Option<&Chunk> {
        self.chunks.get(word).map(|chunk| &**chunk)
    }

    /// Number of chunks of 64 holders (ranks' caches) or workers, whichever needs more.
    #[inline]
    pub(crate) fn words(&self) -> usize {
        self.chunks.len()
    }

    /// True if every holder (a rank's cache) in any set counts in every view (selection of tiers).
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.offloading == 0 && self.leaving == 0
    }

    /// Name of the worker with this number; None if no worker has the number.
    #[inline]
    pub(crate) fn worker(&self, number: u32) -> Option<&Arc<str>> {
        self.chunks.get(number as usize / CHUNK)?.names[number as usize % CHUNK].as_ref()
    }

    fn get(&self, holder: u32) -> Option<Member> {
        let (chunk, at) = (self.chunks.get(holder as usize / CHUNK)?, holder as usize % CHUNK);
        let views = (0..View::ALL.len()).map(|view| ((chunk.views[view] >> at & 1) as u8) << view).sum();
        (views != 0).then(|| Member {
            worker: chunk.workers[at].clone(),
            worker_number: chunk.worker_numbers[at],
            rank: chunk.ranks[at],
            views,
            is_only_rank: chunk.of_many_ranks >> at & 1 == 0,
        })
    }

    fn set(&mut self, holder: u32, member: Option<Member>) {
        let at = holder as usize % CHUNK;
        let counts = |member: &Option<Member>| usize::from(member.as_ref().is_some_and(|m| m.views != ALL_VIEWS));
        self.offloading = self.offloading + counts(&member) - counts(&self.get(holder));
        let chunk = self.chunk_mut(holder);
        let mark = |mask: &mut u64, is: bool| *mask = *mask & !(1 << at) | u64::from(is) << at;
        let (views, is_only_rank) = member.as_ref().map_or((0, true), |m| (m.views, m.is_only_rank));
        chunk.views.iter_mut().enumerate().for_each(|(view, mask)| mark(mask, views >> view & 1 == 1));
        mark(&mut chunk.of_many_ranks, !is_only_rank);
        chunk.worker_numbers[at] = member.as_ref().map_or(0, |m| m.worker_number);
        chunk.ranks[at] = member.as_ref().map_or(0, |m| m.rank);
        chunk.workers[at] = member.map(|m| m.worker).unwrap_or_default();
        self.trim();
    }

    fn name(&mut self, number: u32, name: Option<Arc<str>>) {
        self.chunk_mut(number).names[number as usize % CHUNK] = name;
        self.trim();
    }

    fn chunk_mut(&mut self, number: u32) -> &mut Chunk {
        let at = number as usize / CHUNK;
        while self.chunks.len() <= at {
            self.chunks.push(Arc::new(Chunk::empty()));
        }
        Arc::make_mut(&mut self.chunks[at])
    }

    fn trim(&mut self) {
        while self.chunks.last().is_some_and(|chunk| chunk.is_empty()) {
            self.chunks.pop();
        }
    }
}

impl Roster {
    #[inline]
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    /// Shared copy of the holders (ranks' caches), for a lookup result that is kept.
    #[inline]
    pub(crate) fn keep(&self) -> Arc<RosterMembers> {
        let copy = &self.copies[stripe_of_thread() % STRIPES];
        copy.get_or_init(|| Arc::new(RosterMembers(self.members.clone()))).clone()
    }

    /// Worker and rank of the holder (a rank's cache) with this number; None if the number is not in use.
    pub(crate) fn get(&self, holder: u32) -> Option<Member> {
        self.members.get(holder)
    }

    /// Sets the entry of a holder (a rank's cache) in the roster; None frees the holder's number.
    pub(crate) fn set(&mut self, holder: u32, member: Option<Member>) {
        self.members.set(holder, member);
    }

    /// Sets the name of the worker with a number; None frees the number.
    pub(crate) fn name(&mut self, number: u32, name: Option<Arc<str>>) {
        self.members.name(number, name);
    }

    /// Counts a holder (a rank's cache) that no longer belongs to a rank but is still in sets of holders.
    pub(crate) fn one_leaves(&mut self) {
        self.members.leaving += 1;
    }

    /// Removes from the count a holder (a rank's cache) without a rank, as the holder is no longer in any set.
    pub(crate) fn one_has_left(&mut self) {
        self.members.leaving -= 1;
    }

    /// Records that the worker of a holder (a rank's cache) now has another rank as well.
    pub(crate) fn put_among_ranks(&mut self, holder: u32) {
        if let Some(member) = self.get(holder) {
            self.set(holder, Some(Member { is_only_rank: false, ..member }));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.members.chunks.len() * (size_of::<Chunk>() + size_of::<Arc<Chunk>>())
    }
}

/// Copy of the roster (table of holders' workers and ranks), to be published by the writer; no lookup result refers to
/// the copy yet.
impl Clone for Roster {
    fn clone(&self) -> Self {
        Self { members: self.members.clone(), copies: Default::default() }
    }
}
