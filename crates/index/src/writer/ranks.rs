//! A rank of a worker becomes known.

use std::sync::Arc;

use super::state::Writer;
use super::workers::{Copies, Offloaded, Rank};
use crate::raw::Published;
use crate::roster::{ALL_VIEWS, Member, Roster};

impl Writer {
    pub(super) fn rank_mut(&mut self, worker: &str, rank: u32) -> &mut Rank {
        self.workers.get_mut(worker, rank).expect("added before it is used")
    }

    pub(super) fn add_rank(&mut self, worker: &str, rank: u32, roster: &Published<Arc<Roster>>) {
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
        let books = Rank { device, wider: [None; 3], copies: Copies::default(), offloaded: Offloaded::default() };
        self.workers.by_name.entry(name).or_default().push((rank, books));
    }
}
