//! Late binding: requests that wait in the router are placed when somebody has room.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::depths::Depths;
use crate::request::Request;
use crate::router::Router;
use crate::router::config::Order;
use crate::router::outcome::{Outcome, Refusal, RequestId, WorkerId};
use crate::router::place::Plan;
use crate::time::Time;

/// Room comes with time too: after that many seconds it is worth a look.
const LOOK_AGAIN: f64 = 0.02;
/// Rows that are looked at to place one request that waits: in large fleets fewer of those that wait are compared.
const ROWS: usize = 4_096;
/// ...but not fewer than this.
const FEWEST: usize = 4;

impl Router {
    /// Places requests that wait, as far as there is room, and refuses those that have waited too long. Every request
    /// that waited is told of once.
    pub fn bind(&mut self, now: f64) -> Vec<(RequestId, Outcome)> {
        self.bind_with(now, |_, _| ())
    }

    /// The same, with `look_up` to look up a prompt again: what the workers hold has changed since.
    pub fn bind_with(&mut self, now: f64, look_up: impl FnMut(&Request<'_>, &mut Depths)) -> Vec<(RequestId, Outcome)> {
        self.bind_up_to(usize::MAX, now, look_up)
    }

    /// The same, and at most `most` are placed, for a caller that holds a lock meanwhile. If so many were, call it again.
    pub fn bind_up_to(
        &mut self,
        most: usize,
        now: f64,
        mut look_up: impl FnMut(&Request<'_>, &mut Depths),
    ) -> Vec<(RequestId, Outcome)> {
        let now = self.at(now);
        self.expire_until(now);
        self.try_waiting(most, now, &mut look_up);
        std::mem::take(&mut self.bound)
    }

    /// Those whose turn may come when [`Router::bind_up_to`] is called next, to look their prompts up before: nobody, if
    /// there is no room.
    pub fn next_in_turn(&mut self, now: f64) -> Vec<RequestId> {
        let now = self.at(now);
        self.expire_until(now);
        if self.rests(now) {
            return Vec::new();
        }
        let (lanes, mut numbers, mut all) = (self.lanes_with_room(now), Vec::new(), Vec::new());
        for lane in &lanes {
            self.waiting.first(*lane, self.scan(lanes.len()), &mut numbers);
            all.extend(numbers.iter().copied().map(RequestId));
        }
        all
    }

    /// A request that waits may go to these workers from now on: the fleet has changed. It keeps its turn, and the time
    /// that it has waited. False: it does not wait (any more).
    pub fn allow(&mut self, id: RequestId, allowed: Option<&[WorkerId]>) -> bool {
        let waits = self.waiting.allow(id.0, allowed);
        self.room |= waits;
        waits
    }

    /// Whether there is nobody to place, or nothing has changed since it was last tried.
    fn rests(&self, now: f64) -> bool {
        self.waiting.len() == 0 || !self.room && now < self.tried + LOOK_AGAIN
    }

    /// How many of each lane are looked at.
    fn scan(&self, lanes: usize) -> usize {
        let most = self.config.queue_scan.min((ROWS / self.fleet.up.max(1)).max(FEWEST));
        (most / lanes.max(1)).max(1)
    }

    pub(super) fn try_waiting(&mut self, most: usize, now: f64, look_up: &mut dyn FnMut(&Request<'_>, &mut Depths)) {
        while let Some(number) = self.waiting.overdue(now) {
            self.waiting.remove(number);
            self.refuse_waiting(number, Refusal::QueueTimeout);
        }
        if self.rests(now) {
            return;
        }
        self.tried = now;
        self.round += 1;
        let mut placed = 0;
        while placed < most && self.place_one(now, look_up) {
            placed += 1;
        }
        // There may be room for more.
        self.room = placed == most;
    }

    /// Places the one whose turn it is. False: there is no room for any of those looked at.
    fn place_one(&mut self, now: f64, look_up: &mut dyn FnMut(&Request<'_>, &mut Depths)) -> bool {
        let lanes = self.lanes_with_room(now);
        let mut numbers = std::mem::take(&mut self.numbers);
        // By priority, then turn, then age.
        let mut best: Option<(Reverse<i32>, Time, u64)> = None;
        let scan = self.scan(lanes.len());
        for lane in &lanes {
            let priority = Reverse(self.waiting.first(*lane, scan, &mut numbers));
            for &number in &numbers {
                let Some((work, since)) = self.work(number, now, look_up) else { continue };
                let turn = match self.config.order {
                    Order::Fcfs => 0.0,
                    Order::LeastWork => work - self.config.ageing * (now - since),
                };
                let its = (priority, Time(turn), number);
                if best.is_none_or(|best| its < best) {
                    best = Some(its);
                }
                if self.config.order == Order::Fcfs {
                    break;
                }
            }
        }
        self.numbers = numbers;
        let Some((_, _, number)) = best else { return false };
        let Some(ticket) = self.waiting.take(number) else { return false };
        let request = ticket.kept.request();
        let outcome = match self.plan(&request, &ticket.depths, ticket.allowed.as_deref(), now) {
            Plan::Row { row, why } => Outcome::Placed(self.reserve(&request, row, why, now)),
            // The policy left it to chance, and it fell the other way: it keeps its place.
            Plan::Wait => {
                self.waiting.put_back(ticket);
                return false;
            }
            Plan::NoWorker => Outcome::Refused(Refusal::NoWorker),
        };
        self.waiting.remove(number);
        self.count_refused(&outcome);
        self.bound.push((RequestId(number), outcome));
        true
    }

    /// The lanes whose workers might take one more, or of whose workers nobody is up.
    fn lanes_with_room(&mut self, now: f64) -> Vec<u64> {
        let Self { waiting, fleet, who, policy, .. } = self;
        let mut has_room = |allowed: Option<&Arc<[WorkerId]>>| {
            fleet.may_take(allowed.map(AsRef::as_ref), who);
            who.is_empty() || policy.has_room(fleet.candidates(&Depths::unknown(), &[], Some(who), now))
        };
        waiting.lanes().filter(|(_, allowed)| has_room(*allowed)).map(|(lane, _)| lane).collect()
    }

    /// Seconds of work that a waiting request would be where it would go now, and since when it waits. `None`: it goes
    /// on waiting.
    fn work(
        &mut self,
        number: u64,
        now: f64,
        look_up: &mut dyn FnMut(&Request<'_>, &mut Depths),
    ) -> Option<(f64, f64)> {
        let mut ticket = self.waiting.take(number)?;
        if ticket.round != self.round {
            ticket.round = self.round;
            match &mut self.unheard {
                Some(unheard) => unheard.look_up(ticket.kept.request().content_hashes, now, &mut ticket.depths),
                None => look_up(&ticket.kept.request(), &mut ticket.depths),
            }
        }
        let request = ticket.kept.request();
        let plan = self.plan(&request, &ticket.depths, ticket.allowed.as_deref(), now);
        let work = match plan {
            Plan::Row { row, .. } => {
                let who = (!self.who.is_empty()).then_some(&self.who[..]);
                let candidates = self.fleet.same_candidates(who);
                let depth = candidates.predicted_blocks[row].max(candidates.any_blocks[row]);
                Some(f64::from(request.uncached(depth)) / candidates.prefill_rate[row])
            }
            // Refused at once.
            Plan::NoWorker => Some(0.0),
            Plan::Wait => None,
        };
        let since = ticket.since;
        self.waiting.put_back(ticket);
        work.map(|work| (work, since))
    }
}
