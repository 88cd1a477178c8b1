//! Client of the service that indexes many sites, for routers whose "engines" are sites (fleets with their own
//! routers).
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | lookups: number of a prompt's tokens that each site can hold |
//! | `claims.rs` | reports to the service after a request: number of tokens that the site's engine really had cached |
//!
//! A lookup never delays a request by more than `global_timeout`. A lookup that needs more time continues in the
//! background, so that its connection can be reused. After several successive failures, lookups pause, and requests are
//! routed by load during the pause.

mod claims;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use hyper::StatusCode;
use kvatlas_follow::lookup::RankDepths;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

use self::claims::Reports;
pub(crate) use self::claims::{Claim, REPORTED, run};
use crate::clock::millis;
use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::engines::json_fields::{pick, read};
use crate::error::Error;
use crate::remote::{JSON, Question, post, service_at};

/// Time limit of a lookup in the service that indexes many sites, even after the lookup's request has been routed
/// without the result.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of successive failed lookups after which the router pauses lookups in the service that indexes many sites.
const FAILURES: u32 = 3;
/// Time for which lookups in the service that indexes many sites pause after several failures, in milliseconds.
const PAUSE: u64 = 1000;
/// Time after which an unused connection to the service that indexes many sites is closed; the service keeps
/// connections open for longer.
const IDLE: Duration = Duration::from_secs(30);

/// Names, in the metrics, of the outcomes of lookups in the service that indexes many sites.
pub(crate) const ANSWERS: [&str; 6] =
    ["answered", "unanswered", "refused", "unknown_keyspace", "other_block_size", "not_asked"];
const ANSWERED: usize = 0;
const UNANSWERED: usize = 1;
const REFUSED: usize = 2;
const UNKNOWN_KEYSPACE: usize = 3;
const OTHER_BLOCK_SIZE: usize = 4;
const NOT_ASKED: usize = 5;

/// Client of the service that indexes many sites.
pub(crate) struct SitesService {
    at: Arc<Engine>,
    routing_group: String,
    patience: Duration,
    /// Number of the connection pool that is used by tasks without a client's request.
    pub(crate) own_shard: usize,
    /// Number of lookups in the service that indexes many sites, by the outcome ([`ANSWERS`]).
    pub(crate) questions: [AtomicU64; ANSWERS.len()],
    /// Number of successive failed lookups in the service that indexes many sites.
    failures: AtomicU32,
    /// Time until which no lookups are made in the service after failures, in milliseconds of the router's clock.
    asked_again: AtomicU64,
    /// True if the log already says that the service does not answer.
    is_away: AtomicBool,
    /// True if the log already says that the service refuses lookups, or has another block size.
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

    /// Looks up bounds on the number of a prompt's tokens that each site holds; None without a timely answer.
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

    /// Records a failed lookup, with the reason `why`. Several failures in a row cause a pause of lookups, which is
    /// logged once.
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

    /// Logs, only once, the reason why the service refuses all lookups.
    fn complain(&self, what: impl FnOnce() -> String) {
        if !self.has_complained.swap(true, Relaxed) {
            tracing::warn!("requests are placed without knowing what sites hold: {}", what());
        }
    }
}

/// Returns the error code in a refusal of the service; None if the refusal has no code.
fn code(answer: &[u8]) -> Option<String> {
    let [code] = pick(answer, ["code"])?;
    read(code)
}

/// Answer of the service that indexes many sites to a lookup; lengths and bounds are in tokens.
#[derive(Deserialize)]
struct GlobalAnswer {
    block_size: u32,
    length: u32,
    levels: Vec<Level>,
    rest_at_most: u32,
    unknown: Vec<String>,
    probe: Option<Probe>,
}

#[derive(Deserialize)]
struct Level {
    at_least: u32,
    at_most: u32,
    sites: Vec<String>,
}

#[derive(Deserialize)]
struct Probe {
    site: String,
    at_least: u32,
}

/// Bounds on the number of one prompt's tokens that each site (a fleet with an index of its own) holds.
pub(crate) struct Bounds {
    pub(crate) model: String,
    /// Minimum and maximum number of the prompt's tokens by site: for sites that certainly hold some, and for a doubted
    /// site whose claim is tested with this request.
    sites: HashMap<String, (u32, u32)>,
    /// Maximum number of tokens at every site that is in neither `sites` nor `unknown`.
    rest_at_most: u32,
    /// Sites for which no bounds are known, so that they may hold any number of tokens.
    unknown: Vec<String>,
    probe: Option<String>,
}

impl Bounds {
    fn new(told: GlobalAnswer, model: &str) -> Self {
        let GlobalAnswer { length, levels, rest_at_most, mut unknown, probe, .. } = told;
        let mut sites = HashMap::new();
        for Level { at_least, at_most, sites: names } in levels {
            sites.extend(names.into_iter().map(|name| (name, (at_least, at_most))));
        }
        // For this one prompt it is believed again: what its engine then says shows whether that was right.
        let probe = probe.map(|Probe { site, at_least }| {
            unknown.retain(|name| *name != site);
            sites.insert(site.clone(), (at_least, length.max(at_least)));
            site
        });
        Self { model: model.to_owned(), sites, rest_at_most, unknown, probe }
    }

    /// Makes the bounds for a prompt that is in no site's cache.
    fn nobody(question: Question<'_>) -> Self {
        Self {
            model: question.model.to_owned(),
            sites: HashMap::new(),
            rest_at_most: 0,
            unknown: Vec::new(),
            probe: None,
        }
    }

    /// Returns the minimum and maximum number of tokens that a site holds; None if nothing is known about the site's
    /// number.
    pub(crate) fn of(&self, site: &str) -> Option<(u32, u32)> {
        match self.sites.get(site) {
            Some(bounds) => Some(*bounds),
            None if self.unknown.iter().any(|name| name == site) => None,
            None => Some((0, self.rest_at_most)),
        }
    }

    /// Converts the bounds to depths (numbers of leading blocks held) for the choice of an engine: the number that each
    /// site certainly holds, which is 0 for a site without known bounds.
    pub(crate) fn held(&self, engines: &[Arc<Engine>], block_size: u32) -> Vec<RankDepths> {
        let mut held = Vec::new();
        for engine in engines {
            let blocks = self.of(&engine.name).map_or(0, |(at_least, _)| at_least / block_size.max(1));
            let ids = engine.ids.get().into_iter().flatten().filter(|_| blocks > 0);
            held.extend(ids.map(|id| RankDepths {
                number: id.0,
                device: blocks,
                host: blocks,
                any: blocks,
                pullable: 0,
            }));
        }
        held
    }

    /// Returns the bounds on tokens held by the sites `names` as JSON, for programs.
    pub(crate) fn to_json<'a>(&self, names: impl Iterator<Item = &'a str>) -> Value {
        let one = |name: &str| {
            let bounds = self.of(name);
            json!({
                "site": name,
                "at_least": bounds.map(|(least, _)| least),
                "at_most": bounds.map(|(_, most)| most),
                "probe": self.probe.as_deref() == Some(name),
            })
        };
        names.map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = r#"{"block_size":16,"length":2048,"levels":[{"at_least":1024,"at_most":1520,"sites":["a","b"]}],
        "rest_at_most":496,"unknown":["c","d"],"probe":{"site":"d","at_least":2048}}"#;

    #[test]
    fn each_site_has_its_bounds() {
        let bounds = Bounds::new(serde_json::from_str(TOLD).unwrap(), "m");
        assert_eq!(bounds.of("a"), Some((1024, 1520)));
        assert_eq!((bounds.of("c"), bounds.of("d"), bounds.of("x")), (None, Some((2048, 2048)), Some((0, 496))));
        let said = bounds.to_json(["c", "d"].into_iter());
        assert_eq!(said[0], json!({"site": "c", "at_least": null, "at_most": null, "probe": false}));
        assert_eq!(said[1], json!({"site": "d", "at_least": 2048, "at_most": 2048, "probe": true}));
    }
}
