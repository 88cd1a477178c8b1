//! A rank of a worker becomes known.

use std::sync::Arc;

use hashbrown::HashMap;

use super::state::Writer;
use super::workers::{Copies, Rank};
use crate::raw::Published;
use crate::roster::{ALL_VIEWS, Member, Roster};

impl Writer {
    pub(super) fn rank_mut(&mut self, worker: &str, rank: u32) -> &mut Rank {
        self.workers.get_mut(worker, rank).expect("added before it is used")
    }

    pub(super) fn add_rank(&mut self, worker: &str, rank: u32, roster: &Published<Roster>) {
        if self.workers.get_mut(worker, rank).is_some() {
            return;
        }
        let name = match self.workers.by_name.get_key_value(worker) {
            Some((name, _)) => name.clone(),
            None => Arc::from(worker),
        };
        let device = self.new_holder();
        let others = self.workers.by_name.get(worker).map_or(&[][..], |ranks| ranks);
        let worker_number = others.first().map_or(device, |(_, rank)| rank.device);
        if let [(_, only)] = others {
            let holders = only.wider.into_iter().flatten().chain([only.device]);
            holders.for_each(|holder| self.roster.put_among_ranks(holder));
        }
        let (name_of_it, is_only_rank) = (name.clone(), others.is_empty());
        let member = Member { worker: name_of_it, worker_number, rank, views: ALL_VIEWS, is_only_rank };
        self.roster.set(device, Some(member));
        self.publish_roster(roster);
        let books = Rank { device, wider: [None; 3], copies: Copies::default(), offloaded: HashMap::new() };
        self.workers.by_name.entry(name).or_default().push((rank, books));
    }
}
