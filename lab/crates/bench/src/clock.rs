//! The clock of this machine, and the cost of reading it.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

/// The clock as measured just before the run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clock {
    /// Median of the ns between two readings with nothing between them: taken off every service time.
    pub cost_ns: u64,
    /// The fewest ns between two different readings. Some processors' clocks step by ten or more: a percentile cannot
    /// be finer.
    pub step_ns: u64,
}

const READINGS: u32 = 20_000;

impl Clock {
    pub(crate) fn measure() -> Self {
        let reading = |work: u32| {
            let start = Instant::now();
            (0..work).for_each(|i| {
                black_box(i);
            });
            nanoseconds(start)
        };
        let mut empty: Vec<u64> = (0..READINGS).map(|_| reading(0)).collect();
        let middle = empty.len() / 2;
        let cost_ns = *empty.select_nth_unstable(middle).1;
        // Times of nothing may all be one step; times of all short lengths show the steps.
        let mut lengths: Vec<u64> = (0..READINGS).map(|i| reading(i % 64)).collect();
        lengths.sort_unstable();
        // The slowest tenth holds the interruptions, whose values say nothing.
        lengths.truncate(lengths.len() * 9 / 10);
        lengths.dedup();
        // Neighbours one apart are one value, rounded.
        let starts: Vec<u64> =
            (0..lengths.len()).filter(|&i| i == 0 || lengths[i] > lengths[i - 1] + 1).map(|i| lengths[i]).collect();
        let mut gaps: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        Self { cost_ns, step_ns: gaps.get(gaps.len() / 2).copied().unwrap_or(1) }
    }
}

/// Number of ns since `start`; 0 before it.
#[inline]
pub(crate) fn nanoseconds(start: Instant) -> u64 {
    between(start, Instant::now())
}

/// Number of ns from one reading to another; 0 if they are the other way round.
#[inline]
pub(crate) fn between(start: Instant, end: Instant) -> u64 {
    // 584 years fit.
    end.saturating_duration_since(start).as_nanos() as u64
}
