//! Metrics of streams and indexes for the route `/metrics`, in Prometheus's format. The documentation takes the names
//! and help texts of metrics from this file (`tools/docs/metrics.py`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_index::Stats;
use kvatlas_wire::Reason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::fleet::{EngineState, Fleet};
use crate::lmcache::LeftOut;
use crate::pool_store::{PoolStore, StoreCounts};
use crate::report::VERSION;
use crate::sites::{Top, Tops, state_name};
use crate::state::{Counters, Keyspace, PromptQueue, Stream};
use kvatlas_stream::State;
use kvatlas_stream::limits::{LAG_SECONDS, Limit};
use kvatlas_stream::{Outcome, Skip};

/// Appends the text of all metrics of streams and indexes to `out`, without the final `# EOF` line.
pub(crate) fn write(
    fleet: &Arc<Fleet>,
    stores: &[Arc<PoolStore>],
    prompt_queue: &Arc<PromptQueue<Keyspace>>,
    tops: &Arc<Tops>,
    out: &mut String,
) -> fmt::Result {
    let (fleet, stores) = (fleet.clone(), stores.to_vec());
    encode(Scrape { fleet, stores, prompt_queue: prompt_queue.clone(), tops: tops.clone() }, out)
}

/// Appends the text of a collector's metrics to `out`, with the prefix `kvatlas_` and without the final `# EOF` line.
///
/// # Errors
/// If writing to `out` fails.
pub fn encode(collector: impl Collector, out: &mut String) -> fmt::Result {
    let mut registry = Registry::with_prefix("kvatlas");
    registry.register_collector(Box::new(collector));
    encode_registry(out, &registry)
}

struct Scrape {
    fleet: Arc<Fleet>,
    /// Stores that are followed as pools.
    stores: Vec<Arc<PoolStore>>,
    prompt_queue: Arc<PromptQueue<Keyspace>>,
    /// Sites whose digests (summaries of their indexes) were received; empty in a service that receives none.
    tops: Arc<Tops>,
}

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        sites(&self.tops, &mut encoder)?;
        self.fleet(&mut encoder)?;
        self.keyspaces(&mut encoder)?;
        self.stores(&mut encoder)?;
        self.adoption(&mut encoder)?;
        self.snapshots(&mut encoder)?;
        self.relay(&mut encoder)?;
        self.streams(&mut encoder)
    }
}

fn sites(tops: &Tops, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let read = |top: Arc<Top>| {
        let (counts, list) = {
            let sites = top.read();
            (sites.counts(), sites.list(tops.now()))
        };
        (counts, list, top)
    };
    let all: Vec<_> = tops.all().into_iter().map(read).collect();
    let help = "Sites whose digests are taken in, by state: known, unknown or doubted";
    let mut family = describe(encoder, "sites", help, MetricType::Gauge)?;
    for (_, list, top) in &all {
        for state in [kvatlas_digest::State::Known, kvatlas_digest::State::Unknown, kvatlas_digest::State::Doubted] {
            let count = list.iter().filter(|site| site.state == state).count();
            let state = state_name(state);
            let labels = [("model", &*top.model), ("routing_group", &*top.routing_group), ("state", state)];
            gauge_of(&mut family, &labels, count as i64)?;
        }
    }
    type Getter = fn(&kvatlas_digest::Counts) -> u64;
    let gauges: [(&str, &str, Getter); 2] = [
        ("sites_marks", "Different marks of all sites", |counts| counts.marks),
        ("sites_bytes", "Memory of the index of sites in bytes", |counts| counts.bytes),
    ];
    for (name, help, read) in gauges {
        let mut family = describe(encoder, name, help, MetricType::Gauge)?;
        for (counts, _, top) in &all {
            let labels = [("model", &*top.model), ("routing_group", &*top.routing_group)];
            gauge_of(&mut family, &labels, read(counts) as i64)?;
        }
    }
    let help = "Digests of sites, by outcome: applied changes, whole ones, repeated, refused, or whole_wanted: refused until a whole one comes";
    let mut family = describe(encoder, "sites_digests", help, MetricType::Counter)?;
    for (counts, _, top) in &all {
        let (changes, of) =
            (counts.applied - counts.whole, [("model", &*top.model), ("routing_group", &*top.routing_group)]);
        for (outcome, count) in [
            ("applied", changes),
            ("whole", counts.whole),
            ("repeated", counts.repeated),
            ("whole_wanted", counts.whole_wanted),
            ("refused", counts.refused),
        ] {
            count_of(&mut family, &[of[0], of[1], ("outcome", outcome)], count)?;
        }
    }
    let help = "Claims of sites: compared with what there was, short of it, beyond the bounds, left_out of answers as the site is doubted, and probed nevertheless";
    let mut family = describe(encoder, "sites_claims", help, MetricType::Counter)?;
    for (counts, _, top) in &all {
        let of = [("model", &*top.model), ("routing_group", &*top.routing_group)];
        for (outcome, count) in [
            ("compared", counts.compared),
            ("short", counts.short),
            ("beyond", counts.beyond),
            ("left_out", counts.left_out),
            ("probed", counts.probes),
        ] {
            count_of(&mut family, &[of[0], of[1], ("outcome", outcome)], count)?;
        }
    }
    Ok(())
}

impl Scrape {
    fn fleet(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "build_info", "Always 1; the version is a label", MetricType::Gauge)?;
        gauge_of(&mut family, &[("version", VERSION)], 1)?;
        let fleet = &self.fleet;
        gauge(encoder, "ready", "1 if the service is ready, else 0", i64::from(fleet.is_ready()))?;
        let unsettled = fleet.waiting().streams.len() as i64;
        let help = "Streams whose first replay has neither finished nor been given up";
        gauge(encoder, "streams_unsettled", help, unsettled)?;
        gauge(encoder, "workers", "Registered workers", fleet.workers().len() as i64)?;
        let engines = fleet.engines();
        let help = "Engines and streams of the configuration, registered or not, by state";
        let mut family = describe(encoder, "engines", help, MetricType::Gauge)?;
        for state in EngineState::ALL {
            let count = engines.iter().filter(|engine| engine.state == state).count();
            gauge_of(&mut family, &[("state", state.name())], count as i64)?;
        }
        let shared = fleet.shared();
        gauge(encoder, "buffered_bytes", "Bytes in the buffers of all streams together", shared.buffered() as i64)?;
        let help = "How often something was refused or dropped because a limit was reached, by limit";
        let mut family = describe(encoder, "limits_reached", help, MetricType::Counter)?;
        for limit in Limit::ALL {
            count_of(&mut family, &[("limit", limit.name())], shared.reached(limit))?;
        }
        let publishers = fleet.publishers();
        let help = "Engines that have connected to an address of streams.bind";
        gauge(encoder, "publishers", help, publishers.connections() as i64)?;
        let help = "Refused connections to the addresses of streams.bind, by reason: not_allowed by streams.allow, or too_many beyond limits.streams";
        let mut family = describe(encoder, "publishers_refused", help, MetricType::Counter)?;
        for (reason, count) in publishers.refused() {
            count_of(&mut family, &[("reason", reason)], count)?;
        }
        let help = "Batches dropped because no stream is registered for their topic";
        counter(encoder, "unknown_topic_batches", help, publishers.unknown_topics())
    }

    fn adoption(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, count) in self.prompt_queue.counts.all() {
            counter(encoder, name, help, count)?;
        }
        let help = "Processor time of learning blocks announced before the service started, in seconds";
        let busy = self.prompt_queue.busy_micros.load(Relaxed) as f64 / 1e6;
        ConstCounter::new(busy).encode(describe(encoder, "adopt_busy_seconds", help, MetricType::Counter)?)?;
        let mut parents = 0;
        for keyspace in self.fleet.keyspaces() {
            keyspace.each_late(|_, _, _, late| parents += late.frontier().len() as i64);
        }
        let help = "Blocks proved to be held, with all blocks before them, whose content is not known yet";
        gauge(encoder, "adopt_unknown_parents", help, parents)
    }

    fn snapshots(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = &self.fleet.snapshots().counts;
        let help = "Streams of which a snapshot had blocks, by outcome";
        let mut family = describe(encoder, "snapshot_streams", help, MetricType::Counter)?;
        for outcome in Outcome::ALL {
            count_of(&mut family, &[("outcome", outcome.name())], counts.outcome(outcome))?;
        }
        let help = "Snapshots that could not be loaded: damaged, of another version, or not to be had";
        counter(encoder, "snapshots_refused", help, counts.refused.load(Relaxed))?;
        let help = "Snapshots written to disk";
        counter(encoder, "snapshot_writes", help, counts.writes.load(Relaxed))?;
        let help = "Snapshots that could not be written to disk; the one before stays";
        counter(encoder, "snapshot_failed_writes", help, counts.failed_writes.load(Relaxed))?;
        // Of none, nothing but zeros.
        let (mut sizes, mut times, mut skipped) = ([0.0; 3], [0.0; 2], [0; Skip::ALL.len()]);
        if let Some(last) = counts.last() {
            let since = last.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            sizes = [last.written.bytes, last.written.blocks, last.written.distinct].map(|count| count as f64);
            (times, skipped) = ([since.as_secs_f64(), last.took.as_secs_f64()], last.skipped);
        }
        for (name, help, value) in [
            (
                "snapshot_last_write_timestamp_seconds",
                "When the last snapshot was written, in seconds since 1970",
                times[0],
            ),
            ("snapshot_last_write_seconds", "Seconds that the last write of a snapshot took", times[1]),
            ("snapshot_bytes", "Bytes of the last snapshot", sizes[0]),
            ("snapshot_blocks", "Blocks in the last snapshot, summed over ranks", sizes[1]),
            ("snapshot_distinct_blocks", "Different blocks in the last snapshot", sizes[2]),
        ] {
            ConstGauge::new(value).encode(describe(encoder, name, help, MetricType::Gauge)?)?;
        }
        let help = "Streams that are not in the last snapshot, by reason: nothing is held, unproven, hybrid model, changing all the time, or no_answer in time";
        let mut family = describe(encoder, "snapshot_skipped_streams", help, MetricType::Gauge)?;
        for (skip, count) in Skip::ALL.into_iter().zip(skipped) {
            gauge_of(&mut family, &[("reason", skip.name())], count as i64)?;
        }
        Ok(())
    }

    fn relay(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, count) in self.fleet.relay().counts.all() {
            counter(encoder, name, help, count)?;
        }
        let help = "Bytes that wait to be published to the log, or to be acknowledged by it";
        gauge(encoder, "relay_buffered_bytes", help, self.fleet.relay().buffered() as i64)
    }

    fn keyspaces(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<_> =
            self.fleet.keyspaces().into_iter().map(|keyspace| (keyspace.index().stats(), keyspace)).collect();
        type Getter = fn(&Stats) -> u64;
        let gauges: [(&str, &str, Getter); 5] = [
            ("index_blocks", "Blocks held on all tiers, summed over ranks", |stats| stats.blocks),
            (
                "index_unlinked_blocks",
                "Blocks on devices that match nothing because an earlier block of their chain is missing",
                |stats| stats.unlinked,
            ),
            ("index_positions", "Distinct blocks of all chains", |stats| stats.positions),
            ("index_copies", "Copies of blocks on devices beyond the first", |stats| stats.copies),
            ("index_bytes", "Memory of the index in bytes", |stats| stats.bytes),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for (stats, keyspace) in &all {
                let labels = [("model", &*keyspace.model), ("routing_group", &*keyspace.routing_group)];
                gauge_of(&mut family, &labels, read(stats) as i64)?;
            }
        }
        let mut family = describe(encoder, "pool_blocks", "Blocks in each pool", MetricType::Gauge)?;
        for (_, keyspace) in &all {
            for (pool, blocks) in keyspace.index().pool_sizes() {
                let of = [("model", &*keyspace.model), ("routing_group", &*keyspace.routing_group), ("pool", &*pool)];
                gauge_of(&mut family, &of, blocks as i64)?;
            }
        }
        let help = "Blocks of pools that their store has named, and that count once an engine announces their contents";
        let mut family = describe(encoder, "pool_waiting_blocks", help, MetricType::Gauge)?;
        for (_, keyspace) in &all {
            for (pool, blocks) in keyspace.index().unmeant_in_pools() {
                let of = [("model", &*keyspace.model), ("routing_group", &*keyspace.routing_group), ("pool", &*pool)];
                gauge_of(&mut family, &of, blocks as i64)?;
            }
        }
        self.listings(encoder)?;
        let help = "Blocks removed from pools, by reason: \"gone\" if a look at the pool's directory or store, or an event of the store, showed it; \"not_loaded\" if an engine that should have loaded them reported fewer cached tokens";
        let mut family = describe(encoder, "pool_gone_blocks", help, MetricType::Counter)?;
        for (_, keyspace) in &all {
            for (reason, count) in [("gone", &keyspace.gone_from_pools), ("not_loaded", &keyspace.missed_in_pools)] {
                let (model, group) = (&*keyspace.model, &*keyspace.routing_group);
                let labels = [("model", model), ("routing_group", group), ("reason", reason)];
                count_of(&mut family, &labels, count.load(Relaxed))?;
            }
        }
        let help = "How often the index was rebuilt from its streams after an internal error";
        let mut family = describe(encoder, "index_rebuilds", help, MetricType::Counter)?;
        for (_, keyspace) in &all {
            let labels = [("model", &*keyspace.model), ("routing_group", &*keyspace.routing_group)];
            count_of(&mut family, &labels, keyspace.rebuilds())?;
        }
        Ok(())
    }

    fn stores(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Getter = fn(&StoreCounts) -> &AtomicU64;
        let gauges: [(&str, &str, Getter); 4] = [
            ("pool_store_blocks", "Blocks in a pool's store, of all models, when its keys were last looked at", |it| {
                &it.blocks
            }),
            ("pool_store_broken_blocks", "Blocks of which the store lacked objects then: of some ranks only", |it| {
                &it.broken
            }),
            ("pool_store_publishes", "1 if the store says that it publishes events, else 0", |it| &it.publishes),
            ("pool_store_whole", "1 if no event of the store was missed since its keys were looked at, else 0", |it| {
                &it.whole
            }),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for store in &self.stores {
                gauge_of(&mut family, &[("pool", store.name())], read(&store.counts).load(Relaxed) as i64)?;
            }
        }
        let counters: [(&str, &str, Getter); 6] = [
            ("pool_store_looks", "Looks at the keys of a pool's store", |it| &it.looks),
            ("pool_store_failed_looks", "Looks for which the store did not answer with its keys", |it| {
                &it.failed_looks
            }),
            ("pool_store_events", "Events of a pool's store that were read", |it| &it.events),
            ("pool_store_gaps", "Gaps in the events of a pool's store, after which its keys are looked at", |it| {
                &it.gaps
            }),
            ("pool_store_unread", "Keys and events of a pool's store of no known form or of another tenant", |it| {
                &it.unread
            }),
            (
                "pool_store_refused_blocks",
                "Blocks named by a pool's store that were left out, as too many others wait for their contents",
                |it| &it.refused,
            ),
        ];
        for (name, help, read) in counters {
            let mut family = describe(encoder, name, help, MetricType::Counter)?;
            for store in &self.stores {
                count_of(&mut family, &[("pool", store.name())], read(&store.counts).load(Relaxed))?;
            }
        }
        Ok(())
    }

    /// Metrics of pools that LMCache fills.
    fn listings(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.fleet.pools().iter();
        let all: Vec<_> = pools.filter_map(|pool| Some((&*pool.name, &*pool.lmcache.as_ref()?.listed))).collect();
        let help = "Listings of pools that LMCache fills, by result";
        let mut family = describe(encoder, "pool_listings", help, MetricType::Counter)?;
        for (pool, listed) in &all {
            for (result, count) in [("complete", &listed.completed), ("failed", &listed.failed)] {
                count_of(&mut family, &[("pool", *pool), ("result", result)], count.load(Relaxed))?;
            }
        }
        let help = "Prompts of which LMCache's chunks are not looked up, as its keys do not tell their adapters apart";
        let mut family = describe(encoder, "pool_adapter_prompts", help, MetricType::Counter)?;
        for (pool, listed) in &all {
            count_of(&mut family, &[("pool", *pool)], listed.adapters.load(Relaxed))?;
        }
        let last: Vec<_> = all.iter().filter_map(|(pool, listed)| Some((*pool, listed.last()?))).collect();
        let help = "Chunks in the last complete listing of a pool that LMCache fills";
        let mut family = describe(encoder, "pool_listed_chunks", help, MetricType::Gauge)?;
        for (pool, (chunks, ..)) in &last {
            gauge_of(&mut family, &[("pool", *pool)], *chunks as i64)?;
        }
        let help = "Seconds since the last complete listing of a pool that LMCache fills began";
        let mut family = describe(encoder, "pool_listing_age_seconds", help, MetricType::Gauge)?;
        for (pool, (_, age, _)) in &last {
            gauge_of(&mut family, &[("pool", *pool)], *age)?;
        }
        let help = "Keys in the last complete listing of a pool that do not count, by reason";
        let mut family = describe(encoder, "pool_left_out_keys", help, MetricType::Gauge)?;
        for (pool, (.., left_out)) in &last {
            for (why, count) in LeftOut::ALL.iter().zip(left_out) {
                gauge_of(&mut family, &[("pool", *pool), ("reason", why.name())], *count as i64)?;
            }
        }
        Ok(())
    }

    fn streams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let streams: Vec<(String, Arc<Stream>)> = self
            .fleet
            .workers()
            .into_iter()
            .flat_map(|worker| worker.streams.into_iter().map(|(rank, stream)| (rank.to_string(), stream)))
            .collect();
        let mut family = describe(encoder, "streams", "Streams, by state", MetricType::Gauge)?;
        for state in State::ALL {
            let count = streams.iter().filter(|(_, stream)| stream.status.state() == state).count();
            gauge_of(&mut family, &[("state", state.name())], count as i64)?;
        }
        let untrusted = streams.iter().filter(|(_, stream)| !stream.status.is_trusted()).count();
        gauge(
            encoder,
            "streams_untrusted",
            "Untrusted streams: their known blocks may differ from what the engine holds",
            untrusted as i64,
        )?;
        let partial = streams.iter().filter(|(_, stream)| stream.status.partial.load(Relaxed)).count();
        let help = "Streams that started late or lost batches that no replay recovered";
        gauge(encoder, "streams_partial", help, partial as i64)?;

        let no_salts = streams.iter().filter(|(_, stream)| stream.status.no_salts.load(Relaxed)).count();
        let help = "Streams of engines that do not report cache salts";
        gauge(encoder, "streams_no_salts", help, no_salts as i64)?;

        let help = "Seconds from the engine's timestamp in a live batch until the batch was visible in answers";
        let mut family = describe(encoder, "event_lag_seconds", help, MetricType::Histogram)?;
        let (counts, sum) = self.fleet.shared().lags();
        let bounds = LAG_SECONDS.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        family.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)?;

        let help = "How many seconds the stream is behind: the lag of its last live batch, or the silence of an engine that should have answered";
        let mut family = describe(encoder, "stream_lag_seconds", help, MetricType::Gauge)?;
        for (rank, stream) in &streams {
            if let Some(lag) = self.fleet.lag(stream) {
                let labels = [("worker", &*stream.worker), ("rank", rank)];
                family.encode_family(&labels)?.encode_gauge(&lag.as_secs_f64())?;
            }
        }

        type Getter = fn(&Stream) -> Option<f64>;
        let gauges: [(&str, &str, Getter); 4] = [
            ("stream_lag_max_seconds", "The longest lag so far, in seconds", |stream| {
                Some(stream.status.lag_max().as_secs_f64())
            }),
            ("stream_silence_seconds", "Seconds since the last message of the engine", |stream| {
                stream.status.silence().map(|silence| silence.as_secs_f64())
            }),
            ("stream_buffered_batches", "Batches buffered during a replay", |stream| {
                Some(stream.status.buffered.load(Relaxed) as f64)
            }),
            ("stream_epoch", "Number of the epoch: 0 at first, one more for each restart of the engine", |stream| {
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
        let help = "Events or blocks refused, for each reason that has occurred";
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

/// Declares a family of metrics (one name with several labels), and returns the encoder for its members.
///
/// # Errors
/// If writing the output fails.
pub fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
    kind: MetricType,
) -> Result<MetricEncoder<'e>, std::fmt::Error> {
    encoder.encode_descriptor(name, help, None, kind)
}

/// Writes a counter without labels.
///
/// # Errors
/// If writing the output fails.
pub fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(describe(encoder, name, help, MetricType::Counter)?)
}

/// Writes a gauge without labels.
///
/// # Errors
/// If writing the output fails.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: i64) -> fmt::Result {
    ConstGauge::new(value).encode(describe(encoder, name, help, MetricType::Gauge)?)
}

/// Writes a counter with these labels, as a member of a family of metrics.
///
/// # Errors
/// If writing the output fails.
pub fn count_of<const N: usize>(family: &mut MetricEncoder<'_>, labels: &[(&str, &str); N], value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(family.encode_family(labels)?)
}

/// Writes a gauge with these labels, as a member of a family of metrics.
///
/// # Errors
/// If writing the output fails.
pub fn gauge_of<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    ConstGauge::new(value).encode(family.encode_family(labels)?)
}
