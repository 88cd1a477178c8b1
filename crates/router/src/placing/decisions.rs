//! The last decisions, for operators.

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

/// Time after the last view of decisions for which their terms are kept.
const WATCHED: Duration = Duration::from_secs(10);

/// One decision, and what became of the request.
#[derive(Debug)]
pub(crate) struct Record {
    /// The decision core's number for the request.
    pub number: u64,
    /// Seconds since 1970.
    pub at: f64,
    /// The model, if the request named one.
    pub model: Option<String>,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Content hashes of its blocks; empty if they are not known.
    pub hashes: Arc<[u64]>,
    /// The engine.
    pub worker: Arc<str>,
    /// Data-parallel rank of the engine.
    pub rank: u32,
    /// Prompt tokens that were expected in its cache.
    pub cached: u32,
    /// Tokens of `cached` that the index did not know of.
    pub predicted: u32,
    /// Parts that the engine was to load and to pull.
    pub transfer: Option<Transfer>,
    /// The reason for the choice, in a word.
    pub why: &'static str,
    /// Microseconds that the decision took.
    pub micros: u32,
    /// Prompt tokens that the service above sites said the engine, a site, had at least and at most.
    pub bounds: Option<(u32, u32)>,
    /// Candidates with their terms, if decisions were viewed lately.
    pub terms: Option<Explanation>,
    /// The request as a part of its session, if that is known.
    pub(crate) turn: Option<Arc<Turn>>,
    /// The outcome of the request, once it has ended.
    pub ended: OnceLock<Outcome>,
}

/// The candidates of a decision, and the terms that were weighed.
#[derive(Debug, Clone)]
pub(crate) struct Explanation {
    /// The candidates: name and rank.
    pub workers: Vec<(Arc<str>, u32)>,
    /// Prompt tokens that each was expected to have in its cache.
    pub cached_tokens: Vec<u32>,
    /// Parts that each would load and pull; empty if there is nothing to load or pull.
    pub transfers: Vec<Option<Transfer>>,
    /// The policy's terms, if it has any.
    pub terms: Option<Terms>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// `finished`, `failed` or `cancelled`.
    pub how: &'static str,
    /// Prompt tokens in its cache, as the engine says.
    pub cached: Option<u32>,
    /// Prompt tokens as the engine counts them, where that proves that it makes other tokens of the prompt.
    pub counted: Option<u32>,
    /// Tokens generated.
    pub output: Option<u32>,
    /// The reason for which the answer ended, if it said so.
    pub(crate) stop: Option<Stop>,
    /// Seconds from the decision to the first token of a stream.
    pub first_token: Option<f64>,
    /// Seconds from the decision to the end.
    pub took: f64,
}

/// The last decisions.
pub(crate) struct Decisions {
    most: usize,
    ring: Mutex<VecDeque<Arc<Record>>>,
    watched_until: AtomicU64,
}

impl Decisions {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ring: Mutex::default(), watched_until: AtomicU64::new(0) }
    }

    /// True if any decisions are kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.most > 0
    }

    /// True if decisions were viewed lately.
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

    /// The last ones, the newest first; from now on for a while the terms are kept too.
    #[must_use]
    pub(crate) fn last(&self, most: usize) -> Vec<Arc<Record>> {
        self.watched_until.store(millis() + WATCHED.as_millis() as u64, Relaxed);
        self.ring.lock().iter().rev().take(most).cloned().collect()
    }
}

impl Record {
    /// Returns the decision in JSON, for programs and pages.
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
    /// Names of the terms, in their order: the last one is what was compared.
    #[must_use]
    pub(crate) fn term_names(&self) -> &[&'static str] {
        self.terms.as_ref().map(|terms| &*terms.names).unwrap_or_default()
    }

    /// A list with an object for each candidate, its terms by name.
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

/// Description of a transfer in JSON.
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

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
