//! Choosing and reserving, in one step.

use std::cmp::Reverse;

use crate::candidates::Candidates;
use crate::depths::Depths;
use crate::policy::Choice;
use crate::request::Request;
use crate::router::fleet::{Share, State};
use crate::router::outcome::{Decision, Outcome, Refusal, RequestId, Why, WorkerId};
use crate::router::waiting::{Kept, Ticket};
use crate::router::{Reservation, Router};
use crate::time::Time;

/// What would be done with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plan {
    /// This row of the candidates takes it.
    Row {
        row: usize,
        why: Why,
    },
    Wait,
    NoWorker,
}

impl Router {
    /// Chooses a worker for a request among all, and reserves: [`Router::choose_among`].
    pub fn choose(&mut self, request: &Request<'_>, depths: &Depths, now: f64) -> Outcome {
        self.choose_among(request, depths, None, now)
    }

    /// Chooses a worker for a request among those of `allowed`, and reserves.
    ///
    /// The request's number does not matter. Content hashes beyond its full blocks are left out.
    pub fn choose_among(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Outcome {
        let now = self.at(now);
        self.expire_until(now);
        if self.waiting.len() > 0 {
            // Those that came before come first.
            self.try_waiting(now, &mut |_, _| ());
        }
        self.number += 1;
        let request = Request { number: self.number, ..self.complete(request) };
        let guessed = self.guess(&request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        let outcome = match self.plan(&request, depths, allowed, now) {
            Plan::Row { row, why } => Outcome::Placed(self.reserve(&request, row, why, now)),
            Plan::NoWorker => Outcome::Refused(Refusal::NoWorker),
            Plan::Wait if self.waiting.len() >= self.config.queue_limit => Outcome::Refused(Refusal::QueueFull),
            Plan::Wait => {
                let allowed = allowed.map(<[WorkerId]>::to_vec);
                let ticket = Ticket {
                    kept: Kept::new(&request),
                    depths: depths.clone(),
                    allowed,
                    since: now,
                    round: self.round,
                };
                self.waiting.push(ticket, now + self.config.queue_timeout);
                self.counts.waited += 1;
                Outcome::Waits(RequestId(request.number))
            }
        };
        self.count_refused(&outcome);
        self.guessed = guessed.unwrap_or_default();
        outcome
    }

    pub(super) fn count_refused(&mut self, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome {
            self.counts.refused[*refusal as usize] += 1;
        }
    }

    /// Finds out who may take a request, and what is on its way to each. False: nobody.
    pub(super) fn gather(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> bool {
        if self.fleet.up == 0 {
            return false;
        }
        let Self { fleet, who, predicted, on_the_way, .. } = self;
        who.clear();
        let up = |at: u32| fleet.slots.get(at as usize).is_some_and(|slot| slot.state == State::Up);
        match allowed {
            Some(allowed) => {
                who.extend(allowed.iter().map(|worker| worker.0).filter(|&at| up(at)));
                who.sort_unstable();
                who.dedup();
                if who.is_empty() {
                    return false;
                }
            }
            None if !fleet.is_dense() => who.extend((0..fleet.slots.len() as u32).filter(|&at| up(at))),
            None => (),
        }
        predicted.clear();
        predicted.resize(fleet.slots.len(), 0);
        let held = |worker| depths.get(worker).device;
        on_the_way.find(request.content_hashes, now, held, |worker, depth| {
            if let Some(most) = predicted.get_mut(worker as usize) {
                *most = depth.max(*most);
            }
        });
        self.hold_back(now);
        true
    }

    /// Leaves out workers that have just joined and had their share.
    fn hold_back(&mut self, now: f64) {
        let (seconds, start) = (self.config.warm_seconds, self.config.warm_share);
        let (total, up) = (self.total_placed, self.fleet.up as f64);
        if !self.fleet.slots.iter().any(|slot| slot.late && slot.state == State::Up) {
            return;
        }
        for slot in self.fleet.slots.iter_mut().filter(|slot| slot.late && slot.age(now) >= seconds) {
            slot.late = false;
        }
        let Self { fleet, who, .. } = self;
        let had_enough = |at: u32| {
            let slot = &fleet.slots[at as usize];
            let share = start + (1.0 - start) * slot.age(now) / seconds;
            let fair = (total - slot.joined_at + 1) as f64 / up;
            slot.late && fleet.rows().sent[at as usize] as f64 >= (fair * share).ceil()
        };
        let everybody = 0..fleet.slots.len() as u32;
        let is_up = |at: u32| fleet.slots[at as usize].state == State::Up;
        let rest: Vec<u32> = if who.is_empty() {
            everybody.filter(|&at| is_up(at) && !had_enough(at)).collect()
        } else {
            who.iter().copied().filter(|&at| !had_enough(at)).collect()
        };
        if !rest.is_empty() {
            *who = rest;
        }
    }

    /// What to do with a request, without doing it.
    pub(super) fn plan(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Plan {
        if !self.gather(request, depths, allowed, now) {
            return Plan::NoWorker;
        }
        let session = if self.config.session_ttl > 0.0 { request.session } else { None };
        let stuck = session.and_then(|session| self.sessions.get(session, now));
        let Self { fleet, who, predicted, policy, counts, config, .. } = self;
        let candidates = fleet.candidates(depths, predicted, (!who.is_empty()).then_some(who), now);
        if let Some(row) = stuck.and_then(|worker| candidates.worker.binary_search(&worker).ok()) {
            return Plan::Row { row, why: Why::Session };
        }
        let row = match policy.choose(request, candidates, now) {
            Choice::Row(row) if row < candidates.len() => row,
            Choice::Row(_) => {
                counts.bad_rows += 1;
                least_loaded(candidates)
            }
            Choice::Wait if config.queue_limit > 0 && candidates.requests.iter().any(|requests| *requests > 0) => {
                return Plan::Wait;
            }
            // Nothing would end that it could wait for, or none may wait.
            Choice::Wait => match policy.choose_now(request, candidates, now) {
                Some(row) if row < candidates.len() => row,
                _ => return Plan::Row { row: least_loaded(candidates), why: Why::Idle },
            },
        };
        let why = if candidates.len() == 1 {
            Why::Only
        } else if !policy.uses_index() {
            Why::Policy
        } else if request.content_hashes.is_empty() {
            Why::NoTokens
        } else if !depths.is_known() {
            Why::NoIndex
        } else if !candidates.trusted.iter().any(|trusted| *trusted) {
            Why::NoTrust
        } else {
            Why::Policy
        };
        Plan::Row { row, why }
    }

    /// Reserves the row that [`Router::plan`] was just asked about.
    pub(super) fn reserve(&mut self, request: &Request<'_>, row: usize, why: Why, now: f64) -> Decision {
        let Self { fleet, who, policy, .. } = self;
        let candidates = fleet.same_candidates((!who.is_empty()).then_some(who));
        policy.sent(request, candidates, row, now);
        let worker = candidates.worker[row];
        let known = candidates.any_blocks[row];
        let depth = candidates.predicted_blocks[row].max(known);
        let held = candidates.predicted_blocks.iter().chain(&candidates.any_blocks);
        let cold = held.copied().all(|blocks| blocks == 0);
        let uncached = request.uncached(depth);
        let predicted_tokens = request.uncached(known) - uncached;

        let answers = f64::from(request.answers);
        let most = request.max_tokens.map_or(f64::INFINITY, f64::from);
        let share = Share {
            tokens: f64::from(request.tokens),
            uncached: f64::from(uncached),
            generated: 0.0,
            output_left: self.mean_output.min(most).round() * answers,
        };
        fleet.sent(worker, request.number, &share, cold, now);
        let deadline = now + self.config.first_token_timeout;
        let leaf = self.on_the_way.insert(request.content_hashes, worker, request.number, deadline);
        if let Some(unheard) = &mut self.unheard {
            unheard.sent(request.number, worker, request.content_hashes, now);
        }
        self.due.push(Reverse((Time(deadline), request.number)));
        let cached = request.tokens - uncached;
        let reservation = Reservation {
            worker,
            share,
            cached,
            answers,
            sent: now,
            first_token: None,
            heard: now,
            steps_since: now,
            steps: 0.0,
            deadline,
            leaf,
            uncached,
        };
        self.placed.insert(request.number, reservation);
        if let Some(session) = request.session.filter(|_| self.config.session_ttl > 0.0) {
            self.sessions.set(session, worker, now + self.config.session_ttl, self.config.session_limit);
        }
        self.total_placed += 1;
        self.counts.placed += 1;
        self.counts.why[why as usize] += 1;
        let slot = &self.fleet.slots[worker as usize];
        Decision {
            id: RequestId(request.number),
            worker: WorkerId(worker),
            name: slot.name.clone(),
            rank: slot.rank,
            cached_tokens: cached,
            uncached_tokens: uncached,
            predicted_tokens,
            why,
        }
    }
}

/// The row with the least queued work for its speed; then the fewest requests.
fn least_loaded(candidates: &Candidates) -> usize {
    let load = |row: usize| (candidates.queued_tokens[row] / candidates.prefill_rate[row], candidates.requests[row]);
    let less = |a: &usize, b: &usize| {
        let (a, b) = (load(*a), load(*b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    };
    (0..candidates.len()).min_by(less).unwrap_or(0)
}
