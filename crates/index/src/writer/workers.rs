//! Workers and their ranks, and what is kept of each.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::position::NO_NAME;
use crate::types::BlockHash;

/// All workers.
#[derive(Default)]
pub(super) struct Workers {
    pub(super) by_name: HashMap<Arc<str>, Worker>,
}

/// A worker's ranks; most have one.
type Worker = SmallVec<[(u32, Rank); 1]>;

/// A rank's books.
pub(super) struct Rank {
    pub(super) device: u32,
    /// The holders of the wider views, up to cpu, disk and external: each there once that tier was used.
    pub(super) wider: [Option<u32>; 3],
    /// Copies beyond the first, by name.
    pub(super) copies: HashMap<u64, u32>,
    /// Copies on the other tiers, by name: cpu, disk, external.
    pub(super) offloaded: HashMap<u64, [u32; 3]>,
}

impl Workers {
    pub(super) fn bytes(&self) -> usize {
        let ranks = self.by_name.values().flatten();
        let books = |(_, rank): &(u32, Rank)| rank.copies.allocation_size() + rank.offloaded.allocation_size();
        self.by_name.allocation_size() + ranks.map(books).sum::<usize>()
    }

    /// Every rank with its worker's name and its number, in no particular order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = (&Arc<str>, u32, &Rank)> {
        self.by_name.iter().flat_map(|(name, ranks)| ranks.iter().map(move |(n, rank)| (name, *n, rank)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, worker: &str, rank: u32) -> Option<&Rank> {
        self.by_name.get(worker)?.iter().find(|(n, _)| *n == rank).map(|(_, it)| it)
    }

    pub(super) fn get_mut(&mut self, worker: &str, rank: u32) -> Option<&mut Rank> {
        let ranks = self.by_name.get_mut(worker)?;
        ranks.iter_mut().find(|(n, _)| *n == rank).map(|(_, it)| it)
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
