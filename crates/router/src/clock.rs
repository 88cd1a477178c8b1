//! Time since the start of the process, on one clock for the whole router.

use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Seconds since the clock was first read; never decreases.
#[must_use]
pub(crate) fn seconds() -> f64 {
    START.elapsed().as_secs_f64()
}

/// Whole milliseconds since the clock was first read, plus 1, so never 0.
pub(crate) fn millis() -> u64 {
    START.elapsed().as_millis() as u64 + 1
}
