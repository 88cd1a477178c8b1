//! Requests that wait in the router, highest priority first, oldest first.
//!
//! Those that may go to the same workers wait in a lane of their own: where one kind of workers has enough to do, requests
//! for another kind go on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::depths::Depths;
use crate::request::Request;
use crate::router::outcome::WorkerId;

type Key = (Reverse<i32>, u64);

/// A request with a copy of all that it is made of.
#[derive(Debug)]
pub(super) struct Kept {
    tokens: u32,
    block_size: u32,
    content_hashes: Vec<u64>,
    text: Option<String>,
    session: Option<u64>,
    max_tokens: Option<u32>,
    priority: i32,
    answers: u32,
    number: u64,
}

impl Kept {
    pub(super) fn new(request: &Request<'_>) -> Self {
        Self {
            tokens: request.tokens,
            block_size: request.block_size,
            content_hashes: request.content_hashes.to_vec(),
            text: request.text.map(str::to_owned),
            session: request.session,
            max_tokens: request.max_tokens,
            priority: request.priority,
            answers: request.answers,
            number: request.number,
        }
    }

    pub(super) fn request(&self) -> Request<'_> {
        Request {
            tokens: self.tokens,
            block_size: self.block_size,
            content_hashes: &self.content_hashes,
            text: self.text.as_deref(),
            session: self.session,
            max_tokens: self.max_tokens,
            priority: self.priority,
            answers: self.answers,
            number: self.number,
        }
    }
}

#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) kept: Kept,
    pub(super) depths: Depths,
    pub(super) allowed: Option<Arc<[WorkerId]>>,
    pub(super) since: f64,
    /// The lookup was made again in the round of this number.
    pub(super) round: u64,
}

/// Tickets that may go to the same workers.
#[derive(Debug)]
struct Lane {
    allowed: Option<Arc<[WorkerId]>>,
    tickets: BTreeMap<Key, Ticket>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By number, counted up.
    lanes: BTreeMap<u64, Lane>,
    lanes_made: u64,
    by_allowed: HashMap<Option<Arc<[WorkerId]>>, u64>,
    /// Where each is: its lane, and its place there.
    keys: HashMap<u64, (u64, Key)>,
    /// By arrival: when it has waited long enough, which.
    ends: VecDeque<(f64, u64)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn push(&mut self, ticket: Ticket, until: f64) {
        self.ends.push_back((until, ticket.kept.number));
        self.enter(ticket);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Ticket> {
        let ticket = self.leave(number);
        if self.keys.is_empty() {
            self.ends.clear();
        }
        ticket
    }

    /// One that waits may go to other workers from now on. It keeps its turn. False: it does not wait.
    pub(super) fn allow(&mut self, number: u64, allowed: Option<&[WorkerId]>) -> bool {
        let Some(mut ticket) = self.leave(number) else { return false };
        ticket.allowed = allowed.map(Arc::from);
        self.enter(ticket);
        true
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

    /// The last that would be placed, and its priority: of the lowest priority the one that came last.
    pub(super) fn last(&self) -> Option<(u64, i32)> {
        let key = self.lanes.values().filter_map(|lane| lane.tickets.keys().next_back()).max()?;
        Some((key.1, key.0.0))
    }

    /// Takes one out for a moment; [`Waiting::put_back`] must follow.
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

    /// A worker is gone: nobody waits for it, and its number may come again for another one.
    pub(super) fn left(&mut self, worker: WorkerId) {
        for lane in self.lanes.values_mut() {
            if let Some(allowed) = &mut lane.allowed {
                *allowed = allowed.iter().copied().filter(|its| *its != worker).collect();
            }
            for ticket in lane.tickets.values_mut() {
                ticket.depths.left(worker.0);
                ticket.allowed.clone_from(&lane.allowed);
            }
        }
        self.by_allowed = self.lanes.iter().map(|(at, lane)| (lane.allowed.clone(), *at)).collect();
    }

    /// The lanes, and who may take what waits there.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (u64, Option<&Arc<[WorkerId]>>)> {
        self.lanes.iter().map(|(at, lane)| (*at, lane.allowed.as_ref()))
    }

    /// Those of a lane that would be placed first, at most `most`, all of one priority, which is the answer.
    pub(super) fn first(&self, lane: u64, most: usize, numbers: &mut Vec<u64>) -> i32 {
        numbers.clear();
        let tickets = self.lanes.get(&lane).map(|lane| &lane.tickets);
        let Some((tickets, first)) = tickets.and_then(|tickets| Some((tickets, tickets.keys().next()?))) else {
            return 0;
        };
        let alike = tickets.keys().take(most).take_while(|key| key.0 == first.0);
        numbers.extend(alike.map(|key| key.1));
        first.0.0
    }

    /// One that has waited long enough.
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
