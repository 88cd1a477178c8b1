//! What is counted, and how Prometheus reads it.
//!
//! Counts of requests are plain atomics of ours, since each request pays for them; what streams and indexes say of
//! themselves is read when somebody asks. The names are listed in `docs/reference/metrics.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_index::Stats;
use kvatlas_wire::Reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::fleet::{Fleet, Stream};
use crate::http::Route;
use crate::status::{Counters, State};

/// Upper bounds of the buckets for durations, in seconds.
const SECONDS: [f64; 16] = [
    5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2, 2.56e-2, 5.12e-2, 0.1024, 0.2048, 0.4096, 1.6, 10.0,
];

/// Statuses by their first digit; 2xx, 4xx and 5xx occur.
const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// Requests of one route.
#[derive(Debug, Default)]
struct Requests {
    by_class: [AtomicU64; CLASSES.len()],
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; SECONDS.len() + 1],
}

/// Counts of the HTTP side.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Vec<Requests>,
    /// Open connections.
    pub(crate) connections: AtomicI64,
    queries: AtomicU64,
    queries_matched: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            requests: Route::ALL.iter().map(|_| Requests::default()).collect(),
            connections: AtomicI64::new(0),
            queries: AtomicU64::new(0),
            queries_matched: AtomicU64::new(0),
        }
    }

    /// A request was answered.
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

    /// Prompts were looked up, and so many of them matched.
    pub(crate) fn queried(&self, prompts: u64, matched: u64) {
        self.queries.fetch_add(prompts, Relaxed);
        self.queries_matched.fetch_add(matched, Relaxed);
    }
}

/// The text that Prometheus reads.
pub(crate) fn text(metrics: &Arc<Metrics>, fleet: &Arc<Fleet>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("kvatlas");
    registry.register_collector(Box::new(Scrape { metrics: metrics.clone(), fleet: fleet.clone() }));
    let mut out = String::with_capacity(16 << 10);
    encode(&mut out, &registry)?;
    Ok(out)
}

struct Scrape {
    metrics: Arc<Metrics>,
    fleet: Arc<Fleet>,
}

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

type Done = Result<(), std::fmt::Error>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Done {
        self.requests(&mut encoder)?;
        self.queries(&mut encoder)?;
        self.fleet(&mut encoder)?;
        self.keyspaces(&mut encoder)?;
        self.streams(&mut encoder)
    }
}

impl Scrape {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> Done {
        let routes = || Route::ALL.iter().map(|route| route.path()).zip(&self.metrics.requests);
        let mut family = describe(encoder, "http_requests", "Requests answered", MetricType::Counter)?;
        for (route, requests) in routes() {
            for (class, count) in CLASSES.iter().zip(&requests.by_class) {
                count_of(&mut family, &[("route", route), ("status", *class)], count.load(Relaxed))?;
            }
        }
        let help = "From a request's head to its answer being made";
        let mut family = describe(encoder, "http_request_duration_seconds", help, MetricType::Histogram)?;
        for (route, requests) in routes() {
            let bounds = SECONDS.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> =
                bounds.zip(requests.buckets.iter().map(|count| count.load(Relaxed))).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let sum = requests.nanoseconds.load(Relaxed) as f64 / 1e9;
            family.encode_family(&[("route", route)])?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        let open = self.metrics.connections.load(Relaxed);
        gauge(encoder, "http_connections", "Open connections", open)
    }

    fn queries(&self, encoder: &mut DescriptorEncoder<'_>) -> Done {
        let help = "Prompts looked up, those in batches each";
        counter(encoder, "queries", help, self.metrics.queries.load(Relaxed))?;
        let help = "Of these, those that somebody who counts holds a block of";
        counter(encoder, "queries_matched", help, self.metrics.queries_matched.load(Relaxed))
    }

    fn fleet(&self, encoder: &mut DescriptorEncoder<'_>) -> Done {
        gauge(encoder, "ready", "1 if ready", i64::from(self.fleet.waiting().is_over()))?;
        gauge(encoder, "workers", "Registered workers", self.fleet.workers().len() as i64)
    }

    fn keyspaces(&self, encoder: &mut DescriptorEncoder<'_>) -> Done {
        let all: Vec<_> =
            self.fleet.keyspaces().into_iter().map(|keyspace| (keyspace.index.stats(), keyspace)).collect();
        type Read = fn(&Stats) -> u64;
        let gauges: [(&str, &str, Read); 5] = [
            ("index_blocks", "Blocks held, counted for each rank", |stats| stats.blocks),
            ("index_unlinked_blocks", "Of these on devices, those below a hole or an unknown parent", |stats| {
                stats.unlinked
            }),
            ("index_positions", "Different blocks of all chains", |stats| stats.positions),
            ("index_copies", "Copies on devices beyond the first", |stats| stats.copies),
            ("index_bytes", "Memory of the index", |stats| stats.bytes),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for (stats, keyspace) in &all {
                let labels = [("model", &*keyspace.model), ("group", &*keyspace.group)];
                gauge_of(&mut family, &labels, read(stats) as i64)?;
            }
        }
        Ok(())
    }

    fn streams(&self, encoder: &mut DescriptorEncoder<'_>) -> Done {
        let streams: Vec<(String, Arc<Stream>)> = self
            .fleet
            .workers()
            .into_iter()
            .flat_map(|worker| worker.streams.into_iter().map(|(rank, stream)| (rank.to_string(), stream)))
            .collect();
        let mut family = describe(encoder, "streams", "Streams by state", MetricType::Gauge)?;
        for state in State::ALL {
            let count = streams.iter().filter(|(_, stream)| stream.status.state() == state).count();
            gauge_of(&mut family, &[("state", state.name())], count as i64)?;
        }
        let untrusted = streams.iter().filter(|(_, stream)| !stream.status.is_trusted()).count();
        gauge(encoder, "streams_untrusted", "Streams that are not trusted now", untrusted as i64)?;
        let partial = streams.iter().filter(|(_, stream)| stream.status.partial.load(Relaxed)).count();
        let help = "Streams that began or lost something without a replay";
        gauge(encoder, "streams_partial", help, partial as i64)?;

        type Read = fn(&Stream) -> Option<f64>;
        let gauges: [(&str, &str, Read); 5] = [
            ("stream_lag_seconds", "From the engine's time in the last live batch to its being visible", |stream| {
                stream.status.lag().map(|lag| lag.as_secs_f64())
            }),
            ("stream_lag_max_seconds", "The longest lag so far", |stream| Some(stream.status.lag_max().as_secs_f64())),
            ("stream_silence_seconds", "Since the engine was last heard", |stream| {
                stream.status.silence().map(|silence| silence.as_secs_f64())
            }),
            ("stream_buffered_batches", "Batches that wait for a replay", |stream| {
                Some(stream.status.buffered.load(Relaxed) as f64)
            }),
            ("stream_epoch", "Lives of the publisher seen so far", |stream| {
                Some(stream.status.epoch.load(Relaxed) as f64)
            }),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for (rank, stream) in &streams {
                if let Some(value) = read(stream) {
                    family.encode_family(&[("worker", &*stream.worker), ("rank", rank)])?.encode_gauge(&value)?;
                }
            }
        }
        let counts: Vec<Vec<u64>> = streams.iter().map(|(_, stream)| stream.status.counters.values()).collect();
        for (at, (name, help)) in Counters::NAMES.iter().enumerate() {
            let help = help.trim().trim_end_matches('.');
            let name = format!("stream_{name}");
            let mut family = describe(encoder, &name, help, MetricType::Counter)?;
            for ((rank, stream), counts) in streams.iter().zip(&counts) {
                count_of(&mut family, &[("worker", &*stream.worker), ("rank", rank)], counts[at])?;
            }
        }
        let help = "Events or blocks left out, by reason";
        let mut family = describe(encoder, "stream_refused", help, MetricType::Counter)?;
        for (rank, stream) in &streams {
            for (reason, count) in Reason::ALL.iter().zip(stream.status.refused()) {
                // A thousand streams times all reasons would be a long text about nothing.
                if count > 0 {
                    let labels = [("worker", &*stream.worker), ("rank", rank), ("reason", reason.code())];
                    count_of(&mut family, &labels, count)?;
                }
            }
        }
        Ok(())
    }
}

fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
    kind: MetricType,
) -> Result<MetricEncoder<'e>, std::fmt::Error> {
    encoder.encode_descriptor(name, help, None, kind)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Done {
    ConstCounter::new(value).encode(describe(encoder, name, help, MetricType::Counter)?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: i64) -> Done {
    ConstGauge::new(value).encode(describe(encoder, name, help, MetricType::Gauge)?)
}

fn count_of<const N: usize>(family: &mut MetricEncoder<'_>, labels: &[(&str, &str); N], value: u64) -> Done {
    ConstCounter::new(value).encode(family.encode_family(labels)?)
}

fn gauge_of<const N: usize>(family: &mut MetricEncoder<'_>, labels: &[(&str, &str); N], value: i64) -> Done {
    ConstGauge::new(value).encode(family.encode_family(labels)?)
}
