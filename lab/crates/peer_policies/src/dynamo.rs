//! Policies of NVIDIA Dynamo: its KV router, and its two-tier cost function.

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

use crate::parts::Pieces;
use crate::parts::books::{Books, Load};
use crate::parts::sent_blocks::{Bounds, SentBlocks};

/// The default cost of Dynamo's KV router (1.5 and 1.6: docs/components/router, flags of the frontend). The worker with
/// the lowest cost is chosen, any among equals.
///
/// ```text
/// prefill = (tokens to compute of requests without a first token + prompt tokens) / block size
/// decay   = 1 / (1 + credit_decay * (tokens to compute - least of all workers) / prompt tokens)
/// credit  = credit * decay * device blocks + host_weight * blocks more with the host + disk_weight * more elsewhere
/// cost    = prefill_load_scale * max(0, prefill - credit)
///           + distinct blocks in use with this prompt + active_request_weight * requests
/// temperature > 0: drawn with weight exp(-(cost - lowest) / (range * temperature))
/// ```
/// A request's prompt counts until its first token, minus the credited part; its blocks until it ends, shared ones
/// once. Output is not counted (`router_track_output_blocks` is off in Dynamo). Requests older than the expiry are
/// dropped from the counts, as in Dynamo. With `router_predicted_ttl_secs` sent prompts count as held for this time;
/// without `router_kv_events` nothing else does, for `router_ttl_secs`. With a credit above 1 the cost stops at 0, as
/// in 1.5; later versions let it fall below. Left out: the queue, shared caches, taints and the predicted prefill time
/// model, all off by default in Dynamo.
pub(crate) struct DynamoKv {
    name: &'static str,
    credit: f64,
    credit_decay: f64,
    prefill_scale: f64,
    request_weight: f64,
    host_weight: f64,
    disk_weight: f64,
    temperature: f64,
    track_blocks: bool,
    load_aware: bool,
    kv_events: bool,
    ttl: f64,
    books: Books,
    predicted: SentBlocks,
    draw: Draw,
}

/// Default options that differ between presets of Dynamo's cost.
struct Preset {
    name: &'static str,
    credit: f64,
    prefill_scale: f64,
    request_weight: f64,
}

const PLAIN: Preset = Preset { name: "dynamo-kv", credit: 1.0, prefill_scale: 1.0, request_weight: 0.0 };

/// Dynamo's preset for agents (ai-dynamo/dynamo#13447, October 2026): weights for long prompts that are mostly cached.
const AGENTIC: Preset = Preset { name: "dynamo-agentic", credit: 2.0, prefill_scale: 4.0, request_weight: 64.0 };

impl DynamoKv {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Self::of(&PLAIN, options, seed)
    }

    pub(crate) fn agentic(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Self::of(&AGENTIC, options, seed)
    }

    fn of(preset: &Preset, options: &mut Options, seed: u64) -> Result<Self, Error> {
        let kv_events = options.flag("router_kv_events", true)?;
        let ttl = options.number("router_ttl_secs", 120.0, 0.0, 1e9)?;
        let predicted_ttl = options.number("router_predicted_ttl_secs", 0.0, 0.0, 1e9)?;
        Ok(Self {
            name: preset.name,
            credit: options.number("router_kv_overlap_score_credit", preset.credit, 0.0, 1e6)?,
            credit_decay: options.number("router_kv_overlap_score_credit_decay", 0.0, 0.0, 1e6)?,
            prefill_scale: options.number("router_prefill_load_scale", preset.prefill_scale, 0.0, 1e6)?,
            request_weight: options.number("router_decode_active_request_weight", preset.request_weight, 0.0, 1e6)?,
            host_weight: options.number("router_host_cache_hit_weight", 0.75, 0.0, 1.0)?,
            disk_weight: options.number("router_disk_cache_hit_weight", 0.25, 0.0, 1.0)?,
            temperature: options.number("router_temperature", 0.0, 0.0, 1e6)?,
            track_blocks: options.flag("router_track_active_blocks", true)?,
            load_aware: options.flag("load_aware", false)?,
            kv_events,
            ttl: if kv_events { predicted_ttl } else { ttl },
            books: Books::new(options.number("router_active_request_expiry_secs", 300.0, 0.0, 1e9)?),
            predicted: SentBlocks::new(0.0),
            draw: Draw::new(seed),
        })
    }

    /// Number of matched blocks on the device of a worker, and the credit for matched blocks on its other tiers, in
    /// blocks.
    fn overlap(&self, chain: &[u64], candidates: &Candidates, row: usize, now: f64) -> (f64, f64) {
        if self.load_aware {
            return (0.0, 0.0);
        }
        let sent = match self.ttl > 0.0 {
            true => self.predicted.depth(candidates.worker[row], chain, self.ttl, now) as f64,
            false => 0.0,
        };
        if !self.kv_events {
            return (sent, 0.0);
        }
        let device = f64::from(candidates.device_blocks[row]).max(sent);
        let host = f64::from(candidates.host_blocks[row]).max(device);
        let any = f64::from(candidates.any_blocks[row]).max(host);
        (device, self.host_weight * (host - device) + self.disk_weight * (any - host))
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Terms {
        let chain = Pieces::of(request).chain;
        let size = f64::from(request.block_size.max(1));
        let prompt = f64::from(request.tokens);
        let blocks = if self.track_blocks { request.blocks() } else { 0 };
        let loads: Vec<Load> =
            candidates.worker.iter().map(|&worker| self.books.load(worker, &chain, blocks)).collect();
        let least = loads.iter().map(|load| load.prefill).fold(f64::INFINITY, f64::min);
        let names = ["prefill in blocks", "credit in blocks", "blocks in use", "requests", "cost in blocks (lowest)"];
        sheet(names, candidates.len(), |row| {
            let load = loads[row];
            let (device, tiers) = self.overlap(&chain, candidates, row, now);
            let decay = 1.0 / (1.0 + self.credit_decay * (load.prefill - least) / prompt.max(1.0));
            let credit = self.credit * decay * device + tiers;
            let prefill = (load.prefill + prompt) / size;
            let in_use = if self.track_blocks { load.blocks } else { 0.0 };
            let cost = self.prefill_scale * (prefill - credit).max(0.0) + in_use + self.request_weight * load.requests;
            [prefill, credit, in_use, load.requests, cost]
        })
    }
}

impl Policy for DynamoKv {
    fn name(&self) -> &'static str {
        self.name
    }

    fn uses_index(&self) -> bool {
        self.kv_events && !self.load_aware
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        self.books.expire(now);
        let costs = compared(&self.terms(request, candidates, now));
        Choice::Row(self.draw.soft(&costs, self.temperature))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let chain = Pieces::of(request).chain;
        let (device, tiers) = self.overlap(&chain, candidates, row, now);
        let cached = (device + tiers) * f64::from(request.block_size);
        self.books.sent(request, candidates.worker[row], (f64::from(request.tokens) - cached).max(0.0), now);
        if self.ttl > 0.0 {
            let bounds = Bounds { worker: 1 << 22, all: usize::MAX, ttl: self.ttl };
            self.predicted.insert(candidates.worker[row], &chain, bounds, now);
        }
    }

    fn first_token(&mut self, placed: &Placement, _now: f64) {
        self.books.first_token(placed.number);
    }

    fn ended(&mut self, placed: &Placement, _now: f64) {
        self.books.ended(placed.number);
    }

    fn left(&mut self, worker: u32) {
        self.books.left(worker);
        self.predicted.remove(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates, now))
    }

    fn remembered(&self) -> (usize, usize) {
        let (requests, workers) = self.books.len();
        (requests, workers + self.predicted.workers())
    }
}

/// Dynamo's two-tier cost function (ai-dynamo/dynamo#14498, in 1.5.0). Among equal workers the first is chosen.
///
/// ```text
/// most - fewest requests > imbalance_requests and most > imbalance_ratio * fewest: the fewest requests
/// else longest match / blocks of the prompt > match_share: of those that match as much, the fewest requests
/// else: the fewest requests
/// ```
/// Blocks on the device count. Later versions add 0.75 of the blocks in host memory, which is `host_weight`.
pub(crate) struct DynamoTwoTier {
    imbalance_requests: f64,
    imbalance_ratio: f64,
    match_share: f64,
    host_weight: f64,
}

impl DynamoTwoTier {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self {
            imbalance_requests: options.number("imbalance_requests", 32.0, 0.0, 1e9)?,
            imbalance_ratio: options.number("imbalance_ratio", 1.1, 1.0, 1e9)?,
            match_share: options.number("match_share", 0.5, 0.0, 1.0)?,
            host_weight: options.number("host_weight", 0.0, 0.0, 1.0)?,
        })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let requests = |row: usize| f64::from(candidates.requests[row]);
        let overlap = |row: usize| {
            let device = f64::from(candidates.device_blocks[row]);
            device + self.host_weight * (f64::from(candidates.host_blocks[row]) - device).max(0.0)
        };
        let rows = 0..candidates.len();
        let most = rows.clone().map(requests).fold(0.0, f64::max);
        let fewest = rows.clone().map(requests).fold(f64::INFINITY, f64::min);
        let longest = rows.map(overlap).fold(0.0, f64::max);
        let balanced = most - fewest <= self.imbalance_requests || most <= self.imbalance_ratio * fewest;
        let warm = longest / f64::from(request.blocks().max(1)) > self.match_share;
        sheet(["matched blocks", "requests", "requests if it may take it (lowest)"], candidates.len(), |row| {
            let out = balanced && warm && overlap(row) < longest;
            [overlap(row), requests(row), if out { f64::INFINITY } else { requests(row) }]
        })
    }
}

impl Policy for DynamoTwoTier {
    fn name(&self) -> &'static str {
        "dynamo-two-tier"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let costs = compared(&self.terms(request, candidates));
        let first = (0..costs.len()).reduce(|best, row| if costs[row] < costs[best] { row } else { best });
        Choice::Row(first.unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, numbered};

    fn policy(options: &str) -> DynamoKv {
        DynamoKv::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    fn costs(policy: &DynamoKv, request: &Request<'_>, candidates: &Candidates, now: f64) -> Vec<f64> {
        compared(&policy.explain(request, candidates, now).unwrap())
    }

    #[test]
    fn cost_is_prefill_less_credit_and_blocks_in_use() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        // A prompt of four blocks to the first worker, which holds none of it.
        policy.sent(&numbered(1, blocks(10, &[1, 2, 3, 4])), &candidates, 0, 0.0);
        candidates.device_blocks = vec![0, 3, 1];
        candidates.host_blocks = vec![0, 3, 3];
        candidates.any_blocks = vec![0, 3, 5];
        let prompt = blocks(10, &[1, 2, 7, 8, 9, 10]);
        // First: prefill (40 + 60) / 10 = 10; in use 4 and 6, two of them the same: 8. In all 18.
        // Second: 6 - 3 + 6 = 9. Third: 6 - (1 + 0.75 * 2 + 0.25 * 2) + 6 = 9.
        assert_eq!(costs(&policy, &prompt, &candidates, 0.0), [18.0, 9.0, 9.0]);
        policy.first_token(&Placement { number: 1, worker: 0, uncached: 40, freed: 0 }, 1.0);
        // Its prefill is done: 6 + 8.
        assert_eq!(costs(&policy, &prompt, &candidates, 1.0)[0], 14.0);
        policy.ended(&Placement { number: 1, worker: 0, uncached: 40, freed: 0 }, 2.0);
        assert_eq!(costs(&policy, &prompt, &candidates, 2.0)[0], 12.0);
    }

    #[test]
    fn the_agentic_preset_weighs_requests_and_credits_twice() {
        let mut policy = DynamoKv::agentic(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(2);
        policy.sent(&numbered(1, blocks(10, &[1, 2, 3, 4])), &candidates, 0, 0.0);
        candidates.device_blocks = vec![4, 1];
        candidates.host_blocks = vec![4, 1];
        candidates.any_blocks = vec![4, 1];
        // First: 4 * max(0, 4 + 4 - 2 * 4) + 4 + 64. Second: 4 * (4 - 2 * 1) + 4.
        assert_eq!(costs(&policy, &blocks(10, &[1, 2, 3, 4]), &candidates, 0.0), [68.0, 12.0]);
    }

    #[test]
    fn credit_fades_where_much_waits() {
        let mut policy =
            policy(r#"{"router_kv_overlap_score_credit_decay": 0.5, "router_decode_active_request_weight": 2}"#);
        let mut candidates = fleet(2);
        policy.sent(&numbered(1, blocks(10, &[1, 2, 3, 4])), &candidates, 0, 0.0);
        candidates.device_blocks = vec![2, 0];
        candidates.host_blocks = vec![2, 0];
        candidates.any_blocks = vec![2, 0];
        // Decay 1 / (1 + 0.5 * 40 / 20) = 0.5: (40 + 20) / 10 - 0.5 * 2 + 4 + 2 * 1 = 11. The other 2 + 2.
        assert_eq!(costs(&policy, &blocks(10, &[1, 2]), &candidates, 0.0), [11.0, 4.0]);
    }

    #[test]
    fn what_was_sent_counts_as_held_for_a_while_if_asked() {
        let mut policy = policy(r#"{"router_predicted_ttl_secs": 5}"#);
        let candidates = fleet(2);
        policy.sent(&numbered(1, blocks(10, &[1, 2])), &candidates, 1, 0.0);
        policy.ended(&Placement { number: 1, worker: 1, uncached: 20, freed: 0 }, 1.0);
        assert_eq!(costs(&policy, &blocks(10, &[1, 2]), &candidates, 4.0), [4.0, 2.0]);
        assert_eq!(costs(&policy, &blocks(10, &[1, 2]), &candidates, 6.0), [4.0, 4.0]);
    }

    #[test]
    fn without_events_only_what_was_sent_counts() {
        let mut policy = policy(r#"{"router_kv_events": false}"#);
        assert!(!policy.uses_index());
        let mut candidates = fleet(2);
        candidates.device_blocks = vec![2, 0];
        policy.sent(&numbered(1, blocks(10, &[1, 2])), &candidates, 1, 0.0);
        policy.ended(&Placement { number: 1, worker: 1, uncached: 20, freed: 0 }, 1.0);
        assert_eq!(costs(&policy, &blocks(10, &[1, 2]), &candidates, 119.0), [4.0, 2.0]);
        assert_eq!(costs(&policy, &blocks(10, &[1, 2]), &candidates, 121.0), [4.0, 4.0]);
    }

    #[test]
    fn requests_older_than_the_expiry_are_dropped() {
        let mut policy = policy("");
        let candidates = fleet(2);
        policy.sent(&numbered(1, blocks(10, &[1, 2])), &candidates, 0, 0.0);
        assert_eq!(policy.choose(&blocks(10, &[5]), &candidates, 299.0), Choice::Row(1));
        let _ = policy.choose(&blocks(10, &[5]), &candidates, 301.0);
        assert_eq!(policy.remembered(), (0, 0));
    }

    fn choice(device: [u32; 3], requests: [u32; 3]) -> Choice {
        let mut policy = DynamoTwoTier::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(3);
        candidates.device_blocks = device.to_vec();
        candidates.host_blocks = device.to_vec();
        candidates.requests = requests.to_vec();
        policy.choose(&blocks(10, &[1, 2, 3, 4]), &candidates, 0.0)
    }

    #[test]
    fn a_long_match_decides_in_a_balanced_fleet() {
        // Three of four blocks are more than half; of the two that hold them, the one with fewer requests.
        assert_eq!(choice([3, 0, 3], [20, 1, 10]), Choice::Row(2));
        // Two of four are not.
        assert_eq!(choice([2, 0, 2], [20, 1, 10]), Choice::Row(1));
    }

    #[test]
    fn the_fewest_requests_decide_in_an_unbalanced_fleet() {
        // 33 more than the fewest, and more than 1.1 times as many.
        assert_eq!(choice([4, 0, 0], [34, 1, 2]), Choice::Row(1));
        assert_eq!(choice([4, 0, 0], [33, 1, 2]), Choice::Row(0));
        // 40 more, but only 1.08 times as many.
        assert_eq!(choice([4, 0, 0], [540, 500, 510]), Choice::Row(0));
    }
}
