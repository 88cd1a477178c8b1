//! Warm-ups: an engine that has just joined, or comes back empty, is brought blocks by pulls before much is sent to it.
//!
//! The router keeps no prompts. So a warm-up is made of a request as it passes: while its prompt is there, the new engine is
//! asked for one token of the same prompt, and told to pull what another engine has of it. That is worth it for a prompt
//! that consists mostly of what two engines hold already, such as a system prompt with tools: what one alone holds is one
//! session's, which goes on there. What is asked for often passes soon.
//!
//! Tokens, requests and time of an engine's warm-up are limited, and it has one request at a time. With the
//! first one that fails its warm-up is over: it may have an address that others do not reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kvatlas_follow::lookup::RankDepths;
use kvatlas_routing as core;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Places;
use crate::clock::seconds;
use crate::engines::Engine;

/// Longest time from the first request of a warm-up until none begins any more.
const LASTS: Duration = Duration::from_secs(60);
/// Most requests of one warm-up.
const MOST_REQUESTS: u32 = 64;
/// Fewest tokens that a request of a warm-up pulls.
const LEAST_TOKENS: u32 = 512;
/// Engines that are considered for one request.
const MOST_ASKED: usize = 8;
/// Share of a prompt that has to be pulled.
const SHARE: f64 = 0.75;

/// Results of the requests of warm-ups, by their names in metrics: the engine had the prompt in its cache then; it computed
/// the prompt instead; it refused the request; it failed; it did not answer in time.
pub(crate) const WARM_UPS: [&str; 5] = ["brought", "nothing", "refused", "failed", "late"];

/// Result of a request of a warm-up, in the order of [`WARM_UPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarmUpResult {
    Brought,
    Nothing,
    Refused,
    Failed,
    Late,
}

/// WarmUpStage of an engine's warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WarmUpStage {
    /// Before its end, or before it has begun.
    Open,
    /// After its end: the engine holds as much as it may be brought, or there was no more time.
    Over,
    /// Failure: a request did not do what it should.
    Failed,
}

/// Warm-up of one engine.
#[derive(Debug)]
struct EngineWarmUp {
    stage: WarmUpStage,
    began: Option<Instant>,
    is_under_way: bool,
    /// True once the engine held anything.
    is_filled: bool,
    requests: u32,
    tokens: u64,
}

impl EngineWarmUp {
    fn new(held: u64) -> Self {
        // The router may be what is new.
        let stage = if held == 0 { WarmUpStage::Open } else { WarmUpStage::Over };
        Self { stage, began: None, is_under_way: false, is_filled: held > 0, requests: 0, tokens: 0 }
    }

    fn is_due(&self) -> bool {
        self.stage == WarmUpStage::Open && !self.is_under_way
    }
}

/// A request that is to be sent to an engine so that it pulls a prompt.
pub(crate) struct WarmUp {
    /// The engine that pulls.
    pub(crate) engine: Arc<Engine>,
    pub(crate) transfer: core::Transfer,
    worker: core::WorkerId,
}

impl WarmUp {
    /// Tokens that it is to pull.
    pub(crate) fn tokens(&self) -> u32 {
        self.transfer.pull.as_ref().map_or(0, |pull| pull.tokens)
    }
}

/// Warm-ups of all engines, and counts of their requests.
#[derive(Debug, Default)]
pub(crate) struct WarmUps {
    /// Prompt tokens that one engine is brought at most; 0 for no warm-ups.
    most: u64,
    /// Number of engines with an open warm-up, looked at with each request.
    open: AtomicUsize,
    engines: Mutex<BTreeMap<core::WorkerId, EngineWarmUp>>,
    pub(crate) results: [AtomicU64; WARM_UPS.len()],
    /// Tokens that engines had in their cache after a request of a warm-up, by their own report.
    pub(crate) tokens: AtomicU64,
}

impl WarmUps {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// Notes how many tokens an engine holds.
    pub(super) fn note_held(&self, worker: core::WorkerId, held: u64) {
        if self.most == 0 {
            return;
        }
        let mut engines = self.engines.lock();
        let it = engines.entry(worker).or_insert_with(|| EngineWarmUp::new(held));
        if held == 0 && it.is_filled && !it.is_under_way {
            *it = EngineWarmUp::new(0);
        }
        it.is_filled |= held > 0;
        if held >= self.most && it.stage == WarmUpStage::Open {
            it.stage = WarmUpStage::Over;
        }
        self.count(&engines);
    }

    pub(super) fn forget(&self, worker: core::WorkerId) {
        let mut engines = self.engines.lock();
        engines.remove(&worker);
        self.count(&engines);
    }

    fn count(&self, engines: &BTreeMap<core::WorkerId, EngineWarmUp>) {
        self.open.store(engines.values().filter(|it| it.stage == WarmUpStage::Open).count(), Relaxed);
    }

    /// Workers among these whose warm-up is due, without the one that takes the request; a few of them if there are many.
    fn due(&self, allowed: &[core::WorkerId], chosen: core::WorkerId) -> Vec<core::WorkerId> {
        if self.open.load(Relaxed) == 0 {
            return Vec::new();
        }
        let engines = self.engines.lock();
        let is_due = |it: &core::WorkerId| *it != chosen && engines.get(it).is_some_and(EngineWarmUp::is_due);
        allowed.iter().copied().filter(is_due).take(MOST_ASKED).collect()
    }

    /// Notes that a request is about to be sent. Returns false if it may not be, as the warm-up is over.
    fn begin(&self, worker: core::WorkerId) -> bool {
        let mut engines = self.engines.lock();
        let Some(it) = engines.get_mut(&worker).filter(|it| it.is_due()) else { return false };
        let has_time = it.began.get_or_insert_with(Instant::now).elapsed() < LASTS;
        if has_time && it.requests < MOST_REQUESTS {
            it.requests += 1;
            it.is_under_way = true;
            return true;
        }
        it.stage = WarmUpStage::Over;
        self.count(&engines);
        false
    }

    fn end(&self, worker: core::WorkerId, result: WarmUpResult, tokens: u64) {
        self.results[result as usize].fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
        let mut engines = self.engines.lock();
        let Some(it) = engines.get_mut(&worker) else { return };
        it.is_under_way = false;
        it.tokens += tokens;
        if it.stage == WarmUpStage::Open && result != WarmUpResult::Brought {
            it.stage = WarmUpStage::Failed;
        } else if it.stage == WarmUpStage::Open && it.tokens >= self.most {
            it.stage = WarmUpStage::Over;
        }
        self.count(&engines);
    }

    /// The warm-up of a worker in JSON; none without warm-ups.
    pub(super) fn to_json(&self, worker: core::WorkerId) -> Option<Value> {
        let engines = self.engines.lock();
        let it = engines.get(&worker)?;
        let stage = match it.stage {
            WarmUpStage::Open => "open",
            WarmUpStage::Over => "over",
            WarmUpStage::Failed => "failed",
        };
        Some(json!({ "stage": stage, "requests": it.requests, "tokens": it.tokens }))
    }
}

/// Leading blocks of a prompt that two workers hold, or one if there is no other that holds any; `except`: a worker that does
/// not count.
fn shared(held: &[RankDepths], except: core::WorkerId) -> u32 {
    let (mut first, mut second) = (0, 0);
    for depth in held.iter().filter(|it| it.number != except.0).map(|it| it.device.max(it.any)) {
        (first, second) = if depth > first { (depth, first) } else { (first, second.max(depth)) };
    }
    if second > 0 { second } else { first }
}

impl Places {
    /// Returns how a request that `chosen` takes can also warm up another engine of those allowed; none if it cannot.
    pub(super) fn find_warm_up(
        &self,
        router: &mut core::Router,
        request: &core::Request<'_>,
        depths: &core::Depths,
        held: &[RankDepths],
        (allowed, chosen): (&[core::WorkerId], core::WorkerId),
    ) -> Option<Box<WarmUp>> {
        let mut due = self.warm_ups.due(allowed, chosen).into_iter();
        due.find_map(|worker| self.warm_up(router, request, depths, held, worker))
    }

    /// Returns the request that warms up a worker; none if this prompt does not help.
    fn warm_up(
        &self,
        router: &mut core::Router,
        request: &core::Request<'_>,
        depths: &core::Depths,
        held: &[RankDepths],
        worker: core::WorkerId,
    ) -> Option<Box<WarmUp>> {
        let (name, _) = router.name(worker)?;
        let engine = self.fleet.engine(name).filter(|engine| engine.config.ranks.count() == 1)?;
        let request = core::Request { session: None, parent: None, kind: None, max_tokens: Some(1), ..*request };
        let found = router.explain(&request, depths, Some(&[worker]), seconds());
        let transfer = found.transfers.into_iter().next()??;
        let pulled = transfer.pull.as_ref()?.tokens;
        let is_hot = f64::from(shared(held, worker)) * f64::from(request.block_size) >= SHARE * f64::from(pulled);
        let is_worth_it = pulled >= LEAST_TOKENS && f64::from(pulled) >= SHARE * f64::from(request.tokens);
        (is_hot && is_worth_it && self.warm_ups.begin(worker)).then(|| Box::new(WarmUp { engine, transfer, worker }))
    }

    /// Notes the result of a request of a warm-up, and the tokens that the engine had in its cache then, by its own report.
    pub(crate) fn warmed_up(&self, warm_up: &WarmUp, result: WarmUpResult, tokens: u64) {
        if let Some(pull) = &warm_up.transfer.pull
            && matches!(result, WarmUpResult::Nothing | WarmUpResult::Late)
        {
            self.core().router.pull_failed(warm_up.worker, pull.worker, result == WarmUpResult::Late, seconds());
        }
        self.warm_ups.end(warm_up.worker, result, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: core::WorkerId = core::WorkerId(3);
    const OLD: core::WorkerId = core::WorkerId(1);

    fn warm_ups() -> WarmUps {
        let warm_ups = WarmUps::new(1_000);
        warm_ups.note_held(OLD, 500);
        warm_ups.note_held(NEW, 0);
        warm_ups
    }

    fn due(warm_ups: &WarmUps) -> Option<core::WorkerId> {
        warm_ups.due(&[OLD, NEW], OLD).first().copied()
    }

    #[test]
    fn one_request_at_a_time_until_an_engine_has_what_it_may_be_brought() {
        let warm_ups = warm_ups();
        assert_eq!(due(&warm_ups), Some(NEW));
        assert!(warm_ups.due(&[OLD, NEW], NEW).is_empty() && warm_ups.due(&[OLD], OLD).is_empty());
        assert!(warm_ups.begin(NEW) && !warm_ups.begin(NEW) && due(&warm_ups).is_none());
        warm_ups.end(NEW, WarmUpResult::Brought, 600);
        assert_eq!(due(&warm_ups), Some(NEW));
        assert!(warm_ups.begin(NEW));
        warm_ups.end(NEW, WarmUpResult::Brought, 600);
        assert_eq!(due(&warm_ups), None);
        assert_eq!(warm_ups.to_json(NEW), Some(json!({ "stage": "over", "requests": 2, "tokens": 1_200 })));
        // It has restarted.
        warm_ups.note_held(NEW, 1_200);
        warm_ups.note_held(NEW, 0);
        assert_eq!(due(&warm_ups), Some(NEW));
        warm_ups.note_held(NEW, 2_000);
        assert_eq!(due(&warm_ups), None, "it holds as much without a warm-up");
    }

    #[test]
    fn a_request_that_fails_ends_it() {
        for result in [WarmUpResult::Nothing, WarmUpResult::Refused, WarmUpResult::Failed, WarmUpResult::Late] {
            let warm_ups = warm_ups();
            assert!(warm_ups.begin(NEW));
            warm_ups.end(NEW, result, 0);
            assert_eq!(due(&warm_ups), None);
            warm_ups.note_held(NEW, 0);
            assert_eq!(due(&warm_ups), None, "it has not been anything but empty since");
            assert_eq!(warm_ups.results[result as usize].load(Relaxed), 1);
        }
    }

    #[test]
    fn requests_are_limited() {
        let warm_ups = warm_ups();
        for _ in 0..MOST_REQUESTS {
            assert!(warm_ups.begin(NEW));
            warm_ups.end(NEW, WarmUpResult::Brought, 1);
        }
        assert!(!warm_ups.begin(NEW) && due(&warm_ups).is_none());
        warm_ups.forget(NEW);
        assert_eq!((warm_ups.open.load(Relaxed), warm_ups.to_json(NEW)), (0, None));
        let off = WarmUps::default();
        off.note_held(NEW, 0);
        assert_eq!(due(&off), None);
    }

    #[test]
    fn what_two_hold_is_shared() {
        let of = |depths: &[(u32, u32)]| {
            let held: Vec<_> = depths
                .iter()
                .map(|&(number, any)| RankDepths { number, device: 0, host: any, any, pullable: any })
                .collect();
            shared(&held, NEW)
        };
        assert_eq!(of(&[(0, 5), (1, 9), (2, 7), (3, 100)]), 7);
        assert_eq!((of(&[(0, 5), (3, 9)]), of(&[(3, 9)]), of(&[(0, 4), (1, 4)])), (5, 0, 4));
    }
}
