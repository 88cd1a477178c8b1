//! The state of what is kept beside the index: snapshots on disk, and the log between services.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json as value};

use crate::fleet::Fleet;
use crate::snapshot::LastWrite;

/// The state of the snapshots on disk; nothing if none are kept. A full disk is no reason to restart a service that answers.
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

/// The state of the log; nothing if there is none. Who answers from what it has is not to be restarted for it.
#[must_use]
pub fn log(fleet: &Fleet) -> Option<Value> {
    let log = fleet.relay();
    (log.publishes() || log.reads()).then(|| value!({ "connected": log.is_connected(), "error": log.trouble() }))
}
