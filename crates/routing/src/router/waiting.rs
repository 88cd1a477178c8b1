//! Queue of requests that wait in the router: highest priority first, then oldest first.
//!
//! Requests that may go to the same workers form a queue of their own, called a lane: if the workers of one lane are
//! busy, requests of other lanes can still be placed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::depths::Depths;
use crate::request::{Kind, Request};
use crate::router::outcome::WorkerId;

/// Largest number of requests compared per prompt, on average, as several requests may have the same prompt.
const SIBLINGS: usize = 8;

type Key = (Reverse<i32>, u64);

/// Owned copy of a request that waits in the router.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    tokens: u32,
    block_size: u32,
    content_hashes: Vec<u64>,
    text: Option<String>,
    session: Option<u64>,
    parent: Option<u64>,
    kind: Option<Kind>,
    max_tokens: Option<u32>,
    pub(super) priority: i32,
    tells: bool,
    answers: u32,
    number: u64,
}

impl WaitingRequest {
    pub(super) fn new(request: &Request<'_>) -> Self {
        Self {
            tokens: request.tokens,
            block_size: request.block_size,
            content_hashes: request.content_hashes.to_vec(),
            text: request.text.map(str::to_owned),
            session: request.session,
            parent: request.parent,
            kind: request.kind,
            max_tokens: request.max_tokens,
            priority: request.priority,
            tells: request.tells,
            answers: request.answers,
            number: request.number,
        }
    }

    /// True if another request has the same prompt, and a policy would treat both alike. Their sessions may differ, as
    /// the policy is asked again for each request when it is placed.
    fn repeats(&self, other: &Self) -> bool {
        !self.content_hashes.is_empty()
            && self.tokens == other.tokens
            && self.block_size == other.block_size
            && self.max_tokens == other.max_tokens
            && self.priority == other.priority
            && self.answers == other.answers
            && self.kind == other.kind
            && self.text == other.text
            && self.content_hashes == other.content_hashes
    }

    /// Converts this copy back to a request in the form that policies receive. `waited`: seconds that it has waited.
    pub(super) fn request(&self, waited: f64) -> Request<'_> {
        Request {
            waited,
            tokens: self.tokens,
            block_size: self.block_size,
            content_hashes: &self.content_hashes,
            text: self.text.as_deref(),
            session: self.session,
            parent: self.parent,
            kind: self.kind,
            max_tokens: self.max_tokens,
            priority: self.priority,
            at_once: false,
            tells: self.tells,
            answers: self.answers,
            number: self.number,
        }
    }
}

#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) kept: WaitingRequest,
    pub(super) depths: Depths,
    pub(super) allowed: Option<Arc<[WorkerId]>>,
    pub(super) since: f64,
    /// Number of the round of placing waiting requests in which the request's prompt was last looked up.
    pub(super) round: u64,
    pub(super) aim: Option<Aim>,
}

/// Worker that a request waits for. The policy is asked again once this worker may have more room, or after a while, as
/// other workers may be the better choice by then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Aim {
    pub(super) worker: u32,
    /// Number of the last event in [`Room`] (a worker may have got room) when the policy was last asked about the
    /// request.
    pub(super) asked: u64,
    pub(super) again: f64,
    /// Number of the request's prompt tokens that the worker would have to compute.
    pub(super) tokens: f64,
}

impl Ticket {
    /// True if the policy might now place the request that waits for this worker.
    pub(super) fn is_due(&self, room: &Room, now: f64) -> bool {
        self.aim.is_none_or(|aim| now >= aim.again || room.is_new_at(aim.worker, aim.asked))
    }
}

/// Request that waits in the router and may be placed next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    pub(super) number: u64,
    /// True if the request has the same prompt as the preceding one.
    pub(super) repeats: bool,
}

/// Queue of the waiting requests that may go to the same workers.
#[derive(Debug)]
struct Lane {
    allowed: Option<Arc<[WorkerId]>>,
    tickets: BTreeMap<Key, Ticket>,
}

#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    /// Lanes (queues of requests with the same allowed workers) by number, in the order of their creation.
    lanes: BTreeMap<u64, Lane>,
    lanes_made: u64,
    by_allowed: HashMap<Option<Arc<[WorkerId]>>, u64>,
    /// Lane (queue of requests for the same workers) of each waiting request, and its sorting key in the lane.
    keys: HashMap<u64, (u64, Key)>,
    /// Time at which the waiting time of each request ends, and the request's number, in the order of these times.
    ends: VecDeque<(f64, u64)>,
    /// Number of requests that wait for each particular worker; the other requests wait for any.
    aims: HashMap<u32, usize>,
    aimed: usize,
}

impl WaitingRequests {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn push(&mut self, ticket: Ticket, until: f64) {
        // One that has waited before, and failed where it went, has less time left than those that came before it.
        let place = self.ends.partition_point(|(its, _)| *its <= until);
        self.ends.insert(place, (until, ticket.kept.number));
        self.count_aim(None, ticket.aim);
        self.enter(ticket);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Ticket> {
        let ticket = self.leave(number);
        if let Some(ticket) = &ticket {
            self.count_aim(ticket.aim, None);
        }
        if self.keys.is_empty() {
            self.ends.clear();
        }
        ticket
    }

    /// Changes the workers that a waiting request may go to; the request keeps its place. Returns false if it is not
    /// waiting.
    pub(super) fn allow(&mut self, number: u64, allowed: Option<&[WorkerId]>) -> bool {
        let Some(mut ticket) = self.leave(number) else { return false };
        ticket.allowed = allowed.map(Arc::from);
        self.enter(ticket);
        true
    }

    /// True if no waiting request might be placed at a worker when that worker gets room, that is, when it can take one
    /// more request.
    pub(super) fn none_for(&self, worker: u32) -> bool {
        self.aimed == self.keys.len() && !self.aims.contains_key(&worker)
    }

    /// Changes the worker that a request waits for. The request must have been removed by [`WaitingRequests::take`].
    pub(super) fn set_aim(&mut self, ticket: &mut Ticket, aim: Option<Aim>) {
        self.count_aim(std::mem::replace(&mut ticket.aim, aim), aim);
    }

    fn count_aim(&mut self, before: Option<Aim>, after: Option<Aim>) {
        if let Some(aim) = before {
            self.aimed -= 1;
            let count = self.aims.entry(aim.worker).or_default();
            *count -= 1;
            if *count == 0 {
                self.aims.remove(&aim.worker);
            }
        }
        if let Some(aim) = after {
            self.aimed += 1;
            *self.aims.entry(aim.worker).or_default() += 1;
        }
    }

    fn enter(&mut self, mut ticket: Ticket) {
        let number = ticket.kept.number;
        let key = (Reverse(ticket.kept.priority), number);
        let at = *self.by_allowed.entry(ticket.allowed.clone()).or_insert_with(|| {
            self.lanes_made += 1;
            self.lanes_made
        });
        let lane = self.lanes.entry(at);
        let lane = lane.or_insert_with(|| Lane { allowed: ticket.allowed.clone(), tickets: BTreeMap::new() });
        ticket.allowed.clone_from(&lane.allowed);
        lane.tickets.insert(key, ticket);
        self.keys.insert(number, (at, key));
    }

    fn leave(&mut self, number: u64) -> Option<Ticket> {
        let (at, key) = self.keys.remove(&number)?;
        let lane = self.lanes.get_mut(&at)?;
        let ticket = lane.tickets.remove(&key);
        if lane.tickets.is_empty() {
            if self.by_allowed.get(&lane.allowed) == Some(&at) {
                self.by_allowed.remove(&lane.allowed);
            }
            self.lanes.remove(&at);
        }
        ticket
    }

    /// Number and priority of the request that would be placed last: the newest one of the lowest priority. None if no
    /// request waits.
    pub(super) fn last(&self) -> Option<(u64, i32)> {
        let key = self.lanes.values().filter_map(|lane| lane.tickets.keys().next_back()).max()?;
        Some((key.1, key.0.0))
    }

    /// Removes a waiting request temporarily; [`WaitingRequests::put_back`] must follow.
    pub(super) fn take(&mut self, number: u64) -> Option<Ticket> {
        let (lane, key) = self.keys.get(&number)?;
        self.lanes.get_mut(lane)?.tickets.remove(key)
    }

    pub(super) fn put_back(&mut self, ticket: Ticket) {
        let number = ticket.kept.number;
        if let Some((lane, key)) = self.keys.get(&number)
            && let Some(lane) = self.lanes.get_mut(lane)
        {
            lane.tickets.insert(*key, ticket);
        }
    }

    /// Removes a worker that has left from the queue's data, as its number may be given to another worker.
    pub(super) fn left(&mut self, worker: WorkerId) {
        for lane in self.lanes.values_mut() {
            if let Some(allowed) = &mut lane.allowed {
                *allowed = allowed.iter().copied().filter(|its| *its != worker).collect();
            }
            for ticket in lane.tickets.values_mut() {
                if ticket.aim.is_some_and(|aim| aim.worker == worker.0) {
                    ticket.aim = None;
                    self.aimed -= 1;
                }
                ticket.depths.left(worker.0);
                ticket.allowed.clone_from(&lane.allowed);
            }
        }
        self.aims.remove(&worker.0);
        self.by_allowed = self.lanes.iter().map(|(at, lane)| (lane.allowed.clone(), *at)).collect();
    }

    /// Lanes (queues of requests with the same allowed workers), with the workers that may take their requests; None
    /// for all workers.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (u64, Option<&Arc<[WorkerId]>>)> {
        self.lanes.iter().map(|(at, lane)| (*at, lane.allowed.as_ref()))
    }

    /// Collects the first requests of a lane (queue of requests for the same workers) that may be placed now: at most
    /// `most` different prompts, and at most [`SIBLINGS`] times as many requests. Returns true if there are no more.
    pub(super) fn first(&self, lane: u64, most: usize, room: &Room, now: f64, turns: &mut Vec<Turn>) -> bool {
        turns.clear();
        let Some(lane) = self.lanes.get(&lane) else { return true };
        let (mut prompts, mut last) = (0, None::<&WaitingRequest>);
        for ticket in lane.tickets.values().filter(|ticket| ticket.is_due(room, now)) {
            let repeats = last.is_some_and(|last| ticket.kept.repeats(last));
            prompts += usize::from(!repeats);
            if prompts > most || turns.len() == most.saturating_mul(SIBLINGS) {
                return false;
            }
            turns.push(Turn { number: ticket.kept.number, repeats });
            last = Some(&ticket.kept);
        }
        true
    }

    /// Copies the numbers of leading blocks that workers hold, just looked up for the prompt of request `from`, to a
    /// request with the same prompt that was temporarily removed from the queue.
    pub(super) fn copy_depths(&self, from: u64, to: &mut Ticket) {
        let from = self.keys.get(&from).and_then(|(lane, key)| self.lanes.get(lane)?.tickets.get(key));
        if let Some(from) = from {
            to.depths.clone_from(&from.depths);
            to.round = from.round;
        }
    }

    /// Removes and returns a request whose allowed waiting time has ended; None if there is none.
    pub(super) fn overdue(&mut self, now: f64) -> Option<u64> {
        while let Some(&(until, number)) = self.ends.front() {
            let there = self.keys.contains_key(&number);
            if there && until > now {
                return None;
            }
            self.ends.pop_front();
            if there {
                return Some(number);
            }
        }
        None
    }
}

/// Number of the last event after which each worker may have room for a request that waits in the router. Events are
/// counted from 1.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// True if a worker may have got room for a request since waiting requests were last tried.
    pub(super) is_new: bool,
    events: u64,
    anywhere: u64,
    at: Vec<u64>,
}

impl Room {
    /// Records that a worker may have got room for a waiting request.
    pub(super) fn came_to(&mut self, worker: u32) {
        let at = worker as usize;
        if self.at.len() <= at {
            self.at.resize(at + 1, 0);
        }
        self.events += 1;
        self.at[at] = self.events;
        self.is_new = true;
    }

    /// Records that any of the workers may have got room for a waiting request.
    pub(super) fn came(&mut self) {
        self.events += 1;
        self.anywhere = self.events;
        self.is_new = true;
    }

    /// Number of events so far after which a worker may have had room for a waiting request.
    pub(super) fn now(&self) -> u64 {
        self.events
    }

    /// True if a worker may have got room for a waiting request after event number `since`.
    pub(super) fn is_new_at(&self, worker: u32, since: u64) -> bool {
        self.anywhere > since || self.at.get(worker as usize).is_some_and(|at| *at > since)
    }
}
