//! The token-load policy of the llm-d router.

use crate::parts::Pieces;
use crate::parts::books::Books;
use crate::parts::sent_blocks::{Bounds, SentBlocks};
use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::sheet::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

/// Most blocks of a worker in the table.
const TABLE: usize = 31_250;

/// The optimized baseline of llm-d, the default of its guides since 17 August 2026 (llm-d-router ebab6879); the highest
/// score wins, any of equals.
///
/// ```text
/// sticky = workers that were sent at least sticky_share of the prompt; all, if there are none
/// wait   = tokens to compute of requests without a first token / peak_prefill_throughput
/// least wait of the sticky - least wait of the others > gate_secs: all workers
/// score  = 1 - min(1, (tokens to compute of requests without a first token + of this prompt) / max_tokens)
/// ```
/// Matches are of what was sent, as there. `explorationProbability` is 0 there, and not here.
pub(crate) struct LlmDTokenLoad {
    share: f64,
    throughput: f64,
    gate: f64,
    most: f64,
    books: Books,
    table: SentBlocks,
    draw: Draw,
}

impl LlmDTokenLoad {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            share: options.number("sticky_share", 0.8, 0.0, 1.0)?,
            throughput: options.number("peak_prefill_throughput", 15_928.0, 1.0, 1e9)?,
            gate: options.number("gate_secs", 18.0, 0.0, 1e9)?,
            most: options.number("max_tokens", 4_194_304.0, 1.0, 1e12)?,
            books: Books::new(f64::INFINITY),
            table: SentBlocks::new(0.0),
            draw: Draw::new(seed),
        })
    }

    /// The share of the prompt that a worker was sent before, and the tokens it was not.
    fn matched(&self, pieces: &Pieces, worker: u32, now: f64) -> (f64, f64) {
        let depth = self.table.depth(worker, &pieces.chain, f64::INFINITY, now);
        let share = depth as f64 / pieces.chain.len().max(1) as f64;
        (share, (pieces.tokens - depth as f64 * pieces.size).max(0.0))
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Terms {
        let pieces = Pieces::of(request);
        let matched: Vec<(f64, f64)> =
            candidates.worker.iter().map(|&worker| self.matched(&pieces, worker, now)).collect();
        let load: Vec<f64> = candidates.worker.iter().map(|&worker| self.books.load(worker, &[], 0).prefill).collect();
        let least = |sticky: bool| {
            let rows = (0..load.len()).filter(|&row| (matched[row].0 >= self.share) == sticky);
            rows.map(|row| load[row]).fold(f64::INFINITY, f64::min) / self.throughput
        };
        let (warm, cold) = (least(true), least(false));
        // Without other workers there is no alternative.
        let all = warm.is_infinite() || (cold.is_finite() && warm - cold > self.gate);
        sheet(["share sent before", "tokens in flight", "tokens to compute", "score (highest)"], load.len(), |row| {
            let (share, uncached) = matched[row];
            let score = 1.0 - ((load[row] + uncached) / self.most).min(1.0);
            let takes = all || share >= self.share;
            [share, load[row], uncached, if takes { score } else { f64::NEG_INFINITY }]
        })
    }
}

impl Policy for LlmDTokenLoad {
    fn name(&self) -> &'static str {
        "llm-d-token-load"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let scores = compared(&self.terms(request, candidates, now));
        Choice::Row(self.draw.lowest(0..scores.len(), |row| -scores[row]).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let pieces = Pieces::of(request);
        let worker = candidates.worker[row];
        self.books.sent(request, worker, self.matched(&pieces, worker, now).1, now);
        self.table.insert(worker, &pieces.chain, Bounds { worker: TABLE, all: usize::MAX, ttl: f64::INFINITY }, now);
    }

    fn first_token(&mut self, placed: &Placement, _now: f64) {
        self.books.first_token(placed.number);
    }

    fn ended(&mut self, placed: &Placement, _now: f64) {
        self.books.ended(placed.number);
    }

    fn left(&mut self, worker: u32) {
        self.books.left(worker);
        self.table.remove(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates, now))
    }

    fn remembered(&self) -> (usize, usize) {
        let (requests, workers) = self.books.len();
        (requests, workers + self.table.workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, numbered};

    #[test]
    fn those_that_were_sent_most_of_it_take_it_until_they_are_too_far_behind() {
        let mut policy = LlmDTokenLoad::new(&mut Options::default(), 0).unwrap();
        let candidates = fleet(2);
        let prompt = blocks(100_000, &[1, 2, 3, 4, 5]);
        policy.sent(&numbered(1, prompt), &candidates, 0, 0.0);
        policy.first_token(&Placement { number: 1, worker: 0, uncached: 500_000, freed: 0 }, 1.0);
        // Four of five blocks are enough, three are not: both have nothing in flight, and the first has less to compute.
        let near = blocks(100_000, &[1, 2, 3, 4, 9]);
        let scores = compared(&policy.explain(&near, &candidates, 1.0).unwrap());
        assert_eq!(scores, [1.0 - 100_000.0 / 4_194_304.0, f64::NEG_INFINITY]);
        let far = blocks(100_000, &[1, 2, 3, 8, 9]);
        let scores = compared(&policy.explain(&far, &candidates, 1.0).unwrap());
        assert_eq!(scores, [1.0 - 200_000.0 / 4_194_304.0, 1.0 - 500_000.0 / 4_194_304.0]);
        // 286,000 tokens are 17.96 s: it stays. 300,000 are 18.8 s: all may take it, and the other has less.
        for (number, tokens, row) in [(2, 286_000, 0), (3, 14_000, 1)] {
            policy.sent(&numbered(number, blocks(tokens, &[number + 70])), &candidates, 0, 2.0);
            let near = blocks(100, &[1, 2, 3, 4, 9]);
            assert_eq!(policy.choose(&near, &candidates, 2.0), Choice::Row(row));
        }
    }
}
