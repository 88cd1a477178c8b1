//! Routers beside this one, in front of the same engines: each tells the others what it has at each engine, so that they
//! do not all choose the one that has least to do.
//!
//! What is told is the sum of requests, tokens and blocks to come, not the requests: it counts in the decision core like
//! this router's own, until the other says otherwise or falls silent. Engines are told apart by name.
//!
//! A peer is a URL, or a name of which every address is one (`dns:NAME:PORT`): those of a headless Service of Kubernetes,
//! among them this router's own, which is found out when it hears itself.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hyper::{Request, Response, StatusCode};
use kvatlas_http::Incoming;
use kvatlas_routing::Work;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, json};
use crate::app::App;
use crate::config::{Config, EngineConfig};
use crate::elsewhere::{JSON, post};
use crate::engine::Engine;
use crate::error::Error;
use crate::names;
use crate::proxy::read;
use crate::reading::aside_if_long;
use crate::refusal::Refusal;

/// Where it is told.
pub(crate) const PATH: &str = "/peers/work";

/// How often this router looks whether it has something new to tell, and tells it again though nothing is new.
const LOOK: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(500);

/// How often it is looked which addresses a name has.
const RESOLVE: Duration = Duration::from_secs(5);

/// For how long it counts; the longest that is believed; within which it must be taken.
const COUNTS: Duration = Duration::from_secs(2);
const MOST_SECONDS: f64 = 60.0;
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of what another tells.
const MOST_BYTES: usize = 4 << 20;

/// What became of what was told: by this router, and to it.
pub(crate) const RESULTS: [&str; 4] = ["told", "not_taken", "heard", "unknown_engine"];

/// The routers beside this one.
pub(crate) struct Peers {
    /// Who this is, for the others.
    number: u64,
    others: Vec<Arc<Engine>>,
    names: Vec<Name>,
    /// Engines' ranks that were told and heard of, and messages that were not taken, by [`RESULTS`].
    pub(crate) counts: [AtomicU64; RESULTS.len()],
}

/// A name of which every address is a router's.
#[derive(Clone)]
struct Name {
    host: String,
    port: u16,
}

impl Name {
    /// Of `dns:NAME:PORT`; none if it is something else.
    fn parse(peer: &str) -> Option<Self> {
        let (host, port) = peer.strip_prefix("dns:")?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(Self { host: host.to_owned(), port }).filter(|name| !name.host.is_empty())
    }
}

/// What an answer is to somebody who tells a router what it said itself.
#[derive(Default, Deserialize)]
struct Heard {
    #[serde(default)]
    own: bool,
}

/// What one router tells.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    router: u64,
    /// For how long it counts.
    seconds: f64,
    engines: Vec<Row>,
}

/// What it has at one rank of an engine.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) engine: String,
    pub(crate) rank: u32,
    requests: u32,
    waiting: u32,
    queued_tokens: f64,
    queued_prompt_tokens: f64,
    context_tokens: f64,
    output_tokens_left: f64,
}

impl Row {
    pub(crate) fn new(engine: &str, rank: u32, work: &Work) -> Self {
        Self {
            engine: engine.to_owned(),
            rank,
            requests: work.requests,
            waiting: work.waiting,
            queued_tokens: work.queued_tokens,
            queued_prompt_tokens: work.queued_prompt_tokens,
            context_tokens: work.context_tokens,
            output_tokens_left: work.output_tokens_left,
        }
    }

    pub(crate) fn work(&self) -> Work {
        Work {
            requests: self.requests,
            waiting: self.waiting,
            queued_tokens: self.queued_tokens,
            queued_prompt_tokens: self.queued_prompt_tokens,
            context_tokens: self.context_tokens,
            output_tokens_left: self.output_tokens_left,
        }
    }
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let (mut others, mut names) = (Vec::new(), Vec::new());
        for peer in &config.peers {
            match Name::parse(peer) {
                Some(name) => names.push(name),
                None if peer.starts_with("http://") => others.push(other(config, peer)?),
                None => {
                    let message = format!("a peer must be http://host:port or dns:name:port, got {peer:?}");
                    return Err(Error::config(message));
                }
            }
        }
        Ok(Self { number: names::number() >> 11, others, names, counts: Default::default() })
    }
}

fn other(config: &Config, url: &str) -> Result<Arc<Engine>, Error> {
    // The keys of engines are not for other routers.
    let mut settings = config.clone();
    settings.upstream.key = None;
    let at = EngineConfig { key: config.peer_key.clone(), ..EngineConfig::at(url) };
    Engine::new(at, &settings, 1, None).map(Arc::new)
}

/// Tells the others, for as long as the router lives.
pub(crate) async fn run(app: Arc<App>) {
    for other in &app.peers.others {
        tokio::spawn(tell(app.clone(), other.clone()));
    }
    for name in &app.peers.names {
        tokio::spawn(follow(app.clone(), name.clone()));
    }
}

/// Tells all that a name has, as they come and go.
async fn follow(app: Arc<App>, name: Name) {
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
                        && let Ok(other) = other(&app.config, &format!("http://{address}"))
                    {
                        tracing::info!(%address, name = name.host, "a router beside this one");
                        told.insert(address, tokio::spawn(tell(app.clone(), other)).abort_handle());
                    }
                }
            }
            // A name server that is away makes nobody leave.
            Err(error) => tracing::debug!(%error, name = name.host, "its addresses are not known"),
        }
        tokio::time::sleep(RESOLVE).await;
    }
}

/// Tells one of them: one that hangs holds up nobody else.
async fn tell(app: Arc<App>, other: Arc<Engine>) {
    let (mut last, mut told) = (String::new(), Instant::now());
    loop {
        tokio::time::sleep(LOOK).await;
        let told_now = Told { router: app.peers.number, seconds: COUNTS.as_secs_f64(), engines: app.places.own_work() };
        let Ok(body) = serde_json::to_string(&told_now) else { continue };
        if body == last && told.elapsed() < AGAIN {
            continue;
        }
        let taken = tokio::time::timeout(PATIENCE, send(&other, &body)).await.ok().flatten();
        if taken.as_ref().is_some_and(|heard| heard.own) {
            return;
        }
        let is_taken = taken.is_some();
        app.peers.counts[usize::from(!is_taken)].fetch_add(1, Relaxed);
        // What was not taken is told again, and not at once.
        (last, told) = (if is_taken { body } else { String::new() }, Instant::now());
        if !is_taken {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn send(other: &Engine, body: &str) -> Option<Heard> {
    let (status, answer) = post(other, 0, PATH, JSON, body.as_bytes()).await.ok()?;
    status.is_success().then(|| serde_json::from_slice(&answer).unwrap_or_default())
}

/// Another router tells what it has.
pub(crate) async fn hear(
    app: &Arc<App>,
    request: Request<Incoming>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let body = read(app, request.into_body(), MOST_BYTES, until).await?;
    let told: Told = aside_if_long(app, &body, |_, body| serde_json::from_slice(body))
        .await?
        .map_err(|error| Refusal::bad("invalid_work", format!("the body is not a report of a router: {error}")))?;
    if !(0.0..=MOST_SECONDS).contains(&told.seconds) {
        let message = format!("seconds must be from 0 to {MOST_SECONDS}, got {}", told.seconds);
        return Err(Refusal::bad("invalid_work", message));
    }
    if let Some(row) = told.engines.iter().find(|row| !row.work().is_sound()) {
        let message = format!(
            "engine {}, rank {}: counts must agree with each other, and amounts must be from 0 to 1e12",
            row.engine, row.rank
        );
        return Err(Refusal::bad("invalid_work", message));
    }
    // Two names for one router: it hears itself.
    let own = told.router == app.peers.number;
    if !own {
        let heard = app.places.hear(told.router, told.seconds, &told.engines);
        app.peers.counts[2].fetch_add(heard as u64, Relaxed);
        app.peers.counts[3].fetch_add((told.engines.len() - heard) as u64, Relaxed);
    }
    Ok(json(StatusCode::OK, if own { r#"{"own":true}"# } else { "{}" }))
}
