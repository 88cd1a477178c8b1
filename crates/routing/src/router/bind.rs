//! Late binding: requests that wait in the router are assigned to a worker only when a worker has room.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::depths::Depths;
use crate::request::Request;
use crate::router::Router;
use crate::router::config::Order;
use crate::router::outcome::{Outcome, Refusal, RequestId, WorkerId};
use crate::router::place::Plan;
use crate::router::waiting::{Aim, Turn};
use crate::time::Time;

/// Seconds after which waiting requests are tried again without any event, as workers can get room without one.
const LOOK_AGAIN: f64 = 0.02;
/// Seconds after which a request that waits for a particular worker is passed to the policy again, even without an
/// event at that worker, as other workers may be the better choice by then.
const ASK_AGAIN: f64 = 0.25;
/// Largest number of candidate rows that are read to place one waiting request. In large fleets, fewer waiting requests
/// are compared.
const ROWS: usize = 4_096;
/// Number of waiting requests that are compared at least, even if the fleet is so large that [`ROWS`] allows fewer.
const FEWEST: usize = 4;

/// Answer of the policy for one waiting request: if the request can be placed now, or which worker it waits for.
#[derive(Debug, Clone, Copy)]
struct PolicyAnswer {
    priority: Reverse<i32>,
    since: f64,
    /// Seconds of prefill that the request needs at the chosen worker; None if it continues to wait.
    work: Option<f64>,
    /// Content hash of the request's first block that the worker must compute; 0 if that block has no hash.
    next: u64,
    /// Worker that the request waits for; None if it waits for any.
    aim: Option<Aim>,
    /// True if the policy may be called again for the request without waiting for an event.
    is_due: bool,
}

impl Router {
    /// Places waiting requests for which a worker has room, and requests that have waited for the longest allowed time,
    /// at any worker. Returns each placed or refused request once, with its outcome.
    pub fn bind(&mut self, now: f64) -> Vec<(RequestId, Outcome)> {
        self.bind_with(now, |_, _| ())
    }

    /// Places waiting requests like [`Router::bind`], but calls `look_up` to look up their prompts again, as the
    /// workers' blocks may have changed since they began to wait.
    pub fn bind_with(&mut self, now: f64, look_up: impl FnMut(&Request<'_>, &mut Depths)) -> Vec<(RequestId, Outcome)> {
        self.bind_up_to(usize::MAX, now, look_up)
    }

    /// Places at most `most` waiting requests like [`Router::bind_with`], for callers that hold a lock during the call.
    /// If `most` requests were placed, there may be more: call it again.
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

    /// Requests that the next call of [`Router::bind_up_to`] may place, so that their prompts can be looked up before;
    /// empty if no worker has room.
    pub fn next_in_turn(&mut self, now: f64) -> Vec<RequestId> {
        let now = self.at(now);
        self.expire_until(now);
        if self.rests(now) {
            return Vec::new();
        }
        let (lanes, mut turns, mut all) = (self.lanes_with_room(now), Vec::new(), Vec::new());
        for lane in &lanes {
            self.waiting.first(*lane, self.scan(lanes.len()), &self.room, now, &mut turns);
            all.extend(turns.iter().filter(|turn| !turn.repeats).map(|turn| RequestId(turn.number)));
        }
        all
    }

    /// Changes the workers that a waiting request may go to, because the fleet has changed. The request keeps its place
    /// and its waiting time. Returns false if the request is not waiting.
    pub fn allow(&mut self, id: RequestId, allowed: Option<&[WorkerId]>) -> bool {
        let waits = self.waiting.allow(id.0, allowed);
        if waits {
            self.room.came();
        }
        waits
    }

    /// True if no request waits in the router, or nothing has changed since the waiting requests were last tried.
    fn rests(&self, now: f64) -> bool {
        self.waiting.len() == 0 || !self.room.is_new && now < self.tried + LOOK_AGAIN
    }

    /// Number of prompts that are compared in each lane (a queue of requests with the same allowed workers) to find the
    /// next request to place, if there are `lanes` lanes.
    fn scan(&self, lanes: usize) -> usize {
        let most = self.config.queue_scan.min((ROWS / self.fleet.up.max(1)).max(FEWEST));
        (most / lanes.max(1)).max(1)
    }

    pub(super) fn try_waiting(&mut self, most: usize, now: f64, look_up: &mut dyn FnMut(&Request<'_>, &mut Depths)) {
        while let Some(number) = self.waiting.overdue(now) {
            self.place_waiting(number, now);
        }
        if self.rests(now) {
            return;
        }
        self.tried = now;
        self.round += 1;
        let mut placed = 0;
        while placed < most {
            match self.place_next(most - placed, now, look_up) {
                0 => break,
                count => placed += count,
            }
        }
        // There may be room for more.
        self.room.is_new = placed >= most;
    }

    /// Places the waiting request that is next, and with it the requests whose first uncached block is the same, so
    /// that this block is computed once. Returns the number of requests placed: 0 if no worker has room for any of the
    /// requests that were compared.
    fn place_next(&mut self, most: usize, now: f64, look_up: &mut dyn FnMut(&Request<'_>, &mut Depths)) -> usize {
        let mut group = Vec::new();
        let Some(number) = self.next(now, &mut group, look_up) else { return 0 };
        if !self.place_waiting(number, now) {
            return 0;
        }
        1 + group.into_iter().take(most - 1).take_while(|number| self.place_waiting(*number, now)).count()
    }

    /// Places a waiting request. Returns false if the policy lets it wait longer.
    fn place_waiting(&mut self, number: u64, now: f64) -> bool {
        let Some(mut ticket) = self.waiting.take(number) else { return false };
        self.fleet.aims(ticket.aim, None);
        self.waiting.set_aim(&mut ticket, None);
        let request = ticket.kept.request(now - ticket.since);
        let outcome = match self.plan(&request, &ticket.depths, ticket.allowed.as_deref(), now) {
            Plan::Row { row, why } => Outcome::Placed(self.reserve(&request, row, why, now)),
            // The policy left it to chance, and it fell the other way: it keeps its place.
            Plan::Wait { .. } => {
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

    /// Waiting request that is to be placed next. `group` receives the other requests of the same priority whose first
    /// block to compute is the same.
    fn next(
        &mut self,
        now: f64,
        group: &mut Vec<u64>,
        look_up: &mut dyn FnMut(&Request<'_>, &mut Depths),
    ) -> Option<u64> {
        let lanes = self.lanes_with_room(now);
        let scan = self.scan(lanes.len());
        let mut turns = std::mem::take(&mut self.turns);
        // By priority, then turn, then age.
        let mut best: Option<(Reverse<i32>, Time, u64)> = None;
        let ageing = self.ageing();
        let mut asked: Vec<(Turn, PolicyAnswer)> = Vec::new();
        for lane in lanes {
            loop {
                let is_all = self.waiting.first(lane, scan, &self.room, now, &mut turns);
                let mut due = 0;
                asked.clear();
                let mut first = None;
                for &turn in &turns {
                    let answer = if turn.repeats {
                        first.and_then(|(number, its)| self.answer_again(turn.number, number, its))
                    } else {
                        let answer = self.ask(turn.number, now, look_up);
                        first = answer.map(|its| (turn.number, its));
                        answer
                    };
                    let Some(its) = answer else { continue };
                    due += usize::from(its.is_due);
                    if best.is_some_and(|best| best.0 < its.priority) {
                        break;
                    }
                    let placed = its.work.is_some();
                    asked.push((turn, its));
                    if placed && self.config.order == Order::Fcfs {
                        break;
                    }
                }
                // Of several with one prompt the oldest comes first.
                for &(Turn { number, .. }, PolicyAnswer { priority, since, work, next, .. }) in
                    asked.iter().filter(|(turn, _)| !turn.repeats)
                {
                    let Some(work) = work else { continue };
                    let turn = match self.config.order {
                        Order::Fcfs => 0.0,
                        // What several begin with is computed once.
                        Order::LeastWork => work / siblings(&asked, next) - ageing * (now - since),
                    };
                    let its = (priority, Time(turn), number);
                    if best.is_none_or(|best| its < best) {
                        best = Some(its);
                        group.clear();
                        if next != 0 && self.config.order == Order::LeastWork {
                            let with = |(other, its): &&(Turn, PolicyAnswer)| {
                                other.number != number
                                    && its.next == next
                                    && its.priority == priority
                                    && its.work.is_some()
                            };
                            group.extend(asked.iter().filter(with).map(|(other, _)| other.number));
                        }
                    }
                }
                // Where all of these wait for a worker of their own, others may come next.
                if due > 0 || is_all {
                    break;
                }
            }
        }
        self.turns = turns;
        best.map(|(_, _, number)| number)
    }

    /// Repeats the policy's answer `its`, just given for the waiting request `first`, for the request `number`, which
    /// has the same prompt. None if `number` is not waiting.
    fn answer_again(&mut self, number: u64, first: u64, its: PolicyAnswer) -> Option<PolicyAnswer> {
        let mut ticket = self.waiting.take(number)?;
        let since = ticket.since;
        self.waiting.copy_depths(first, &mut ticket);
        self.fleet.aims(ticket.aim, its.aim);
        self.waiting.set_aim(&mut ticket, its.aim);
        self.waiting.put_back(ticket);
        Some(PolicyAnswer { since, ..its })
    }

    /// Weight of a second that a request has waited, in seconds of prefill. The weight falls with the share of the
    /// evicted blocks that are requested again: if this share is above one half, admitting a long waiting request
    /// destroys more work than it does.
    fn ageing(&self) -> f64 {
        let gone = self.gone / (self.computed + self.gone).max(1.0);
        let undone = self.policy.undone() * (1.0 - gone) + gone;
        self.config.ageing * (1.0 - 2.0 * undone).max(0.0)
    }

    /// Lanes (queues of requests with the same allowed workers) whose workers might have room for one more request, and
    /// lanes without a worker that is up.
    fn lanes_with_room(&mut self, now: f64) -> Vec<u64> {
        let Self { waiting, fleet, who, policy, .. } = self;
        let mut has_room = |allowed: Option<&Arc<[WorkerId]>>| {
            fleet.may_take(allowed.map(AsRef::as_ref), who);
            who.is_empty() || policy.has_room(fleet.candidates(&Depths::unknown(), None, Some(who), now))
        };
        waiting.lanes().filter(|(_, allowed)| has_room(*allowed)).map(|(lane, _)| lane).collect()
    }

    /// Asks the policy if a waiting request can be placed now, and where.
    fn ask(
        &mut self,
        number: u64,
        now: f64,
        look_up: &mut dyn FnMut(&Request<'_>, &mut Depths),
    ) -> Option<PolicyAnswer> {
        let mut ticket = self.waiting.take(number)?;
        let since = ticket.since;
        let request = ticket.kept.request(now - since);
        if ticket.round != self.round {
            ticket.round = self.round;
            match &mut self.unheard {
                Some(unheard) => unheard.look_up(request.content_hashes, now, &mut ticket.depths),
                None => look_up(&request, &mut ticket.depths),
            }
        }
        self.fleet.aims(ticket.aim, None);
        let plan = self.plan(&request, &ticket.depths, ticket.allowed.as_deref(), now);
        let priority = Reverse(request.priority);
        let mut next = 0;
        let (work, aim) = match plan {
            Plan::Row { row, .. } => {
                let who = (!self.who.is_empty()).then_some(&self.who[..]);
                let candidates = self.fleet.same_candidates(who);
                let depth = candidates.reached(row);
                next = request.content_hashes.get(depth as usize).copied().unwrap_or(0);
                (Some(f64::from(request.uncached(depth)) / candidates.prefill_rate[row]), ticket.aim)
            }
            // Refused at once.
            Plan::NoWorker => (Some(0.0), ticket.aim),
            Plan::Wait { aim } => (None, aim.map(|row| self.aim(&request, row, now))),
        };
        self.fleet.aims(None, aim);
        self.waiting.set_aim(&mut ticket, aim);
        let is_due = ticket.is_due(&self.room, now);
        self.waiting.put_back(ticket);
        Some(PolicyAnswer { priority, since, work, next, aim, is_due })
    }

    /// Makes a request wait for one of the last candidates, given by its row in the table. Returns the data of this
    /// wait.
    pub(super) fn aim(&self, request: &Request<'_>, row: usize, now: f64) -> Aim {
        let who = (!self.who.is_empty()).then_some(&self.who[..]);
        let candidates = self.fleet.same_candidates(who);
        let depth = candidates.reached(row);
        let tokens = f64::from(request.uncached(depth));
        Aim { worker: candidates.worker[row], asked: self.room.now(), again: now + ASK_AGAIN, tokens }
    }

    /// Removes a waiting request. Returns false if the request is not waiting.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        let ticket = self.waiting.remove(number);
        if let Some(ticket) = &ticket {
            self.fleet.aims(ticket.aim, None);
        }
        ticket.is_some()
    }
}

/// Number of waiting requests that can be placed now and whose first block to compute has the content hash `next`; 1 if
/// `next` is unknown.
fn siblings(asked: &[(Turn, PolicyAnswer)], next: u64) -> f64 {
    if next == 0 {
        return 1.0;
    }
    asked.iter().filter(|(_, its)| its.next == next && its.work.is_some()).count().max(1) as f64
}
