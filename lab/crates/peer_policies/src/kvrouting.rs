//! Learning-based greedy routing (LBGR), the policy of KVRouting.

use std::collections::HashMap;

use crate::parts::sent_blocks::SentBlocks;
use crate::parts::{BYTES_PER_TOKEN, Pieces};
use crate::smg_cache_aware::tree_bounds;
use kvatlas_routing::parts::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

/// Time between two steps in which a worker's expected work decays, in milliseconds.
const TICK: f64 = 20.0;
/// Factor by which a worker's expected work decays in each step.
const KEPT: f64 = 31.0 / 32.0;
/// Variance of the first estimate of a worker's residual: so large that the first sample replaces it.
const FIRST_VARIANCE: f64 = 1e6;
/// Difference in predicted milliseconds from which on another worker is better.
const MARGIN: f64 = 1.0;

/// LBGR (arXiv 2601.18999, ICLR 2026; `eta_online_3d` of github.com/fzwark/KVRouting, January 2026); the lowest wins, the
/// first of those within a millisecond.
///
/// ```text
/// predicted ms of a request = max(1, uncached + work + residual)
/// uncached  = max(1, ms_per_character * characters of the prompt that were not sent to the worker before)
/// work      = sum of `uncached` of the requests that run there, each less 1/32 every 20 ms since it was sent
/// residual  = learnt for each worker: max(1, milliseconds that a request took - uncached - work as it was sent), by
///             recursive least squares with a constant feature, which forgets by `lambda`
/// ```
/// There, the tree of prompts has characters and is cut to `max_tree_size` of them every 60 s; here it has blocks (four
/// characters a token), and is cut at once. Not here: randomised eviction (RLT), which is a part of its engines.
pub(crate) struct KvRouting {
    ms_per_character: f64,
    lambda: f64,
    tree_size: f64,
    tree: SentBlocks,
    workers: HashMap<u32, Worker>,
    running: HashMap<u64, InFlight>,
}

/// Expected work of a worker and its learnt residual, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Worker {
    work: f64,
    /// The time of the last step of the decay, in steps.
    step: u64,
    residual: f64,
    variance: f64,
}

/// A request that was sent and has not ended. Durations in milliseconds.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    worker: u32,
    /// The time at which it was sent, in seconds.
    sent: f64,
    uncached: f64,
    /// The worker's expected work as it was sent.
    work: f64,
}

/// The step of the decay at a time in seconds.
fn step_at(now: f64) -> u64 {
    (now * 1e3 / TICK).max(0.0) as u64
}

/// Expected work after a number of steps; whole milliseconds are kept, as there.
fn decayed(work: f64, steps: u64) -> f64 {
    work * KEPT.powi(steps.min(10_000) as i32)
}

impl Worker {
    fn new(now: f64) -> Self {
        Self { work: 0.0, step: step_at(now), residual: 0.0, variance: FIRST_VARIANCE }
    }

    fn work_at(&self, now: f64) -> f64 {
        decayed(self.work, step_at(now).saturating_sub(self.step))
    }

    fn add(&mut self, work: f64, now: f64) {
        self.work = (self.work_at(now) + work).max(0.0);
        self.step = self.step.max(step_at(now));
    }

    fn learn(&mut self, sample: f64, lambda: f64) {
        let gain = self.variance / (lambda + self.variance);
        self.residual += gain * (sample - self.residual);
        self.variance = (self.variance - gain * self.variance) / lambda;
    }
}

impl KvRouting {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self {
            ms_per_character: options.number("ms_per_character", 1.0, 0.0, 1e6)?,
            lambda: options.number("lambda", 0.992, 0.01, 1.0)?,
            tree_size: options.number("max_tree_size", f64::from(1 << 24), 1.0, 1e12)?,
            tree: SentBlocks::new(0.0),
            workers: HashMap::new(),
            running: HashMap::new(),
        })
    }

    /// Time that a worker needs for the part of a prompt that it was not sent before, in milliseconds.
    fn uncached(&self, pieces: &Pieces, worker: u32, now: f64) -> f64 {
        let sent = self.tree.depth(worker, &pieces.chain, f64::INFINITY, now) as f64 * pieces.size;
        let characters = (pieces.tokens - sent).max(0.0) * BYTES_PER_TOKEN as f64;
        (self.ms_per_character * characters).max(1.0)
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Terms {
        let pieces = Pieces::of(request);
        let names = ["uncached ms", "work ms", "residual ms", "predicted ms (lowest)"];
        sheet(names, candidates.len(), |row| {
            let worker = self.workers.get(&candidates.worker[row]).copied().unwrap_or_else(|| Worker::new(now));
            let (uncached, work) = (self.uncached(&pieces, candidates.worker[row], now), worker.work_at(now));
            [uncached, work, worker.residual, (uncached + work + worker.residual).max(1.0)]
        })
    }

    /// Removes a request from the expected work of its worker. `now`: the time of its end, in seconds.
    fn release(&mut self, request: &InFlight, now: f64) {
        if let Some(worker) = self.workers.get_mut(&request.worker) {
            let steps = ((now - request.sent).max(0.0) * 1e3 / TICK) as u64;
            worker.add(-decayed(request.uncached, steps), now);
        }
    }
}

impl Policy for KvRouting {
    fn name(&self) -> &'static str {
        "kvrouting"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let predicted = compared(&self.terms(request, candidates, now));
        let better = |best: usize, row: usize| if predicted[row] + MARGIN < predicted[best] { row } else { best };
        Choice::Row((0..predicted.len()).reduce(better).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let (worker, pieces) = (candidates.worker[row], Pieces::of(request));
        if let Some(before) = self.running.remove(&request.number) {
            self.release(&before, now);
        }
        let uncached = self.uncached(&pieces, worker, now).round();
        let at = self.workers.entry(worker).or_insert_with(|| Worker::new(now));
        let work = at.work_at(now);
        at.add(uncached, now);
        self.running.insert(request.number, InFlight { worker, sent: now, uncached, work });
        self.tree.insert(worker, &pieces.chain, tree_bounds(self.tree_size, &pieces), now);
    }

    fn answered(&mut self, placed: &Placement, _tokens: f64, now: f64) {
        let (Some(request), lambda) = (self.running.get(&placed.number), self.lambda) else { return };
        if let Some(worker) = self.workers.get_mut(&request.worker) {
            let took = (now - request.sent) * 1e3;
            worker.learn((took - request.uncached - request.work).max(1.0), lambda);
        }
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        if let Some(request) = self.running.remove(&placed.number) {
            self.release(&request, now);
        }
    }

    fn left(&mut self, worker: u32) {
        self.tree.remove(worker);
        self.workers.remove(&worker);
        self.running.retain(|_, request| request.worker != worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates, now))
    }

    fn remembered(&self) -> (usize, usize) {
        (self.running.len(), self.workers.len() + self.tree.workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, numbered, send};

    fn policy() -> KvRouting {
        KvRouting::new(&mut Options::default(), 0).unwrap()
    }

    fn predicted(policy: &KvRouting, request: &Request<'_>, now: f64) -> Vec<f64> {
        compared(&policy.explain(request, &fleet(2), now).unwrap())
    }

    #[test]
    fn what_was_sent_before_is_weighed_against_work_that_decays() {
        let mut policy = policy();
        let candidates = fleet(2);
        // 40 tokens are 160 characters, a millisecond each.
        assert_eq!(send(&mut policy, &numbered(1, blocks(10, &[1, 2, 3, 4])), &candidates, 0.0), 0);
        // Another prompt: 160 after 160 of work, or 160.
        assert_eq!(predicted(&policy, &blocks(10, &[5, 6, 7, 8]), 0.0), [320.0, 160.0]);
        // The same: nothing to compute counts as one millisecond, after 160 of work.
        assert_eq!(predicted(&policy, &blocks(10, &[1, 2, 3, 4]), 0.0), [161.0, 160.0]);
        // 22 steps later half of the work is left.
        let later = predicted(&policy, &blocks(10, &[1, 2, 3, 4]), 0.441);
        assert!((later[0] - 1.0 - 160.0 * KEPT.powi(22)).abs() < 1e-9 && later[0] < 82.0, "{later:?}");
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.441), Choice::Row(0));
        policy.ended(&Placement { number: 1, worker: 0, uncached: 40, freed: 0 }, 0.441);
        assert!(predicted(&policy, &blocks(10, &[1, 2, 3, 4]), 0.441)[0] < 1.0 + 1e-9, "its work ends with it");
    }

    #[test]
    fn within_a_millisecond_the_first_is_taken() {
        let mut policy = policy();
        let candidates = fleet(2);
        send(&mut policy, &numbered(1, blocks(10, &[1, 2, 3, 4])), &candidates, 0.0);
        // 161 and 160.
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn the_residual_is_a_mean_that_forgets() {
        let mut policy = policy();
        let candidates = fleet(2);
        let take = |policy: &mut KvRouting, number: u64, at: f64, seconds: f64| {
            policy.sent(&numbered(number, blocks(10, &[9])), &candidates, 0, at);
            let placed = Placement { number, worker: 0, uncached: 10, freed: 0 };
            policy.answered(&placed, 1.0, at + seconds);
            policy.ended(&placed, at + seconds);
        };
        // 40 ms are expected of the first one, 1 ms of those after it.
        take(&mut policy, 1, 0.0, 1.04);
        assert!((policy.workers[&0].residual - 1_000.0).abs() < 0.01);
        for number in 2..2_000 {
            take(&mut policy, number, number as f64 * 10.0, 0.501);
        }
        assert!((policy.workers[&0].residual - 500.0).abs() < 0.1, "{}", policy.workers[&0].residual);
        // A request that fails teaches nothing.
        policy.sent(&numbered(1, blocks(10, &[9])), &candidates, 0, 3e4);
        policy.ended(&Placement { number: 1, worker: 0, uncached: 10, freed: 0 }, 4e4);
        assert!((policy.workers[&0].residual - 500.0).abs() < 0.1);
        policy.left(0);
        assert_eq!(policy.remembered(), (0, 0));
    }
}
