//! Changes of a router's fleet: workers that join and leave, their settings and reports.

use std::sync::Arc;

use crate::candidates::Candidates;
use crate::depths::Depths;
use crate::router::belief::Belief;
use crate::router::fleet::State;
use crate::router::outcome::{Load, WorkerId};
use crate::router::{Lookup, Router};

impl Router {
    /// Adds a worker's rank, or resumes one that was drained. `weight`: share of the work relative to other workers,
    /// usually 1; values that are not positive count as 1.
    pub fn add_worker(&mut self, name: &str, rank: u32, weight: f64, now: f64) -> WorkerId {
        let now = self.at(now);
        let weight = if weight > 0.0 && weight.is_finite() { weight } else { 1.0 };
        self.room.came();
        self.fleet.add(name, rank, weight, now, self.total_placed > 0, self.total_placed)
    }

    /// Removes a worker's rank with its requests, and returns their number. Later reports about these requests have no
    /// effect.
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

    /// Stops sending new requests to a worker, which finishes those it has. Returns false if there is no such worker.
    pub fn drain_worker(&mut self, worker: WorkerId) -> bool {
        self.change(worker, State::Drained)
    }

    /// Resumes sending requests to a drained worker. Returns false if there is no such worker.
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

    /// Records whether the index is reliable for a worker. If it is not, the worker counts as holding only the prompts
    /// just sent to it.
    pub fn set_trusted(&mut self, worker: WorkerId, trusted: bool) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.set_trusted(worker, trusted);
        }
    }

    /// Sets a worker's share of the work relative to other workers. Values that are not positive are ignored.
    pub fn set_weight(&mut self, worker: WorkerId, weight: f64) {
        if weight > 0.0 && weight.is_finite() && self.fleet.slot(worker).is_some() {
            self.fleet.set_weight(worker, weight);
        }
    }

    /// Applies an engine's report of its load.
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

    /// Number of a worker's rank; None if it is unknown.
    #[must_use]
    pub fn worker(&self, name: &str, rank: u32) -> Option<WorkerId> {
        self.fleet.find(name, rank)
    }

    /// Sets the part of a worker's indexed blocks that its cache is expected to have.
    pub fn set_belief(&mut self, worker: WorkerId, belief: Belief) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.beliefs.set(worker, belief);
        }
    }

    /// Records whether the number of tokens that a worker computes for its prompts is known; it is unknown for a worker
    /// that tokenizes prompts differently. If unknown, the worker counts as being as fast as the fleet, and the time
    /// until its first tokens is not used as a measurement.
    pub fn set_measured(&mut self, worker: WorkerId, is_measured: bool) {
        if self.fleet.slot(worker).is_some() {
            self.fleet.set_measured(worker, is_measured, self.config.prefill_rate);
        }
    }

    /// Numbers of all ranks of a worker.
    pub fn ranks(&self, name: &str) -> impl Iterator<Item = WorkerId> {
        self.fleet.ranks(name)
    }

    /// Name and rank of a worker; None if it has left.
    #[must_use]
    pub fn name(&self, worker: WorkerId) -> Option<(&Arc<str>, u32)> {
        self.fleet.slot(worker).map(|slot| (&slot.name, slot.rank))
    }

    /// Numbers of all workers' ranks, each with true if it receives requests.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, bool)> {
        let there = self.fleet.slots.iter().enumerate().filter(|(_, slot)| slot.state != State::Gone);
        there.map(|(at, slot)| (WorkerId(at as u32), slot.state == State::Up))
    }

    /// Converts a result of the index into the form that [`Router::choose`] takes. Workers that the router does not
    /// know are omitted.
    pub fn look_up(&self, found: &impl Lookup, depths: &mut Depths) {
        self.fleet.look_up(found, depths);
    }

    /// Table of all workers with the values that a policy would get now for a request without a prompt. Updates all
    /// values.
    pub fn candidates(&mut self, now: f64) -> &Candidates {
        let now = self.at(now);
        self.fleet.candidates(&Depths::unknown(), None, None, now)
    }
}
