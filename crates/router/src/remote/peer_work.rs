//! The exchange of routers' work: tells the routers beside this one what it has, and hears what they have.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::{Request, Response, StatusCode};
use kvatlas_http::RequestBody;
use serde::{Deserialize, Serialize};

use crate::answers::body::{Answer, json};
use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::engines::Engine;
use crate::remote::peer_report::read_report;
use crate::remote::peer_requests::{self, PeerReport};
use crate::remote::peers::{COUNTS, Name, PATIENCE, Row, other};
use crate::remote::service::{JSON, post};

/// Path at which a router is told of another's work.
pub(crate) const PATH: &str = "/peers/work";

/// Time between two looks whether this router has something new to tell, and time after which it tells it again though
/// nothing is new.
const LOOK: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(500);

/// Time between two looks which addresses a name has.
const RESOLVE: Duration = Duration::from_secs(5);

/// An answer to somebody who tells a router something: `own` if the router said it itself.
#[derive(Default, Deserialize)]
struct PeerAnswer {
    #[serde(default)]
    own: bool,
}

/// The message of one router to another: the work that it has at engines.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkMessage {
    router: u64,
    /// Seconds for which the message counts.
    seconds: f64,
    engines: Vec<Row>,
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
    let mut requests = PeerReport::default();
    loop {
        tokio::time::sleep(LOOK).await;
        // Once it has heard sums: else its own would be told to itself.
        if !last.is_empty() {
            peer_requests::tell(&app, &other, &mut requests, COUNTS.as_secs_f64()).await;
        }
        let told_now =
            WorkMessage { router: app.peers.number, seconds: COUNTS.as_secs_f64(), engines: app.places.own_work() };
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

async fn send(other: &Engine, body: &str) -> Option<PeerAnswer> {
    let (status, answer) = post(other, 0, PATH, JSON, body.as_bytes()).await.ok()?;
    status.is_success().then(|| serde_json::from_slice(&answer).unwrap_or_default())
}

/// Another router tells what it has.
pub(crate) async fn hear(
    app: &Arc<App>,
    request: Request<RequestBody>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let told = read_report(app, request, until, |told: &WorkMessage| told.seconds).await?;
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
