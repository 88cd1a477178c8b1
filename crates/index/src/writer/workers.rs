//! Workers, their ranks, and what they hold in device memory. The other tiers are `tiers`' matter.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::Writer;
use crate::error::Error;
use crate::retire::Garbage;
use crate::roster::{ALL_VIEWS, Member, Roster};
use crate::runs::NO_NAME;
use crate::shared::Published;
use crate::types::{BlockHash, Tier};

/// All workers.
#[derive(Default)]
pub(super) struct Workers {
    by_name: HashMap<Arc<str>, Worker>,
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

/// A store with its lists brought to their inner form.
pub(crate) struct Chain<'a> {
    pub(crate) parent: Option<BlockHash>,
    pub(crate) block_hashes: &'a [BlockHash],
    pub(crate) content_hashes: &'a [u64],
}

impl Writer {
    /// A rank holds consecutive blocks on a tier from now on.
    pub(crate) fn store(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        chain: &Chain<'_>,
        roster: &Published<Arc<Roster>>,
    ) -> Result<(), Error> {
        if chain.block_hashes.is_empty() {
            self.counters.stores += 1;
            return Ok(());
        }
        // A block needs at most one new run for each view.
        if !self.runs.can_number(4 * chain.block_hashes.len()) {
            return Err(Error::Full { what: "it can number 2^28 pages of 16 blocks" });
        }
        self.counters.stores += 1;
        let parent = chain.parent.map(inner);
        let names: SmallVec<[u64; 64]> = chain.block_hashes.iter().map(|&name| inner(name)).collect();
        self.add_rank(worker, rank, roster);
        match tier {
            Tier::Gpu => self.store_on_device(worker, rank, parent, &names, chain.content_hashes),
            tier => {
                self.add_view(worker, rank, tier, roster);
                self.store_elsewhere(worker, rank, tier, parent, &names, chain.content_hashes);
            }
        }
        Ok(())
    }

    pub(super) fn rank_mut(&mut self, worker: &str, rank: u32) -> &mut Rank {
        self.workers.get_mut(worker, rank).expect("added before it is used")
    }

    fn add_rank(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
        if self.workers.get_mut(worker, rank).is_some() {
            return;
        }
        let name = match self.workers.by_name.get_key_value(worker) {
            Some((name, _)) => name.clone(),
            None => Arc::from(worker),
        };
        let device = self.new_holder();
        let first = self.workers.by_name.get(worker).and_then(|ranks| ranks.first());
        let worker_number = first.map_or(device, |(_, rank)| rank.device);
        self.roster.set(device, Some(Member { worker: name.clone(), worker_number, rank, views: ALL_VIEWS }));
        self.publish_roster(roster);
        let books = Rank { device, wider: [None; 3], copies: HashMap::new(), offloaded: HashMap::new() };
        self.workers.by_name.entry(name).or_default().push((rank, books));
    }

    fn store_on_device(&mut self, worker: &str, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let books = self.rank_mut(worker, rank);
        let device = books.device;
        if !books.copies.is_empty() {
            self.end_copies_of_replaced(worker, rank, parent, names, contents);
        }
        let mut same = Vec::new();
        self.counters.replaced += self.put(device, parent, names, contents, &mut same);
        if self.count_copies && !same.is_empty() {
            let copies = &mut self.rank_mut(worker, rank).copies;
            for &name in &same {
                let extra = copies.entry(name).or_insert(0);
                *extra = extra.saturating_add(1);
            }
        }
        self.widen(worker, rank, parent, names, contents);
    }

    /// A name that is about to mean another block has one copy of that.
    fn end_copies_of_replaced(
        &mut self,
        worker: &str,
        rank: u32,
        parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) {
        for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
            let parent = if i == 0 { parent } else { Some(names[i - 1]) };
            let books = self.rank_mut(worker, rank);
            let device = books.device;
            if books.copies.contains_key(&name) && self.block(device, name) != Some((parent, content)) {
                self.rank_mut(worker, rank).copies.remove(&name);
            }
        }
    }

    /// A rank does not hold these blocks on a tier any more.
    pub(crate) fn remove(&mut self, worker: &str, rank: u32, tier: Tier, block_hashes: &[BlockHash]) {
        self.counters.removes += 1;
        let names: SmallVec<[u64; 64]> = block_hashes.iter().map(|&name| inner(name)).collect();
        if self.workers.get_mut(worker, rank).is_none() {
            self.counters.unknown_removals += names.len() as u64;
        } else if tier == Tier::Gpu {
            self.remove_from_device(worker, rank, &names);
        } else {
            self.remove_elsewhere(worker, rank, tier, &names);
        }
    }

    fn remove_from_device(&mut self, worker: &str, rank: u32, names: &[u64]) {
        let books = self.rank_mut(worker, rank);
        let device = books.device;
        let mut left: SmallVec<[u64; 64]> = SmallVec::new();
        let mut names = names;
        if !books.copies.is_empty() {
            left.extend(names.iter().copied().filter(|name| !take_copy(&mut books.copies, *name)));
            shrink(&mut books.copies);
            names = &left;
        }
        let mut gone = Vec::with_capacity(names.len());
        self.del(device, names, &mut gone);
        self.counters.unknown_removals += (names.len() - gone.len()) as u64;
        self.narrow(worker, rank, &gone);
    }

    /// A worker, or one rank or tier of it, holds nothing any more.
    pub(crate) fn clear(
        &mut self,
        worker: &str,
        rank: Option<u32>,
        tier: Option<Tier>,
        roster: &Published<Arc<Roster>>,
    ) {
        self.counters.clears += 1;
        let ranks = self.workers.by_name.get(worker).into_iter().flatten();
        let ranks: SmallVec<[u32; 4]> = ranks.map(|(n, _)| *n).filter(|n| rank.is_none_or(|r| r == *n)).collect();
        for rank in ranks {
            match tier {
                None => self.clear_rank(worker, rank, roster),
                Some(Tier::Gpu) => self.clear_device(worker, rank),
                Some(tier) => self.clear_elsewhere(worker, rank, tier),
            }
        }
    }

    fn clear_rank(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
        let books = self.rank_mut(worker, rank);
        books.copies = HashMap::new();
        books.offloaded = HashMap::new();
        let (device, wider) = (books.device, std::mem::take(&mut books.wider));
        self.clear_holder(device);
        if wider == [None; 3] {
            return;
        }
        // Before the roster says that the device is all there is: where it says so, readers do not ask who reaches
        // a depth.
        wider.into_iter().flatten().for_each(|view| self.clear_holder(view));
        self.set_views(device, wider, [None; 3]);
        self.publish_roster(roster);
        wider.into_iter().flatten().for_each(|view| self.trash.push(Garbage::HolderId(view)));
    }

    fn clear_device(&mut self, worker: &str, rank: u32) {
        let books = self.rank_mut(worker, rank);
        books.copies = HashMap::new();
        let device = books.device;
        if books.wider != [None; 3] {
            let chains = self.chains_of(device);
            // Leaves first.
            let names: Vec<u64> = chains.iter().rev().flat_map(|chain| chain.names.iter().rev().copied()).collect();
            self.narrow(worker, rank, &names);
        }
        self.clear_holder(device);
    }

    /// A worker is gone.
    pub(crate) fn drop_worker(&mut self, worker: &str, roster: &Published<Arc<Roster>>) {
        self.counters.drops += 1;
        if !self.workers.by_name.contains_key(worker) {
            return;
        }
        self.clear(worker, None, None, roster);
        self.counters.clears -= 1;
        let ranks = self.workers.by_name.remove(worker).unwrap_or_default();
        for (_, rank) in ranks {
            self.roster.set(rank.device, None);
            self.trash.push(Garbage::HolderId(rank.device));
        }
        self.publish_roster(roster);
        shrink(&mut self.workers.by_name);
    }
}

/// One copy less, if there is more than one.
fn take_copy(copies: &mut HashMap<u64, u32>, name: u64) -> bool {
    let Some(extra) = copies.get_mut(&name) else { return false };
    *extra -= 1;
    if *extra == 0 {
        copies.remove(&name);
    }
    true
}

/// Gives room back that a map has not needed for long.
pub(super) fn shrink<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.is_empty() {
        *map = HashMap::new();
    } else if map.capacity() > 64 && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
