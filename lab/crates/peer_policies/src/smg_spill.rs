//! The cache-aware policy of SMG 1.13, which judges the load of each matched worker instead of the whole fleet.

use std::collections::HashMap;

use crate::parts::Pieces;
use crate::parts::sent_blocks::SentBlocks;
use crate::smg_cache_aware::{deepest, least_loaded, tree_bounds};
use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{known, mean, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// Maximum number of matched workers that are considered (smg-project/smg#2161).
const MATCHED: usize = 8;
/// Lower limit, in requests, for the load above the mean at which a matched worker may be skipped.
const LEAST_ABS: f64 = 4.0;

/// The policy `cache_aware` of SMG 1.13 (SGLang's model gateway) as it runs without options.
///
/// ```text
/// left out: a worker with >= 8 requests reported waiting or >= 0.8 KV usage, while another is under both
/// matched:  up to 8 workers that were sent the longest known beginning, if it is > cache_threshold of the prompt
/// gate:     one is skipped if load > 1.5 * mean load  and  load > mean load + min(64, max(4, 2 * deviation of load))
/// hit:      of those left, the highest share / (1 + overlap_decay * x), then the least loaded
///           x = blocks reported waiting above the least of them / blocks of the prompt
/// spill:    all matched are skipped: the least loaded
/// miss:     the lowest (tokens waiting + tokens sent since the last report) / throughput + weight * k / (1 - k)
///           k = KV usage; without a report, requests in flight * mean prefill tokens / throughput
/// warm-up:  a quarter of misses, and a hit in eight, go to a worker that is younger than 60 s or holds less than half
///           of the median, while others do not
/// ```
/// Sources: smg-project/smg#2161 (gate for each request, matched workers), #2117 (decay, temperature), #1647 and #2154
/// (expected wait), and the released 1.13.0. Waiting tokens are estimated as requests waiting times
/// `mean_prefill_tokens`, as in SMG for engines that report no tokens. SMG's exclusion of engines that are silent or
/// stuck is done by the router in this project. As in SMG over HTTP, the tree has the prompts sent; with `kv_events`,
/// the blocks on the device.
pub(crate) struct SmgSpill {
    cache_threshold: f64,
    balance_abs: f64,
    balance_rel: f64,
    protect_waiting: f64,
    protect_usage: f64,
    overlap_decay: f64,
    temperature: f64,
    warm_up_secs: f64,
    warm_up_misses: f64,
    warm_up_hits: f64,
    mean_prefill: f64,
    throughput: f64,
    kv_pressure: f64,
    tree_size: f64,
    kv_events: bool,
    tree: SentBlocks,
    /// Time of the last report (in seconds), and number of tokens sent since, for each worker.
    since_report: HashMap<u32, (f64, f64)>,
    draw: Draw,
}

impl SmgSpill {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            cache_threshold: options.number("cache_threshold", 0.3, 0.0, 1.0)?,
            balance_abs: options.number("balance_abs_threshold", 64.0, 0.0, 1e9)?,
            balance_rel: options.number("balance_rel_threshold", 1.5, 1.0, 1e9)?,
            protect_waiting: options.number("protect_waiting_requests", 8.0, 1.0, 1e9)?,
            protect_usage: options.number("protect_token_usage", 0.8, 0.0, 2.0)?,
            overlap_decay: options.number("overlap_decay", 0.0, 0.0, 1e6)?,
            temperature: options.number("selection_temperature", 0.0, 0.0, 1e6)?,
            warm_up_secs: options.number("warm_up_secs", 60.0, 0.0, 1e9)?,
            warm_up_misses: options.number("warm_up_misses", 0.25, 0.0, 1.0)?,
            warm_up_hits: options.number("warm_up_hits", 0.125, 0.0, 1.0)?,
            mean_prefill: options.number("mean_prefill_tokens", 1024.0, 1.0, 1e9)?,
            throughput: options.number("default_throughput", 2000.0, 1.0, 1e9)?,
            kv_pressure: options.number("kv_pressure_weight", 0.15, 0.0, 1e6)?,
            tree_size: options.number("max_tree_size", f64::from(1 << 26), 1.0, 1e12)?,
            kv_events: options.flag("kv_events", false)?,
            tree: SentBlocks::new(0.0),
            since_report: HashMap::new(),
            draw: Draw::new(seed),
        })
    }

    fn overloaded(&self, candidates: &Candidates, row: usize) -> bool {
        candidates.reported_waiting[row] >= self.protect_waiting
            || candidates.reported_kv_usage[row] >= self.protect_usage
    }

    /// Candidates that may be chosen: those not overloaded, or all if all are overloaded.
    fn eligible(&self, candidates: &Candidates) -> Vec<usize> {
        let under: Vec<usize> = (0..candidates.len()).filter(|&row| !self.overloaded(candidates, row)).collect();
        if under.is_empty() { (0..candidates.len()).collect() } else { under }
    }

    /// Longest beginning of the prompt that any candidate was sent before, as a share of the prompt (0 to 1), and the
    /// candidates that were sent it.
    fn matched(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> (f64, Vec<usize>) {
        if self.kv_events {
            let depth = candidates.device_blocks.iter().copied().max().unwrap_or(0);
            let rows = (0..candidates.len()).filter(|&row| depth > 0 && candidates.device_blocks[row] == depth);
            return (Pieces::of(request).share(depth as usize), rows.take(MATCHED).collect());
        }
        let (pieces, depth, mut rows) = deepest(&self.tree, request, candidates, now);
        let share = pieces.share(depth);
        if share <= self.cache_threshold {
            return (share, Vec::new());
        }
        let name = pieces.chain[depth - 1];
        rows.sort_by_key(|&row| std::cmp::Reverse(self.tree.last_touch(candidates.worker[row], name)));
        rows.truncate(MATCHED);
        (share, rows)
    }

    /// Load, in requests in flight, above which a matched worker is skipped.
    fn gate(&self, candidates: &Candidates) -> f64 {
        let loads = || candidates.requests.iter().map(|&count| f64::from(count));
        let mean = mean(loads());
        let deviation = (loads().map(|load| (load - mean).powi(2)).sum::<f64>() / candidates.len() as f64).sqrt();
        let abs = self.balance_abs.min((2.0 * deviation).max(LEAST_ABS));
        (self.balance_rel * mean).max(mean + abs)
    }

    fn reported_at(candidates: &Candidates, row: usize, now: f64) -> Option<f64> {
        let age = candidates.reported_age[row];
        (age.is_finite() && candidates.reported_waiting[row].is_finite()).then_some(now - age)
    }

    /// Expected waiting time of a request, in seconds.
    fn expected_wait(&self, candidates: &Candidates, row: usize, now: f64) -> f64 {
        let Some(reported) = Self::reported_at(candidates, row, now) else {
            return f64::from(candidates.requests[row]) * self.mean_prefill / self.throughput;
        };
        let sent = self.since_report.get(&candidates.worker[row]);
        let sent = sent.filter(|&&(at, _)| reported <= at + 1e-3).map_or(0.0, |&(_, tokens)| tokens);
        let waiting = known(candidates.reported_waiting[row], 0.0) * self.mean_prefill;
        let usage = known(candidates.reported_kv_usage[row], 0.0).clamp(0.0, 0.999);
        (waiting + sent) / self.throughput + self.kv_pressure * usage / (1.0 - usage)
    }

    /// New or nearly empty workers among `rows`, which get some requests to warm up; empty if all are.
    fn warming(&self, candidates: &Candidates, rows: &[usize]) -> Vec<usize> {
        let size = |row: usize| match self.kv_events {
            true => known(candidates.held_blocks[row], 0.0),
            false => self.tree.held(candidates.worker[row]) as f64,
        };
        let mut sizes: Vec<f64> = rows.iter().map(|&row| size(row)).collect();
        sizes.sort_by(f64::total_cmp);
        let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        let new = |row: usize| candidates.age[row] < self.warm_up_secs || size(row) < median / 2.0;
        let found: Vec<usize> = rows.iter().copied().filter(|&row| new(row)).collect();
        if found.len() == rows.len() { Vec::new() } else { found }
    }

    /// Candidate among `rows` with the largest matched share after reductions for its reported waiting requests.
    fn pick(&mut self, request: &Request<'_>, share: f64, candidates: &Candidates, rows: &[usize]) -> Option<usize> {
        let blocks = |row: usize| {
            known(candidates.reported_waiting[row], 0.0) * self.mean_prefill / f64::from(request.block_size.max(1))
        };
        let least = rows.iter().map(|&row| blocks(row)).fold(f64::INFINITY, f64::min);
        let of_prompt = f64::from(request.blocks().max(1));
        let score = |row: usize| share / (1.0 + self.overlap_decay * (blocks(row) - least) / of_prompt);
        if self.temperature > 0.0 {
            let costs: Vec<f64> = rows.iter().map(|&row| -score(row)).collect();
            return rows.get(self.draw.soft(&costs, self.temperature)).copied();
        }
        let best = rows.iter().map(|&row| score(row)).fold(f64::NEG_INFINITY, f64::max);
        let equals: Vec<usize> = rows.iter().copied().filter(|&row| score(row) >= best).collect();
        least_loaded(candidates, equals.into_iter())
    }
}

impl Policy for SmgSpill {
    fn name(&self) -> &'static str {
        "smg-spill"
    }

    fn uses_index(&self) -> bool {
        self.kv_events
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let eligible = self.eligible(candidates);
        let (share, matched) = self.matched(request, candidates, now);
        let warming = self.warming(candidates, &eligible);
        let hit = !matched.is_empty();
        let chance = if hit { self.warm_up_hits } else { self.warm_up_misses };
        if !warming.is_empty() && self.draw.unit() < chance {
            return Choice::Row(least_loaded(candidates, warming.into_iter()).unwrap_or(0));
        }
        if !hit {
            let row = self.draw.clone().lowest(eligible.into_iter(), |row| {
                (self.expected_wait(candidates, row, now), candidates.requests[row], candidates.sent[row], row)
            });
            return Choice::Row(row.unwrap_or(0));
        }
        let gate = self.gate(candidates);
        let open = |row: &usize| f64::from(candidates.requests[*row]) <= gate && eligible.contains(row);
        let left: Vec<usize> = matched.into_iter().filter(open).collect();
        let row = self.pick(request, share, candidates, &left);
        Choice::Row(row.or_else(|| least_loaded(candidates, eligible.into_iter())).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let worker = candidates.worker[row];
        if !self.kv_events {
            let pieces = Pieces::of(request);
            self.tree.insert(worker, &pieces.chain, tree_bounds(self.tree_size, &pieces), now);
        }
        if let Some(reported) = Self::reported_at(candidates, row, now) {
            let since = self.since_report.entry(worker).or_insert((reported, 0.0));
            if reported > since.0 + 1e-3 {
                *since = (reported, 0.0);
            }
            since.1 += f64::from(request.tokens);
        }
    }

    fn left(&mut self, worker: u32) {
        self.tree.remove(worker);
        self.since_report.remove(&worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let gate = self.gate(candidates);
        let (share, matched) = self.matched(request, candidates, now);
        let names = ["left out", "requests", "requests allowed to a hit", "matched share", "expected wait in s"];
        Some(sheet(names, candidates.len(), |row| {
            let left_out = f64::from(u8::from(self.overloaded(candidates, row)));
            let share = if matched.contains(&row) { share } else { 0.0 };
            let requests = f64::from(candidates.requests[row]);
            [left_out, requests, gate, share, self.expected_wait(candidates, row, now)]
        }))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.tree.workers() + self.since_report.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, sent_to};

    fn policy() -> SmgSpill {
        let options = r#"{"warm_up_hits": 0, "warm_up_misses": 0}"#;
        SmgSpill::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    #[test]
    fn one_matched_worker_over_the_gate_spills() {
        let mut policy = policy();
        let mut candidates = fleet(4);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 0);
        // Mean 12.5, deviation sqrt((7.5^2 + 3 * 2.5^2) / 4) = 4.33: the gate is max(18.75, 12.5 + 8.66) = 21.16.
        candidates.requests = vec![20, 10, 10, 10];
        assert!((policy.gate(&candidates) - 21.16).abs() < 0.01);
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
        // Mean 15, deviation 8.66: max(22.5, 15 + 17.32) = 32.3. 30 is under it.
        candidates.requests = vec![30, 10, 10, 10];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
        // Eight workers, 30 and 7 times 2: mean 5.5, deviation 9.26: max(8.25, 24.02) = 24.02: spilled to the first of the rest.
        let mut candidates = fleet(8);
        candidates.requests = vec![30, 2, 2, 2, 2, 2, 2, 2];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
    }

    #[test]
    fn the_least_loaded_of_those_matched_is_taken() {
        let mut policy = policy();
        let mut candidates = fleet(4);
        for row in [0, 1, 2] {
            sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, row);
        }
        candidates.requests = vec![3, 2, 3, 0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
    }

    #[test]
    fn a_miss_goes_where_it_waits_least() {
        let mut policy = policy();
        let mut candidates = fleet(3);
        candidates.reported_age = vec![1.0; 3];
        candidates.reported_waiting = vec![2.0, 0.0, 1.0];
        candidates.reported_kv_usage = vec![0.0, 0.7, 0.5];
        // 2048 / 2000 = 1.024; 0.15 * 0.7 / 0.3 = 0.35; 1024 / 2000 + 0.15 = 0.662.
        let waits: Vec<f64> = (0..3).map(|row| policy.expected_wait(&candidates, row, 10.0)).collect();
        for (wait, expected) in waits.iter().zip([1.024, 0.35, 0.662]) {
            assert!((wait - expected).abs() < 1e-9, "{waits:?}");
        }
        assert_eq!(policy.choose(&blocks(10, &[1]), &candidates, 10.0), Choice::Row(1));
        // 1,000 tokens sent there since the report: 0.5 s more than 0.35.
        policy.sent(&Request { tokens: 1000, ..Request::default() }, &candidates, 1, 10.0);
        assert_eq!(policy.choose(&blocks(10, &[1]), &candidates, 10.0), Choice::Row(2));
        // A new report counts them itself.
        candidates.reported_age = vec![0.0; 3];
        assert_eq!(policy.choose(&blocks(10, &[1]), &candidates, 11.0), Choice::Row(1));
    }

    #[test]
    fn overloaded_workers_are_left_out_while_another_is_not() {
        let mut policy = policy();
        let mut candidates = fleet(2);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 0);
        candidates.reported_kv_usage = vec![0.8, 0.79];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
        candidates.reported_kv_usage = vec![0.8, 0.9];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn new_workers_get_their_slice_of_misses() {
        let mut policy = SmgSpill::new(&mut Options::default(), 4).unwrap();
        let mut candidates = fleet(4);
        candidates.age = vec![5.0, 900.0, 900.0, 900.0];
        candidates.requests = vec![9, 1, 1, 1];
        let rows = (0..2000u64).map(|number| policy.choose(&blocks(10, &[number]), &candidates, 0.0));
        let share = rows.filter(|row| *row == Choice::Row(0)).count() as f64 / 2000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    #[test]
    fn decay_lets_the_one_with_less_waiting_win() {
        let mut policy = policy();
        policy.overlap_decay = 1.0;
        let mut candidates = fleet(2);
        for row in [0, 1] {
            sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, row);
        }
        candidates.requests = vec![1, 2];
        candidates.reported_waiting = vec![3.0, 0.0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
    }
}
