//! The exchange of routers' requests: tells the routers beside this one which requests it has at engines, and hears theirs.
//!
//! Each message has the changes since the one before. It has a number, and the number of the message that it follows; one
//! that follows 0 begins anew. A router that has missed a message, or forgotten what it heard, answers another number, and
//! is told of all requests again. One of an earlier version does not know the path: it hears sums only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::{Request, Response, StatusCode};
use kvatlas_http::RequestBody;
use kvatlas_routing::{RequestChanges, RequestReport, SentRequest};
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, json};
use crate::app::App;
use crate::engine::Engine;
use crate::peer_report::read_report;
use crate::peers::PATIENCE;
use crate::refusal::Refusal;
use crate::remote_service::{JSON, post};

/// Path at which a router is told of another's requests.
const PATH: &str = "/peers/requests";

/// Blocks of prompts in a message: a quarter of the bytes that one may have.
const MOST_BLOCKS: usize = 1 << 17;
/// Time after which a router is asked again that did not understand.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A request that a router has at an engine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentRow {
    pub(crate) number: u64,
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
    pub(crate) cached: u32,
    /// Content hashes of 8 bytes each, the lowest first, in base64.
    hashes: String,
}

impl SentRow {
    pub(crate) fn new(engine: &str, rank: u32, sent: &SentRequest) -> Self {
        let bytes: Vec<u8> = sent.content_hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        Self {
            number: sent.number,
            engine: engine.to_owned(),
            rank,
            tokens: sent.tokens,
            block_size: sent.block_size,
            cached: sent.cached,
            hashes: STANDARD.encode(bytes),
        }
    }

    /// The content hashes. `None`: they are none, or the numbers do not fit each other.
    pub(crate) fn content_hashes(&self) -> Option<Vec<u64>> {
        let bytes = STANDARD.decode(&self.hashes).ok()?;
        let blocks = self.tokens.checked_div(self.block_size)? as usize;
        let fits = bytes.len() % 8 == 0 && bytes.len() / 8 <= blocks && self.cached <= self.tokens;
        fits.then(|| bytes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }
}

/// The message of one router to another.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsMessage {
    router: u64,
    /// Seconds for which the message counts.
    seconds: f64,
    /// The number of the message, and of the one that it follows.
    number: u64,
    after: u64,
    changes: RequestChanges<SentRow>,
}

/// An answer to such a message: the number of the last one that was taken in.
#[derive(Default, Serialize, Deserialize)]
struct RequestsAnswer {
    #[serde(default)]
    number: u64,
}

/// The requests of this router that another one was told of.
#[derive(Default)]
pub(crate) struct PeerReport {
    requests: RequestReport,
    number: u64,
    asked_again: Option<Instant>,
}

/// Tells a router what has changed since it was last told.
pub(crate) async fn tell(app: &App, other: &Engine, told: &mut PeerReport, seconds: f64) {
    if told.asked_again.is_some_and(|again| Instant::now() < again) {
        return;
    }
    let changes = app.places.changes_since(&mut told.requests, MOST_BLOCKS);
    if changes.is_empty() && told.number > 0 {
        return;
    }
    let message =
        RequestsMessage { router: app.peers.number, seconds, number: told.number + 1, after: told.number, changes };
    let Ok(body) = serde_json::to_string(&message) else { return };
    let answer = tokio::time::timeout(PATIENCE, post(other, 0, PATH, JSON, body.as_bytes())).await;
    match answer {
        Ok(Ok((status, answer))) if status.is_success() => {
            let answer: RequestsAnswer = serde_json::from_slice(&answer).unwrap_or_default();
            if answer.number == message.number {
                told.number = message.number;
            } else {
                *told = PeerReport::default();
            }
        }
        Ok(Ok(_)) => {
            *told = PeerReport { asked_again: Some(Instant::now() + ASK_AGAIN), ..PeerReport::default() };
        }
        _ => *told = PeerReport::default(),
    }
}

/// Another router tells of its requests.
pub(crate) async fn hear(
    app: &Arc<App>,
    request: Request<RequestBody>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let told = read_report(app, request, until, |told: &RequestsMessage| told.seconds).await?;
    // Before the core is locked: there may be a hundred thousand.
    let mut hashes = Vec::with_capacity(told.changes.sent.len());
    for row in &told.changes.sent {
        let Some(own) = row.content_hashes() else {
            let message = format!(
                "request {}: hashes must be base64 of 8 bytes for each of at most tokens / block_size blocks, and cached \
                 at most tokens",
                row.number
            );
            return Err(Refusal::bad("invalid_work", message));
        };
        hashes.push(own);
    }
    let mut number = told.number;
    if told.router != app.peers.number {
        // One message at a time, or a later one would be taken in first.
        let mut positions = app.peers.positions.lock();
        positions.retain(|router, _| app.places.hears_of(*router));
        let is_next = told.after == 0 || positions.get(&told.router) == Some(&told.after);
        if is_next {
            app.places.hear_changes(told.router, told.after == 0, told.seconds, told.changes, hashes);
            positions.insert(told.router, told.number);
        } else {
            number = 0;
        }
    }
    let answer = serde_json::to_string(&RequestsAnswer { number }).unwrap_or_default();
    Ok(json(StatusCode::OK, answer))
}
