//! Idle prompts: prompts whose requests have just ended, with the probability that the next request of their
//! conversation follows soon.
//!
//! The blocks of an idle prompt are unused, and in a full cache they are the next to be evicted. A client that sends
//! the next request of a conversation immediately finds them evicted if a prompt that waited for room was admitted
//! meanwhile. Therefore an idle prompt counts while its next request waits in the router, or is likely to come before a
//! waiting request is considered again.

use std::collections::VecDeque;

use crate::request::Request;

/// Upper limit of the shortest class of pauses between an answer and the prompt that continues it, in seconds. The
/// limit of each further class is twice as large.
const SHORTEST: f64 = 0.01;
/// Number of classes in the histogram of pauses between an answer and the prompt that continues it.
const CLASSES: usize = 9;
/// Seconds after which an idle prompt (one whose request has ended) without a continuation is forgotten: the longest
/// pause.
const LONGEST: f64 = 2.56;
/// Factor by which the counts of earlier pauses (between an answer and the next prompt) shrink with each new pause.
const KEPT: f64 = 1.0 - 1.0 / 512.0;
/// Number of prompts that are assumed at the beginning and count as prompts without a continuation.
const PRIOR: f64 = 8.0;
/// Seconds after the last routing query for a request for which the request counts as waiting in the router, if it
/// continues an idle prompt (one whose request has ended); waiting requests are queried more often than this.
const WAITS: f64 = 1.0;
/// Largest number of idle prompts (prompts whose requests have ended) kept for one worker.
const MOST: usize = 64;

/// Histogram of the pauses between the end of an answer and the prompt that continues it.
#[derive(Debug, Default)]
struct Pauses {
    classes: [f64; CLASSES],
    never: f64,
}

impl Pauses {
    /// Adds a pause between an answer and the next prompt, in seconds; infinite if no prompt continued the answer.
    fn add(&mut self, seconds: f64) {
        for count in self.classes.iter_mut().chain([&mut self.never]) {
            *count *= KEPT;
        }
        let class = (seconds.max(SHORTEST) / SHORTEST).log2().ceil() as usize;
        *self.classes.get_mut(class).unwrap_or(&mut self.never) += 1.0;
    }

    /// Probability that an idle prompt (one whose request has ended) is continued within the next `within` seconds, if
    /// no prompt has continued it for `idle` seconds.
    fn chance(&self, idle: f64, within: f64) -> f64 {
        1.0 - self.longer(idle + within) / self.longer(idle)
    }

    /// Number of pauses longer than `seconds`, including prompts that were never continued.
    fn longer(&self, seconds: f64) -> f64 {
        let (mut sum, mut from, mut to) = (self.never + PRIOR, 0.0, SHORTEST);
        for count in &self.classes {
            sum += count * ((to - seconds) / (to - from)).clamp(0.0, 1.0);
            (from, to) = (to, 2.0 * to);
        }
        sum
    }
}

/// Fingerprint of a prompt: the number of its full blocks, and the content hash of the last one. A longer prompt with
/// this hash at the same place continues the prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tail {
    depth: usize,
    hash: u64,
}

impl Tail {
    pub(super) fn of(request: &Request<'_>) -> Self {
        let hashes = request.content_hashes;
        Self { depth: hashes.len(), hash: hashes.last().copied().unwrap_or_default() }
    }

    #[inline]
    fn is_in(self, request: &Request<'_>) -> bool {
        request.content_hashes.get(self.depth.wrapping_sub(1)) == Some(&self.hash)
    }
}

/// Prompt whose request has ended, and whose blocks are unused until the next request of the conversation.
#[derive(Debug, Clone, Copy)]
struct IdlePrompt {
    tail: Tail,
    ended: f64,
    /// Number of the prompt's blocks that no other request used, including the blocks of the answer.
    blocks: f64,
    /// Time of the last routing query for a request that continues this prompt, in seconds of the caller's clock.
    asked: f64,
}

/// Idle prompts (prompts whose requests have ended) of one worker, in the order in which their requests ended.
#[derive(Debug, Default)]
struct Shelf {
    prompts: VecDeque<IdlePrompt>,
    blocks: f64,
}

impl Shelf {
    fn take(&mut self, at: usize) -> Option<IdlePrompt> {
        let prompt = self.prompts.remove(at)?;
        self.blocks = if self.prompts.is_empty() { 0.0 } else { self.blocks - prompt.blocks };
        Some(prompt)
    }

    fn newest(&self, request: &Request<'_>) -> Option<usize> {
        self.prompts.iter().rposition(|prompt| prompt.tail.is_in(request))
    }
}

/// Idle prompts of all workers: prompts whose requests have ended.
#[derive(Debug, Default)]
pub(super) struct IdlePrompts {
    /// Idle prompts (prompts whose requests have ended) of each worker, indexed by the worker's number.
    shelves: Vec<Shelf>,
    /// Numbers of the workers that have idle prompts (prompts whose requests have ended), in any order.
    occupied: Vec<u32>,
    count: usize,
    pauses: Pauses,
    found: Matches,
}

/// Result of the last search for idle prompts (those whose requests have ended) that a request continues: pairs of
/// worker, and index in the worker's list.
#[derive(Debug, Default)]
struct Matches {
    request: u64,
    tail: Tail,
    places: Vec<(u32, usize)>,
}

impl IdlePrompts {
    /// Records the end of a request, whose prompt becomes idle. `blocks`: number of its blocks that no other request
    /// used.
    pub(super) fn ended(&mut self, worker: u32, tail: Tail, blocks: f64, now: f64) {
        let at = worker as usize;
        if self.shelves.len() <= at {
            self.shelves.resize_with(at + 1, Shelf::default);
        }
        self.found = Matches { places: std::mem::take(&mut self.found.places), ..Matches::default() };
        let shelf = &mut self.shelves[at];
        let was_empty = shelf.prompts.is_empty();
        while let Some(first) = shelf.prompts.front()
            && (shelf.prompts.len() >= MOST || now - first.ended.max(first.asked) > LONGEST)
        {
            shelf.take(0);
            self.count -= 1;
            self.pauses.add(f64::INFINITY);
        }
        if tail.depth > 0 && blocks > 0.0 {
            shelf.prompts.push_back(IdlePrompt { tail, ended: now, blocks, asked: f64::NEG_INFINITY });
            shelf.blocks += blocks;
            self.count += 1;
        }
        match (was_empty, shelf.prompts.is_empty()) {
            (true, false) => self.occupied.push(worker),
            (false, true) => self.occupied.retain(|its| *its != worker),
            _ => (),
        }
    }

    /// Records that a request is sent to a worker: the idle prompts that it continues are removed. `came`: time at
    /// which it came to the router.
    pub(super) fn sent(&mut self, request: &Request<'_>, came: f64) {
        if self.count == 0 {
            return;
        }
        self.find(request);
        let mut found = std::mem::take(&mut self.found.places);
        for (worker, at) in found.drain(..) {
            let shelf = &mut self.shelves[worker as usize];
            if let Some(prompt) = shelf.take(at) {
                self.count -= 1;
                self.pauses.add(came - prompt.ended);
            }
            if shelf.prompts.is_empty() {
                self.occupied.retain(|its| *its != worker);
            }
        }
        self.found = Matches { places: found, ..Matches::default() };
    }

    /// Records a routing query for a request, at the idle prompts (prompts whose requests have ended) that it
    /// continues.
    pub(super) fn asked(&mut self, request: &Request<'_>, now: f64) {
        if self.count == 0 {
            return;
        }
        self.find(request);
        for &(worker, at) in &self.found.places {
            self.shelves[worker as usize].prompts[at].asked = now;
        }
    }

    /// Finds the newest idle prompt (one whose request has ended) of each worker that a request continues. A repeated
    /// search for the same request reuses the last result, as a request is usually queried just before it is sent.
    fn find(&mut self, request: &Request<'_>) {
        let Self { shelves, occupied, found, .. } = self;
        let tail = Tail::of(request);
        if found.request == request.number && found.tail == tail && request.number > 0 {
            return;
        }
        (found.request, found.tail) = (request.number, tail);
        found.places.clear();
        let newest = |worker: &u32| Some((*worker, shelves[*worker as usize].newest(request)?));
        found.places.extend(occupied.iter().filter_map(newest));
    }

    /// Forgets the idle prompts of a worker that has left the fleet.
    pub(super) fn left(&mut self, worker: u32) {
        if let Some(shelf) = self.shelves.get_mut(worker as usize) {
            self.count -= shelf.prompts.len();
            *shelf = Shelf::default();
            self.occupied.retain(|its| *its != worker);
            self.found = Matches::default();
        }
    }

    /// Number of blocks of all idle prompts (prompts whose requests have ended) at a worker.
    #[inline]
    pub(super) fn blocks(&self, worker: u32) -> f64 {
        self.shelves.get(worker as usize).map_or(0.0, |shelf| shelf.blocks)
    }

    /// Number of idle prompts' blocks (of prompts whose requests have ended) that a request would evict at a worker,
    /// each weighted by the probability that its prompt is continued within `within` seconds. `over`: number of the
    /// request's blocks for which idle prompts must be evicted. The result is 0 for a request that itself continues an
    /// idle prompt of this worker.
    pub(super) fn loss(&self, worker: u32, request: &Request<'_>, over: f64, within: f64, now: f64) -> f64 {
        let Some(shelf) = self.shelves.get(worker as usize) else { return 0.0 };
        let (mut over, mut lost) = (over, 0.0);
        for prompt in &shelf.prompts {
            if prompt.tail.is_in(request) {
                return 0.0;
            }
            let taken = over.min(prompt.blocks);
            if taken > 0.0 {
                over -= taken;
                let waits = now - prompt.asked < WAITS;
                lost += taken * if waits { 1.0 } else { self.pauses.chance(now - prompt.ended, within) };
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(hashes: &[u64]) -> Request<'_> {
        Request { tokens: hashes.len() as u32 * 16, block_size: 16, content_hashes: hashes, ..Request::default() }
    }

    #[test]
    fn the_chance_follows_the_pauses_seen() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.chance(0.0, 0.5), 0.0);
        for _ in 0..4_096 {
            for seconds in [0.015, 0.3, 9.0, f64::INFINITY] {
                pauses.add(seconds);
            }
        }
        // Half of them come within half a second, a quarter after a tenth, and none after that.
        let close = |idle, chance: f64| {
            let is = pauses.chance(idle, 0.5);
            assert!((is - chance).abs() < 0.02, "{is} after {idle} s, not {chance}");
        };
        close(0.0, 0.5);
        close(0.1, 0.33);
        close(0.7, 0.0);
        assert_eq!(pauses.chance(50.0, 0.5), 0.0);
    }

    #[test]
    fn what_ended_first_is_pushed_out_first_and_a_next_turn_that_waits_is_certain() {
        let (one, two, other) = ([1, 2, 3], [4, 5], [7, 8, 9]);
        let mut idle = IdlePrompts::default();
        idle.ended(1, Tail::of(&request(&one)), 30.0, 0.0);
        idle.ended(1, Tail::of(&request(&two)), 20.0, 0.1);
        assert_eq!((idle.blocks(0), idle.blocks(1), idle.blocks(9)), (0.0, 50.0, 0.0));
        // No return of a client has been observed yet.
        assert_eq!(idle.loss(1, &request(&other), 40.0, 0.5, 0.1), 0.0);
        idle.asked(&request(&[1, 2, 3, 10, 11]), 0.2);
        assert_eq!(idle.loss(1, &request(&other), 10.0, 0.5, 0.2), 10.0);
        assert_eq!(idle.loss(1, &request(&other), 40.0, 0.5, 0.2), 30.0);
        // Its own next turn, and any, where it is not.
        assert_eq!(idle.loss(1, &request(&[1, 2, 3, 10, 11]), 40.0, 0.5, 0.2), 0.0);
        assert_eq!(idle.loss(0, &request(&other), 40.0, 0.5, 0.2), 0.0);
        // The next turn has not been queried for more than a second, and no longer counts as waiting.
        assert_eq!(idle.loss(1, &request(&other), 40.0, 0.5, 1.3), 0.0);
        idle.sent(&request(&[1, 2, 3, 10, 11]), 0.2);
        assert_eq!((idle.blocks(1), idle.count), (20.0, 1));
        assert!(idle.pauses.chance(0.0, 0.5) > 0.1);
    }

    #[test]
    fn a_request_that_is_looked_up_twice_finds_what_has_changed_meanwhile() {
        let (one, two) = ([1, 2, 3], [1, 2, 3, 4]);
        let numbered = |hashes| Request { number: 7, ..request(hashes) };
        let mut idle = IdlePrompts::default();
        idle.ended(1, Tail::of(&request(&one)), 30.0, 0.0);
        idle.asked(&numbered(&two), 0.1);
        // Another of its prompts has ended at another worker, and all of the first one's go.
        idle.ended(2, Tail::of(&request(&one)), 20.0, 0.2);
        idle.left(1);
        idle.sent(&numbered(&two), 0.3);
        assert_eq!((idle.count, idle.occupied.len(), idle.blocks(2)), (0, 0, 0.0));
        // The request of another router may have the same number.
        idle.ended(2, Tail::of(&request(&one)), 20.0, 0.4);
        idle.asked(&numbered(&[9]), 0.5);
        idle.sent(&numbered(&two), 0.5);
        assert_eq!(idle.count, 0);
    }

    #[test]
    fn what_nobody_goes_on_from_is_forgotten() {
        let mut idle = IdlePrompts::default();
        for number in 0..1_000_u64 {
            idle.ended(0, Tail::of(&request(&[number])), 5.0, number as f64 * 1e-3);
            assert!(idle.count <= MOST);
        }
        idle.ended(0, Tail::of(&request(&[5_000])), 5.0, 9.0);
        assert_eq!((idle.count, idle.blocks(0)), (1, 5.0));
        // A prompt without a full block is no idle prompt, and neither is one whose blocks others use.
        idle.ended(0, Tail::of(&request(&[])), 5.0, 9.0);
        idle.ended(0, Tail::of(&request(&[6_000])), 0.0, 9.0);
        idle.ended(3, Tail::of(&request(&[7_000])), 5.0, 9.0);
        idle.left(0);
        idle.left(7);
        assert_eq!((idle.count, idle.blocks(0)), (1, 0.0));
    }
}
