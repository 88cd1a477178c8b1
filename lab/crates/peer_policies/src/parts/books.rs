//! Counts of requests in flight for policies that count blocks: prompts to compute, and blocks in use.

use std::collections::{BTreeSet, HashMap};

use crate::parts::Pieces;
use kvatlas_routing::Request;

#[derive(Debug)]
struct Entry {
    worker: u32,
    time: u64,
    /// Number of tokens to compute before the first token; 0 afterwards.
    prefill: f64,
    chain: Vec<u64>,
    /// Number of blocks without a hash: an incomplete last block, and all blocks of a prompt that was not tokenised.
    nameless: u32,
}

#[derive(Debug, Default)]
struct Worker {
    prefill: f64,
    uses: HashMap<u64, u32>,
    nameless: u64,
    requests: u32,
}

/// Load of one worker by the counts of its requests in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Number of prompt tokens to compute, of requests without a first token.
    pub(crate) prefill: f64,
    /// Number of distinct blocks in use, including those of the request for which a worker is chosen.
    pub(crate) blocks: f64,
    /// Number of requests in flight.
    pub(crate) requests: f64,
}

/// Requests in flight, with the blocks in use by each worker. A block shared by several requests of a worker counts
/// once. Requests older than the expiry are dropped, ended or not, as in the original routers.
#[derive(Debug)]
pub(crate) struct Books {
    expiry: f64,
    entries: HashMap<u64, Entry>,
    workers: HashMap<u32, Worker>,
    order: BTreeSet<(u64, u64)>,
}

impl Books {
    /// Creates an empty table. `expiry`: maximum age of a counted request, in seconds.
    pub(crate) fn new(expiry: f64) -> Self {
        Self { expiry, entries: HashMap::new(), workers: HashMap::new(), order: BTreeSet::new() }
    }

    /// Number of requests and number of workers in the table.
    pub(crate) fn len(&self) -> (usize, usize) {
        debug_assert_eq!(self.order.len(), self.entries.len());
        (self.entries.len(), self.workers.len())
    }

    /// Adds a request sent to `worker`. `prefill`: estimated number of tokens to compute.
    pub(crate) fn sent(&mut self, request: &Request<'_>, worker: u32, prefill: f64, now: f64) {
        self.ended(request.number);
        self.expire(now);
        let chain = if request.content_hashes.is_empty() { Vec::new() } else { Pieces::of(request).chain };
        let nameless = request.blocks().saturating_sub(chain.len() as u32);
        let at = self.workers.entry(worker).or_default();
        at.prefill += prefill;
        at.nameless += u64::from(nameless);
        at.requests += 1;
        for &name in &chain {
            *at.uses.entry(name).or_insert(0) += 1;
        }
        let time = micros(now);
        self.order.insert((time, request.number));
        self.entries.insert(request.number, Entry { worker, time, prefill, chain, nameless });
    }

    /// Records the first token of a request.
    pub(crate) fn first_token(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            let prefill = std::mem::replace(&mut entry.prefill, 0.0);
            if let Some(at) = self.workers.get_mut(&entry.worker) {
                at.prefill = (at.prefill - prefill).max(0.0);
            }
        }
    }

    /// Records the end of a request.
    pub(crate) fn ended(&mut self, number: u64) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.order.remove(&(entry.time, number));
        let Some(at) = self.workers.get_mut(&entry.worker) else { return };
        at.requests -= 1;
        at.nameless -= u64::from(entry.nameless);
        at.prefill = if at.requests == 0 { 0.0 } else { (at.prefill - entry.prefill).max(0.0) };
        for name in entry.chain {
            if let Some(uses) = at.uses.get_mut(&name) {
                *uses -= 1;
                if *uses == 0 {
                    at.uses.remove(&name);
                }
            }
        }
        if at.requests == 0 {
            self.workers.remove(&entry.worker);
        }
    }

    /// Removes a worker with all its requests.
    pub(crate) fn left(&mut self, worker: u32) {
        self.workers.remove(&worker);
        self.entries.retain(|_, entry| entry.worker != worker);
        let entries = &self.entries;
        self.order.retain(|(_, number)| entries.contains_key(number));
    }

    /// Drops requests that are older than the expiry.
    pub(crate) fn expire(&mut self, now: f64) {
        if !self.expiry.is_finite() {
            return;
        }
        let oldest = micros((now - self.expiry).max(0.0));
        while let Some(&(time, number)) = self.order.first() {
            if time >= oldest {
                break;
            }
            self.ended(number);
        }
    }

    /// Load that a worker would have after getting another request. `blocks`: number of the request's blocks; `chain`:
    /// hashes of its leading full blocks.
    pub(crate) fn load(&self, worker: u32, chain: &[u64], blocks: u32) -> Load {
        let Some(at) = self.workers.get(&worker) else {
            return Load { prefill: 0.0, blocks: f64::from(blocks), requests: 0.0 };
        };
        // A request that uses a block uses those before it.
        let shared = chain.partition_point(|name| at.uses.contains_key(name));
        let used = (at.uses.len() - shared) as f64 + at.nameless as f64;
        Load { prefill: at.prefill, blocks: used + f64::from(blocks), requests: f64::from(at.requests) }
    }
}

fn micros(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, tokens: u32, hashes: &[u64]) -> Request<'_> {
        Request { number, tokens, block_size: 10, content_hashes: hashes, ..Request::default() }
    }

    #[test]
    fn shared_blocks_count_once_and_all_is_given_back() {
        let mut books = Books::new(300.0);
        let (one, two) = (request(1, 35, &[1, 2, 3]), request(2, 25, &[1, 2]));
        books.sent(&one, 0, 35.0, 0.0);
        books.sent(&two, 0, 5.0, 1.0);
        let chain = Pieces::of(&request(3, 30, &[1, 2, 9])).chain;
        // In use: blocks 1, 2, 3 and a last one of each. Of the new one's three, two are in use: 5 + 1.
        assert_eq!(books.load(0, &chain, 3), Load { prefill: 40.0, blocks: 6.0, requests: 2.0 });
        books.first_token(1);
        assert_eq!(books.load(0, &[], 0).prefill, 5.0);
        books.ended(1);
        // Blocks 1, 2 and a last one, and one of the new.
        assert_eq!(books.load(0, &chain, 3), Load { prefill: 5.0, blocks: 4.0, requests: 1.0 });
        books.ended(2);
        books.ended(2);
        assert_eq!(books.len(), (0, 0));
        assert_eq!(books.load(0, &chain, 3).blocks, 3.0);
    }

    #[test]
    fn old_requests_and_gone_workers_leave_nothing() {
        let mut books = Books::new(300.0);
        books.sent(&request(1, 20, &[1, 2]), 0, 20.0, 0.0);
        books.sent(&request(2, 20, &[1, 2]), 1, 20.0, 200.0);
        books.expire(301.0);
        assert_eq!(books.len(), (1, 1));
        books.left(1);
        books.first_token(2);
        books.ended(2);
        assert_eq!(books.len(), (0, 0));
    }

    #[test]
    fn prompts_without_hashes_count_all_their_blocks() {
        let mut books = Books::new(300.0);
        let text = Request { text: Some("some text"), ..request(1, 31, &[]) };
        books.sent(&text, 0, 31.0, 0.0);
        assert_eq!(books.load(0, &[], 4).blocks, 8.0);
    }
}
