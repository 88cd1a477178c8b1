//! A worker holds nothing any more, or is gone.

use std::sync::Arc;

use smallvec::SmallVec;

use super::leaving::Table;
use super::state::Writer;
use super::workers::shrink;
use crate::raw::Published;
use crate::retire::Garbage;
use crate::roster::{Member, Roster};
use crate::types::Tier;

impl Writer {
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
            let device = self.rank_mut(worker, rank).device;
            self.touch_all(device);
            match tier {
                None => self.clear_rank(worker, rank, roster),
                Some(Tier::Gpu) => self.clear_device(worker, rank, roster),
                Some(tier) => self.clear_elsewhere(worker, rank, tier, roster),
            }
        }
    }

    fn clear_rank(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
        let has_views = self.end_views(worker, rank);
        let has_moved = self.empty_device(worker, rank);
        if has_views || has_moved {
            self.publish_roster(roster);
        }
    }

    /// A rank has nothing on other tiers than the device any more. Returns whether that changes the roster, which is
    /// to be published.
    pub(super) fn end_views(&mut self, worker: &str, rank: u32) -> bool {
        let books = self.rank_mut(worker, rank);
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
    fn empty_device(&mut self, worker: &str, rank: u32) -> bool {
        let books = self.rank_mut(worker, rank);
        let copies = std::mem::take(&mut books.copies);
        let device = books.device;
        self.leaving.push(Table::Copies(copies));
        if self.is_small(device) {
            self.clear_holder(device);
            return false;
        }
        let new = self.new_holder();
        self.rank_mut(worker, rank).device = new;
        let Some(member) = self.roster.get(device).cloned() else { return false };
        // One of the worker's holders gives it its number.
        let number = if member.worker_number == device { new } else { member.worker_number };
        self.roster.set(device, None);
        self.roster.set(new, Some(Member { worker_number: number, ..member.clone() }));
        if number != member.worker_number {
            let ranks = self.workers.by_name.get(worker).into_iter().flatten();
            let holders = ranks.flat_map(|(_, books)| books.wider.into_iter().flatten().chain([books.device]));
            for holder in holders {
                if let Some(other) = self.roster.get(holder).cloned() {
                    self.roster.set(holder, Some(Member { worker_number: number, ..other }));
                }
            }
        }
        self.send_off(device);
        true
    }

    fn clear_device(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
        let books = self.rank_mut(worker, rank);
        let device = books.device;
        if books.wider != [None; 3] {
            let chains = self.chains_of(device);
            // Leaves first.
            let names: Vec<u64> = chains.iter().rev().flat_map(|chain| chain.names.iter().rev().copied()).collect();
            self.narrow(worker, rank, &names);
        }
        if self.empty_device(worker, rank) {
            self.publish_roster(roster);
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
