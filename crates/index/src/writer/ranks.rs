//! Workers, their ranks, and what tiers mean.
//!
//! A rank has one holder for its device memory. When its first block is offloaded it gets a second, of kind `Any`,
//! that holds whatever the rank holds on any tier. By name, that view is the device's blocks overlaid by the
//! offloaded ones; the newest announcement of a name says what it means there, and an announcement of it for the
//! device with another content ends the claims of the other tiers on it.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::Writer;
use crate::error::Error;
use crate::retire::Garbage;
use crate::roster::{Kind, Member, Roster};
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
    pub(super) any: Option<u32>,
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

    fn get_mut(&mut self, worker: &str, rank: u32) -> Option<&mut Rank> {
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
        if !self.runs.can_number(2 * chain.block_hashes.len()) {
            return Err(Error::Full { what: "it can number 2^28 pages of 16 blocks" });
        }
        self.counters.stores += 1;
        let parent = chain.parent.map(inner);
        let names: SmallVec<[u64; 64]> = chain.block_hashes.iter().map(|&name| inner(name)).collect();
        self.add_rank(worker, rank, roster);
        match tier {
            Tier::Gpu => self.store_on_device(worker, rank, parent, &names, chain.content_hashes),
            tier => {
                self.add_any_view(worker, rank, roster);
                self.store_elsewhere(worker, rank, tier, parent, &names, chain.content_hashes);
            }
        }
        Ok(())
    }

    fn rank_mut(&mut self, worker: &str, rank: u32) -> &mut Rank {
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
        self.roster.set(device, Some(Member { worker: name.clone(), worker_number, rank, kind: Kind::Only }));
        self.publish_roster(roster);
        let books = Rank { device, any: None, copies: HashMap::new(), offloaded: HashMap::new() };
        self.workers.by_name.entry(name).or_default().push((rank, books));
    }

    /// Gives a rank its second holder, if it has none.
    fn add_any_view(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
        let device = self.rank_mut(worker, rank).device;
        if self.rank_mut(worker, rank).any.is_some() {
            return;
        }
        let any = self.new_holder();
        for chain in self.chains_of(device) {
            self.put(any, chain.parent, &chain.names, &chain.contents, &mut Vec::new());
        }
        self.rank_mut(worker, rank).any = Some(any);
        // Only now may readers count on it.
        self.set_kinds(device, Some(any));
        self.publish_roster(roster);
    }

    fn set_kinds(&mut self, device: u32, any: Option<u32>) {
        let Some(member) = self.roster.get(device).cloned() else { return };
        let kind = if any.is_some() { Kind::Device } else { Kind::Only };
        self.roster.set(device, Some(Member { kind, ..member.clone() }));
        if let Some(any) = any {
            self.roster.set(any, Some(Member { kind: Kind::Any, ..member }));
        }
    }

    fn store_on_device(&mut self, worker: &str, rank: u32, parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let books = self.rank_mut(worker, rank);
        let (device, any) = (books.device, books.any);
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
        if let Some(any) = any {
            for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
                let parent = if i == 0 { parent } else { Some(names[i - 1]) };
                let claimed = self.rank_mut(worker, rank).offloaded.contains_key(&name);
                if claimed && self.block(any, name) != Some((parent, content)) {
                    self.rank_mut(worker, rank).offloaded.remove(&name);
                    self.counters.replaced += 1;
                }
            }
            self.put(any, parent, names, contents, &mut Vec::new());
        }
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

    fn store_elsewhere(
        &mut self,
        worker: &str,
        rank: u32,
        tier: Tier,
        mut parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) {
        let slot = tier as usize - 1;
        let any = self.rank_mut(worker, rank).any.expect("made before");
        for (&name, &content) in names.iter().zip(contents) {
            let same_block = self.block(any, name) == Some((parent, content));
            let count_copies = self.count_copies;
            let offloaded = &mut self.rank_mut(worker, rank).offloaded;
            match offloaded.get_mut(&name) {
                Some(claims) if same_block => {
                    if claims[slot] == 0 || count_copies {
                        claims[slot] = claims[slot].saturating_add(1);
                    }
                }
                claims => {
                    let mut only = [0; 3];
                    only[slot] = 1;
                    match claims {
                        Some(claims) => {
                            *claims = only;
                            self.counters.replaced += 1;
                        }
                        None => drop(offloaded.insert(name, only)),
                    }
                    self.put(any, parent, &[name], &[content], &mut Vec::new());
                }
            }
            parent = Some(name);
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
        let (device, any) = (books.device, books.any);
        let mut left: SmallVec<[u64; 64]> = SmallVec::new();
        let mut names = names;
        if !books.copies.is_empty() {
            left.extend(names.iter().copied().filter(|name| !take_copy(&mut books.copies, *name)));
            shrink(&mut books.copies);
            names = &left;
        }
        let mut gone = Vec::new();
        self.del(device, names, &mut gone);
        self.counters.unknown_removals += (names.len() - gone.len()) as u64;
        if let Some(any) = any {
            let offloaded = &self.rank_mut(worker, rank).offloaded;
            gone.retain(|name| !offloaded.contains_key(name));
            self.del(any, &gone, &mut Vec::new());
        }
    }

    fn remove_elsewhere(&mut self, worker: &str, rank: u32, tier: Tier, names: &[u64]) {
        let slot = tier as usize - 1;
        for &name in names {
            let books = self.rank_mut(worker, rank);
            match books.offloaded.get_mut(&name) {
                Some(claims) if claims[slot] > 0 => {
                    claims[slot] -= 1;
                    if *claims == [0; 3] {
                        self.end_claims(worker, rank, name);
                    }
                }
                _ => self.counters.unknown_removals += 1,
            }
        }
    }

    /// No tier but the device can hold this name now.
    fn end_claims(&mut self, worker: &str, rank: u32, name: u64) {
        let books = self.rank_mut(worker, rank);
        books.offloaded.remove(&name);
        shrink(&mut books.offloaded);
        let (device, any) = (books.device, books.any.expect("it was claimed"));
        match self.block(device, name) {
            Some((parent, content)) => drop(self.put_one(any, parent, name, content)),
            None => drop(self.del_one(any, name)),
        }
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
        let (device, any) = (books.device, books.any.take());
        self.clear_holder(device);
        if let Some(any) = any {
            self.clear_holder(any);
            self.set_kinds(device, None);
            self.roster.set(any, None);
            self.publish_roster(roster);
            self.trash.push(Garbage::HolderId(any));
        }
    }

    fn clear_device(&mut self, worker: &str, rank: u32) {
        let books = self.rank_mut(worker, rank);
        books.copies = HashMap::new();
        let (device, any) = (books.device, books.any);
        if let Some(any) = any {
            let chains = self.chains_of(device);
            let offloaded = &self.rank_mut(worker, rank).offloaded;
            let names = chains.iter().flat_map(|chain| &chain.names).copied();
            // Leaves first.
            let mut gone: Vec<u64> = names.filter(|name| !offloaded.contains_key(name)).collect();
            gone.reverse();
            self.del(any, &gone, &mut Vec::new());
        }
        self.clear_holder(device);
    }

    fn clear_elsewhere(&mut self, worker: &str, rank: u32, tier: Tier) {
        let slot = tier as usize - 1;
        let books = self.rank_mut(worker, rank);
        let mut ended = Vec::new();
        for (&name, claims) in &mut books.offloaded {
            if std::mem::take(&mut claims[slot]) > 0 && *claims == [0; 3] {
                ended.push(name);
            }
        }
        for name in ended {
            self.end_claims(worker, rank, name);
        }
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
fn shrink<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>) {
    if map.is_empty() {
        *map = HashMap::new();
    } else if map.capacity() > 64 && map.len() * 8 < map.capacity() {
        map.shrink_to(map.len() * 2);
    }
}
