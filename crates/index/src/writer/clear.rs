//! A worker holds nothing any more, or is gone.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::state::Writer;
use super::workers::Copies;
use crate::raw::Published;
use crate::retire::Garbage;
use crate::roster::Roster;
use crate::types::Tier;

impl Writer {
    /// A worker, or one rank or tier of it, holds nothing any more.
    pub(crate) fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>, roster: &Published<Roster>) {
        self.counters.clears += 1;
        let ranks = self.workers.by_name.get(worker).into_iter().flatten();
        let ranks: SmallVec<[u32; 4]> =
            ranks.filter(|(n, _)| rank.is_none_or(|r| r == *n)).map(|(_, rank)| *rank).collect();
        for rank in ranks {
            self.touch_all(rank);
            match tier {
                None => self.clear_rank(rank, roster),
                Some(Tier::Gpu) => self.clear_device(rank),
                Some(tier) => self.clear_elsewhere(rank, tier),
            }
        }
    }

    fn clear_rank(&mut self, rank: u32, roster: &Published<Roster>) {
        let books = self.rank_mut(rank);
        books.copies = Copies::default();
        books.offloaded = HashMap::new();
        books.words = [0; 4];
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

    fn clear_device(&mut self, rank: u32) {
        let books = self.rank_mut(rank);
        books.copies = Copies::default();
        books.words[0] = 0;
        let device = books.device;
        if books.wider != [None; 3] {
            let chains = self.chains_of(device);
            // Leaves first.
            let names: Vec<u64> = chains.iter().rev().flat_map(|chain| chain.names.iter().rev().copied()).collect();
            self.narrow(rank, &names);
        }
        self.clear_holder(device);
    }

    /// A worker is gone.
    pub(crate) fn drop_worker(&mut self, worker: &str, roster: &Published<Roster>) {
        self.counters.drops += 1;
        if !self.workers.by_name.contains_key(worker) {
            return;
        }
        self.clear(worker, None, None, roster);
        self.counters.clears -= 1;
        for (_, rank) in self.workers.drop(worker) {
            self.roster.set(rank, None);
            self.trash.push(Garbage::HolderId(rank));
        }
        self.publish_roster(roster);
    }
}
