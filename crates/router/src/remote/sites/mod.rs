//! The service above many sites, where this router's "engines" are sites.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | questions: which sites can hold how much of a prompt |
//! | `bounds.rs` | what it answers |
//! | `claims.rs`, `reports.rs` | what it is told after a request: what the site's engine had cached |
//!
//! A question never holds a request up for longer than `global_timeout`. One that takes longer goes on by itself, so that
//! its connection is there for the next one; after several in a row that came to nothing there is a pause without
//! questions, in which requests are placed by load.

mod bounds;
mod claims;
mod reports;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use tokio_rustls::rustls::ClientConfig;

pub(crate) use self::bounds::Bounds;
use self::bounds::GlobalAnswer;
pub(crate) use self::claims::{Claim, run};
pub(crate) use self::reports::REPORTED;
use self::reports::Reports;
use crate::clock::millis;
use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::engines::json_fields::{pick, read};
use crate::error::Error;
use crate::remote::service::{JSON, Question, post, service_at};

/// Time limit of a lookup, even if nobody waits for it any more.
const LIMIT: Duration = Duration::from_secs(5);
/// Consecutive failures after which lookups pause.
const FAILURES: u32 = 3;
/// The pause, in milliseconds.
const PAUSE: u64 = 1000;
/// Time for which a connection is kept without a question. The service keeps it for longer.
const IDLE: Duration = Duration::from_secs(30);

/// The outcomes of questions.
pub(crate) const ANSWERS: [&str; 6] =
    ["answered", "unanswered", "refused", "unknown_keyspace", "other_block_size", "not_asked"];
const ANSWERED: usize = 0;
const UNANSWERED: usize = 1;
const REFUSED: usize = 2;
const UNKNOWN_KEYSPACE: usize = 3;
const OTHER_BLOCK_SIZE: usize = 4;
const NOT_ASKED: usize = 5;

/// The service above many sites.
pub(crate) struct SitesService {
    at: Arc<Engine>,
    routing_group: String,
    patience: Duration,
    /// The shard of its connections for who serves no requests.
    pub(crate) own_shard: usize,
    /// Questions by [`ANSWERS`].
    pub(crate) questions: [AtomicU64; ANSWERS.len()],
    /// Questions in a row that came to nothing.
    failures: AtomicU32,
    /// Time from which the service is asked again, in milliseconds.
    asked_again: AtomicU64,
    /// True if it was said that the service does not answer.
    is_away: AtomicBool,
    /// True if it was said that the service refuses, or has blocks of another size.
    has_complained: AtomicBool,
    pub(crate) reports: Reports,
}

#[derive(Serialize)]
struct Query<'a> {
    model_name: &'a str,
    routing_group: &'a str,
    content_hashes: &'a [u64],
}

impl SitesService {
    pub(crate) fn new(url: &str, config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Self, Error> {
        let at = EngineConfig { key: config.global_key.clone(), ..EngineConfig::at(url) };
        let mut config = config.clone();
        config.upstream.idle_timeout = IDLE;
        Ok(Self {
            at: Arc::new(service_at("global_url", at, &config, shards + 1, tls)?),
            routing_group: config.routing_group,
            patience: config.global_timeout,
            own_shard: shards,
            questions: Default::default(),
            failures: AtomicU32::new(0),
            asked_again: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            has_complained: AtomicBool::new(false),
            reports: Reports::default(),
        })
    }

    /// Looks up how much of a prompt each site can hold. None without a timely answer.
    pub(crate) async fn look_up(&self, shard: usize, question: Question<'_>) -> Option<Arc<Bounds>> {
        let (result, bounds) = self.ask(shard, question).await;
        self.questions[result].fetch_add(1, Relaxed);
        bounds.map(Arc::new)
    }

    async fn ask(&self, shard: usize, question: Question<'_>) -> (usize, Option<Bounds>) {
        if millis() < self.asked_again.load(Relaxed) {
            return (NOT_ASKED, None);
        }
        let routing_group = &*self.routing_group;
        let query = Query { model_name: question.model, routing_group, content_hashes: question.hashes };
        let Ok(body) = serde_json::to_vec(&query) else { return (REFUSED, None) };
        let at = self.at.clone();
        let asking = tokio::spawn(async move {
            let asking = tokio::time::timeout(LIMIT, post(&at, shard, "/sites", JSON, &body));
            match asking.await {
                Ok(answered) => answered.map_err(|fault| fault.to_string()),
                Err(_) => Err("it took too long".to_owned()),
            }
        });
        let answered = match tokio::time::timeout(self.patience, asking).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it took longer than {} ms", self.patience.as_millis())),
        };
        let (status, answer) = match answered {
            Ok(answer) => answer,
            Err(why) => {
                self.was_not_answered(&why);
                return (UNANSWERED, None);
            }
        };
        self.failures.store(0, Relaxed);
        if self.is_away.load(Relaxed) && self.is_away.swap(false, Relaxed) {
            tracing::info!("the service at global_url answers again");
        }
        if status == StatusCode::NOT_FOUND && code(&answer).as_deref() == Some("unknown_keyspace") {
            // No site has anything of the model.
            return (UNKNOWN_KEYSPACE, Some(Bounds::nobody(question)));
        }
        let told = status.is_success().then(|| serde_json::from_slice::<GlobalAnswer>(&answer).ok()).flatten();
        let Some(told) = told else {
            self.complain(|| {
                let said: String = String::from_utf8_lossy(&answer).chars().take(300).collect();
                format!("the service at global_url refuses questions with status {status}: {said}")
            });
            return (REFUSED, None);
        };
        if told.block_size != question.block_size {
            self.complain(|| {
                let (theirs, ours) = (told.block_size, question.block_size);
                format!("the sites have blocks of {theirs} tokens, and this router {ours}: set --block-size {theirs}")
            });
            return (OTHER_BLOCK_SIZE, None);
        }
        (ANSWERED, Some(Bounds::new(told, question.model)))
    }

    /// Records a failed lookup; several in a row cause a pause, which is logged once.
    fn was_not_answered(&self, why: &str) {
        if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES {
            return;
        }
        self.failures.store(0, Relaxed);
        self.asked_again.store(millis() + PAUSE, Relaxed);
        if !self.is_away.swap(true, Relaxed) {
            tracing::warn!("the service at global_url does not answer, and requests are placed by load: {why}");
        }
    }

    /// Logs once that all lookups fail.
    fn complain(&self, what: impl FnOnce() -> String) {
        if !self.has_complained.swap(true, Relaxed) {
            tracing::warn!("requests are placed without knowing what sites hold: {}", what());
        }
    }
}

/// The code of a refusal.
fn code(answer: &[u8]) -> Option<String> {
    let [code] = pick(answer, ["code"])?;
    read(code)
}
