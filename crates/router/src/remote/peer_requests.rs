//! Exchange of requests in flight between routers (`POST /peers/requests`): each router reports the changes among its
//! own requests to the others.
//!
//! A report holds the changes since the report before it; both are identified by numbers, and a report after number 0
//! begins anew. A router that has missed a report, or dropped what it received, answers with another number, and the
//! next report begins anew.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::{Response, StatusCode};
use kvatlas_routing::{RequestChanges, RequestReport, SentRequest};
use serde::{Deserialize, Serialize};

use crate::answers::refusal::Refusal;
use crate::answers::{Answer, json};
use crate::config::Config;
use crate::engines::{Engine, Fault};
use crate::remote::peers::{BAD_CERTIFICATE, HEARD, NOT_TAKEN, Name, Peers, REFUSED, TOLD, UNKNOWN_ENGINE};
use crate::remote::{JSON, post};

const PATH: &str = "/peers/requests";

/// Maximum size of a report in bytes.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// Maximum number of blocks of prompts in a report; they take a quarter of its bytes.
const MOST_BLOCKS: usize = 1 << 17;

/// Time for which a report is valid.
const COUNTS: Duration = Duration::from_secs(2);
/// Longest time for which another router's report may be valid, in seconds.
const MOST_SECONDS: f64 = 60.0;
/// Time limit for the answer to a report.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which changes are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Time after which a report is sent even without changes, or again after a failed one.
const AGAIN: Duration = Duration::from_millis(500);
/// Interval at which a host name is resolved again.
const RESOLVE: Duration = Duration::from_secs(5);

/// A request that a router has sent to an engine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentRow {
    pub(crate) number: u64,
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
    pub(crate) cached: u32,
    /// Id of the request's session; the same at each router if the session has a name.
    pub(crate) session: Option<u64>,
    /// Number of tokens still expected to be generated.
    pub(crate) output_left: u32,
    /// Content hashes in base64, as 8 bytes each, in little endian.
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
            session: sent.session,
            output_left: sent.output_left,
            hashes: STANDARD.encode(bytes),
        }
    }

    /// Decodes the content hashes; None if they are malformed, or numbers in the row contradict each other.
    fn content_hashes(&self) -> Option<Vec<u64>> {
        let bytes = STANDARD.decode(&self.hashes).ok()?;
        let blocks = self.tokens.checked_div(self.block_size)? as usize;
        let fits = bytes.len() % 8 == 0 && bytes.len() / 8 <= blocks && self.cached <= self.tokens;
        fits.then(|| bytes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }
}

/// A report of one router to another: the changes among its requests.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    router: u64,
    /// Time for which the report is valid, in seconds.
    seconds: f64,
    /// Number of the report.
    number: u64,
    /// Number of the report before it; 0 if this report begins anew.
    after: u64,
    changes: RequestChanges<SentRow>,
}

/// Answer to a report.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ReportAnswer {
    /// Number of the report if the router has accepted it, else 0.
    number: u64,
    /// True if the report was this router's own: it has sent the report to itself.
    own: bool,
}

/// State of the reports to one router.
#[derive(Default)]
struct PeerState {
    requests: RequestReport,
    /// Number of the last accepted report.
    number: u64,
}

/// Requests of this router and of its peers, as the decision core stores them.
pub(crate) trait SharedRequests: Send + Sync + 'static {
    /// Returns the changes among this router's requests since `told`, with at most `most_blocks` blocks of prompts.
    fn changes_since(&self, told: &mut RequestReport, most_blocks: usize) -> RequestChanges<SentRow>;

    /// True if requests reported by another router are stored and still valid.
    fn hears_of(&self, peer: u64) -> bool;

    /// Applies the changes among another router's requests. `anew`: whether to drop what the router reported before;
    /// `seconds`: time for which the report is valid; `content_hashes`: one list for each request sent.
    fn hear_changes(
        &self,
        peer: u64,
        anew: bool,
        seconds: f64,
        changes: RequestChanges<SentRow>,
        content_hashes: Vec<Vec<u64>>,
    ) -> Heard;
}

/// Numbers of requests in another router's report.
pub(crate) struct Heard {
    /// Number of requests that are taken into account here.
    pub(crate) counted: usize,
    /// Number of requests at engines unknown to this router.
    pub(crate) unknown: usize,
}

/// Starts the reports to all peers, which run as long as the router does.
pub(crate) fn run(peers: &Arc<Peers>, requests: &Arc<impl SharedRequests>, config: &Arc<Config>) {
    for other in &peers.others {
        tokio::spawn(report_to(peers.clone(), requests.clone(), other.clone()));
    }
    for name in &peers.names {
        tokio::spawn(follow(peers.clone(), requests.clone(), config.clone(), name.clone()));
    }
}

/// Reports to all addresses of a host name, which is resolved again at intervals.
async fn follow(peers: Arc<Peers>, requests: Arc<impl SharedRequests>, config: Arc<Config>, name: Name) {
    let mut told: HashMap<SocketAddr, tokio::task::AbortHandle> = HashMap::new();
    loop {
        match tokio::net::lookup_host((name.host.as_str(), name.port)).await {
            Ok(found) => {
                let found: HashSet<SocketAddr> = found.collect();
                told.retain(|address, task| {
                    let stays = found.contains(address);
                    if !stays {
                        task.abort();
                    }
                    stays
                });
                for address in found {
                    if !told.contains_key(&address)
                        && let Ok(other) = peers.of_name(&config, &name, address)
                    {
                        tracing::info!(%address, name = name.host, "a router beside this one");
                        let task = tokio::spawn(report_to(peers.clone(), requests.clone(), other));
                        told.insert(address, task.abort_handle());
                    }
                }
            }
            // A name server that is away removes no peer.
            Err(error) => tracing::debug!(%error, name = name.host, "its addresses are not known"),
        }
        tokio::time::sleep(RESOLVE).await;
    }
}

/// Reports to one peer, until the peer turns out to be this router itself.
async fn report_to(peers: Arc<Peers>, requests: Arc<impl SharedRequests>, other: Arc<Engine>) {
    let (mut told, mut last) = (PeerState::default(), Instant::now());
    let mut trouble: Option<ReportFailure> = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let changes = requests.changes_since(&mut told.requests, MOST_BLOCKS);
        if changes.is_empty() && told.number > 0 && last.elapsed() < AGAIN {
            continue;
        }
        let (number, after) = (told.number + 1, told.number);
        let report = Report { router: peers.number, seconds: COUNTS.as_secs_f64(), number, after, changes };
        let answer = send(&other, &report).await;
        if answer.as_ref().is_ok_and(|answer| answer.own) {
            return;
        }
        let result = answer.as_ref().map_or_else(
            |failure| failure.result,
            // It has missed a report: the next one begins anew.
            |answer| if answer.number == number { TOLD } else { NOT_TAKEN },
        );
        peers.counts[result].fetch_add(1, Relaxed);
        note(&mut trouble, &other, answer.as_ref().err());
        last = Instant::now();
        if result == TOLD {
            told.number = number;
            continue;
        }
        told = PeerState::default();
        if answer.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Reason why a report was not accepted, with its position in [`Peers::counts`].
#[derive(Clone, PartialEq)]
struct ReportFailure {
    result: usize,
    why: String,
}

impl ReportFailure {
    fn of(fault: Fault) -> Self {
        match fault {
            Fault::Certificate(why) => {
                let why = format!("its certificate is not accepted: {why}; upstream.ca has the authorities to trust");
                Self { result: BAD_CERTIFICATE, why }
            }
            Fault::Connect(why) | Fault::Broken(why) => Self { result: NOT_TAKEN, why },
            Fault::Closed | Fault::Stale | Fault::Unsent | Fault::Malformed(_) => {
                let why = "it closed the connection without an answer in HTTP: it may want https instead of http, a \
                           certificate of another authority, or be stopping"
                    .to_owned();
                Self { result: NOT_TAKEN, why }
            }
            _ => Self { result: NOT_TAKEN, why: "it did not answer in time".to_owned() },
        }
    }

    fn of_answer(status: StatusCode, body: &[u8]) -> Self {
        let hint = match status.as_u16() {
            401 | 403 => "router.peer_key must be its key for changes; ",
            421 => "its http.hosts must have the name by which it is a peer; ",
            404 | 405 => "it is no router of this version; ",
            _ => "",
        };
        let said: String =
            String::from_utf8_lossy(body).chars().filter(|letter| !letter.is_control()).take(300).collect();
        Self { result: REFUSED, why: format!("it answered with status {status}; {hint}it says: {said}") }
    }
}

/// Logs when reports to a peer begin to fail, and when they succeed again.
fn note(trouble: &mut Option<ReportFailure>, other: &Engine, now: Option<&ReportFailure>) {
    match (&trouble, now) {
        (Some(_), None) => tracing::info!(peer = %other.name, "another router takes this one's reports again"),
        (before, Some(failure)) if before.as_ref() != Some(failure) => {
            let ReportFailure { result, why } = failure;
            // One that is away may be starting.
            if *result == NOT_TAKEN {
                tracing::info!(peer = %other.name, why, "another router does not take this one's reports");
            } else {
                tracing::warn!(peer = %other.name, why, "another router does not take this one's reports");
            }
        }
        _ => return,
    }
    *trouble = now.cloned();
}

/// Sends a report, and returns the peer's answer.
async fn send(other: &Engine, report: &Report) -> Result<ReportAnswer, ReportFailure> {
    let body = serde_json::to_vec(report).unwrap_or_default();
    let answer = tokio::time::timeout(PATIENCE, post(other, 0, PATH, JSON, &body)).await;
    let (status, answer) = answer.unwrap_or(Err(Fault::FirstByte)).map_err(ReportFailure::of)?;
    if !status.is_success() {
        return Err(ReportFailure::of_answer(status, &answer));
    }
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}

impl Report {
    /// Parses a report of another router.
    ///
    /// # Errors
    /// [`Refusal`] if the body is no report, or would be valid for too long.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let report: Self = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad("invalid_work", format!("the body is not a report of a router: {error}")))?;
        if !(0.0..=MOST_SECONDS).contains(&report.seconds) {
            let message = format!("seconds must be from 0 to {MOST_SECONDS}, got {}", report.seconds);
            return Err(Refusal::bad("invalid_work", message));
        }
        Ok(report)
    }

    /// Decodes the content hashes of each request that was sent.
    fn content_hashes(&self) -> Result<Vec<Vec<u64>>, Refusal> {
        let each = |row: &SentRow| {
            row.content_hashes().ok_or_else(|| {
                let message = format!(
                    "request {}: hashes must be base64 of 8 bytes for each of at most tokens / block_size blocks, and \
                     cached at most tokens",
                    row.number
                );
                Refusal::bad("invalid_work", message)
            })
        };
        self.changes.sent.iter().map(each).collect()
    }
}

/// Applies a report of another router.
///
/// # Errors
/// [`Refusal`] if numbers in the report contradict each other.
pub(crate) fn hear(peers: &Peers, requests: &impl SharedRequests, report: Report) -> Result<Response<Answer>, Refusal> {
    // Before the core is locked: there may be a hundred thousand.
    let hashes = report.content_hashes()?;
    let mut answer = ReportAnswer { number: 0, own: report.router == peers.number };
    if !answer.own {
        // One report at a time, or a later one would be taken in first.
        let mut positions = peers.positions.lock();
        positions.retain(|router, _| requests.hears_of(*router));
        if report.after == 0 || positions.get(&report.router) == Some(&report.after) {
            let heard = requests.hear_changes(report.router, report.after == 0, report.seconds, report.changes, hashes);
            peers.counts[HEARD].fetch_add(heard.counted as u64, Relaxed);
            peers.counts[UNKNOWN_ENGINE].fetch_add(heard.unknown as u64, Relaxed);
            positions.insert(report.router, report.number);
            answer.number = report.number;
        }
    }
    Ok(json(StatusCode::OK, serde_json::to_string(&answer).unwrap_or_default()))
}
