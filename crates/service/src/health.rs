//! Routes `/health`, which reports if all async runtimes respond, and `/ready`, which reports if answers to queries are
//! complete.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::{Follower, report};
use serde_json::json as value;

use crate::answer::{Answer, json};

/// Interval between two heartbeats of an async runtime.
const BEAT: Duration = Duration::from_secs(1);

/// Time without a heartbeat after which an async runtime is reported as stuck.
const STUCK: Duration = Duration::from_secs(10);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time of the latest heartbeat of an async runtime, in milliseconds since the start of the process.
#[derive(Debug)]
pub(crate) struct Pulse(AtomicU64);

impl Pulse {
    fn new() -> Self {
        Self(AtomicU64::new(START.elapsed().as_millis() as u64))
    }

    /// Records a heartbeat periodically, for as long as the async runtime runs.
    pub(crate) async fn beat(&self) {
        let mut interval = tokio::time::interval(BEAT);
        loop {
            interval.tick().await;
            self.0.store(START.elapsed().as_millis() as u64, Relaxed);
        }
    }

    fn is_stuck_at(&self, now: Duration) -> bool {
        now.saturating_sub(Duration::from_millis(self.0.load(Relaxed))) > STUCK
    }
}

/// Heartbeats of the two async runtimes: one for the HTTP server, one for the engines' streams.
#[derive(Debug)]
pub(crate) struct Pulses {
    pub(crate) http: Pulse,
    pub(crate) ingest: Arc<Pulse>,
}

impl Pulses {
    pub(crate) fn new() -> Self {
        Self { http: Pulse::new(), ingest: Arc::new(Pulse::new()) }
    }

    /// Returns the names of the async runtimes without a recent heartbeat at time `now`.
    fn stuck_at(&self, now: Duration) -> Vec<&'static str> {
        let named = [(&*self.ingest, "kvatlas-ingest"), (&self.http, "kvatlas-http")];
        named.into_iter().filter(|(pulse, _)| pulse.is_stuck_at(now)).map(|(_, name)| name).collect()
    }
}

/// Answers `/health`: status 503 if an async runtime has no recent heartbeat, else 200, with the state of snapshots, of
/// the log in NATS, and of discovery.
pub(crate) fn health(pulses: &Pulses, follower: &Follower) -> Response<Answer> {
    let stuck = pulses.stuck_at(START.elapsed());
    let mut said = match stuck.is_empty() {
        true => value!({ "status": "alive" }),
        false => value!({ "status": "stuck", "threads": stuck }),
    };
    let fleet = follower.fleet();
    let sources = follower.sources().to_json();
    let parts = [("snapshot", report::snapshots(fleet)), ("relay", report::log(fleet)), ("discovery", sources)];
    for (name, state) in parts {
        if let Some(state) = state {
            said[name] = state;
        }
    }
    let status = if stuck.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, said.to_string())
}

/// Answers `/ready`: status 200 if the service is ready, else 503. With `strict=1` in the query string, also 503 while
/// any stream is incomplete.
pub(crate) fn ready(fleet: &Fleet, query: Option<&str>) -> Response<Answer> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let strict = pairs.any(|(key, value)| key == "strict" && value != "0");
    let is_ready = fleet.is_ready();
    let waiting = fleet.waiting();
    let ready = waiting.is_over() || is_ready && !strict;
    if ready && waiting.is_over() && waiting.engines.is_empty() {
        return json(StatusCode::OK, &b"{\"ready\":true}"[..]);
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, value!({ "ready": ready, "waiting": report::waiting(&waiting) }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_too_long_is_named() {
        let pulses = Pulses::new();
        let now = START.elapsed();
        assert!(pulses.stuck_at(now).is_empty());
        assert!(pulses.stuck_at(now + STUCK - Duration::from_millis(1)).is_empty());
        let later = now + STUCK + Duration::from_secs(1);
        assert_eq!(pulses.stuck_at(later), ["kvatlas-ingest", "kvatlas-http"]);
        pulses.ingest.0.store(later.as_millis() as u64, Relaxed);
        assert_eq!(pulses.stuck_at(later), ["kvatlas-http"]);
        pulses.http.0.store(later.as_millis() as u64, Relaxed);
        assert!(pulses.stuck_at(later).is_empty());
    }
}
