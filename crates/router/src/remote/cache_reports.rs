//! Reports to the index in another process: the number of tokens of a prompt that an engine had cached, according to
//! the engine's answer. An index that was started after its engines published their events learns from these reports
//! which blocks were cached before.
//!
//! A report holds all token ids of a prompt, and an index that has all events needs no reports. Only one prompt a
//! second is therefore reported, and every prompt for a while after a report was useful. Answers never wait for
//! reports: reports that do not fit into a bounded queue are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_rustls::rustls::ClientConfig;

use crate::clock::millis;
use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::engines::json_fields::{pick, read};
use crate::error::Error;
use crate::remote::{JSON, post, service_at};

/// Maximum number of reports of cached tokens that wait to be sent.
const QUEUE: usize = 64;
/// Time limit for sending a report of cached tokens. The age stated in a report is increased by this time, to allow for
/// its transmission.
const LIMIT: Duration = Duration::from_secs(2);
/// Interval, in milliseconds, between reports of cached tokens to the index while the index learns nothing from
/// reports.
const SELDOM: u64 = 1000;
/// Time, in milliseconds, for which every prompt is reported to the index after a report from which the index learnt
/// something.
const WANTED: u64 = 30_000;

/// Names of the outcomes of reports of cached tokens, in the metrics.
pub(crate) const RESULTS: [&str; 5] = ["used", "not_needed", "dropped", "refused", "not_taken"];
const USED: usize = 0;
const NOT_NEEDED: usize = 1;
const DROPPED: usize = 2;
const REFUSED: usize = 3;
const NOT_TAKEN: usize = 4;

/// Sender of reports to the index in another process. Each report states how many tokens of a prompt an engine had
/// cached.
pub(crate) struct CacheReporter {
    at: Engine,
    routing_group: String,
    /// Number of reports of cached tokens to the index, by the outcome ([`RESULTS`]).
    pub(crate) counts: [AtomicU64; RESULTS.len()],
    /// Time until which every prompt is reported to the index, in milliseconds of the router's clock. The time is moved
    /// on whenever the index learns from a report.
    wanted_until: AtomicU64,
    /// Time from which the next report is sent even if the index learnt nothing from the reports before, in
    /// milliseconds of the router's clock.
    next: AtomicU64,
    /// True if the log already says that the index refused a report.
    has_complained: AtomicBool,
    queue: mpsc::Sender<CacheReport>,
    waiting: Mutex<Option<mpsc::Receiver<CacheReport>>>,
}

/// Report to the index in another process: a prompt, and the number of its tokens that an engine had cached.
pub(crate) struct CacheReport {
    pub(crate) worker: String,
    pub(crate) rank: u32,
    pub(crate) model: String,
    pub(crate) tokens: Box<[u32]>,
    pub(crate) salt: Option<String>,
    pub(crate) cached: u32,
    /// Time at which the prompt was sent to the engine.
    pub(crate) sent: Instant,
}

#[derive(Serialize)]
struct Report<'a> {
    instance_id: &'a str,
    model_name: &'a str,
    routing_group: &'a str,
    dp_rank: u32,
    token_ids: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
    cached_tokens: u32,
    age: f64,
}

impl CacheReporter {
    /// Makes the sender of reports on cached tokens; None without an index in another process that learns from reports.
    pub(crate) fn new(config: &Config, tls: &Arc<ClientConfig>) -> Result<Option<Arc<Self>>, Error> {
        let Some(url) = &config.index else { return Ok(None) };
        let at = EngineConfig { key: config.index_key.clone(), ..EngineConfig::at(url) };
        let (queue, waiting) = mpsc::channel(QUEUE);
        Ok(Some(Arc::new(Self {
            at: service_at("index", at, config, 1, tls)?,
            routing_group: config.routing_group.clone(),
            counts: Default::default(),
            wanted_until: AtomicU64::new(0),
            next: AtomicU64::new(0),
            has_complained: AtomicBool::new(false),
            queue,
            waiting: Mutex::new(Some(waiting)),
        })))
    }

    /// True if the next prompt must be reported to the index, with its number of cached tokens.
    pub(crate) fn wants(&self) -> bool {
        let now = millis();
        if now < self.wanted_until.load(Relaxed) {
            return true;
        }
        let next = self.next.load(Relaxed);
        now >= next && self.next.compare_exchange(next, now + SELDOM, Relaxed, Relaxed).is_ok()
    }

    /// Queues a report of cached tokens for the index; the report is dropped if the queue is full. Never waits.
    pub(crate) fn tell(&self, answered: CacheReport) {
        if self.queue.try_send(answered).is_err() {
            self.counts[DROPPED].fetch_add(1, Relaxed);
        }
    }

    async fn send(&self, answered: &CacheReport) -> usize {
        let report = Report {
            instance_id: &answered.worker,
            model_name: &answered.model,
            routing_group: &self.routing_group,
            dp_rank: answered.rank,
            token_ids: &answered.tokens,
            cache_salt: answered.salt.as_deref(),
            cached_tokens: answered.cached,
            age: (answered.sent.elapsed() + LIMIT).as_secs_f64(),
        };
        let Ok(body) = serde_json::to_vec(&report) else { return REFUSED };
        match tokio::time::timeout(LIMIT, post(&self.at, 0, "/observed", JSON, &body)).await {
            Ok(Ok((status, answer))) if status.is_success() => {
                let wanted = pick(&answer, ["wanted"]).and_then(|[wanted]| read::<bool>(wanted));
                if wanted == Some(true) { USED } else { NOT_NEEDED }
            }
            Ok(Ok((status, answer))) => {
                // Any other one may be of this prompt, or of a worker that has not come yet.
                let is_key = matches!(status.as_u16(), 401 | 403);
                if is_key && !self.has_complained.swap(true, Relaxed) {
                    let said = String::from_utf8_lossy(&answer);
                    tracing::warn!(
                        %status,
                        "the index is not told what engines had cached, as it refuses that: the key for it must be its \
                         admin key; it says: {said}"
                    );
                }
                REFUSED
            }
            Ok(Err(_)) | Err(_) => NOT_TAKEN,
        }
    }
}

/// Sends queued reports of cached tokens until the router ends.
pub(crate) async fn run(observed: Arc<CacheReporter>) {
    let Some(mut waiting) = observed.waiting.lock().take() else { return };
    while let Some(answered) = waiting.recv().await {
        let result = observed.send(&answered).await;
        if result == USED {
            observed.wanted_until.store(millis() + WANTED, Relaxed);
        }
        observed.counts[result].fetch_add(1, Relaxed);
    }
}
