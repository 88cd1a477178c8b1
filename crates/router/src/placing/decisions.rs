//! Store of the most recent routing decisions, for operators.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_routing::{Terms, Transfer};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::answers::observe::Stop;
use crate::clock::millis;
use crate::requests::sessions::Turn;

/// Time after an operator views decisions during which the cost terms of new decisions are recorded.
const WATCHED: Duration = Duration::from_secs(10);

/// Record of one routing decision, and of the outcome of its request.
#[derive(Debug)]
pub(crate) struct Record {
    /// Number by which the decision core (the library that chooses engines) identifies the request.
    pub number: u64,
    /// Time of the decision, in seconds since 1970.
    pub at: f64,
    /// Model that the request named; None if it named none.
    pub model: Option<String>,
    /// Number of tokens in the prompt.
    pub tokens: u32,
    /// Block size in tokens.
    pub block_size: u32,
    /// Content hashes of the prompt's blocks; empty if unknown.
    pub hashes: Arc<[u64]>,
    /// Name of the chosen engine.
    pub worker: Arc<str>,
    /// Data-parallel rank of the chosen engine.
    pub rank: u32,
    /// Number of prompt tokens expected in the chosen engine's cache.
    pub cached: u32,
    /// Number of tokens in `cached` whose blocks are only predicted from requests and not recorded in the index.
    pub predicted: u32,
    /// Parts of the prompt that the engine was told to load from host memory or to pull from another engine; None for
    /// none.
    pub transfer: Option<Transfer>,
    /// Name of the reason for the choice.
    pub why: &'static str,
    /// Duration of the decision in microseconds.
    pub micros: u32,
    /// Minimum and maximum number of prompt tokens cached at the chosen site, as reported by the service that indexes
    /// many sites; None without it.
    pub bounds: Option<(u32, u32)>,
    /// Candidates with their cost terms; None if no operator had viewed decisions shortly before.
    pub terms: Option<Explanation>,
    /// Position of the request in its session (conversation of several requests); None if unknown.
    pub(crate) turn: Option<Arc<Turn>>,
    /// Outcome of the request; unset until the request has ended.
    pub ended: OnceLock<Outcome>,
}

/// Candidates of a decision, and the cost terms by which they were compared.
#[derive(Debug, Clone)]
pub(crate) struct Explanation {
    /// Engine name and rank of each candidate.
    pub workers: Vec<(Arc<str>, u32)>,
    /// Number of prompt tokens expected in the cache of each candidate.
    pub cached_tokens: Vec<u32>,
    /// Parts of the prompt that each candidate would load or pull; empty if no candidate would load or pull any.
    pub transfers: Vec<Option<Transfer>>,
    /// Cost terms of the policy for each candidate; None if the policy has no terms.
    pub terms: Option<Terms>,
}

/// Outcome of a request at an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Kind of the request's end: `finished`, `failed` or `cancelled`.
    pub how: &'static str,
    /// Number of cached prompt tokens, as reported by the engine; None if not reported.
    pub cached: Option<u32>,
    /// Number of prompt tokens as counted by the engine, if this number proves that the engine tokenizes differently
    /// from the router; None otherwise.
    pub counted: Option<u32>,
    /// Number of generated tokens; None if not reported.
    pub output: Option<u32>,
    /// Reason for the answer's end (finish reason); None if not stated.
    pub(crate) stop: Option<Stop>,
    /// Seconds from the decision to the first token of a streamed answer; None if no token was streamed.
    pub first_token: Option<f64>,
    /// Seconds from the decision to the request's end.
    pub took: f64,
}

/// Store of the most recent routing decisions.
pub(crate) struct Decisions {
    most: usize,
    ring: Mutex<VecDeque<Arc<Record>>>,
    watched_until: AtomicU64,
}

impl Decisions {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ring: Mutex::default(), watched_until: AtomicU64::new(0) }
    }

    /// True if the router keeps records of routing decisions.
    pub(crate) fn are_kept(&self) -> bool {
        self.most > 0
    }

    /// True if operators viewed decisions within the last [`WATCHED`].
    #[must_use]
    pub(crate) fn are_watched(&self) -> bool {
        let until = self.watched_until.load(Relaxed);
        until > 0 && until > millis()
    }

    pub(crate) fn push(&self, record: Arc<Record>) {
        let mut ring = self.ring.lock();
        while ring.len() >= self.most {
            ring.pop_front();
        }
        ring.push_back(record);
    }

    /// Returns up to `most` recent decisions, the newest first. For a time of [`WATCHED`] from now, the cost terms of
    /// new decisions are recorded too.
    #[must_use]
    pub(crate) fn last(&self, most: usize) -> Vec<Arc<Record>> {
        self.watched_until.store(millis() + WATCHED.as_millis() as u64, Relaxed);
        self.ring.lock().iter().rev().take(most).cloned().collect()
    }
}

impl Record {
    /// Returns the decision as JSON, for programs and web pages.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        let ended = self.ended.get().map(|ended| {
            json!({
                "how": ended.how,
                "cached_tokens": ended.cached,
                "counted_tokens": ended.counted,
                "output_tokens": ended.output,
                "stop": ended.stop.map(Stop::word),
                "first_token": ended.first_token,
                "took": ended.took,
            })
        });
        json!({
            "number": self.number,
            "at": self.at,
            "model": self.model,
            "tokens": self.tokens,
            "worker": &*self.worker,
            "rank": self.rank,
            "cached_tokens": self.cached,
            "predicted_tokens": self.predicted,
            "transfer": self.transfer.as_ref().map(transfer_json),
            "bounds": self.bounds.map(|(least, most)| json!({ "at_least": least, "at_most": most })),
            "why": self.why,
            "decision_us": self.micros,
            "terms": self.terms.as_ref().map(Explanation::term_names),
            "candidates": self.terms.as_ref().map(Explanation::to_json),
            "session": self.turn.as_ref().map(|turn| turn.to_json()),
            "ended": ended,
        })
    }
}

impl Explanation {
    /// Names of the cost terms (summands of a candidate's cost), in their order; the last one is the total by which
    /// candidates were compared.
    #[must_use]
    pub(crate) fn term_names(&self) -> &[&'static str] {
        self.terms.as_ref().map(|terms| &*terms.names).unwrap_or_default()
    }

    /// Returns a JSON list with an object for each candidate, with its cost terms by name.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        let rows = self.workers.iter().zip(&self.cached_tokens).enumerate();
        rows.map(|(row, ((worker, rank), cached))| {
            let terms: serde_json::Map<String, Value> = self
                .terms
                .iter()
                .flat_map(|terms| {
                    let width = terms.names.len();
                    let values = terms.values.get(row * width..(row + 1) * width).unwrap_or_default();
                    terms.names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), json!(value)))
                })
                .collect();
            let mut said = json!({ "worker": &**worker, "rank": rank, "cached_tokens": cached, "terms": terms });
            if let Some(Some(transfer)) = self.transfers.get(row) {
                said["transfer"] = transfer_json(transfer);
            }
            said
        })
        .collect()
    }
}

/// Returns a transfer (loading and pulling of blocks) as JSON.
fn transfer_json(transfer: &Transfer) -> Value {
    json!({
        "action": transfer.action.as_str(),
        "load_tokens": transfer.load_tokens,
        "max_load_tokens": transfer.max_load_tokens,
        "pull_tokens": transfer.pull.as_ref().map_or(0, |pull| pull.tokens),
        "source": transfer.pull.as_ref().map(|pull| json!({ "worker": &*pull.name, "rank": pull.rank })),
        "seconds": transfer.seconds,
    })
}

/// Returns the present time as seconds since 1970.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
