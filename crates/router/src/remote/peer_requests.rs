//! Exchange of data about requests in flight between routers (`POST /peers/requests`): each router reports to the
//! others which of its requests have begun, progressed or ended.
//!
//! A report has the changes since the preceding report. Reports are numbered; a report that states 0 as the preceding
//! number lists all requests from scratch. A router that has missed a report, or dropped the received data, answers
//! with a different number, and the next report then lists all requests from scratch.

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

/// Maximum size of a report to another router, in bytes.
pub(crate) const MOST_BYTES: usize = 4 << 20;
/// Maximum number of blocks of prompts in a report to another router; they use a quarter of the report's bytes.
const MOST_BLOCKS: usize = 1 << 17;

/// Time for which another router may use a report about this router's requests.
const COUNTS: Duration = Duration::from_secs(2);
/// Longest period of validity that is accepted in another router's report, in seconds.
const MOST_SECONDS: f64 = 60.0;
/// Time limit for another router's answer to a report.
const PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which this router's requests are examined for changes to report.
const LOOK: Duration = Duration::from_millis(50);
/// Time after which a report to another router is sent even without changes, or repeated after a failure.
const AGAIN: Duration = Duration::from_millis(500);
/// Interval at which the host name of other routers is resolved again.
const RESOLVE: Duration = Duration::from_secs(5);

/// Entry of a report for a request that a router has sent to an engine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentRow {
    pub(crate) number: u64,
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
    pub(crate) cached: u32,
    /// Id of the request's session; equal at all routers if the client names the session.
    pub(crate) session: Option<u64>,
    /// Number of tokens that the engine is still expected to generate.
    pub(crate) output_left: u32,
    /// Content hashes of the prompt's blocks in base64, with 8 bytes in little endian for each hash.
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

    /// Decodes the content hashes of the request's prompt; None if they are malformed, or numbers in the entry
    /// contradict each other.
    fn content_hashes(&self) -> Option<Vec<u64>> {
        let bytes = STANDARD.decode(&self.hashes).ok()?;
        let blocks = self.tokens.checked_div(self.block_size)? as usize;
        let fits = bytes.len() % 8 == 0 && bytes.len() / 8 <= blocks && self.cached <= self.tokens;
        fits.then(|| bytes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }
}

/// Report of one router to another: the changes among its requests since the preceding report.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    router: u64,
    /// Time for which the other router may use the report, in seconds.
    seconds: f64,
    /// Number of this report, by which the next report refers to this one.
    number: u64,
    /// Number of the preceding report; 0 if this report lists all requests from scratch.
    after: u64,
    changes: RequestChanges<SentRow>,
}

/// Answer of a router to another router's report about requests.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ReportAnswer {
    /// Number of the report if the answering router has accepted the report, else 0.
    number: u64,
    /// True if the router sent the report to itself, because its own address is among the configured ones.
    own: bool,
}

/// State of this router's reports to one other router.
#[derive(Default)]
struct PeerState {
    requests: RequestReport,
    /// Number of the last report that the other router has accepted.
    number: u64,
}

/// Access to the requests of this router and of other routers that are stored for routing decisions.
pub(crate) trait SharedRequests: Send + Sync + 'static {
    /// Returns the changes among this router's requests since the report described by `told`, with at most
    /// `most_blocks` blocks of prompts.
    fn changes_since(&self, told: &mut RequestReport, most_blocks: usize) -> RequestChanges<SentRow>;

    /// True if requests that the router `peer` has reported are stored here and still valid.
    fn hears_of(&self, peer: u64) -> bool;

    /// Applies the changes among another router's requests. `anew`: true to drop the requests that the router reported
    /// before; `seconds`: time for which the report is valid; `content_hashes`: one list for each request sent.
    fn hear_changes(
        &self,
        peer: u64,
        anew: bool,
        seconds: f64,
        changes: RequestChanges<SentRow>,
        content_hashes: Vec<Vec<u64>>,
    ) -> Heard;
}

/// Numbers of requests in another router's report: at known and at unknown engines.
pub(crate) struct Heard {
    /// Number of requests that this router considers in its decisions.
    pub(crate) counted: usize,
    /// Number of requests at engines unknown to this router.
    pub(crate) unknown: usize,
}

/// Starts the reports to all other routers, which run until this router ends.
pub(crate) fn run(peers: &Arc<Peers>, requests: &Arc<impl SharedRequests>, config: &Arc<Config>) {
    for other in &peers.others {
        tokio::spawn(report_to(peers.clone(), requests.clone(), other.clone()));
    }
    for name in &peers.names {
        tokio::spawn(follow(peers.clone(), requests.clone(), config.clone(), name.clone()));
    }
}

/// Sends reports about this router's requests to all addresses of a host name, which is resolved again periodically.
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

/// Sends reports to one other router, until its address turns out to be this router's own.
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

/// Reason why another router did not accept a report, with its position in [`Peers::counts`].
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

/// Logs when reports to another router begin to fail, and when they succeed again. `trouble`: failure of the preceding
/// report; `now`: failure of the present one; None for success.
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

/// Sends a report to another router, and returns its answer.
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
    /// Parses the report of another router.
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

    /// Decodes the content hashes of each sent request in the report.
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

/// Stores the requests in another router's report, and makes the answer to that router.
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
