//! Policies of the llm-d router: its weighted scorers, and its choice by token load.

use std::collections::HashMap;

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, known, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

use crate::parts::Pieces;
use crate::parts::books::Books;
use crate::parts::sent_blocks::{Bounds, SentBlocks};

/// Minimum size, in tokens, of a block in the table of sent prompts.
const LEAST_BLOCK: f64 = 64.0;
/// Length of the beginning of a prompt that is recorded in the table of sent prompts, in tokens.
const MOST_TOKENS: f64 = 131_072.0;

/// The default profile of the llm-d router (and of the Gateway API's endpoint picker, from which it derives), August
/// 2026. The worker with the highest sum of weighted scores is chosen, any among equals.
///
/// ```text
/// score  = queue_weight * Q + kv_cache_utilization_weight * U + prefix_weight * F + no_hit_lru_weight * N
/// Q = (longest - waiting) / (longest - shortest), requests reported waiting; 1 if all have as many
/// U = 1 - KV usage reported
/// F = matchLengthWeight * min(1, matched tokens / 8192)^2 + (1 - matchLengthWeight) * matched blocks / blocks of the prompt
/// N = 0.5 if any worker matches; else 1 - rank / (n - 1), by when each last took an unmatched prompt, never first
/// ```
/// Weights are those of the Helm chart: 2, 2 and 3; the guide `optimized-baseline` adds the last scorer (weight 0 by
/// default). With `precise` false, as in the chart, matches are found among sent prompts: the last 31,250 blocks of at
/// least 64 tokens of each worker. With `precise`, matches are from the index: 1 for a block on the device, 0.8 in host
/// memory, 0.4 elsewhere. Unreported values count as 0 waiting and 0 used. Sources:
/// kubernetes-sigs/gateway-api-inference-extension#762 and #2128, llm-d/llm-d-router#357 and #2809, llm-d/llm-d#1714.
pub(crate) struct LlmDScorers {
    queue_weight: f64,
    usage_weight: f64,
    prefix_weight: f64,
    no_hit_weight: f64,
    match_length_weight: f64,
    capacity: f64,
    lru_size: usize,
    precise: bool,
    table: SentBlocks,
    /// Time at which each worker last got a prompt that matched no worker's blocks, in seconds.
    cold: HashMap<u32, f64>,
    draw: Draw,
}

impl LlmDScorers {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            queue_weight: options.number("queue_weight", 2.0, 0.0, 1e6)?,
            usage_weight: options.number("kv_cache_utilization_weight", 2.0, 0.0, 1e6)?,
            prefix_weight: options.number("prefix_weight", 3.0, 0.0, 1e6)?,
            no_hit_weight: options.number("no_hit_lru_weight", 0.0, 0.0, 1e6)?,
            match_length_weight: options.number("match_length_weight", 0.0, 0.0, 1.0)?,
            capacity: options.number("lru_capacity_per_server", 31_250.0, 1.0, 1e9)?,
            lru_size: options.number("lru_size", 1024.0, 1.0, 1e9)? as usize,
            precise: options.flag("precise", false)?,
            table: SentBlocks::new(0.0),
            cold: HashMap::new(),
            draw: Draw::new(seed),
        })
    }

    fn pieces(request: &Request<'_>) -> Pieces {
        let mut pieces = Pieces::of(request);
        pieces.chain.truncate((MOST_TOKENS / pieces.size.max(1.0)) as usize);
        pieces
    }

    /// Number of matched blocks of the prompt, for each worker.
    fn matched(&self, pieces: &Pieces, candidates: &Candidates, now: f64) -> Vec<f64> {
        let of_row = |row: usize| {
            if !self.precise {
                return self.table.depth(candidates.worker[row], &pieces.chain, f64::INFINITY, now) as f64;
            }
            let device = f64::from(candidates.device_blocks[row]);
            let host = f64::from(candidates.host_blocks[row]).max(device);
            let any = f64::from(candidates.any_blocks[row]).max(host);
            device + 0.8 * (host - device) + 0.4 * (any - host)
        };
        (0..candidates.len()).map(of_row).collect()
    }

    /// Scores of the workers for a prompt that matches no worker's blocks: the longer ago a worker got its last one,
    /// the higher.
    fn no_hit(&self, candidates: &Candidates) -> Vec<f64> {
        let last = |row: usize| self.cold.get(&candidates.worker[row]).copied().unwrap_or(f64::NEG_INFINITY);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|&a, &b| last(a).total_cmp(&last(b)));
        let mut scores = vec![1.0; candidates.len()];
        for (rank, row) in order.into_iter().enumerate().skip(1) {
            scores[row] = 1.0 - rank as f64 / (candidates.len() - 1) as f64;
        }
        scores
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Terms {
        let pieces = Self::pieces(request);
        let matched = self.matched(&pieces, candidates, now);
        let warm = matched.iter().any(|&blocks| blocks > 0.0);
        let no_hit = if warm { vec![0.5; candidates.len()] } else { self.no_hit(candidates) };
        let waiting: Vec<f64> = candidates.reported_waiting.iter().map(|&count| known(count, 0.0)).collect();
        let longest = waiting.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shortest = waiting.iter().copied().fold(f64::INFINITY, f64::min);
        let blocks = pieces.chain.len().max(1) as f64;
        let names = ["queue", "kv usage", "prefix", "no hit", "score (highest)"];
        sheet(names, candidates.len(), |row| {
            let queue = if longest > shortest { (longest - waiting[row]) / (longest - shortest) } else { 1.0 };
            let usage = (1.0 - known(candidates.reported_kv_usage[row], 0.0)).clamp(0.0, 1.0);
            let length = (matched[row] * pieces.size / 8192.0).min(1.0).powi(2);
            let share = (matched[row] / blocks).min(1.0);
            let prefix = self.match_length_weight * length + (1.0 - self.match_length_weight) * share;
            let score = self.queue_weight * queue
                + self.usage_weight * usage
                + self.prefix_weight * prefix
                + self.no_hit_weight * no_hit[row];
            [queue, usage, prefix, no_hit[row], score]
        })
    }
}

impl Policy for LlmDScorers {
    fn name(&self) -> &'static str {
        "llm-d-scorers"
    }

    fn uses_index(&self) -> bool {
        self.precise
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let scores = compared(&self.terms(request, candidates, now));
        Choice::Row(self.draw.lowest(0..scores.len(), |row| -scores[row]).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let pieces = Self::pieces(request);
        let worker = candidates.worker[row];
        if self.matched(&pieces, candidates, now).iter().all(|&blocks| blocks <= 0.0) {
            self.cold.insert(worker, now);
            if self.cold.len() > self.lru_size {
                let oldest = self.cold.iter().min_by(|a, b| a.1.total_cmp(b.1).then(a.0.cmp(b.0)));
                if let Some(oldest) = oldest.map(|(&worker, _)| worker) {
                    self.cold.remove(&oldest);
                }
            }
        }
        if !self.precise {
            let blocks = self.capacity * pieces.size.max(LEAST_BLOCK) / pieces.size.max(1.0);
            let bounds = Bounds { worker: blocks as usize, all: usize::MAX, ttl: f64::INFINITY };
            self.table.insert(worker, &pieces.chain, bounds, now);
        }
    }

    fn left(&mut self, worker: u32) {
        self.table.remove(worker);
        self.cold.remove(&worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates, now))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.table.workers() + self.cold.len())
    }
}

/// Maximum number of blocks of a worker in the table of sent prompts.
const TABLE: usize = 31_250;

/// The optimized baseline of llm-d, the default of its guides since 17 August 2026 (llm-d-router ebab6879). The worker
/// with the highest score is chosen, any among equals.
///
/// ```text
/// sticky = workers that were sent at least sticky_share of the prompt; all, if there are none
/// wait   = tokens to compute of requests without a first token / peak_prefill_throughput
/// least wait of the sticky - least wait of the others > gate_secs: all workers
/// score  = 1 - min(1, (tokens to compute of requests without a first token + of this prompt) / max_tokens)
/// ```
/// Matches are found among sent prompts, as in llm-d. llm-d's `explorationProbability`, 0 by default, is left out.
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

    /// Share of the prompt that a worker was sent before, 0 to 1, and number of tokens of the rest.
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
    use crate::tests::{blocks, fleet, numbered, sent_to};

    fn policy(options: &str) -> LlmDScorers {
        LlmDScorers::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    #[test]
    fn three_scores_are_summed() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(100, &[1, 2]), &candidates, 0);
        candidates.reported_waiting = vec![4.0, 0.0, 1.0];
        candidates.reported_kv_usage = vec![0.5, 0.9, f64::NAN];
        let terms = policy.explain(&blocks(100, &[1, 2, 3, 4]), &candidates, 0.0).unwrap();
        // 2 * 0 + 2 * 0.5 + 3 * 0.5 = 2.5;  2 * 1 + 2 * 0.1 = 2.2;  2 * 0.75 + 2 * 1 = 3.5.
        for (score, expected) in compared(&terms).iter().zip([2.5, 2.2, 3.5]) {
            assert!((score - expected).abs() < 1e-12, "{terms:?}");
        }
        assert_eq!(policy.choose(&blocks(100, &[1, 2, 3, 4]), &candidates, 0.0), Choice::Row(2));
    }

    #[test]
    fn tiers_weigh_less_and_length_may_count() {
        let policy = policy(r#"{"precise": true, "match_length_weight": 0.5}"#);
        let mut candidates = fleet(1);
        (candidates.device_blocks, candidates.host_blocks, candidates.any_blocks) = (vec![10], vec![20], vec![30]);
        let hashes: Vec<u64> = (0..40).collect();
        let terms = policy.explain(&blocks(100, &hashes), &candidates, 0.0).unwrap();
        // 10 + 8 + 4 = 22 of 40 blocks: 0.55; 2,200 tokens: (2200 / 8192)^2 = 0.0721. Half of each.
        assert!((terms.values[2] - 0.31106).abs() < 1e-4, "{terms:?}");
    }

    #[test]
    fn cold_prompts_go_round_by_when_each_had_one() {
        let mut policy = policy(r#"{"no_hit_lru_weight": 1}"#);
        let candidates = fleet(3);
        for (number, row) in [(1, 1), (2, 0)] {
            policy.sent(&blocks(10, &[number]), &candidates, row, number as f64);
        }
        let terms = policy.explain(&blocks(10, &[9]), &candidates, 3.0).unwrap();
        // The third never had one, then the second, then the first: 1, 1 - 1/2, 0.
        let no_hit: Vec<f64> = terms.values.chunks(5).map(|row| row[3]).collect();
        assert_eq!(no_hit, [0.0, 0.5, 1.0]);
        let terms = policy.explain(&blocks(10, &[2]), &candidates, 3.0).unwrap();
        assert!(terms.values.chunks(5).all(|row| row[3] == 0.5));
    }

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
