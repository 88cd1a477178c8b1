//! A worker holds nothing any more, or is gone.

use smallvec::SmallVec;

use super::departing::Table;
use super::state::Writer;
use crate::retire::Garbage;
use crate::types::Tier;

impl Writer {
    /// A worker, or one rank or tier of it, holds nothing any more. Returns the ranks for which that is to be gone on with
    /// ([`Self::go_on_clearing`]).
    pub(crate) fn clear(&mut self, worker: &str, rank: Option<u32>, tier: Option<Tier>) -> SmallVec<[u32; 4]> {
        self.counters.clears += 1;
        let ranks = self.workers.by_name.get(worker).into_iter().flatten();
        let mut ranks: SmallVec<[u32; 4]> =
            ranks.filter(|(n, _)| rank.is_none_or(|r| r == *n)).map(|(_, rank)| *rank).collect();
        ranks.retain(|&mut rank| {
            match tier {
                // It all goes.
                None => self.rank_mut(rank).clearing = None,
                Some(_) => self.finish_clearing(rank),
            }
            self.touch_all(self.device_of(rank));
            for (number, clears) in self.rank_mut(rank).clears.iter_mut().enumerate() {
                *clears = clears.wrapping_add(u32::from(tier.is_none_or(|tier| tier as usize == number)));
            }
            match tier {
                Some(tier) if self.is_mixed(rank, tier) => {
                    self.begin_clearing(rank, tier);
                    return true;
                }
                None => self.clear_rank(rank),
                Some(Tier::Gpu) => {
                    if self.empty_device(rank) {
                        self.publish_roster();
                    }
                }
                Some(_) => {
                    // The device is all there is.
                    if self.end_views(rank) {
                        self.publish_roster();
                    }
                }
            }
            false
        });
        ranks
    }

    /// True if what a rank loses with a tier depends on what it has on others.
    fn is_mixed(&mut self, rank: u32, tier: Tier) -> bool {
        let books = self.rank_mut(rank);
        match (tier as usize).checked_sub(1) {
            None => books.wider != [None; 3],
            Some(slot) => (0..3).any(|other| other != slot && books.offloaded.on(other) > 0),
        }
    }

    fn clear_rank(&mut self, rank: u32) {
        let has_views = self.end_views(rank);
        let has_moved = self.empty_device(rank);
        if has_views || has_moved {
            self.publish_roster();
        }
    }

    /// A rank has nothing on other tiers than the device any more. Returns whether that changes the roster, which is
    /// to be published.
    fn end_views(&mut self, rank: u32) -> bool {
        self.end_new_view(rank);
        let books = self.rank_mut(rank);
        let (device, wider) = (books.device, std::mem::take(&mut books.wider));
        let offloaded = std::mem::take(&mut books.offloaded);
        self.leaving.push(Table::Offloaded(offloaded));
        if wider == [None; 3] {
            return false;
        }
        self.set_views(device, wider, [None; 3]);
        wider.into_iter().flatten().for_each(|view| self.send_off(view));
        true
    }

    /// A rank has nothing on its device any more. Returns whether that changes the roster, which is to be published.
    pub(super) fn empty_device(&mut self, rank: u32) -> bool {
        let books = self.rank_mut(rank);
        let copies = std::mem::take(&mut books.copies);
        books.device_word = 0;
        let device = books.device;
        self.leaving.push(Table::Copies(copies));
        if self.is_small(device) {
            self.clear_holder(device);
            return false;
        }
        let new = self.new_holder();
        self.rank_mut(rank).device = new;
        let member = self.roster.get(device);
        self.roster.set(device, None);
        self.roster.set(new, member);
        self.send_off(device);
        true
    }

    /// A worker is gone.
    pub(crate) fn drop_worker(&mut self, worker: &str) {
        self.counters.drops += 1;
        if !self.workers.by_name.contains_key(worker) {
            return;
        }
        self.clear(worker, None, None);
        self.counters.clears -= 1;
        if let Some(&[(_, first), ..]) = self.workers.by_name.get(worker).map(|ranks| &ranks[..]) {
            self.roster.name(first, None);
        }
        for rank in self.workers.drop(worker) {
            self.roster.set(rank.device, None);
            self.trash.push(Garbage::HolderId(rank.device));
        }
        self.publish_roster();
    }
}
