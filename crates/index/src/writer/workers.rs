//! Workers and their ranks, and what is kept of each.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::fingerprint::word;
use crate::handle::RankHandle;
use crate::position::NO_NAME;
use crate::steps::step;
use crate::types::{BlockHash, Tier};

/// All workers. A name is looked up once an event; from then on a rank is the number of its holder on the device.
#[derive(Default)]
pub(super) struct Workers {
    pub(super) by_name: HashMap<Arc<str>, Worker>,
    /// By that number.
    books: Vec<Option<Rank>>,
}

/// A worker's ranks, with the holders of their devices; most have one.
type Worker = SmallVec<[(u32, u32); 2]>;

/// A rank's books.
pub(super) struct Rank {
    pub(super) device: u32,
    /// No other rank has or had this number.
    pub(super) life: u64,
    /// The holders of the wider views, up to cpu, disk and external: each there once that tier was used.
    pub(super) wider: [Option<u32>; 3],
    /// Copies on the device beyond the first.
    pub(super) copies: Copies,
    /// Copies on the other tiers, by name: cpu, disk, external.
    pub(super) offloaded: HashMap<u64, [u32; 3]>,
    /// Of the blocks held on each tier: see `fingerprint.rs`.
    pub(super) words: [u64; 4],
}

impl Rank {
    /// The rank holds a block on a tier that it did not hold there.
    pub(super) fn held(&mut self, tier: Tier, name: u64) {
        let sum = &mut self.words[tier as usize];
        *sum = sum.wrapping_add(word(tier, name));
    }

    /// The rank does not hold a block on a tier any more.
    pub(super) fn lost(&mut self, tier: Tier, name: u64) {
        let sum = &mut self.words[tier as usize];
        *sum = sum.wrapping_sub(word(tier, name));
    }
}

/// Copies beyond the first, by name, and how many they are.
#[derive(Default)]
pub(super) struct Copies {
    by_name: HashMap<u64, u32>,
    sum: u64,
}

impl Copies {
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Names that have any.
    pub(super) fn names(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Copies of one name beyond the first.
    pub(super) fn of(&self, name: u64) -> u32 {
        self.by_name.get(&name).copied().unwrap_or(0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.by_name.iter().inspect(|_| step()).map(|(&name, &extra)| (name, extra))
    }

    /// One copy more.
    pub(super) fn add(&mut self, name: u64) {
        let extra = self.by_name.entry(name).or_insert(0);
        if *extra < u32::MAX {
            *extra += 1;
            self.sum += 1;
        }
    }

    /// One copy less, if there is more than one.
    pub(super) fn take(&mut self, name: u64) -> bool {
        let Some(extra) = self.by_name.get_mut(&name) else { return false };
        *extra -= 1;
        self.sum -= 1;
        if *extra == 0 {
            self.by_name.remove(&name);
        }
        true
    }

    /// One copy is all there is.
    pub(super) fn forget(&mut self, name: u64) {
        self.sum -= u64::from(self.by_name.remove(&name).unwrap_or(0));
    }

    pub(super) fn shrink(&mut self) {
        shrink(&mut self.by_name);
    }

    /// What [`Self::sum`] must be.
    #[cfg(test)]
    pub(super) fn is_counted(&self) -> bool {
        self.sum == self.by_name.values().map(|&extra| u64::from(extra)).sum::<u64>()
    }
}

impl Workers {
    pub(super) fn bytes(&self) -> usize {
        let maps = |(_, _, rank): (&Arc<str>, u32, &Rank)| {
            rank.copies.by_name.allocation_size() + rank.offloaded.allocation_size()
        };
        self.by_name.allocation_size()
            + self.books.capacity() * size_of::<Option<Rank>>()
            + self.ranks().map(maps).sum::<usize>()
    }

    /// Every rank with its worker's name and its number, in no particular order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = (&Arc<str>, u32, &Rank)> {
        let ranks = self.by_name.iter().flat_map(|(name, ranks)| ranks.iter().map(move |(n, rank)| (name, *n, *rank)));
        ranks.inspect(|_| step()).filter_map(|(name, n, rank)| Some((name, n, self.get(rank)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The number of a rank.
    #[inline]
    pub(super) fn rank(&self, worker: &str, rank: u32) -> Option<u32> {
        self.by_name.get(worker)?.iter().find(|(n, _)| *n == rank).map(|(_, it)| *it)
    }

    /// The number of a rank, without a look at its name if that was looked up before.
    #[inline]
    pub(super) fn rank_of(&self, handle: &RankHandle) -> Option<u32> {
        let (number, life) = handle.found();
        if self.get(number).is_some_and(|books| books.life == life) {
            return Some(number);
        }
        let number = self.rank(handle.worker(), handle.rank())?;
        handle.remember(number, self.get(number)?.life);
        Some(number)
    }

    #[inline]
    pub(super) fn get(&self, rank: u32) -> Option<&Rank> {
        self.books.get(rank as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, rank: u32) -> Option<&mut Rank> {
        self.books.get_mut(rank as usize)?.as_mut()
    }

    /// A rank of a worker is known from now on.
    pub(super) fn add(&mut self, worker: Arc<str>, number: u32, books: Rank) {
        let rank = books.device as usize;
        if self.books.len() <= rank {
            self.books.resize_with(rank + 1, || None);
        }
        self.by_name.entry(worker).or_default().push((number, books.device));
        self.books[rank] = Some(books);
    }

    /// A worker is not known any more. Returns its ranks.
    pub(super) fn drop(&mut self, worker: &str) -> Worker {
        let ranks = self.by_name.remove(worker).unwrap_or_default();
        ranks.iter().for_each(|(_, rank)| self.books[*rank as usize] = None);
        while self.books.last().is_some_and(Option::is_none) {
            self.books.pop();
        }
        if self.books.is_empty() {
            self.books = Vec::new();
        }
        shrink(&mut self.by_name);
        ranks
    }
}

/// What identifies a block inside: one value is needed for "none".
pub(super) fn inner(name: BlockHash) -> u64 {
    if name.0 == NO_NAME { !NO_NAME } else { name.0 }
}

impl Rank {
    /// The views wider than the device that have a holder, narrowest first, with their numbers.
    pub(super) fn views(&self) -> SmallVec<[(usize, u32); 3]> {
        self.wider.iter().enumerate().filter_map(|(view, holder)| Some((view, (*holder)?))).collect()
    }

    /// The holder of whatever the rank holds anywhere.
    pub(super) fn widest(&self) -> u32 {
        self.wider.iter().rev().find_map(|holder| *holder).unwrap_or(self.device)
    }
}

/// Gives room back that a map has not needed for long.
pub(super) fn shrink<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.is_empty() {
        *map = HashMap::new();
    } else if map.capacity() > 64 && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
