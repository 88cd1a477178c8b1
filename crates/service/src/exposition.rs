//! Counts of HTTP requests and queries, and the route `/metrics`, which shows these counts followed by the follower's
//! metrics of streams and indexes. The counts are plain atomics, because each request updates them. The documentation
//! takes names and help texts of metrics from this file (`tools/docs`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvatlas_follow::metrics::{count_of, counter, describe, encode, gauge};
use kvatlas_http::metrics::write_process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_eof;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::app::App;
use crate::routes::Route;

/// Upper bounds of the buckets in the histogram of request durations, in seconds.
pub(crate) const SECONDS: [f64; 16] = [
    5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2, 2.56e-2, 5.12e-2, 0.1024, 0.2048, 0.4096, 1.6, 10.0,
];

/// Classes of HTTP statuses in metrics. The service sends no statuses of other classes.
pub(crate) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// Counts of the requests to one route: by class of status, and by duration.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) by_class: [AtomicU64; CLASSES.len()],
    pub(crate) nanoseconds: AtomicU64,
    /// Histogram of request durations: one count for each upper bound in [`SECONDS`], and one for longer durations.
    pub(crate) buckets: [AtomicU64; SECONDS.len() + 1],
}

/// Counts of HTTP requests and queries.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Counts of requests by route, in the order of [`Route::ALL`].
    pub(crate) requests: Vec<Requests>,
    /// Number of prompts looked up in an index.
    pub(crate) queries: AtomicU64,
    /// Number of looked-up prompts whose leading blocks were held by at least one worker.
    pub(crate) queries_matched: AtomicU64,
    /// Number of requests that failed by a panic (an internal error).
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

    /// Counts an answered request by its route, status and duration.
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

    /// Counts `prompts` looked-up prompts. `matched` is the number of them whose leading blocks some worker held.
    pub(crate) fn add_query(&self, prompts: u64, matched: u64) {
        self.queries.fetch_add(prompts, Relaxed);
        self.queries_matched.fetch_add(matched, Relaxed);
    }
}

/// Writes the service's metrics in Prometheus's text format.
pub(crate) fn text(app: &Arc<App>) -> Result<String, std::fmt::Error> {
    let mut out = String::with_capacity(16 << 10);
    encode(Scrape(app.clone()), &mut out)?;
    app.follower.write_metrics(&mut out)?;
    write_process(&mut out)?;
    encode_eof(&mut out)?;
    Ok(out)
}

struct Scrape(Arc<App>);

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        requests(&self.0, &mut encoder)?;
        queries(&self.0, &mut encoder)
    }
}

fn requests(app: &App, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let routes = || Route::ALL.iter().map(|route| route.path()).zip(&app.counts.requests);
    let mut family = describe(
        encoder,
        "http_requests",
        "HTTP requests answered, by route (other: unknown paths) and class of status",
        MetricType::Counter,
    )?;
    for (route, requests) in routes() {
        for (class, count) in CLASSES.iter().zip(&requests.by_class) {
            count_of(&mut family, &[("route", route), ("status", *class)], count.load(Relaxed))?;
        }
    }
    let help = "Seconds from the end of a request's headers until its answer is ready";
    let mut family = describe(encoder, "http_request_duration_seconds", help, MetricType::Histogram)?;
    for (route, requests) in routes() {
        let bounds = SECONDS.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(requests.buckets.iter().map(|count| count.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = requests.nanoseconds.load(Relaxed) as f64 / 1e9;
        family.encode_family(&[("route", route)])?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    let help = "HTTP requests that met an internal error. This is a bug; the log has the details";
    counter(encoder, "http_panics", help, app.counts.panics.load(Relaxed))?;
    let open = app.front.connections() as i64;
    gauge(encoder, "http_connections", "Open HTTP connections", open)?;
    let help = "HTTP connections that were closed before they sent a key, to make room for others";
    counter(encoder, "http_connections_evicted", help, app.front.evicted())?;
    let help = "HTTP connections that were closed before they sent a key, for another reason: too_many_streams at once, or an unread_answer";
    let mut family = describe(encoder, "http_strangers_closed", help, MetricType::Counter)?;
    for (reason, count) in app.front.closed_strangers() {
        count_of(&mut family, &[("reason", reason)], count)?;
    }
    let help = "Bytes that HTTP connections which have not sent a key count for. Beyond 80 MiB, the largest are closed";
    gauge(encoder, "http_stranger_bytes", help, app.front.stranger_bytes() as i64)?;
    let help = "Memory of the bodies of all requests in bytes";
    gauge(encoder, "http_body_bytes", help, app.front.memory.used() as i64)?;
    let help = "HTTP requests refused because http.body_memory was full, by reason: no_room for the body, or it was too slow and gave_way to others";
    let mut family = describe(encoder, "http_bodies_refused", help, MetricType::Counter)?;
    for (reason, count) in app.front.memory.refused() {
        count_of(&mut family, &[("reason", reason)], count)?;
    }
    Ok(())
}

fn queries(app: &App, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Prompts looked up. Each prompt of a batch counts";
    counter(encoder, "queries", help, app.counts.queries.load(Relaxed))?;
    let help = "Prompts of which at least one worker held at least one block";
    counter(encoder, "queries_matched", help, app.counts.queries_matched.load(Relaxed))
}
