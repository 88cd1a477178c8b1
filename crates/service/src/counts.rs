//! Counts of HTTP requests and queries: plain atomics, since each request updates them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::routes::Route;

/// Upper bounds of the buckets for durations, in seconds.
pub(crate) const SECONDS: [f64; 16] = [
    5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2, 2.56e-2, 5.12e-2, 0.1024, 0.2048, 0.4096, 1.6, 10.0,
];

/// Classes of statuses in metrics; no others occur.
pub(crate) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// Counts of the requests of one route.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) by_class: [AtomicU64; CLASSES.len()],
    pub(crate) nanoseconds: AtomicU64,
    /// Requests by duration: a bucket for each of [`SECONDS`], and one beyond.
    pub(crate) buckets: [AtomicU64; SECONDS.len() + 1],
}

/// Counts of HTTP requests and queries.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Counts by route, in the order of [`Route::ALL`].
    pub(crate) requests: Vec<Requests>,
    /// Number of prompts looked up.
    pub(crate) queries: AtomicU64,
    /// Number of prompts looked up that matched a worker.
    pub(crate) queries_matched: AtomicU64,
    /// Number of requests whose handling panicked.
    pub(crate) panics: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            requests: Route::ALL.iter().map(|_| Requests::default()).collect(),
            queries: AtomicU64::new(0),
            queries_matched: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, route: Route, status: u16, took: Duration) {
        let Some(requests) = self.requests.get(route as usize) else { return };
        let class = match status {
            500.. => 2,
            400.. => 1,
            _ => 0,
        };
        requests.by_class[class].fetch_add(1, Relaxed);
        requests.nanoseconds.fetch_add(took.as_nanos() as u64, Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(SECONDS.len());
        requests.buckets[bucket].fetch_add(1, Relaxed);
    }

    /// Counts `prompts` look-ups, `matched` of them with a matching worker.
    pub(crate) fn add_query(&self, prompts: u64, matched: u64) {
        self.queries.fetch_add(prompts, Relaxed);
        self.queries_matched.fetch_add(matched, Relaxed);
    }
}
