//! Requests that wait in the router, highest priority first, oldest first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

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
    pub(super) allowed: Option<Vec<WorkerId>>,
    pub(super) since: f64,
    /// The lookup was made again in the round of this number.
    pub(super) round: u64,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    tickets: BTreeMap<Key, Ticket>,
    keys: HashMap<u64, Key>,
    /// By arrival: when it has waited long enough, which.
    ends: VecDeque<(f64, u64)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.tickets.len()
    }

    pub(super) fn push(&mut self, ticket: Ticket, until: f64) {
        let number = ticket.kept.number;
        let key = (Reverse(ticket.kept.priority), number);
        self.keys.insert(number, key);
        self.ends.push_back((until, number));
        self.tickets.insert(key, ticket);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Ticket> {
        let key = self.keys.remove(&number)?;
        if self.keys.is_empty() {
            self.ends.clear();
        }
        self.tickets.remove(&key)
    }

    /// Takes one out for a moment; [`Waiting::put_back`] must follow.
    pub(super) fn take(&mut self, number: u64) -> Option<Ticket> {
        self.tickets.remove(self.keys.get(&number)?)
    }

    pub(super) fn put_back(&mut self, ticket: Ticket) {
        let number = ticket.kept.number;
        if let Some(key) = self.keys.get(&number) {
            self.tickets.insert(*key, ticket);
        }
    }

    /// A worker is gone: nobody waits for it, and its number may come again for another one.
    pub(super) fn left(&mut self, worker: WorkerId) {
        for ticket in self.tickets.values_mut() {
            ticket.depths.left(worker.0);
            if let Some(allowed) = &mut ticket.allowed {
                allowed.retain(|its| *its != worker);
            }
        }
    }

    /// Those that would be placed first, at most `most`, all of one priority.
    pub(super) fn first(&self, most: usize, numbers: &mut Vec<u64>) {
        numbers.clear();
        let Some((first, _)) = self.tickets.first_key_value() else { return };
        let alike = self.tickets.keys().take(most).take_while(|key| key.0 == first.0);
        numbers.extend(alike.map(|key| key.1));
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
