//! Policies of the vLLM project's routers: the KV-aware policy of vllm-router, and the load-aware policy of the vLLM
//! production stack.

use std::collections::HashMap;

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::parts::{compared, mean, sheet};
use kvatlas_routing::{Candidates, Choice, Error, Options, Placement, Policy, Request, Terms};

use crate::parts::Pieces;
use crate::parts::books::Books;

/// Maximum number of remembered sessions.
const SESSIONS: usize = 1 << 16;

/// The policy `kv_aware` of vllm-router 0.1.17 (vllm-project/router#294). The worker with the lowest cost is chosen,
/// the first among equals.
///
/// ```text
/// overlap = device blocks + kv_penalty_host * more with the host + kv_penalty_disk * more elsewhere,
///           at most the blocks that leave one token to compute
/// cost    = prefill_load_scale * max(0, blocks to compute of requests without a first token + blocks of the prompt
///                                       - overlap_credit * overlap)
///           + distinct blocks in use with this prompt + decode_active_request_weight * requests
/// temperature > 0: drawn with weight exp(-(cost - lowest) / (range * temperature))
/// ```
/// The formula has the form of Dynamo's, with the same counts. With `kv_aware_session_affinity_ttl_secs` above 0, a
/// session stays with its last worker for this time. The original's penalty for external storage (0.6) is not
/// distinguished from that for disks. The original may count a request's `max_tokens` among the blocks in use, as its
/// proposal says; this implementation counts only prompts.
pub(crate) struct VllmRouterKvAware {
    credit: f64,
    prefill_scale: f64,
    request_weight: f64,
    host: f64,
    disk: f64,
    temperature: f64,
    session_ttl: f64,
    books: Books,
    /// Last worker of each session, and the time of its last request, in seconds.
    sessions: HashMap<u64, (u32, f64)>,
    draw: Draw,
}

impl VllmRouterKvAware {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            credit: options.number("overlap_credit", 1.0, 0.0, 1e6)?,
            prefill_scale: options.number("prefill_load_scale", 1.0, 0.0, 1e6)?,
            request_weight: options.number("decode_active_request_weight", 0.0, 0.0, 1e6)?,
            host: options.number("kv_penalty_host", 0.8, 0.0, 1.0)?,
            disk: options.number("kv_penalty_disk", 0.3, 0.0, 1.0)?,
            temperature: options.number("router_temperature", 0.0, 0.0, 1e6)?,
            session_ttl: options.number("kv_aware_session_affinity_ttl_secs", 0.0, 0.0, 1e9)?,
            books: Books::new(f64::INFINITY),
            sessions: HashMap::new(),
            draw: Draw::new(seed),
        })
    }

    fn overlap(&self, request: &Request<'_>, candidates: &Candidates, row: usize) -> f64 {
        let device = f64::from(candidates.device_blocks[row]);
        let host = f64::from(candidates.host_blocks[row]).max(device);
        let any = f64::from(candidates.any_blocks[row]).max(host);
        (device + self.host * (host - device) + self.disk * (any - host)).min(f64::from(request.usable_blocks()))
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let chain = Pieces::of(request).chain;
        let size = f64::from(request.block_size.max(1));
        let names = ["prefill in blocks", "credit in blocks", "blocks in use", "requests", "cost in blocks (lowest)"];
        sheet(names, candidates.len(), |row| {
            let load = self.books.load(candidates.worker[row], &chain, request.blocks());
            let credit = self.credit * self.overlap(request, candidates, row);
            let prefill = load.prefill / size + f64::from(request.blocks());
            let cost =
                self.prefill_scale * (prefill - credit).max(0.0) + load.blocks + self.request_weight * load.requests;
            [prefill, credit, load.blocks, load.requests, cost]
        })
    }

    /// Candidate that is the recent worker of the request's session; `None` if there is none.
    fn home(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        let (worker, since) = self.sessions.get(&request.session?)?;
        let row = candidates.worker.iter().position(|candidate| candidate == worker)?;
        (now - since < self.session_ttl).then_some(row)
    }
}

impl Policy for VllmRouterKvAware {
    fn name(&self) -> &'static str {
        "vllm-router-kv-aware"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        if let Some(row) = self.home(request, candidates, now) {
            return Choice::Row(row);
        }
        let costs = compared(&self.terms(request, candidates));
        if self.temperature > 0.0 {
            return Choice::Row(self.draw.soft(&costs, self.temperature));
        }
        let first = (0..costs.len()).reduce(|best, row| if costs[row] < costs[best] { row } else { best });
        Choice::Row(first.unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let cached = self.overlap(request, candidates, row) * f64::from(request.block_size);
        let worker = candidates.worker[row];
        self.books.sent(request, worker, (f64::from(request.tokens) - cached).max(0.0), now);
        let Some(session) = request.session.filter(|_| self.session_ttl > 0.0) else { return };
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(&session) {
            self.sessions.retain(|_, (_, since)| now - *since < self.session_ttl);
            if self.sessions.len() >= SESSIONS {
                return;
            }
        }
        self.sessions.insert(session, (worker, now));
    }

    fn first_token(&mut self, placed: &Placement, _now: f64) {
        self.books.first_token(placed.number);
    }

    fn ended(&mut self, placed: &Placement, _now: f64) {
        self.books.ended(placed.number);
    }

    fn left(&mut self, worker: u32) {
        self.books.left(worker);
        self.sessions.retain(|_, (home, _)| *home != worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }

    fn remembered(&self) -> (usize, usize) {
        let (requests, workers) = self.books.len();
        (requests, workers + self.sessions.len())
    }
}

/// The policy `loadaware` of vLLM production-stack (vllm-project/production-stack#1035, August 2026). The worker with
/// the highest score is chosen.
///
/// ```text
/// score = matched tokens / prompt tokens - beta * (load - mean load) / max(1, mean load)
/// load  = requests of the worker that the router has in flight
/// ```
/// In the original, matched tokens come from LMCache's controller, which knows the contents of all tiers of an engine;
/// in this implementation from the index, with any tier. Among equal workers one is drawn at random; in the original,
/// the first is chosen.
pub(crate) struct LoadAware {
    beta: f64,
    draw: Draw,
}

impl LoadAware {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self { beta: options.number("beta", 1.0, 0.0, 1e6)?, draw: Draw::new(seed) })
    }

    fn terms(&self, request: &Request<'_>, candidates: &Candidates) -> Terms {
        let mean = mean(candidates.requests.iter().map(|&count| f64::from(count)));
        sheet(["matched share", "relative load", "score (highest)"], candidates.len(), |row| {
            let tokens = f64::from(candidates.any_blocks[row]) * f64::from(request.block_size);
            let matched = (tokens / f64::from(request.tokens.max(1))).min(1.0);
            let load = (f64::from(candidates.requests[row]) - mean) / mean.max(1.0);
            [matched, load, matched - self.beta * load]
        })
    }
}

impl Policy for LoadAware {
    fn name(&self) -> &'static str {
        "production-stack-loadaware"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let scores = compared(&self.terms(request, candidates));
        Choice::Row(self.draw.lowest(0..scores.len(), |row| -scores[row]).unwrap_or(0))
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Option<Terms> {
        Some(self.terms(request, candidates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, numbered};

    fn policy(options: &str) -> VllmRouterKvAware {
        VllmRouterKvAware::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    #[test]
    fn one_token_is_always_computed_and_equals_go_to_the_first() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        let prompt = blocks(10, &[1, 2, 3]);
        assert!((0..9).all(|_| policy.choose(&prompt, &candidates, 0.0) == Choice::Row(0)));
        candidates.device_blocks = vec![0, 3, 1];
        candidates.host_blocks = vec![0, 3, 2];
        candidates.any_blocks = vec![0, 3, 3];
        // 3 + 3; 3 - 2 + 3, as the third block must be computed; 3 - (1 + 0.8 + 0.3 = 2.1, at most 2) + 3.
        assert_eq!(compared(&policy.explain(&prompt, &candidates, 0.0).unwrap()), [6.0, 4.0, 4.0]);
        // Sent to the second: 10 tokens to compute, the same blocks in use: 1 + 3 - 2 + 3.
        policy.sent(&numbered(1, prompt), &candidates, 1, 0.0);
        assert_eq!(compared(&policy.explain(&prompt, &candidates, 0.0).unwrap()), [6.0, 5.0, 4.0]);
        policy.first_token(&Placement { number: 1, worker: 1, uncached: 10, freed: 0 }, 0.0);
        assert_eq!(compared(&policy.explain(&prompt, &candidates, 0.0).unwrap()), [6.0, 4.0, 4.0]);
    }

    #[test]
    fn a_session_stays_for_its_time() {
        let mut policy = policy(r#"{"kv_aware_session_affinity_ttl_secs": 10}"#);
        let mut candidates = fleet(2);
        let request = Request { session: Some(4), ..numbered(1, blocks(10, &[1])) };
        policy.sent(&request, &candidates, 1, 0.0);
        candidates.device_blocks = vec![1, 0];
        assert_eq!(policy.choose(&request, &candidates, 9.0), Choice::Row(1));
        assert_eq!(policy.choose(&request, &candidates, 10.0), Choice::Row(0));
    }

    #[test]
    fn a_full_hit_is_worth_one_mean_of_load() {
        let mut policy = LoadAware::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(2);
        let request = Request { tokens: 100, block_size: 10, content_hashes: &[0; 10], ..Request::default() };
        candidates.any_blocks = vec![8, 0];
        candidates.requests = vec![5, 3];
        // Mean 4. Scores 0.8 - 1/4 = 0.55 and 0 + 1/4 = 0.25.
        let terms = policy.explain(&request, &candidates, 0.0).unwrap();
        assert_eq!(terms.values, [0.8, 0.25, 0.55, 0.0, -0.25, 0.25]);
        assert_eq!(policy.choose(&request, &candidates, 0.0), Choice::Row(0));
        // Mean 4. 0.8 - 2/4 = 0.3 and 0.5.
        candidates.requests = vec![6, 2];
        assert_eq!(policy.choose(&request, &candidates, 0.0), Choice::Row(1));
    }
}
