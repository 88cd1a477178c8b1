//! Preble's scheduler E2, which sends a prompt to the worker with a long match (exploit), or else by load (explore).

use std::collections::{HashMap, VecDeque};

use crate::parts::Pieces;
use crate::parts::sent_blocks::{Bounds, SentBlocks};
use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

/// Maximum number of remembered requests of the time window.
const MOST: usize = 1 << 18;

/// Preble's scheduler E2 (Srivatsa and others, ICLR 2025; WukLab/preble).
///
/// ```text
/// matched > rest of the prompt: exploit: of the workers with the longest match, the one with the lowest L
///     but if that one has the highest L of all, more than high_load_threshold times the lowest: the one with the lowest
/// else explore: the lowest  L + M + P
///     L = prefill time of the unmatched tokens sent to the worker in the last window
///         + requests in flight * decode_length * time per token
///     M = sum over the blocks evicted for this prompt: prefill time of a block
///         * share of the window's requests of this worker that used it
///     P = prefill time of the unmatched tokens of this prompt
/// ```
/// Prefill time is the authors' fit for Mistral 7B on an A6000, in ms of n tokens: 22 below 192; -118 + 1.25 n -
/// 0.00256 n^2 below 384; else 0.10843 n + 4.21; and from 4,096 on -7.37 + 0.00386 n + 0.00000216 n^2 more; or, with
/// `profile = learnt`, n / learnt prefill rate. Time per token is the learnt step time, 0.15 s until there is one (as
/// in Preble).
///
/// Preble's tree gets evictions from the engines; in this implementation matches come from the index, plus prompts just
/// sent. The blocks that an engine would evict are taken from a table of sent prompts (the least recently used), once
/// the cache is full according to the index. Preble moves load away by moving whole subtrees to other workers, after 50
/// requests; this implementation redirects one request at a time, after as many. Preble's copying of a prefix whose
/// time to first token doubles within a window is left out.
pub(crate) struct Preble {
    window: f64,
    decode_length: f64,
    threshold: f64,
    learnt: bool,
    table: SentBlocks,
    bounds: Bounds,
    /// Time (in seconds), worker and prefill time (in seconds) of each request in the time window.
    history: VecDeque<(f64, u32, f64)>,
    /// Sum of the prefill times, in seconds, and number of requests in the time window, for each worker.
    sums: HashMap<u32, (f64, f64)>,
    sent: u64,
    draw: Draw,
}

impl Preble {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        let window = options.number("sliding_window_secs", 180.0, 1.0, 1e6)?;
        Ok(Self {
            window,
            decode_length: options.number("decoding_length", 45.0, 0.0, 1e9)?,
            threshold: options.number("high_load_threshold", 1.5, 1.0, 1e9)?,
            learnt: options.word("profile", &["mistral-7b-a6000", "learnt"])? == "learnt",
            table: SentBlocks::new(window),
            bounds: Bounds {
                worker: options.number("max_blocks", f64::from(1 << 20), 1.0, 1e9)? as usize,
                all: usize::MAX,
                ttl: f64::INFINITY,
            },
            history: VecDeque::new(),
            sums: HashMap::new(),
            sent: 0,
            draw: Draw::new(seed),
        })
    }

    fn prefill_time(&self, tokens: f64, candidates: &Candidates, row: usize) -> f64 {
        let rate = candidates.prefill_rate[row];
        if self.learnt && rate.is_finite() && rate > 0.0 {
            return tokens / rate;
        }
        mistral_7b_a6000(tokens)
    }

    /// Work of a worker, in seconds: prefill of prompts sent to it in the time window, and generation of tokens for
    /// requests in flight.
    fn load(&self, request: &Request<'_>, candidates: &Candidates, row: usize) -> f64 {
        let prefill = self.sums.get(&candidates.worker[row]).map_or(0.0, |sum| sum.0);
        let step = candidates.step_time[row];
        let per_token = if step.is_finite() && step > 0.0 { step } else { 0.15 };
        let length = request.max_tokens.map_or(self.decode_length, |most| f64::from(most).min(self.decode_length));
        prefill + f64::from(candidates.requests[row]) * length * per_token
    }

    /// Expected prefill time that other prompts lose because blocks are evicted for the present prompt, in seconds.
    fn eviction(&self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) -> f64 {
        let worker = candidates.worker[row];
        let room = candidates.capacity_blocks[row] - candidates.held_blocks[row];
        let new = f64::from(request.blocks()) - f64::from(candidates.predicted_blocks[row]);
        let Some(&(_, requests)) = self.sums.get(&worker).filter(|sum| sum.1 > 0.0) else { return 0.0 };
        if !room.is_finite() || new <= room {
            return 0.0;
        }
        let hits = self.table.hits_of_oldest(worker, (new - room.max(0.0)).ceil() as usize, now);
        let block = f64::from(request.block_size);
        // A block's time as one of many: a prefill of one block alone would cost as much as one of a hundred.
        let seconds = self.prefill_time(100.0 * block, candidates, row) / 100.0;
        seconds * hits / requests
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Terms {
        let names = ["L: load in s", "M: eviction in s", "P: prefill in s", "cost in s (lowest)"];
        sheet(names, candidates.len(), |row| {
            let load = self.load(request, candidates, row);
            let eviction = self.eviction(request, candidates, row, now);
            let uncached = f64::from(request.uncached(candidates.predicted_blocks[row]));
            let prefill = self.prefill_time(uncached, candidates, row);
            [load, eviction, prefill, load + eviction + prefill]
        })
    }

    fn forget(&mut self, now: f64) {
        while let Some(&(time, worker, seconds)) = self.history.front() {
            if now - time <= self.window && self.history.len() <= MOST {
                break;
            }
            self.history.pop_front();
            if let Some(sum) = self.sums.get_mut(&worker) {
                sum.0 = (sum.0 - seconds).max(0.0);
                sum.1 -= 1.0;
                if sum.1 < 0.5 {
                    self.sums.remove(&worker);
                }
            }
        }
    }
}

/// Prefill time of `tokens` tokens of Mistral 7B on an A6000, in seconds, by the authors' fit.
fn mistral_7b_a6000(tokens: f64) -> f64 {
    let linear = match tokens {
        n if n >= 384.0 => 0.108_425_71 * n + 4.209_777,
        n if n >= 192.0 => -118.0 + 1.25 * n - 2.56e-3 * n * n,
        _ => 22.0,
    };
    let attention = if tokens >= 4096.0 { -7.37 + 3.86e-3 * tokens + 2.16e-6 * tokens * tokens } else { 0.0 };
    (linear + attention) / 1000.0
}

impl Policy for Preble {
    fn name(&self) -> &'static str {
        "preble"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        self.forget(now);
        let depth = candidates.predicted_blocks.iter().copied().max().unwrap_or(0);
        let matched = request.tokens - request.uncached(depth);
        if matched <= request.tokens - matched {
            let costs = compared(&self.terms(request, candidates, now));
            return Choice::Row(self.draw.lowest(0..costs.len(), |row| costs[row]).unwrap_or(0));
        }
        let loads: Vec<f64> = (0..candidates.len()).map(|row| self.load(request, candidates, row)).collect();
        let holders = (0..candidates.len()).filter(|&row| candidates.predicted_blocks[row] == depth);
        let holder = self.draw.lowest(holders, |row| loads[row]).unwrap_or(0);
        let lightest = self.draw.lowest(0..loads.len(), |row| loads[row]).unwrap_or(0);
        let heaviest = loads.iter().all(|load| *load <= loads[holder]);
        let too_much = heaviest && loads[holder] > self.threshold * loads[lightest] && self.sent >= 50;
        Choice::Row(if too_much { lightest } else { holder })
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let worker = candidates.worker[row];
        let uncached = f64::from(request.uncached(candidates.predicted_blocks[row]));
        let seconds = self.prefill_time(uncached, candidates, row);
        self.history.push_back((now, worker, seconds));
        let sum = self.sums.entry(worker).or_insert((0.0, 0.0));
        *sum = (sum.0 + seconds, sum.1 + 1.0);
        self.sent += 1;
        self.table.insert(worker, &Pieces::of(request).chain, self.bounds, now);
        self.forget(now);
    }

    fn ended(&mut self, _placed: &Placement, now: f64) {
        self.forget(now);
    }

    fn left(&mut self, worker: u32) {
        self.table.remove(worker);
        self.sums.remove(&worker);
        self.history.retain(|&(_, owner, _)| owner != worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates, now))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.table.workers() + self.sums.len() + self.history.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, sent_to};

    fn policy() -> Preble {
        Preble::new(&mut Options::default(), 0).unwrap()
    }

    #[test]
    fn the_fit_is_that_of_the_authors() {
        // 22; -118 + 250 - 102.4 = 29.6; 108.42571 + 4.209777 = 112.635; 888.22 + 4.21 + -7.37 + 31.62 + 144.96 = 1061.6 ms.
        for (tokens, ms) in [(100.0, 22.0), (200.0, 29.6), (1000.0, 112.635), (8192.0, 1061.64)] {
            assert!((mistral_7b_a6000(tokens) * 1000.0 - ms).abs() < 0.05, "{tokens}");
        }
    }

    #[test]
    fn more_than_half_matched_is_exploited() {
        let mut policy = policy();
        let mut candidates = fleet(3);
        let prompt = blocks(100, &[1, 2, 3, 4]);
        candidates.requests = vec![0, 2, 1];
        // 300 of 400 matched; the third has less to do than the second.
        candidates.predicted_blocks = vec![0, 3, 3];
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(2));
        // 200 of 400 is not more than the rest: L + P. 0 + 47.6 ms; 2 * 45 * 0.15 = 13.5 s; 6.75 s.
        candidates.predicted_blocks = vec![0, 2, 2];
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn load_is_what_was_sent_in_the_window() {
        let mut policy = policy();
        let mut candidates = fleet(2);
        candidates.step_time = vec![0.01; 2];
        let prompt = blocks(100, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        sent_to(&mut policy, &prompt, &candidates, 0);
        candidates.requests = vec![1, 0];
        let terms = policy.explain(&blocks(100, &[50]), &candidates, 1.0).unwrap();
        // 112.635 ms of prefill and 1 * 45 * 0.01 s.
        assert!((terms.values[0] - 0.562_635).abs() < 1e-5, "{terms:?}");
        assert_eq!(policy.choose(&blocks(100, &[50]), &candidates, 200.0), Choice::Row(1));
        let terms = policy.explain(&blocks(100, &[50]), &candidates, 200.0).unwrap();
        assert!((terms.values[0] - 0.45).abs() < 1e-9, "what was sent 200 s ago is out of the window");
    }

    #[test]
    fn blocks_in_use_are_dear_to_push_out() {
        let mut policy = policy();
        let mut candidates = fleet(2);
        for row in [0, 0, 0, 1] {
            sent_to(&mut policy, &blocks(100, &[1, 2]), &candidates, row);
        }
        sent_to(&mut policy, &blocks(100, &[7]), &candidates, 1);
        candidates.held_blocks = vec![10.0; 2];
        candidates.capacity_blocks = vec![11.0; 2];
        let terms = policy.explain(&blocks(100, &[50, 51]), &candidates, 1.0).unwrap();
        // One block has to go. The first worker's had 3 hits of 3 requests, the second's 1 of 2. A block of a hundred costs
        // (1084.2571 + 4.21 + -7.37 + 38.6 + 216) / 100 = 13.357 ms.
        assert!((terms.values[1] - 0.013_357).abs() < 1e-5, "{terms:?}");
        assert!((terms.values[5] - 0.006_678).abs() < 1e-5, "{terms:?}");
    }

    #[test]
    fn the_heaviest_holder_is_relieved_after_fifty_requests() {
        let mut policy = policy();
        let mut candidates = fleet(2);
        candidates.predicted_blocks = vec![2, 0];
        candidates.requests = vec![4, 2];
        let prompt = blocks(100, &[1, 2, 3]);
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(0));
        policy.sent = 50;
        // 4 against 2 requests are more than 1.5 times.
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(1));
        candidates.requests = vec![3, 2];
        assert_eq!(policy.choose(&prompt, &candidates, 0.0), Choice::Row(0));
    }
}
