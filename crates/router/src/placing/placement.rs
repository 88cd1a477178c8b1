//! Assignment of a request to an engine, its progress there, and its end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use kvatlas_routing as core;
use parking_lot::Mutex;

use super::Places;
use super::candidates::HeldThen;
use crate::answers::observe::{AnswerFacts, Stop, Usage};
use crate::clock::seconds;
use crate::engines::{Engine, EngineModelCounts, OtherCount};
use crate::model_counts::{ModelCounts, OFF_BY};
use crate::placing::WarmUp;
use crate::placing::decisions::{Outcome, Record};
use crate::placing::reuse::EndedPrompt;
use crate::remote::sites::Claim;
use crate::requests::evidence::SentPrompt;
use crate::requests::facts::RequestFacts;
use crate::requests::media::ModelMedia;
use crate::requests::sessions::{Sessions, Turn};
use crate::spans::DecidedAttempt;

const WORKER: HeaderName = HeaderName::from_static("x-kvatlas-worker");
const CACHED: HeaderName = HeaderName::from_static("x-kvatlas-cached-tokens");
const MICROS: HeaderName = HeaderName::from_static("x-kvatlas-decision-us");
const AT_LEAST: HeaderName = HeaderName::from_static("x-kvatlas-at-least");
const AT_MOST: HeaderName = HeaderName::from_static("x-kvatlas-at-most");
const UNVERIFIED: HeaderName = HeaderName::from_static("x-kvatlas-unverified");
const WHY: HeaderName = HeaderName::from_static("x-kvatlas-reason");

/// Assignment of a request to an engine, with reserved capacity there until the request is finished, failed or
/// cancelled.
pub(crate) struct Placement {
    pub(crate) engine: Arc<Engine>,
    /// Counters of the request's model.
    pub(super) model: Arc<ModelCounts>,
    /// Counters of the chosen engine for the request's model.
    pub(crate) counted: Arc<EngineModelCounts>,
    /// Value of the request header that selects the data-parallel rank of the engine; None if the engine has only one
    /// rank.
    pub(crate) rank: Option<u32>,
    /// Names of alternative engines for the request, the best one first; empty unless
    /// [`Places::name_others`](super::Places::name_others) was called.
    pub(crate) others: Vec<Arc<str>>,
    pub(super) id: core::RequestId,
    pub(super) worker: core::WorkerId,
    pub(super) cached: u32,
    pub(super) predicted: u32,
    pub(super) why: &'static str,
    pub(super) decided: Instant,
    pub(super) micros: u32,
    pub(super) block_size: u32,
    /// Minimum and maximum number of prompt tokens cached at the chosen site, as reported by the service that indexes
    /// many sites; None without it.
    pub(super) bounds: Option<(u32, u32)>,
    /// Claim of the chosen site about the number of prompt tokens that it has cached. The claim is compared with the
    /// engine's report when the request ends, and is then set to None.
    pub(super) claim: Mutex<Option<Claim>>,
    /// Prompt that was sent to the engine. From the engine's answer, the index may learn which of the prompt's blocks
    /// the engine had cached; None if the index can learn nothing from it.
    pub(super) sent: Option<SentPrompt>,
    /// Number of the prompt's blocks that the engine held when chosen, according to the index; None if unknown.
    pub(super) held_then: Option<HeldThen>,
    /// True if the engine is a site: a fleet with a router and an index of its own.
    pub(super) is_at_site: bool,
    /// Number of prompt tokens that the engine is expected to report for the request; None if unknown.
    pub(super) tokens: Option<u32>,
    /// Images and other media in the prompt, whose numbers of tokens can be computed from the answer; None for no
    /// media.
    pub(crate) media: Option<ModelMedia>,
    /// Parts of the prompt that the engine is told to load from host memory or to pull from another engine; None for
    /// none.
    pub(crate) transfer: Option<Box<core::Transfer>>,
    /// Request that makes another engine pull this prompt's blocks in advance (a warm-up); None for no such request.
    pub(crate) warm_up: Option<Box<WarmUp>>,
    /// Position of the request in its session (conversation of several requests); None if unknown.
    pub(super) turn: Option<Arc<Turn>>,
    /// Number of prompt tokens that are expected not to be in the engine's cache.
    pub(super) uncached: u32,
    pub(super) first_token: OnceLock<Instant>,
    pub(super) record: Option<Arc<Record>>,
}

impl Placement {
    /// Returns the data about the routing decision that the trace span of an attempt at the engine shows.
    pub(crate) fn sent_request<'a>(&'a self, policy: &'a str) -> DecidedAttempt<'a> {
        let took = Duration::from_micros(u64::from(self.micros));
        DecidedAttempt { engine: &self.engine, rank: self.rank, policy, why: self.why, took, cached: self.cached }
    }

    /// Adds headers to an answer that name the chosen engine and the reason for the choice.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(WORKER, self.engine.header.clone());
        headers.insert(CACHED, HeaderValue::from(self.cached));
        headers.insert(MICROS, HeaderValue::from(self.micros));
        headers.insert(WHY, HeaderValue::from_static(self.why));
        // A site's own router says so of an engine that this one does not know.
        if !self.is_at_site {
            headers.remove(UNVERIFIED);
        }
        if self.engine.is_unverified.load(Relaxed) {
            headers.insert(UNVERIFIED, HeaderValue::from_static("1"));
        }
        // A site's own router may have said such things too: these are of the sites that this one chose from.
        let bounds = self.bounds;
        for (name, bound) in [(AT_LEAST, bounds.map(|(least, _)| least)), (AT_MOST, bounds.map(|(_, most)| most))] {
            headers.remove(&name);
            if let Some(tokens) = bound {
                headers.insert(name, HeaderValue::from(tokens));
            }
        }
    }

    /// Number of prompt tokens that the engine is expected to compute; all prompt tokens if the prompt has no block
    /// hashes.
    pub(crate) fn uncached(&self, facts: &RequestFacts) -> u32 {
        if facts.prompt.hashes.is_empty() { facts.prompt.tokens } else { self.uncached }
    }

    /// Number of prompt tokens as counted by the engine, if this number proves that the engine tokenizes differently
    /// from the router; None otherwise.
    pub(super) fn mismatch(&self, usage: &Usage) -> Option<u32> {
        usage.prompt.filter(|counted| self.tokens.is_some_and(|tokens| tokens != *counted))
    }

    /// Compares the cached tokens that the engine reported with the expected ones. Returns the reason for the
    /// difference, as a position in [`OFF_WHY`](crate::model_counts::OFF_WHY), and the difference in tokens.
    pub(super) fn off_by(&self, cached: u32, is_mismatch: bool) -> (usize, u32) {
        let off = cached.abs_diff(self.cached);
        let why = match cached.cmp(&self.cached) {
            _ if is_mismatch => 4,
            _ if off < self.block_size => 0,
            std::cmp::Ordering::Less if off <= self.predicted => 2,
            // Without a removal nothing was evicted.
            std::cmp::Ordering::Less if self.held_then.as_ref().is_some_and(HeldThen::may_be_gone) => 1,
            std::cmp::Ordering::Less => 5,
            _ => 3,
        };
        (why, off)
    }

    /// Removes blocks from a pool if the engine's report of cached tokens shows that it did not load them from there.
    fn note_reused(&self, usage: &Usage, cached: Option<u32>) {
        let is_comparable = self.media.is_none() && self.tokens.is_some() && self.tokens == usage.prompt;
        if let (true, Some(held_then), Some(cached)) = (is_comparable, &self.held_then, cached) {
            let size = self.block_size.max(1);
            held_then.note_reused(cached / size, self.cached / size);
        }
    }

    /// Updates the estimate of how reliable the engine's announced blocks are, from its report of cached tokens, and
    /// returns the estimate; None if the report cannot be compared with the blocks held.
    pub(super) fn judge(&self, usage: &Usage, cached: Option<u32>) -> Option<core::Belief> {
        let held_then = self.held_then.as_ref()?;
        let (held, cached) = (held_then.blocks.filter(|held| *held > 0)?, cached?);
        let is_comparable = self.media.is_none() && self.tokens.is_some() && self.tokens == usage.prompt;
        let had = cached / self.block_size.max(1);
        // What it lacks may have been removed meanwhile.
        if !is_comparable || had < held && held_then.may_be_gone() {
            return None;
        }
        let mut beliefs = self.engine.beliefs.lock();
        let belief = beliefs.entry(self.worker).or_default();
        belief.note(held, had);
        Some(belief.belief())
    }

    /// Records in the request's session (conversation of several requests) that the answer to the request has ended.
    pub(crate) fn answered(&self, sessions: &Sessions, seen: &AnswerFacts) {
        if let Some(turn) = &self.turn {
            sessions.end(turn, self.id.0, seen.stop);
        }
    }

    pub(super) fn note_end(&self, how: &'static str, usage: &Usage, stop: Option<Stop>) {
        let Some(record) = &self.record else { return };
        let since = |at: &Instant| at.duration_since(self.decided).as_secs_f64();
        let _ = record.ended.set(Outcome {
            how,
            cached: usage.cached,
            output: usage.output,
            stop,
            counted: self.mismatch(usage),
            first_token: self.first_token.get().map(since),
            took: self.decided.elapsed().as_secs_f64(),
        });
    }
}

impl Places {
    /// Records that the first token of a streamed answer has arrived.
    pub(crate) fn first_token(&self, placement: &Placement) {
        let _ = placement.first_token.set(Instant::now());
        let mut core = self.core();
        let now = seconds();
        core.router.first_token(placement.id, now);
        self.call(&core);
    }

    /// Records that the engine generated `tokens` more tokens.
    pub(crate) fn progress(&self, placement: &Placement, tokens: u32) {
        self.core().router.progress(placement.id, tokens, seconds());
    }

    /// Records the successful end of a request in the decision core (which chooses engines) and in all counters.
    /// `seen`: facts read from the engine's answer.
    pub(crate) fn finish(&self, placement: &Placement, seen: AnswerFacts) {
        let output = seen.usage.output.or((seen.events > 0).then_some(seen.events));
        let cached = cached_of(placement, &seen.usage);
        let computed_tokens = seen.usage.prompt.zip(cached).map(|(prompt, cached)| prompt.saturating_sub(cached));
        let usage = core::Usage { cached_tokens: seen.usage.cached, output_tokens: output, computed_tokens };
        placement.note_reused(&seen.usage, cached);
        let belief = placement.judge(&seen.usage, cached);
        let mismatch = placement.mismatch(&seen.usage);
        let agrees = seen.usage.prompt.zip(placement.tokens).and_then(|(by_engine, by_router)| {
            placement.engine.token_agreement.note(mismatch.map(|_| OtherCount { by_engine, by_router }))
        });
        {
            let mut core = self.core();
            let now = seconds();
            core.router.finish(placement.id, usage, now);
            if let Some(belief) = belief {
                core.router.set_belief(placement.worker, belief);
            }
            if let Some(agrees) = agrees {
                placement.engine.ids.get().into_iter().flatten().for_each(|id| core.router.set_measured(*id, agrees));
            }
            let blocks = output.unwrap_or(0) / placement.block_size.max(1);
            if let Some(unheard) = &mut core.unheard {
                unheard.ended(placement.id.0, blocks as usize, now);
            }
            self.call(&core);
        }
        if let Some(cached) = seen.usage.cached {
            let model = &placement.model;
            model.expected_cached.fetch_add(u64::from(placement.cached), Relaxed);
            model.reported_cached.fetch_add(u64::from(cached), Relaxed);
            let (why, off) = placement.off_by(cached, mismatch.is_some());
            let at = OFF_BY.partition_point(|bound| *bound < off);
            model.off[why][at].fetch_add(1, Relaxed);
        }
        if mismatch.is_some() {
            placement.engine.makes_other_tokens.store(true, Relaxed);
        }
        if let Some(claim) = placement.claim.lock().take() {
            claim.report(cached_of(placement, &seen.usage), mismatch.is_some());
        }
        if let Some(sent) = &placement.sent {
            sent.answered(&placement.engine.name, seen.usage);
        }
        if let Some(record) = &placement.record {
            let prompt = EndedPrompt {
                model: record.model.as_deref(),
                tokens: record.tokens,
                output: output.unwrap_or(0),
                block_size: record.block_size,
                hashes: &record.hashes,
                cached: cached_of(placement, &seen.usage),
            };
            self.reuse.add(&prompt, seconds());
        }
        placement.note_end("finished", &Usage { output, ..seen.usage }, seen.stop);
        self.put_down(placement);
    }

    /// Records that a request has failed at an engine.
    pub(crate) fn fail(&self, placement: &Placement) {
        self.end(placement, "failed");
    }

    /// Records that a client has cancelled a request.
    pub(crate) fn cancel(&self, placement: &Placement) {
        self.end(placement, "cancelled");
    }

    fn end(&self, placement: &Placement, how: &'static str) {
        let mut core = self.core();
        let now = seconds();
        core.router.fail(placement.id, now);
        if let Some(unheard) = &mut core.unheard {
            unheard.failed(placement.id.0, now);
        }
        self.call(&core);
        drop(core);
        placement.note_end(how, &Usage::default(), None);
        self.put_down(placement);
    }

    /// Queues the request's record for the file of decisions, if this file is configured.
    fn put_down(&self, placement: &Placement) {
        if let (Some(recorder), Some(record)) = (&self.recorder, &placement.record) {
            recorder.push(record.clone());
        }
    }
}

/// Returns the number of prompt tokens that the engine had cached; None if unknown. vLLM does not report the number 0,
/// so a missing number means 0 for an engine that has reported cached tokens before.
fn cached_of(placement: &Placement, usage: &Usage) -> Option<u32> {
    let says = placement.engine.counts.cached_tokens() > 0;
    usage.cached.or_else(|| usage.prompt.filter(|_| says).map(|_| 0))
}
