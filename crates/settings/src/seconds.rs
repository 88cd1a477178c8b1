//! Durations in configurations: numbers of seconds.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

/// Reads a duration.
///
/// # Errors
/// If it is no number from 0 on.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| D::Error::custom(format!("a duration is a number of seconds from 0 on, got {seconds}")))
}
