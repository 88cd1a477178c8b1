//! Placement of a request at an engine.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use kvatlas_routing as core;
use parking_lot::Mutex;

use super::holdings::HeldThen;
use crate::answers::observe::{AnswerFacts, Stop, Usage};
use crate::engines::{Engine, EngineModelCounts};
use crate::model_counts::ModelCounts;
use crate::placing::WarmUp;
use crate::placing::decisions::{Outcome, Record};
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

/// An engine that takes a request. It is reserved there until one of the ways to end it is called.
pub(crate) struct Placement {
    pub(crate) engine: Arc<Engine>,
    /// The record of the request's model, and that model's counts at the engine.
    pub(super) model: Arc<ModelCounts>,
    pub(crate) counted: Arc<EngineModelCounts>,
    /// Number by which requests name the engine's data-parallel rank, if it has several.
    pub(crate) rank: Option<u32>,
    /// Names of other engines that could take the request, the best one first, if decisions name some
    /// ([`Places::name_others`](super::Places::name_others)).
    pub(crate) others: Vec<Arc<str>>,
    pub(super) id: core::RequestId,
    pub(super) worker: core::WorkerId,
    pub(super) cached: u32,
    pub(super) predicted: u32,
    pub(super) why: &'static str,
    pub(super) decided: Instant,
    pub(super) micros: u32,
    pub(super) block_size: u32,
    /// Tokens of the prompt that the service above sites said this one had, at least and at most.
    pub(super) bounds: Option<(u32, u32)>,
    /// Claim of the site, reported when the request ends. Whoever ends the request takes it.
    pub(super) claim: Mutex<Option<Claim>>,
    /// Knowledge that the index may gain by the answer.
    pub(super) sent: Option<SentPrompt>,
    /// The engine's holdings of the prompt by the index, if they are known.
    pub(super) held_then: Option<HeldThen>,
    /// True if the engine is a site, with a router of its own.
    pub(super) is_at_site: bool,
    /// Prompt tokens that the engine must count, if they are known.
    pub(super) tokens: Option<u32>,
    /// Media in the prompt, whose tokens the answer may reveal.
    pub(crate) media: Option<ModelMedia>,
    /// Parts that the engine is to load and to pull.
    pub(crate) transfer: Option<Box<core::Transfer>>,
    /// Request that lets another engine pull the prompt, if one is of use.
    pub(crate) warm_up: Option<Box<WarmUp>>,
    /// The request as a part of its session.
    pub(super) turn: Option<Arc<Turn>>,
    /// Prompt tokens expected not to be cached.
    pub(super) uncached: u32,
    pub(super) first_token: OnceLock<Instant>,
    pub(super) record: Option<Arc<Record>>,
}

impl Placement {
    /// Returns what the span of an attempt says of the decision.
    pub(crate) fn sent_request<'a>(&'a self, policy: &'a str) -> DecidedAttempt<'a> {
        let took = Duration::from_micros(u64::from(self.micros));
        DecidedAttempt { engine: &self.engine, rank: self.rank, policy, why: self.why, took, cached: self.cached }
    }

    /// Puts who answers, and why, into the headers of an answer.
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

    /// Prompt tokens that the engine is expected to compute; of a prompt without hashes, all of them.
    pub(crate) fn uncached(&self, facts: &RequestFacts) -> u32 {
        if facts.prompt.hashes.is_empty() { facts.prompt.tokens } else { self.uncached }
    }

    /// Prompt tokens that the engine counts, if that proves that it makes other tokens of the prompt.
    pub(super) fn mismatch(&self, usage: &Usage) -> Option<u32> {
        usage.prompt.filter(|counted| self.tokens.is_some_and(|tokens| tokens != *counted))
    }

    /// Returns why what was cached is not what was expected, as a place in [`OFF_WHY`](crate::model_counts::OFF_WHY), and by how many tokens.
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

    /// Returns how far what the engine is said to hold is believed after its report of what it had cached of the prompt;
    /// None if that cannot be compared.
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

    /// Notes in the request's session that its answer has ended.
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
