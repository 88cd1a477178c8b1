//! Choice of a worker for a request and reservation of this worker, in one step.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::candidates::{Candidates, PromptWay};
use crate::depths::Depths;
use crate::policy::Choice;
use crate::predict::Insertion;
use crate::request::Request;
use crate::router::fleet::State;
use crate::router::next_best::next_best;
use crate::router::outcome::{ChoiceReason, Decision, Outcome, Refusal, RequestId, WorkerId};
use crate::router::request_changes::{ExpectedBlocks, Share};
use crate::router::waiting::{Aim, Ticket, WaitingRequest};
use crate::router::{Reservation, Router};
use crate::time::Time;
use crate::transfers::MovedTokens;

/// Plan for a request: the result of the choice, before it is carried out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plan {
    /// Assignment of the request to the worker in this row of the table of candidates.
    Row {
        row: usize,
        why: ChoiceReason,
    },
    /// Waiting in the router, for room at the worker `aim`, or at any worker if None.
    Wait {
        aim: Option<usize>,
    },
    NoWorker,
}

impl Router {
    /// Chooses a worker for a request among all workers, and reserves it, like [`Router::choose_among`].
    pub fn choose(&mut self, request: &Request<'_>, depths: &Depths, now: f64) -> Outcome {
        self.choose_among(request, depths, None, now)
    }

    /// Chooses a worker for a request among those of `allowed`, and reserves it.
    ///
    /// The number in `request` is ignored, as are content hashes beyond its full blocks. For a request that failed at a
    /// worker and is placed again, the earlier waiting time (`waited`) reduces the time that it may still wait. If the
    /// queue is full and a request of lower priority waits, that request is refused instead, and [`Router::bind`]
    /// returns its refusal.
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
            self.try_waiting(usize::MAX, now, &mut |_, _| ());
        }
        self.choose_now(request, depths, allowed, true, now)
    }

    /// Chooses a worker like [`Router::choose_among`], but places no waiting requests, for callers that do so only by
    /// [`Router::bind_up_to`]. While other requests wait, this request waits as well, unless its session determines the
    /// worker. The call therefore takes no longer if more requests wait.
    pub fn choose_or_wait(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Outcome {
        let now = self.at(now);
        self.expire_until(now);
        self.choose_now(request, depths, allowed, false, now)
    }

    /// Places a request at the only worker that can serve it, as this worker has the state that the request continues.
    /// The request never waits, and the worker may be drained. None if there is no such worker.
    pub fn place_at_keeper(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        worker: WorkerId,
        now: f64,
    ) -> Option<Decision> {
        let now = self.at(now);
        self.expire_until(now);
        self.fleet.slot(worker)?;
        self.number += 1;
        let request = Request { number: self.number, ..self.complete(request) };
        let guessed = self.guess(&request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        self.who.clear();
        self.who.push(worker.0);
        self.expect(&request, depths, now);
        let Self { fleet, who, expected, .. } = self;
        fleet.candidates(depths, Some(expected), Some(who), now);
        self.note_ways(&request, depths, Some(0), now);
        let decision = self.reserve(&request, 0, ChoiceReason::Only, now);
        self.guessed = guessed.unwrap_or_default();
        Some(decision)
    }

    /// Subtracts a refusal from the counts, because the caller tries to place the request again. [`Router::gave_up`]
    /// counts the refusal if the request is refused in the end. Call this before the counts can be read.
    pub fn tries_again(&mut self, why: Refusal) {
        let count = &mut self.counts.refused[why as usize];
        *count = count.saturating_sub(1);
    }

    /// Counts the final refusal of a request after repeated attempts.
    pub fn gave_up(&mut self, why: Refusal) {
        self.count_refused(&Outcome::Refused(why));
    }

    fn choose_now(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        binds: bool,
        now: f64,
    ) -> Outcome {
        self.number += 1;
        let request = Request { number: self.number, ..self.complete(request) };
        let guessed = self.guess(&request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        let outcome = match self.plan(&request, depths, allowed, now) {
            Plan::Row { row, why } if why != ChoiceReason::Session && !request.at_once && !self.comes_first(row) => {
                self.in_turn(&request, depths, allowed, binds, now)
            }
            Plan::Row { row, why } => Outcome::Placed(self.reserve(&request, row, why, now)),
            Plan::NoWorker => Outcome::Refused(Refusal::NoWorker),
            Plan::Wait { aim } => {
                let aim = aim.map(|row| self.aim(&request, row, now));
                self.wait(&request, depths, allowed, aim, now);
                self.kept_waiting(request.number)
            }
        };
        self.count_refused(&outcome);
        self.guessed = guessed.unwrap_or_default();
        outcome
    }

    /// True if no waiting request might be placed, before a new one, at the worker in this row of the last table of
    /// candidates.
    fn comes_first(&self, row: usize) -> bool {
        let who = (!self.who.is_empty()).then_some(&self.who[..]);
        self.waiting.none_for(self.fleet.same_candidates(who).worker[row])
    }

    /// Places a request for which a worker has room while other requests wait: queues the request, tries all waiting
    /// requests in their order if `binds` is true, and returns the request's own outcome.
    fn in_turn(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        binds: bool,
        now: f64,
    ) -> Outcome {
        self.wait(request, depths, allowed, None, now);
        self.room.is_new = true;
        let id = RequestId(request.number);
        if binds {
            self.try_waiting(usize::MAX, now, &mut |_, _| ());
            if let Some(at) = self.bound.iter().position(|(its, _)| *its == id) {
                return self.bound.remove(at).1;
            }
        }
        self.kept_waiting(request.number)
    }

    /// Keeps a request waiting that was just queued. If the queue is too long, refuses the last request of the lowest
    /// priority.
    fn kept_waiting(&mut self, number: u64) -> Outcome {
        if self.waiting.len() > self.config.queue_limit
            && let Some((last, _)) = self.waiting.last()
        {
            self.withdraw(last);
            if last == number {
                return Outcome::Refused(Refusal::QueueFull);
            }
            self.refuse_waiting(last, Refusal::Displaced);
        }
        self.counts.waited += 1;
        Outcome::Waits(RequestId(number))
    }

    /// Refuses a waiting request that was removed from the queue.
    pub(super) fn refuse_waiting(&mut self, number: u64, why: Refusal) {
        let outcome = Outcome::Refused(why);
        self.count_refused(&outcome);
        self.bound.push((RequestId(number), outcome));
    }

    fn wait(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        aim: Option<Aim>,
        now: f64,
    ) {
        let (kept, depths, allowed) = (WaitingRequest::new(request), depths.clone(), allowed.map(Arc::from));
        let since = now - request.waited;
        let ticket = Ticket { kept, depths, allowed, since, round: self.round, aim };
        self.fleet.aims(None, aim);
        self.waiting.push(ticket, since + self.config.queue_timeout);
    }

    pub(super) fn count_refused(&mut self, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome {
            self.counts.refused[*refusal as usize] += 1;
        }
    }

    /// Collects the workers that may take a request, and the number of its blocks that are on their way to each. False
    /// if no worker may take it.
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
        let Self { fleet, who, .. } = self;
        if allowed.is_some() || !fleet.is_dense() {
            fleet.may_take(allowed, who);
            if who.is_empty() {
                return false;
            }
        } else {
            who.clear();
        }
        self.expect(request, depths, now);
        true
    }

    /// Counts, for each worker, a request's leading blocks that are on their way to the worker, and those that requests
    /// at the worker use.
    pub(super) fn expect(&mut self, request: &Request<'_>, depths: &Depths, now: f64) {
        let Self { fleet, expected, on_the_way, .. } = self;
        expected.clear(fleet.slots.len());
        expected.usable = request.usable_blocks();
        let ExpectedBlocks { held: predicted, used, .. } = expected;
        // Blocks in an index that is not trusted do not count as announced.
        let trusted = |worker: u32| fleet.rows().trusted.get(worker as usize).is_some_and(|trusted| *trusted);
        let held = |worker| if trusted(worker) { depths.get(worker).device } else { 0 };
        let raise = |column: &mut [u32], worker: u32, depth: u32| {
            if let Some(most) = column.get_mut(worker as usize) {
                *most = depth.max(*most);
            }
        };
        let found = |worker, depth| raise(predicted, worker, depth);
        on_the_way.find(request.content_hashes, now, held, found, |worker, depth| raise(used, worker, depth));
    }

    /// Removes recently joined workers from the candidates if they have already been sent their share of all requests;
    /// the share grows with a worker's age. Returns the former candidates; None if no worker was removed.
    pub(super) fn hold_back(&mut self, now: f64) -> Option<Vec<u32>> {
        let (seconds, start) = (self.config.warm_seconds, self.config.warm_share);
        let (total, up) = (self.total_placed, self.fleet.up as f64);
        if !self.fleet.slots.iter().any(|slot| slot.late && slot.state == State::Up) {
            return None;
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
        let (rest, all) = if who.is_empty() {
            (everybody.filter(|&at| is_up(at) && !had_enough(at)).collect::<Vec<u32>>(), fleet.up)
        } else {
            (who.iter().copied().filter(|&at| !had_enough(at)).collect(), who.len())
        };
        (!rest.is_empty() && rest.len() < all).then(|| std::mem::replace(who, rest))
    }

    /// Plans where a request goes (to a worker or into the queue), without carrying out the plan.
    pub(super) fn plan(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Plan {
        let plan = self.plan_row(request, depths, allowed, now);
        if let Plan::Row { row, .. } | Plan::Wait { aim: Some(row) } = plan
            && self.policy.weighs_transfers()
            && depths.has_transfers()
        {
            let who = (!self.who.is_empty()).then_some(&self.who[..]);
            let is_noted = self.fleet.same_candidates(who).way.is_some_and(|(noted, _)| noted == row);
            // The ways of other workers are needed to sort them by what each would have to compute.
            if !is_noted || self.others > 0 {
                self.note_ways(request, depths, (self.others == 0).then_some(row), now);
            }
        }
        plan
    }

    fn plan_row(&mut self, request: &Request<'_>, depths: &Depths, allowed: Option<&[WorkerId]>, now: f64) -> Plan {
        if !self.gather(request, depths, allowed, now) {
            return Plan::NoWorker;
        }
        let session = if self.config.session_ttl > 0.0 { request.session } else { None };
        let stuck = session.and_then(|session| self.sessions.get(session, now));
        if let Some(worker) = stuck {
            let all = (!self.who.is_empty()).then_some(&self.who[..]);
            let candidates = self.fleet.candidates(depths, Some(&self.expected), all, now);
            if let Ok(row) = candidates.worker.binary_search(&worker) {
                return Plan::Row { row, why: ChoiceReason::Session };
            }
        }
        let with_new = self.hold_back(now);
        let mut choice = self.ask_policy(request, depths, now);
        if let (Choice::Wait | Choice::WaitFor { .. }, Some(with_new)) = (choice, with_new) {
            // A worker that is new is better than none.
            self.who = with_new;
            choice = self.ask_policy(request, depths, now);
        }
        let Self { fleet, who, policy, counts, config, waiting, transfers, .. } = self;
        let all = (!who.is_empty()).then_some(&who[..]);
        let candidates = fleet.same_candidates(all);
        // The last word of a wait is to send the request, not to refuse it.
        let may_wait = config.queue_limit > 0 && !request.at_once && request.waited < config.queue_timeout;
        let row = match choice {
            Choice::Row(row) if row < candidates.len() => row,
            Choice::Failed(row) if row < candidates.len() => {
                return Plan::Row { row, why: ChoiceReason::PolicyFailed };
            }
            Choice::Row(_) | Choice::Failed(_) => {
                counts.bad_rows += 1;
                return Plan::Row { row: least_loaded(candidates), why: ChoiceReason::PolicyFailed };
            }
            Choice::Wait if may_wait && candidates.requests.iter().any(|requests| *requests > 0) => {
                return Plan::Wait { aim: None };
            }
            Choice::WaitFor { row, instead } if row.max(instead) < candidates.len() => {
                if may_wait && waiting.len() < config.queue_limit {
                    return Plan::Wait { aim: Some(row) };
                }
                if waiting.none_for(candidates.worker[row]) { row } else { instead }
            }
            // Nothing would end that it could wait for, or none may wait.
            Choice::Wait | Choice::WaitFor { .. } => {
                let moves = policy.weighs_transfers() && depths.has_transfers();
                let ways = if moves { fleet.ways(transfers, request, depths, now) } else { None };
                let choice = match &ways {
                    Some(ways) => policy.choose_way_now(request, candidates, ways, now),
                    None => policy.choose_now(request, candidates, now),
                };
                match choice {
                    Some(row) if row < candidates.len() => row,
                    _ => return Plan::Row { row: least_loaded(candidates), why: ChoiceReason::Idle },
                }
            }
        };
        let why = if candidates.len() == 1 {
            ChoiceReason::Only
        } else if !policy.uses_index() {
            ChoiceReason::Policy
        } else if request.content_hashes.is_empty() {
            ChoiceReason::NoTokens
        } else if !depths.is_known() {
            ChoiceReason::NoIndex
        } else if !candidates.trusted.iter().any(|trusted| *trusted) {
            ChoiceReason::NoTrust
        } else {
            ChoiceReason::Policy
        };
        Plan::Row { row, why }
    }

    /// Asks the policy to choose one of the workers that may take the request.
    fn ask_policy(&mut self, request: &Request<'_>, depths: &Depths, now: f64) -> Choice {
        let Self { fleet, who, expected, policy, transfers, .. } = self;
        let who = (!who.is_empty()).then_some(&who[..]);
        fleet.candidates(depths, Some(expected), who, now);
        let candidates = fleet.same_candidates(who);
        if policy.weighs_transfers()
            && depths.has_transfers()
            && let Some(ways) = fleet.ways(transfers, request, depths, now)
        {
            let choice = policy.choose_way(request, candidates, &ways, now);
            if let Choice::Row(row) | Choice::WaitFor { row, .. } = choice
                && row < candidates.len()
            {
                fleet.note_ways(&ways, who, Some(row));
            }
            choice
        } else {
            policy.choose(request, candidates, now)
        }
    }

    /// Reserves the chosen candidate's worker for the request that was last passed to [`Router::plan`].
    pub(super) fn reserve(&mut self, request: &Request<'_>, row: usize, why: ChoiceReason, now: f64) -> Decision {
        let Self { fleet, who, policy, .. } = self;
        let candidates = fleet.same_candidates((!who.is_empty()).then_some(who));
        policy.sent(request, candidates, row, now);
        let worker = candidates.worker[row];
        let way = candidates.way(row).copied();
        let depth = candidates.reached(row);
        // The index also has the blocks that are loaded or pulled.
        let known = if way.is_some_and(|way| way.reached > way.device) { depth } else { candidates.any_blocks[row] };
        let held = candidates.predicted_blocks.iter().chain(&candidates.any_blocks);
        let cold = held.copied().all(|blocks| blocks == 0);
        let uncached = request.uncached(depth);
        let others = next_best(fleet, candidates, request, worker, self.others);
        let held_blocks = fleet.held_on_device(worker).filter(|_| way.is_none_or(|way| way.source.is_none()));
        let held_blocks = held_blocks.map(|held| held.min(request.usable_blocks()));
        let predicted_tokens = request.uncached(known).saturating_sub(uncached);
        let moved = way.and_then(|way| {
            let queue = fleet.until_computed(worker, now);
            MovedTokens::of(&way, request, candidates, row, &self.transfers, queue).map(Box::new)
        });
        let transfer =
            way.filter(PromptWay::is_choice).map(|way| Box::new(fleet.transfer(&way, request, candidates, row)));
        let ready = now + moved.as_ref().map_or(0.0, |moved| moved.seconds);

        let answers = f64::from(request.answers);
        let most = request.max_tokens.map_or(f64::INFINITY, f64::from);
        let share = Share {
            tokens: f64::from(request.tokens),
            uncached: f64::from(uncached),
            generated: 0.0,
            output_left: self.mean_output.min(most).round() * answers,
        };
        fleet.add_sent(worker, request.number, &share, cold, ready, now);
        let deadline = now + self.config.first_token_timeout;
        let Insertion { leaf, depth, own } =
            self.on_the_way.insert(request.content_hashes, worker, request.number, deadline);
        // For a prompt without hashes, the blocks that it shares are unknown.
        let hashed = !request.content_hashes.is_empty();
        let nameless = if hashed { f64::from(request.blocks().saturating_sub(depth)) } else { 0.0 };
        self.fleet.add_used(worker, f64::from(own) + nameless);
        if let Some(unheard) = &mut self.unheard {
            unheard.sent(request.number, worker, request.content_hashes, now);
        }
        if self.due.len() > 4 * self.placed.len() + 1024 {
            // Deadlines are minutes away, and most requests have ended long before.
            self.due.retain(|Reverse((_, number))| self.placed.contains_key(number));
        }
        self.due.push(Reverse((Time(deadline), request.number)));
        let cached = request.tokens - uncached;
        let reservation = Reservation {
            worker,
            share,
            cached,
            answers,
            sent: now,
            block_size: request.block_size,
            session: request.session,
            first_token: None,
            passed: false,
            heard: now,
            steps_since: now,
            steps: 0.0,
            deadline,
            leaf,
            nameless,
            uncached,
            moved,
        };
        self.note_sent_transfer(&reservation, request.number, now);
        self.placed.insert(request.number, reservation);
        if self.first_tokens == 0 && self.counts.finished > 0 {
            // Callers report no first tokens.
            self.comes_whole(RequestId(request.number), now);
        }
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
            held_blocks,
            why,
            transfer,
            others,
        }
    }
}

/// Row of the candidate with the least queued work relative to its speed; among equals, the one with the fewest
/// requests.
fn least_loaded(candidates: &Candidates) -> usize {
    let load = |row: usize| (candidates.queued_tokens[row] / candidates.prefill_rate[row], candidates.requests[row]);
    let less = |a: &usize, b: &usize| {
        let (a, b) = (load(*a), load(*b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    };
    (0..candidates.len()).min_by(less).unwrap_or(0)
}
