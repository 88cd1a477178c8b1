//! Descriptions of a fleet's state in JSON, with equal fields for services, routers and Python.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvatlas_index::{RankStats, Tier};
use kvatlas_stream::{Outcome, State};
use kvatlas_wire::Reason;
use serde_json::{Map, Value, json as value, json};

use crate::fleet::{Blockers, EngineView, Fleet, WorkerView};
use crate::snapshot::LastWrite;
use crate::state::{Counters, Keyspace, Stream};

/// Version of kvatlas.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the unmet conditions of the service's readiness as JSON; `None` if the service is ready.
#[must_use]
pub fn not_ready(fleet: &Fleet) -> Option<Value> {
    let incomplete = fleet.waiting();
    (!incomplete.is_over()).then(|| waiting(&incomplete))
}

/// Converts the unmet conditions of the service's readiness to JSON.
#[must_use]
pub fn waiting(waiting: &Blockers) -> Value {
    let streams: Vec<_> = waiting
        .streams
        .iter()
        .map(|(worker, rank, state)| value!({ "instance_id": id_value(worker), "dp_rank": rank, "state": state }))
        .collect();
    let engines: Vec<_> = waiting.engines.iter().map(engine).collect();
    value!({ "holds": waiting.holds, "streams": streams, "engines": engines, "draining": waiting.draining })
}

/// Returns the engines that were found automatically or configured, whether registered or not, as JSON.
#[must_use]
pub fn engines(fleet: &Fleet) -> Value {
    fleet.engines().iter().map(engine).collect()
}

fn engine(engine: &EngineView) -> Value {
    value!({
        "instance_id": id_value(&engine.worker),
        "dp_rank": engine.rank,
        "url": *engine.url,
        "state": engine.state.name(),
        "code": engine.code.as_deref(),
        "reason": engine.reason.as_deref(),
        "since_ms": engine.since.as_millis() as u64,
    })
}

/// Returns the state of the snapshots on disk as JSON; `None` if none are kept on disk. A failure, such as a full disk,
/// does not affect the service's health, because a restart would not help.
#[must_use]
pub fn snapshots(fleet: &Fleet) -> Option<Value> {
    let snapshots = fleet.snapshots();
    snapshots.config.dir.as_ref()?;
    let counts = &snapshots.counts;
    let last = counts.last().map(|LastWrite { written, took, ended, skipped, .. }| {
        value!({
            "age_s": ended.elapsed().as_secs_f64(),
            "took_s": took.as_secs_f64(),
            "bytes": written.bytes,
            "streams": written.streams,
            "left_out": skipped.iter().sum::<u64>(),
            "blocks": written.blocks,
        })
    });
    Some(value!({ "error": counts.error(), "failed_writes": counts.failed_writes.load(Relaxed), "last": last }))
}

/// Returns the state of the connection to the NATS log as JSON; `None` if no log is configured. A lost connection does
/// not affect the service's health, because a restart would not help.
#[must_use]
pub fn log(fleet: &Fleet) -> Option<Value> {
    let log = fleet.relay();
    (log.publishes() || log.reads()).then(|| value!({ "connected": log.is_connected(), "error": log.link.trouble() }))
}

/// True if a name is a non-negative 64-bit integer in plain decimal digits, without leading zeros.
#[must_use]
pub fn is_number(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    digits && (bytes[0] != b'0' || bytes.len() == 1) && (bytes.len() < 20 || name.parse::<u64>().is_ok())
}

/// Converts a worker's name to JSON: a number if the name is one, else a string.
#[must_use]
pub fn id_value(name: &str) -> serde_json::Value {
    match name.parse::<u64>() {
        Ok(number) if is_number(name) => number.into(),
        _ => name.into(),
    }
}

/// Numbers of blocks held by ranks, by worker and rank.
type Blocks = HashMap<(Arc<str>, u32), BlockCounts>;

#[derive(Clone, Copy, Default)]
struct BlockCounts {
    blocks: u64,
    unlinked: u64,
    fingerprint: u64,
}

/// Describes workers in JSON: those of one model, given by any of its names, and of one routing group; `None` for all
/// models or all routing groups.
#[must_use]
pub fn workers(fleet: &Fleet, model: Option<&str>, routing_group: Option<&str>) -> Value {
    let wanted = |worker: &WorkerView| {
        let names = || worker.names.aliases.iter().chain(&worker.names.adapters);
        model.is_none_or(|model| *worker.keyspace.model == *model || names().any(|name| name == model))
            && routing_group.is_none_or(|group| *worker.keyspace.routing_group == *group)
    };
    // Counting takes the index's write lock: once for each keyspace, not for each worker.
    let mut held: HashMap<*const Keyspace, Blocks> = HashMap::new();
    let workers = fleet.workers().into_iter().filter(wanted);
    let one = |worker: WorkerView| {
        let key = &raw const *worker.keyspace;
        let blocks = held.entry(key).or_insert_with(|| blocks(&worker.keyspace));
        describe(fleet, &worker, blocks)
    };
    workers.map(one).collect()
}

fn blocks(keyspace: &Keyspace) -> Blocks {
    let of = |rank: RankStats| {
        let blocks = rank.device_blocks + rank.offloaded_blocks;
        let held = BlockCounts { blocks, unlinked: rank.unlinked, fingerprint: rank.fingerprint };
        ((rank.worker, rank.rank), held)
    };
    keyspace.index().ranks().into_iter().map(of).collect()
}

fn describe(fleet: &Fleet, worker: &WorkerView, blocks: &Blocks) -> Value {
    let mut endpoints = Map::new();
    let mut listeners = Map::new();
    let mut streams = Map::new();
    for (rank, stream) in &worker.streams {
        let rank = rank.to_string();
        let endpoint = stream.registration.endpoint.as_str();
        let mut listener = json!({ "endpoint": endpoint, "status": status(stream.status.state()) });
        if let Some(error) = last_error(stream) {
            listener["last_error"] = error.into();
        }
        endpoints.insert(rank.clone(), endpoint.into());
        listeners.insert(rank.clone(), listener);
        streams.insert(rank, describe_stream(fleet, stream, blocks, &worker.keyspace));
    }
    let states = worker.streams.iter().map(|(_, stream)| status(stream.status.state()));
    let source = worker.streams.first().map_or("zmq", |(_, stream)| &stream.registration.source);
    json!({
        "instance_id": id_value(&worker.name),
        "source": source,
        "status": states.max_by_key(|status| severity(status)).unwrap_or("pending"),
        "model_name": worker.keyspace.model,
        "aliases": worker.names.aliases,
        "adapters": worker.names.adapters,
        "routing_group": worker.keyspace.routing_group,
        "block_size": worker.keyspace.block_size,
        "endpoints": endpoints,
        "listeners": listeners,
        "streams": streams,
    })
}

/// Returns the name that a stream's state has in Dynamo's HTTP interface.
fn status(state: State) -> &'static str {
    match state {
        State::Connecting | State::Replaying => "pending",
        State::Live | State::Gap | State::Conflict => "active",
        State::Stale | State::Limited | State::Unreadable => "failed",
        State::Stopped => "paused",
    }
}

/// Returns the severity of a stream's state, given by its name in Dynamo's HTTP interface; greater is worse. A worker's
/// state is the most severe one of its streams.
fn severity(status: &str) -> usize {
    ["paused", "active", "pending", "failed"].iter().position(|name| *name == status).unwrap_or(0)
}

fn describe_stream(fleet: &Fleet, stream: &Stream, blocks: &Blocks, keyspace: &Keyspace) -> Value {
    let status = &stream.status;
    let ranks = stream.ranks();
    let held = ranks.iter().fold(BlockCounts::default(), |sum, rank| {
        let held = blocks.get(&(stream.worker.clone(), *rank)).copied().unwrap_or_default();
        BlockCounts { blocks: sum.blocks + held.blocks, unlinked: sum.unlinked + held.unlinked, fingerprint: 0 }
    });
    // In hexadecimal: not every reader of JSON keeps integers of 64 bits.
    let fingerprint = |rank: &u32| {
        let held = blocks.get(&(stream.worker.clone(), *rank)).copied().unwrap_or_default();
        (rank.to_string(), format!("{:016x}", held.fingerprint).into())
    };
    let fingerprints: Map<String, Value> = ranks.iter().map(fingerprint).collect();
    let counters: Map<String, Value> = Counters::NAMES
        .iter()
        .zip(status.counters.values())
        .map(|((name, _), count)| ((*name).into(), count.into()))
        .collect();
    let refused: Map<String, Value> = Reason::ALL
        .iter()
        .zip(status.refused())
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.code().into(), count.into()))
        .collect();
    let mut described = json!({
        "endpoint": stream.registration.endpoint.as_str(),
        "replay_endpoint": stream.registration.replay_endpoint.as_ref().map(|endpoint| endpoint.as_str()),
        "topic": stream.registration.topic,
        "count_copies": stream.registration.count_copies,
        "host_chunk": stream.registration.host_chunk,
        "state": status.state().name(),
        "trusted": status.is_trusted(),
        "settled": status.is_settled(),
        "partial": status.partial.load(Relaxed),
        "unverified": status.unverified.load(Relaxed),
        "no_salts": status.no_salts.load(Relaxed),
        "upper_bound": status.upper_bound.load(Relaxed),
        "epoch": status.epoch.load(Relaxed),
        "seq": status.last_seq(),
        "lag_ms": fleet.lag(stream).map(millis),
        "lag_max_ms": millis(status.lag_max()),
        "silence_ms": status.silence().map(millis),
        "blocks": held.blocks,
        "unlinked": held.unlinked,
        "undescribed": status.undescribed.load(Relaxed),
        "buffered": status.buffered.load(Relaxed),
        "counters": counters,
        "refused": refused,
        "ranks": ranks,
        "fingerprints": fingerprints,
    });
    let chunks: Map<String, Value> = Tier::ALL[1..]
        .iter()
        .zip(status.chunks())
        .filter(|(_, blocks)| *blocks > 0)
        .map(|(tier, blocks)| (tier.name().into(), blocks.into()))
        .collect();
    if !chunks.is_empty() {
        described["chunks"] = chunks.into();
    }
    if let Some(snapshot) = stream.status.from_snapshot() {
        described["snapshot"] = json!({
            "from": snapshot.kind,
            "created": snapshot.created,
            "blocks": snapshot.blocks,
            "outcome": snapshot.outcome.map_or("proving", Outcome::name),
        });
    }
    if let Some(adoption) = adoption(stream, keyspace) {
        described["adoption"] = adoption;
    }
    if let Some(limit) = status.limit() {
        described["limit"] = limit.name().into();
    }
    if let Some(error) = last_error(stream) {
        described["last_error"] = error.into();
    }
    if let Some((error, ago)) = status.previous_error() {
        described["previous_error"] = error.into();
        described["previous_error_ms"] = millis(ago).into();
    }
    described
}

/// Returns the current error of a stream, or of publishing the stream to the NATS log; `None` if there is none.
fn last_error(stream: &Stream) -> Option<String> {
    let not_published = || Some(format!("it is not published: {}", stream.outlet()?.trouble()?));
    stream.status.last_error().or_else(not_published)
}

/// Reason, for the description of a worker, why queries cannot reveal blocks that were announced before this service
/// followed the engine.
const NO_TOKENS: &str = "the last query had content hashes, from which block hashes cannot be computed: send token_ids, or \
                         report cached_tokens to POST /observed";

/// Returns the counts of a stream's adopted blocks (blocks announced before the service followed the engine) as JSON;
/// `None` if no blocks with unknown contents were proved to be held.
fn adoption(stream: &Stream, keyspace: &Keyspace) -> Option<Value> {
    let proven_blocks = stream.proven_blocks();
    let mut counts = kvatlas_adopt::Counts::default();
    let (mut parents, mut expired) = (0, 0);
    let (mut dialect, mut why_not, mut any) = (None, None, false);
    for late in proven_blocks.all() {
        counts += late.counts;
        parents += late.frontier().len();
        expired += late.frontier().expired();
        any |= late.is_late();
        dialect = late.dialect().map(ToString::to_string).or(dialect);
        why_not = late.why_not().or(why_not);
    }
    let misses_tokens = parents > 0 && why_not.is_none() && keyspace.misses_tokens();
    any.then(|| {
        json!({
            "dialect": dialect,
            "unknown_parents": parents,
            "expired": expired,
            "blocks": counts.blocks,
            "contrary": counts.contrary,
            "other_names": counts.other_names,
            "cannot": why_not,
            "hint": misses_tokens.then_some(NO_TOKENS),
        })
    })
}

fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_numbers() {
        for (name, number) in [
            ("0", true),
            ("7", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("99999999999999999999", false),
            ("007", false),
            ("00", false),
            ("-1", false),
            ("", false),
            ("7a", false),
            ("+7", false),
            ("123456789012345678901", false),
        ] {
            assert_eq!(is_number(name), number, "{name}");
            assert_eq!(id_value(name).is_u64(), number, "{name}");
        }
    }
}
