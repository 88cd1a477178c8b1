//! Properties of the machine of a load test: its clock and the cost of reading it, pinning of threads, exact sleeps,
//! and the memory of the process. Functions without support by the system return nothing.

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

use crate::error::Error;

/// Pins the calling thread, and threads it will start, to the given processors.
///
/// # Errors
/// [`Error::Options`] if a processor does not exist, or the system has no pinning.
pub(crate) fn pin(cpus: &[usize]) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::CpuSet;
        let mut set = CpuSet::new();
        for &cpu in cpus {
            if cpu >= CpuSet::MAX_CPU {
                return Err(Error::Options(format!("pin: there is no CPU {cpu}")));
            }
            set.set(cpu);
        }
        rustix::thread::sched_setaffinity(None, &set)
            .map_err(|error| Error::Options(format!("pin: CPUs {cpus:?}: {error}")))
    }
    #[cfg(not(target_os = "linux"))]
    Err(Error::Options("pin: threads can be pinned on Linux only".to_owned()))
}

/// Makes the calling thread's sleeps end on time: Linux otherwise adds up to 50 µs to save wake-ups.
pub(crate) fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    {
        // Without it only the generator's lag is larger, which is reported.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

/// Memory of the process that is resident in RAM, in bytes; `None` if the system does not report it.
pub(crate) fn resident_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Properties of the clock, measured just before a load test.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clock {
    /// Median time between two consecutive readings of the clock, in ns. It is subtracted from every measured service
    /// time.
    pub cost_ns: u64,
    /// Smallest difference between two different readings of the clock, in ns. Some processors' clocks advance in steps
    /// of ten or more: a percentile cannot be finer.
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
        // Consecutive readings may all differ by one step; short busy loops of all lengths show the steps.
        let mut lengths: Vec<u64> = (0..READINGS).map(|i| reading(i % 64)).collect();
        lengths.sort_unstable();
        // The slowest tenth contains the interruptions.
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

/// Time since `start`, in ns; 0 before `start`.
#[inline]
pub(crate) fn nanoseconds(start: Instant) -> u64 {
    between(start, Instant::now())
}

/// Time from one reading of the clock to another, in ns; 0 if they are in the other order.
#[inline]
pub(crate) fn between(start: Instant, end: Instant) -> u64 {
    // Enough for 584 years.
    end.saturating_duration_since(start).as_nanos() as u64
}
