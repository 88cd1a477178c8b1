//! Workers and their ranks, and the data that the writer keeps for each rank.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::OrderedRuns;
use crate::fingerprint::word;
use crate::handle::{RankHandle, RankRef};
use crate::position::NO_NAME;
use crate::raw::prefetch_all;
use crate::segmented::Map;
use crate::stats::step;
use crate::types::{BlockHash, Tier};

/// Table of all workers and their ranks. A rank is found by the worker's name once per event, and from then on by its
/// number in this table, which stays the same until the worker is dropped, while a clear replaces the holder of the
/// rank's device.
#[derive(Default)]
pub(in crate::writer) struct Workers {
    pub(in crate::writer) by_name: HashMap<Arc<str>, Worker>,
    /// Data of the ranks, indexed by their numbers.
    books: Vec<Option<Rank>>,
    free: Vec<u32>,
}

/// Ranks of a worker: pairs of the data-parallel rank and the rank's number in the table of workers. Most workers have
/// one rank.
type Worker = SmallVec<[(u32, u32); 2]>;

/// Writer's data about one rank of a worker: its holders (caches), copies of blocks, and work done in steps.
pub(in crate::writer) struct Rank {
    pub(in crate::writer) device: u32,
    /// Unique identifier of this registration of the rank, which no other rank has or had.
    pub(in crate::writer) life: u64,
    /// Holders (the rank's caches) of the views (sets of tiers) wider than the device: including host memory, disk and
    /// external storage. None until the tier is used.
    pub(in crate::writer) wider: [Option<u32>; 3],
    /// Numbers of copies of the rank's blocks on the device (how many equal blocks it holds), without the first copy of
    /// each block.
    pub(in crate::writer) copies: Copies,
    pub(in crate::writer) offloaded: OffloadedBlocks,
    /// Sum of the values that the rank's device blocks add to the rank's fingerprint.
    pub(in crate::writer) device_word: u64,
    /// Number of times that each tier of the rank was cleared (lost all its blocks), by the tier's index.
    pub(in crate::writer) clears: [u32; 4],
    /// View (set of tiers) of the rank that is being built in steps; None if none is.
    pub(in crate::writer) new_view: Option<Box<NewView>>,
    /// True if changes of the rank's blocks are recorded in the book of loadable blocks, the data about blocks that
    /// engines can load.
    pub(in crate::writer) is_tracked: bool,
    /// Tier that is being cleared in steps; None otherwise. The clear must be completed before any other change of the
    /// rank.
    pub(in crate::writer) clearing: Option<Box<TierClear>>,
}

/// View (set of tiers) of a rank that is being built in steps: its holder (a rank's cache), and the blocks still to be
/// added.
pub(in crate::writer) struct NewView {
    /// Index, in the rank's field `wider`, of the view (set of tiers) that is being built.
    pub(in crate::writer) number: usize,
    pub(in crate::writer) holder: u32,
    /// Holder (a rank's cache) of the next narrower view (set of tiers), whose blocks are added first.
    pub(in crate::writer) narrower: u32,
    pub(in crate::writer) watch: u64,
    pub(in crate::writer) runs: OrderedRuns,
    /// Run of blocks whose blocks are being added to the view, and the number of its blocks that were added so far.
    pub(in crate::writer) at: Option<(u32, u32)>,
    /// Block hashes that are still to be looked up and added to the view (set of tiers).
    pub(in crate::writer) names: Vec<u64>,
    /// Block hashes that changed while the view (set of tiers) was being built, and must be looked up (again) at the
    /// end.
    pub(in crate::writer) touched: HashSet<u64>,
    pub(in crate::writer) rounds: usize,
}

/// State of clearing a tier of a rank (removing all blocks) in steps: the blocks still to be removed.
pub(in crate::writer) struct TierClear {
    pub(in crate::writer) tier: Tier,
    /// Holder (a rank's cache) that has the tier's blocks. `runs`: its runs of blocks still to be cleared; `names`:
    /// block hashes that are in no run.
    pub(in crate::writer) holder: u32,
    pub(in crate::writer) runs: OrderedRuns,
    /// Run of blocks whose blocks are being removed, and the number of its blocks that are left.
    pub(in crate::writer) at: Option<(u32, u32)>,
    pub(in crate::writer) names: Vec<u64>,
}

impl NewView {
    fn bytes(&self) -> usize {
        let touched = self.touched.allocation_size();
        size_of::<Self>() + self.runs.bytes() + self.names.capacity() * size_of::<u64>() + touched
    }
}

impl TierClear {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.runs.bytes() + self.names.capacity() * size_of::<u64>()
    }
}

/// Numbers of copies of a block in host memory, on disk and in external storage.
pub(in crate::writer) type Claims = [u32; 3];

/// Blocks that a rank has on tiers other than the device, by block hash; each has at least one copy.
#[derive(Default)]
pub(in crate::writer) struct OffloadedBlocks {
    by_name: Map<u64, Claims>,
    /// Number of block hashes that the rank has on each tier.
    tiers: [usize; 3],
    /// Sum of the values that the blocks on each tier add to the rank's fingerprint.
    words: [u64; 3],
}

impl OffloadedBlocks {
    pub(in crate::writer) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Number of block hashes with copies of their blocks on the tier with this index.
    pub(in crate::writer) fn on(&self, tier: usize) -> usize {
        self.tiers[tier]
    }

    /// Sums of the values that the blocks on each tier add to the rank's fingerprint.
    pub(in crate::writer) fn words(&self) -> [u64; 3] {
        self.words
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.by_name.bytes()
    }

    /// Frees a part of the memory of this table of offloaded blocks; returns true if more is left. The table must not
    /// be searched afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        self.by_name.shed()
    }

    pub(in crate::writer) fn get(&self, name: u64) -> Option<Claims> {
        self.by_name.get(&name).copied()
    }

    pub(in crate::writer) fn iter(&self) -> impl Iterator<Item = (u64, Claims)> {
        self.by_name.iter().inspect(|_| step()).map(|(&name, &claims)| (name, claims))
    }

    /// Sets the numbers of copies of the block `name` on each tier other than the device; returns the previous numbers.
    pub(in crate::writer) fn set(&mut self, name: u64, now: Claims) -> Claims {
        let gone = now == [0; 3];
        let before = if gone { self.by_name.remove(&name) } else { self.by_name.insert(name, now) };
        let before = before.unwrap_or_default();
        for slot in 0..3 {
            let (was, is) = (before[slot] > 0, now[slot] > 0);
            if was == is {
                continue;
            }
            let word = word(Tier::ALL[slot + 1], name);
            let (names, words) = (&mut self.tiers[slot], &mut self.words[slot]);
            if is {
                *names += 1;
                *words = words.wrapping_add(word);
            } else {
                *names -= 1;
                *words = words.wrapping_sub(word);
            }
        }
        before
    }

    /// True if the counts of block hashes on each tier are correct, for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        let on = |tier: usize| self.by_name.iter().filter(|(_, claims)| claims[tier] > 0).count();
        self.by_name.is_counted() && self.tiers == [on(0), on(1), on(2)]
    }
}

/// Numbers of copies by block hash (how many equal blocks the rank's device holds), without the first copy of each
/// block, and the sum of these numbers.
#[derive(Default)]
pub(in crate::writer) struct Copies {
    by_name: Map<u64, u32>,
    sum: u64,
}

impl Copies {
    pub(in crate::writer) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(in crate::writer) fn bytes(&self) -> usize {
        self.by_name.bytes()
    }

    /// Frees a part of the table's memory; returns true if more is left. The table must not be searched afterwards.
    pub(in crate::writer) fn shed(&mut self) -> bool {
        self.by_name.shed()
    }

    pub(in crate::writer) fn sum(&self) -> u64 {
        self.sum
    }

    /// Number of copies of the block `name` on the rank's device, without the first one.
    pub(in crate::writer) fn of(&self, name: u64) -> u32 {
        self.by_name.get(&name).copied().unwrap_or(0)
    }

    /// Counts one more copy of the block `name`, which the rank's device has already.
    pub(in crate::writer) fn add(&mut self, name: u64) {
        let extra = self.by_name.get_or_insert_with(name, || 0);
        if *extra < u32::MAX {
            *extra += 1;
            self.sum += 1;
        }
    }

    /// Subtracts a copy of the block `name` from its count, if the rank's device has more than one copy; returns true
    /// if so.
    pub(in crate::writer) fn take(&mut self, name: u64) -> bool {
        let Some(extra) = self.by_name.get_mut(&name) else { return false };
        *extra -= 1;
        self.sum -= 1;
        if *extra == 0 {
            self.by_name.remove(&name);
        }
        true
    }

    /// Forgets all copies of the block `name` beyond the first one.
    pub(in crate::writer) fn forget(&mut self, name: u64) {
        self.sum -= u64::from(self.by_name.remove(&name).unwrap_or(0));
    }

    /// True if [`Self::sum`], the total number of copies, is correct, for tests.
    #[cfg(test)]
    pub(in crate::writer) fn is_counted(&self) -> bool {
        self.sum == self.by_name.iter().map(|(_, &extra)| u64::from(extra)).sum::<u64>() && self.by_name.is_counted()
    }
}

impl Workers {
    pub(in crate::writer) fn bytes(&self) -> usize {
        let books = |(_, _, rank): (&Arc<str>, u32, &Rank)| {
            let new_view = rank.new_view.as_ref().map_or(0, |it| it.bytes());
            let clearing = rank.clearing.as_ref().map_or(0, |it| it.bytes());
            rank.copies.bytes() + rank.offloaded.bytes() + new_view + clearing
        };
        self.by_name.allocation_size()
            + self.books.capacity() * size_of::<Option<Rank>>()
            + self.free.capacity() * size_of::<u32>()
            + self.ranks().map(books).sum::<usize>()
    }

    /// All ranks, in any order: name of the worker, data-parallel rank, and data.
    pub(in crate::writer) fn ranks(&self) -> impl Iterator<Item = (&Arc<str>, u32, &Rank)> {
        let ranks = self.by_name.iter().flat_map(|(name, ranks)| ranks.iter().map(move |(n, rank)| (name, *n, *rank)));
        ranks.inspect(|_| step()).filter_map(|(name, n, rank)| Some((name, n, self.get(rank)?)))
    }

    pub(in crate::writer) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Number of a worker's rank in this table; None if the rank is unknown.
    #[inline]
    pub(in crate::writer) fn rank(&self, worker: &str, rank: u32) -> Option<u32> {
        self.by_name.get(worker)?.iter().find(|(n, _)| *n == rank).map(|(_, it)| *it)
    }

    /// Prefetches the data of a rank, if there is a rank with this number.
    #[inline]
    pub(in crate::writer) fn ask_for(&self, rank: u32) {
        self.books.get(rank as usize).map(prefetch_all);
    }

    /// Number of a handle's rank in this table, looked up by name only if the number stored in the handle is outdated;
    /// None if the rank is unknown.
    #[inline]
    pub(in crate::writer) fn rank_of(&self, handle: &RankHandle) -> Option<u32> {
        let (number, life) = handle.found();
        if let Some(books) = self.get(number)
            && books.life == life
        {
            handle.remember_device(books.device);
            return Some(number);
        }
        let number = self.rank(handle.worker(), handle.rank())?;
        handle.remember(number, self.get(number)?.life);
        Some(number)
    }

    #[inline]
    pub(in crate::writer) fn get(&self, rank: u32) -> Option<&Rank> {
        self.books.get(rank as usize)?.as_ref()
    }

    #[inline]
    pub(in crate::writer) fn get_mut(&mut self, rank: u32) -> Option<&mut Rank> {
        self.books.get_mut(rank as usize)?.as_mut()
    }

    /// Registers a rank of a worker; returns the rank's number in this table.
    pub(in crate::writer) fn add(&mut self, worker: Arc<str>, number: u32, books: Rank) -> u32 {
        let rank = self.free.pop().unwrap_or_else(|| {
            if self.books.len() == self.books.capacity() {
                self.books.reserve_exact(self.books.len() / 4 + 4);
            }
            self.books.push(None);
            (self.books.len() - 1) as u32
        });
        self.by_name.entry(worker).or_default().push((number, rank));
        self.books[rank as usize] = Some(books);
        rank
    }

    /// Removes a worker from the table of workers; returns the writer's data about its ranks.
    pub(in crate::writer) fn drop(&mut self, worker: &str) -> SmallVec<[Rank; 2]> {
        let ranks = self.by_name.remove(worker).unwrap_or_default();
        let books = ranks.iter().filter_map(|(_, rank)| self.books[*rank as usize].take()).collect();
        self.free.extend(ranks.iter().map(|(_, rank)| *rank));
        if self.free.len() == self.books.len() {
            (self.books, self.free) = (Vec::new(), Vec::new());
        }
        shrink(&mut self.by_name);
        books
    }
}

/// Converts a block hash to the number that the writer uses for it; one number is reserved for "no block hash".
pub(in crate::writer) fn inner(name: BlockHash) -> u64 {
    if name.0 == NO_NAME { !NO_NAME } else { name.0 }
}

impl Rank {
    /// Views wider than the device that have a holder (a rank's cache), narrowest first: pairs of index and holder.
    pub(in crate::writer) fn views(&self) -> SmallVec<[(usize, u32); 3]> {
        self.wider.iter().enumerate().filter_map(|(view, holder)| Some((view, (*holder)?))).collect()
    }

    /// Holder (a rank's cache) of the widest view (set of tiers) that is narrower than the view with index `view`.
    pub(in crate::writer) fn narrower(&self, view: usize) -> u32 {
        self.wider[..view].iter().rev().find_map(|holder| *holder).unwrap_or(self.device)
    }

    /// Holder (a rank's cache) of the rank's widest view (set of tiers), which has all blocks of the rank on any tier.
    pub(in crate::writer) fn widest(&self) -> u32 {
        self.narrower(self.wider.len())
    }
}

/// Reduces the memory of a map that has few entries for its capacity.
pub(in crate::writer) fn shrink<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.is_empty() {
        *map = HashMap::new();
    } else if map.capacity() > 64 && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
