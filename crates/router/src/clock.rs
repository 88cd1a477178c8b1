//! Clock of the whole router: the time since the start of the process.

use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the seconds since the first reading of the clock; never decreases.
#[must_use]
pub(crate) fn seconds() -> f64 {
    START.elapsed().as_secs_f64()
}

/// Returns the whole milliseconds since the first reading of the clock plus 1, so that the result is never 0.
pub(crate) fn millis() -> u64 {
    START.elapsed().as_millis() as u64 + 1
}
