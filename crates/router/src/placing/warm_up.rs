//! Warm-ups of engines: an engine that has just joined, or comes back with an empty cache, pulls blocks from other
//! engines before it gets many requests.
//!
//! The router stores no prompts, so a warm-up uses requests that pass: while a request's prompt is in memory, the empty
//! engine is asked for one token of the same prompt, and told to pull the blocks that another engine has. This is done
//! only for a prompt most of whose blocks two engines hold already, such as a system prompt with tools. Blocks that
//! only one engine holds mostly belong to one session, which continues there. Prompts in frequent use pass soon.
//!
//! The tokens, the requests and the time of an engine's warm-up are limited, with one request at a time. The first
//! failed request ends the engine's warm-up, as other engines may be unable to reach its address.

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

/// Time after the first request of an engine's warm-up (pulls into its empty cache) during which further requests may
/// begin.
const LASTS: Duration = Duration::from_secs(60);
/// Maximum number of requests in one engine's warm-up (pulls into its empty cache).
const MOST_REQUESTS: u32 = 64;
/// Minimum number of tokens that a warm-up request must make an engine pull.
const LEAST_TOKENS: u32 = 512;
/// Maximum number of engines that are considered for a warm-up (pulls into an empty cache) with one request's prompt.
const MOST_ASKED: usize = 8;
/// Minimum share of a prompt that a warm-up request must make an engine pull, and of the pulled part that two engines
/// must hold already.
const SHARE: f64 = 0.75;

/// Names, in the metrics, of the results of warm-up requests (which make an engine pull blocks): the engine then had
/// the prompt in its cache; computed the prompt instead; refused the request; failed; or did not answer in time.
pub(crate) const WARM_UPS: [&str; 5] = ["brought", "nothing", "refused", "failed", "late"];

/// Result of a warm-up request, which makes an engine pull blocks, in the order of [`WARM_UPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarmUpResult {
    Brought,
    Nothing,
    Refused,
    Failed,
    Late,
}

/// Stage of an engine's warm-up, in which blocks are pulled into its empty cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WarmUpStage {
    /// The warm-up has not begun or has not ended.
    Open,
    /// The warm-up has ended, because the engine holds the maximum number of tokens to pull, or because its time has
    /// passed.
    Over,
    /// The warm-up has ended because one of its requests failed.
    Failed,
}

/// State of one engine's warm-up, in which blocks are pulled into its empty cache.
#[derive(Debug)]
struct EngineWarmUp {
    stage: WarmUpStage,
    began: Option<Instant>,
    is_under_way: bool,
    /// True once the engine's cache has held any blocks.
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

/// Request that makes an engine pull a prompt's blocks from another engine.
pub(crate) struct WarmUp {
    /// Engine that pulls the blocks.
    pub(crate) engine: Arc<Engine>,
    pub(crate) transfer: core::Transfer,
    worker: core::WorkerId,
}

impl WarmUp {
    /// Number of prompt tokens whose blocks the engine pulls.
    pub(crate) fn tokens(&self) -> u32 {
        self.transfer.pull.as_ref().map_or(0, |pull| pull.tokens)
    }
}

/// Warm-ups of all engines (pulls of blocks into empty caches), and counts of their requests.
#[derive(Debug, Default)]
pub(crate) struct WarmUps {
    /// Maximum number of prompt tokens that one engine pulls in its warm-up; 0 for no warm-ups.
    most: u64,
    /// Number of engines whose warm-up (pulls into the empty cache) has not ended. The number is read for each request.
    open: AtomicUsize,
    engines: Mutex<BTreeMap<core::WorkerId, EngineWarmUp>>,
    pub(crate) results: [AtomicU64; WARM_UPS.len()],
    /// Number of prompt tokens that engines reported as cached after warm-up requests.
    pub(crate) tokens: AtomicU64,
}

impl WarmUps {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// Records the number of tokens whose blocks an engine holds, and restarts the warm-up of an engine whose cache was
    /// emptied.
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

    /// Returns engines among `allowed` that need a warm-up request now, at most [`MOST_ASKED`]. `chosen`: the engine
    /// that serves the client's request, which is excluded.
    fn due(&self, allowed: &[core::WorkerId], chosen: core::WorkerId) -> Vec<core::WorkerId> {
        if self.open.load(Relaxed) == 0 {
            return Vec::new();
        }
        let engines = self.engines.lock();
        let is_due = |it: &core::WorkerId| *it != chosen && engines.get(it).is_some_and(EngineWarmUp::is_due);
        allowed.iter().copied().filter(is_due).take(MOST_ASKED).collect()
    }

    /// Records that a warm-up request is about to be sent to an engine. Returns false if the request must not be sent,
    /// as the engine's warm-up is over or another request of the warm-up is in flight.
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

    /// Returns the state of an engine's warm-up (pulls into its empty cache) as JSON; None for an engine without a
    /// warm-up.
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

/// Returns the number of leading blocks of a prompt that at least two engines hold; if only one engine holds any, the
/// number that it holds. `except`: an engine that is not counted.
fn shared(held: &[RankDepths], except: core::WorkerId) -> u32 {
    let (mut first, mut second) = (0, 0);
    for depth in held.iter().filter(|it| it.number != except.0).map(|it| it.device.max(it.any)) {
        (first, second) = if depth > first { (depth, first) } else { (first, second.max(depth)) };
    }
    if second > 0 { second } else { first }
}

impl Places {
    /// Finds an engine among `allowed` whose warm-up can use the prompt of a request that the engine `chosen` serves;
    /// None if there is no such engine.
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

    /// Makes the request that warms up an engine, by pulling the blocks of the prompt of a client's request; None if
    /// the prompt is too short or too few of its blocks can be pulled.
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

    /// Records the result of a warm-up request. `tokens`: tokens of its prompt that the engine reported as cached.
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
