//! What is counted of the router as a whole.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::StatusCode;

use crate::lock;

/// Upper bounds of the buckets for times, in seconds.
pub(crate) const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 16.0, 64.0];

/// Upper bounds of the buckets for decisions, in seconds.
pub(crate) const DECISION_SECONDS: [f64; 12] = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 5e-2];

/// How often something took how long.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    beyond: AtomicU64,
    micros: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    pub(crate) fn new(bounds: &'static [f64; N]) -> Self {
        Self { bounds, buckets: [const { AtomicU64::new(0) }; N], beyond: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets.get(at).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// The counts by upper bound, and the sum in seconds.
    pub(crate) fn read(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.buckets.iter().chain([&self.beyond]).map(|count| count.load(Relaxed));
        (bounds.zip(counts).collect(), self.micros.load(Relaxed) as f64 / 1e6)
    }
}

/// How often requests were refused: by the class of the status, and the code.
#[derive(Debug)]
pub(crate) struct Refused(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Default for Refused {
    fn default() -> Self {
        // Each class is there from the beginning.
        Self(Mutex::new(BTreeMap::from([(("4xx", "unknown_path"), 0), (("5xx", "internal"), 0)])))
    }
}

impl Refused {
    pub(crate) fn add(&self, status: StatusCode, code: &'static str) {
        let class = if status.is_server_error() { "5xx" } else { "4xx" };
        *lock(&self.0).entry((class, code)).or_default() += 1;
    }

    /// Those that were no fault of the client's.
    pub(crate) fn errors(&self) -> u64 {
        lock(&self.0).iter().filter(|((class, _), _)| *class == "5xx").map(|(_, count)| count).sum()
    }

    pub(crate) fn all(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        lock(&self.0).clone()
    }
}

/// What is counted of the router as a whole.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Requests for engines, by [`STATUSES`].
    pub(crate) requests: [AtomicU64; STATUSES.len()],
    /// Requests that the router refused itself.
    pub(crate) refused: Refused,
    /// Requests sent again, by why the one before failed.
    pub(crate) retries: [AtomicU64; crate::engine::FAULTS.len()],
    /// Requests that got no answer and were not sent again, by [`GIVEN_UP`](crate::proxy::GIVEN_UP).
    pub(crate) given_up: [AtomicU64; crate::proxy::GIVEN_UP.len()],
    /// Requests that were taken apart, by what prefill came to.
    pub(crate) handovers: [AtomicU64; 3],
    /// From a request's arrival to the first token of its streamed answer.
    pub(crate) first_token: Histogram<16>,
    /// What a decision took.
    pub(crate) decision: Histogram<12>,
    /// Bugs.
    pub(crate) panics: AtomicU64,
}

/// Classes of the statuses that clients get; `none` where they left before there was one.
pub(crate) const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// A request for an engine, which is counted once its client has a status, or has left.
pub(crate) struct Request<'a> {
    counts: &'a Counts,
    status: Option<StatusCode>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(counts: &'a Counts) -> Self {
        Self { counts, status: None }
    }

    /// Its client gets this status.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let class = self.status.map_or(STATUSES.len(), |status| usize::from(status.as_u16() / 100).clamp(1, 5)) - 1;
        self.counts.requests[class].fetch_add(1, Relaxed);
    }
}

impl Counts {
    /// Requests for engines that have an answer, or whose clients have left.
    pub(crate) fn all_requests(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn new() -> Self {
        Self {
            requests: Default::default(),
            refused: Refused::default(),
            retries: Default::default(),
            given_up: Default::default(),
            handovers: Default::default(),
            first_token: Histogram::new(&SECONDS),
            decision: Histogram::new(&DECISION_SECONDS),
            panics: AtomicU64::new(0),
        }
    }
}
