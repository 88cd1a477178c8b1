//! The policy `prefix-cache` of AIBrix's router.

use crate::parts::Pieces;
use crate::parts::sent_blocks::{Bounds, SentBlocks};
use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{mean, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// `prefix-cache` of AIBrix 0.7 with the defaults of its code: the worker that was sent most of the prompt before, if
/// not overloaded.
///
/// ```text
/// running = requests in flight
/// max - min running > imbalance count: only the workers with the fewest running are candidates
/// percent = whole percent of the prompt's blocks, from its beginning, that were sent to the worker before
/// order   = percent, highest first; then running, lowest first; then any
/// choice  = the first with percent > 0 and running <= mean + standard_deviation_factor * deviation of running
///           (over all workers, n - 1); if none, any of the candidates with the fewest running
/// ```
/// AIBrix's manifests set 16 and 2 instead of 8 and 1. The table keeps `prefix_cache_block_number` blocks, each for
/// `eviction_duration_mins`. In AIBrix a block is 4 characters (128 in the manifests) and its workers are dropped
/// together; in this implementation a block is an engine's block and each worker's copy counts. AIBrix's other mode
/// reads engine events, which in 0.7 cannot match more than a first block, and is left out.
pub(crate) struct AibrixPrefixCache {
    imbalance: f64,
    deviation_factor: f64,
    bounds: Bounds,
    table: SentBlocks,
    draw: Draw,
}

impl AibrixPrefixCache {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        let all = options.number("prefix_cache_block_number", 200_000.0, 1.0, 1e9)? as usize;
        let ttl = 60.0 * options.number("eviction_duration_mins", 20.0, 0.0, 1e9)?;
        Ok(Self {
            imbalance: options.number("pod_running_request_imbalance_abs_count", 8.0, 0.0, 1e9)?,
            deviation_factor: options.number("standard_deviation_factor", 1.0, 0.0, 1e6)?,
            bounds: Bounds { worker: usize::MAX, all, ttl },
            table: SentBlocks::new(0.0),
            draw: Draw::new(seed),
        })
    }

    fn percent(&self, pieces: &Pieces, worker: u32, now: f64) -> usize {
        self.table.depth(worker, &pieces.chain, self.bounds.ttl, now) * 100 / pieces.chain.len().max(1)
    }

    /// Maximum number of running requests with which a worker may still be chosen for its match: the mean of all
    /// candidates plus `deviation_factor` times their deviation.
    fn most(&self, candidates: &Candidates) -> f64 {
        let running = || candidates.requests.iter().map(|&count| f64::from(count));
        let mean = mean(running());
        let squares: f64 = running().map(|count| (count - mean).powi(2)).sum();
        let deviation = if candidates.len() > 1 { (squares / (candidates.len() - 1) as f64).sqrt() } else { 0.0 };
        mean + self.deviation_factor * deviation
    }
}

impl Policy for AibrixPrefixCache {
    fn name(&self) -> &'static str {
        "aibrix-prefix-cache"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let running = |row: usize| candidates.requests[row];
        let fewest = candidates.requests.iter().copied().min().unwrap_or(0);
        let longest = candidates.requests.iter().copied().max().unwrap_or(0);
        let imbalanced = f64::from(longest - fewest) > self.imbalance;
        let rows = (0..candidates.len()).filter(|&row| !imbalanced || running(row) == fewest);
        let (most, pieces) = (self.most(candidates), Pieces::of(request));
        let matched: Vec<(usize, usize)> = rows
            .map(|row| (row, self.percent(&pieces, candidates.worker[row], now)))
            .filter(|&(row, percent)| percent > 0 && f64::from(running(row)) <= most)
            .collect();
        let best = self.draw.lowest(0..matched.len(), |at| {
            let (row, percent) = matched[at];
            (std::cmp::Reverse(percent), running(row))
        });
        let row = match best {
            Some(at) => Some(matched[at].0),
            None => self.draw.lowest(0..candidates.len(), running),
        };
        Choice::Row(row.unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        self.table.insert(candidates.worker[row], &Pieces::of(request).chain, self.bounds, now);
    }

    fn left(&mut self, worker: u32) {
        self.table.remove(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let (most, pieces) = (self.most(candidates), Pieces::of(request));
        Some(sheet(["requests", "requests allowed to a hit", "percent matched (highest)"], candidates.len(), |row| {
            let percent = self.percent(&pieces, candidates.worker[row], now) as f64;
            [f64::from(candidates.requests[row]), most, percent]
        }))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.table.workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, sent_to};

    fn policy() -> AibrixPrefixCache {
        AibrixPrefixCache::new(&mut Options::default(), 0).unwrap()
    }

    #[test]
    fn the_most_matched_that_is_not_too_busy() {
        let mut policy = policy();
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(10, &[1, 2, 3]), &candidates, 0);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 1);
        // Mean 3, squares 4 + 1 + 9 = 14 -> deviation (14 / 2)^0.5 = 2.65: up to 5.65.
        candidates.requests = vec![5, 4, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.0), Choice::Row(0));
        // Mean 4.33, squares 13.4 + 0.1 + 11.1 = 24.7 -> deviation 3.51: up to 7.84; eight are too many.
        candidates.requests = vec![8, 4, 1];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.0), Choice::Row(1));
    }

    #[test]
    fn past_the_imbalance_only_the_fewest_are_candidates() {
        let mut policy = policy();
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(10, &[1, 2, 3]), &candidates, 1);
        sent_to(&mut policy, &blocks(10, &[1]), &candidates, 2);
        candidates.requests = vec![9, 1, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3]), &candidates, 0.0), Choice::Row(2));
        candidates.requests = vec![8, 1, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3]), &candidates, 0.0), Choice::Row(1));
    }

    #[test]
    fn less_than_a_percent_and_what_is_old_is_no_match() {
        let mut policy = policy();
        let mut candidates = fleet(2);
        sent_to(&mut policy, &blocks(10, &[1]), &candidates, 0);
        candidates.requests = vec![1, 0];
        let long: Vec<u64> = (1..=101).collect();
        assert_eq!(policy.choose(&blocks(10, &long), &candidates, 0.0), Choice::Row(1));
        assert_eq!(policy.choose(&blocks(10, &long[..100]), &candidates, 0.0), Choice::Row(0));
        assert_eq!(policy.choose(&blocks(10, &long[..100]), &candidates, 1201.0), Choice::Row(1));
    }
}
