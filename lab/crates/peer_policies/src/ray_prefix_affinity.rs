//! The prefix-aware policy of Ray Serve LLM.

use crate::parts::sent_blocks::{Bounds, SentBlocks};
use crate::parts::{BYTES_PER_TOKEN, Pieces};
use crate::smg_cache_aware::deepest;
use kvatlas_routing::parts::draw::{Draw, better_of_two};
use kvatlas_routing::parts::sheet;
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// `PrefixCacheAffinityRouter` of Ray Serve LLM 2.60: the worker that was sent the longest beginning of the prompt, if
/// long enough.
///
/// ```text
/// queue = requests in flight
/// max queue - min queue > imbalanced_threshold, or no text: the better of two by queue
/// share = longest beginning of the prompt sent to any worker before / prompt
/// share < match_rate_threshold: of the workers with the fewest characters in the tree, the shortest queue
/// else:                         of the workers that were sent that beginning, the shortest queue
/// ```
/// `imbalanced_threshold` is infinite in Ray since ray-project/ray#59390, so load alone never decides (its guide once
/// said 10). Ray's tree has characters, and grows without end without `do_eviction`; this implementation has blocks,
/// and keeps the last `max_blocks` blocks of each worker.
pub(crate) struct RayPrefixAffinity {
    imbalanced: f64,
    match_rate: f64,
    evicts: bool,
    threshold_chars: f64,
    target_chars: f64,
    interval: f64,
    max_blocks: usize,
    tree: SentBlocks,
    next_eviction: f64,
    draw: Draw,
}

impl RayPrefixAffinity {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            imbalanced: options.number("imbalanced_threshold", f64::INFINITY, 0.0, f64::INFINITY)?,
            match_rate: options.number("match_rate_threshold", 0.1, 0.0, 1.0)?,
            evicts: options.flag("do_eviction", false)?,
            threshold_chars: options.number("eviction_threshold_chars", 400_000.0, 1.0, 1e12)?,
            target_chars: options.number("eviction_target_chars", 360_000.0, 0.0, 1e12)?,
            interval: options.number("eviction_interval_secs", 10.0, 0.0, 1e9)?,
            max_blocks: options.number("max_blocks", f64::from(1 << 20), 1.0, 1e9)? as usize,
            tree: SentBlocks::new(0.0),
            next_eviction: f64::NEG_INFINITY,
            draw: Draw::new(seed),
        })
    }

    fn evict(&mut self, candidates: &Candidates, pieces: &Pieces, now: f64) {
        if !self.evicts || now < self.next_eviction {
            return;
        }
        self.next_eviction = now + self.interval;
        let chars = pieces.size.max(1.0) * BYTES_PER_TOKEN as f64;
        for &worker in &candidates.worker {
            if self.tree.held(worker) as f64 * chars > self.threshold_chars {
                self.tree.trim(worker, (self.target_chars / chars) as usize);
            }
        }
    }
}

impl Policy for RayPrefixAffinity {
    fn name(&self) -> &'static str {
        "ray-prefix-affinity"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let queue = |row: usize| f64::from(candidates.requests[row]);
        let longest = (0..candidates.len()).map(queue).fold(0.0, f64::max);
        let shortest = (0..candidates.len()).map(queue).fold(f64::INFINITY, f64::min);
        let (pieces, depth, mut rows) = deepest(&self.tree, request, candidates, now);
        if longest - shortest > self.imbalanced || pieces.chain.is_empty() {
            let all: Vec<usize> = (0..candidates.len()).collect();
            return Choice::Row(better_of_two(&mut self.draw, &all, queue));
        }
        if pieces.share(depth) < self.match_rate || rows.is_empty() {
            let held = |row: usize| self.tree.held(candidates.worker[row]);
            let fewest = (0..candidates.len()).map(held).min().unwrap_or(0);
            rows = (0..candidates.len()).filter(|&row| held(row) == fewest).collect();
        }
        Choice::Row(self.draw.lowest(rows.into_iter(), queue).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let pieces = Pieces::of(request);
        let bounds = Bounds { worker: self.max_blocks, all: usize::MAX, ttl: f64::INFINITY };
        self.tree.insert(candidates.worker[row], &pieces.chain, bounds, now);
        self.evict(candidates, &pieces, now);
    }

    fn left(&mut self, worker: u32) {
        self.tree.remove(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let pieces = Pieces::of(request);
        Some(sheet(["blocks in the tree", "matched share", "requests (lowest)"], candidates.len(), |row| {
            let worker = candidates.worker[row];
            let depth = self.tree.depth(worker, &pieces.chain, f64::INFINITY, now);
            [self.tree.held(worker) as f64, pieces.share(depth), f64::from(candidates.requests[row])]
        }))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.tree.workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, sent_to};

    fn policy(options: &str) -> RayPrefixAffinity {
        RayPrefixAffinity::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    #[test]
    fn a_tenth_of_a_prompt_is_enough_whatever_the_load() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(10, &[1]), &candidates, 1);
        sent_to(&mut policy, &blocks(10, &[50, 51]), &candidates, 0);
        candidates.requests = vec![0, 1000, 0];
        let prompt: Vec<u64> = (1..=10).collect();
        assert_eq!(policy.choose(&blocks(10, &prompt), &candidates, 0.0), Choice::Row(1));
        // One of eleven is less than a tenth: the worker that has the least in its tree, which is the third.
        let prompt: Vec<u64> = (1..=11).collect();
        assert_eq!(policy.choose(&blocks(10, &prompt), &candidates, 0.0), Choice::Row(2));
    }

    #[test]
    fn of_equal_matches_the_shorter_queue() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        for row in [0, 2] {
            sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, row);
        }
        candidates.requests = vec![4, 0, 3];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(2));
    }

    #[test]
    fn past_a_threshold_that_is_set_load_decides() {
        let mut policy = policy(r#"{"imbalanced_threshold": 10}"#);
        let mut candidates = fleet(2);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 0);
        candidates.requests = vec![11, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
        candidates.requests = vec![10, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn eviction_goes_to_its_target() {
        let options = r#"{"do_eviction": true, "eviction_threshold_chars": 200, "eviction_target_chars": 120, "eviction_interval_secs": 0}"#;
        let mut policy = policy(options);
        let candidates = fleet(1);
        // Blocks of 10 tokens are 40 characters: five are 200, which is not above the threshold; six are.
        sent_to(&mut policy, &blocks(10, &[1, 2, 3, 4, 5]), &candidates, 0);
        assert_eq!(policy.tree.held(0), 5);
        sent_to(&mut policy, &blocks(10, &[1, 2, 3, 4, 5, 6]), &candidates, 0);
        assert_eq!(policy.tree.held(0), 3);
    }
}
