//! A fleet described in JSON, in the same words for services, routers and Python.

mod workers;

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json as value};

pub use self::workers::list as workers;
use crate::fleet::{Blockers, EngineView, Fleet};
use crate::snapshot::LastWrite;

/// The version of kvatlas.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Parts of the fleet that are not complete; none if all are.
#[must_use]
pub fn not_ready(fleet: &Fleet) -> Option<Value> {
    let incomplete = fleet.waiting();
    (!incomplete.is_over()).then(|| waiting(&incomplete))
}

/// Streams, engines and holds that readiness waits for.
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

/// Engines that discovery follows, registered or not.
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

/// State of the snapshots on disk; none if there are none. A full disk is no reason to restart a service that answers.
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

/// State of the connection to the log; none without a log. A lost log is no reason to restart a service that answers.
#[must_use]
pub fn log(fleet: &Fleet) -> Option<Value> {
    let log = fleet.relay();
    (log.publishes() || log.reads()).then(|| value!({ "connected": log.is_connected(), "error": log.link.trouble() }))
}

/// True if a name is a 64-bit integer in its usual notation.
#[must_use]
pub fn is_number(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    digits && (bytes[0] != b'0' || bytes.len() == 1) && (bytes.len() < 20 || name.parse::<u64>().is_ok())
}

/// Name of a worker as JSON: a number if it looks like one.
#[must_use]
pub fn id_value(name: &str) -> serde_json::Value {
    match name.parse::<u64>() {
        Ok(number) if is_number(name) => number.into(),
        _ => name.into(),
    }
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
