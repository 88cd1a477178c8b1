//! The fleet comes and goes.

use std::sync::Arc;

use crate::candidates::Candidates;
use crate::depths::Depths;
use crate::router::belief::Belief;
use crate::router::fleet::State;
use crate::router::outcome::{Load, WorkerId};
use crate::router::{Lookup, Router};

impl Router {
    /// A worker's rank takes requests from now on, also one that was drained. `weight`: its share of the work beside
    /// others', 1 usually; what is not above 0 counts as 1.
    pub fn add_worker(&mut self, name: &str, rank: u32, weight: f64, now: f64) -> WorkerId {
        let now = self.at(now);
        let weight = if weight > 0.0 && weight.is_finite() { weight } else { 1.0 };
        self.room.came();
        self.fleet.add(name, rank, weight, now, self.total_placed > 0, self.total_placed)
    }

    /// A worker's rank is gone, and with it what it was doing: how many requests. Ending those has no effect any more.
    pub fn remove_worker(&mut self, worker: WorkerId, now: f64) -> usize {
        let now = self.at(now);
        if self.fleet.slot(worker).is_none() {
            return 0;
        }
        let mut numbers: Vec<u64> =
            self.placed.iter().filter(|(_, its)| its.worker == worker.0).map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        for number in &numbers {
            self.give_up(*number, now);
        }
        self.counts.orphaned += numbers.len() as u64;
        self.peers_left(worker.0);
        self.on_the_way.forget_worker(worker.0);
        self.sessions.left(worker.0);
        self.waiting.left(worker);
        self.policy.left(worker.0);
        self.transfers.left(worker.0);
        if let Some(unheard) = &mut self.unheard {
            unheard.left(worker.0);
        }
        self.fleet.remove(worker);
        self.room.came();
        numbers.len()
    }

    /// A worker takes nothing new from now on, but ends what it has. False: there is no such worker.
    pub fn drain_worker(&mut self, worker: WorkerId) -> bool {
        self.change(worker, State::Drained)
    }

    /// A drained worker takes requests again. False: there is no such worker.
    pub fn resume_worker(&mut self, worker: WorkerId) -> bool {
        self.change(worker, State::Up)
    }

    fn change(&mut self, worker: WorkerId, state: State) -> bool {
        let there = self.fleet.slot(worker).is_some();
        if there {
            self.fleet.set_state(worker, state);
            self.room.came();
        }
        there
    }

    /// Says whether the index can be trusted about a worker. If not, it counts as holding nothing but what was just
    /// sent.
    pub fn set_trusted(&mut self, worker: WorkerId, trusted: bool) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.set_trusted(worker, trusted);
        }
    }

    /// A worker's share of the work beside others'. What is not above 0 changes nothing.
    pub fn set_weight(&mut self, worker: WorkerId, weight: f64) {
        if weight > 0.0 && weight.is_finite() && self.fleet.slot(worker).is_some() {
            self.fleet.set_weight(worker, weight);
        }
    }

    /// Takes in what an engine says of itself.
    pub fn report(&mut self, worker: WorkerId, load: &Load, now: f64) {
        let now = self.at(now);
        if self.fleet.slot(worker).is_some() {
            self.fleet.report(worker, load, now);
            if load.waiting.is_some() || load.running.is_some() || load.kv_usage.is_some() {
                self.transfers.heard(worker.0, now);
            }
            if let (Some(unheard), Some(blocks)) = (&mut self.unheard, load.capacity_blocks)
                && blocks >= 1.0
            {
                unheard.set_room(worker.0, blocks as usize);
            }
            self.room.came_to(worker.0);
        }
    }

    /// The number of a worker's rank.
    #[must_use]
    pub fn worker(&self, name: &str, rank: u32) -> Option<WorkerId> {
        self.fleet.find(name, rank)
    }

    /// Says how much of what the index says of a worker is believed.
    pub fn set_belief(&mut self, worker: WorkerId, belief: Belief) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.beliefs.set(worker, belief);
        }
    }

    /// Says whether it is known how much of its prompts a worker computes. Where it makes other tokens of them it is not: its
    /// speed is then that of the fleet, and the time until its first tokens teaches nothing.
    pub fn set_measured(&mut self, worker: WorkerId, is_measured: bool) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.set_measured(worker, is_measured, self.config.prefill_rate);
        }
    }

    /// The numbers of a worker's ranks.
    pub fn ranks(&self, name: &str) -> impl Iterator<Item = WorkerId> {
        self.fleet.ranks(name)
    }

    /// A worker's name and rank.
    #[must_use]
    pub fn name(&self, worker: WorkerId) -> Option<(&Arc<str>, u32)> {
        self.fleet.slot(worker).map(|slot| (&slot.name, slot.rank))
    }

    /// All workers and ranks by number; whether each takes requests.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, bool)> {
        let there = self.fleet.slots.iter().enumerate().filter(|(_, slot)| slot.state != State::Gone);
        there.map(|(at, slot)| (WorkerId(at as u32), slot.state == State::Up))
    }

    /// Puts an answer of the index into a form that [`Router::choose`] takes. Workers that it does not know are left out.
    pub fn look_up(&self, found: &impl Lookup, depths: &mut Depths) {
        self.fleet.look_up(found, depths);
    }

    /// All columns as a policy would see them now, without a request. Costs a look at every row.
    pub fn candidates(&mut self, now: f64) -> &Candidates {
        let now = self.at(now);
        self.fleet.candidates(&Depths::unknown(), None, None, now)
    }
}
