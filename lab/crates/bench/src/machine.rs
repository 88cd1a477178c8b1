//! A run's requests to the operating system: the processors that a thread runs on, exact sleeps, the memory of the
//! process. Where the system has no answer, there is none.

use crate::error::Error;

/// Keeps this thread, and the threads it will start, on the given processors.
///
/// # Errors
/// [`Error::Options`] if there is no such processor, or no pinning on this system.
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

/// Makes this thread's sleeps end when they should: Linux otherwise adds up to 50 µs to save wake-ups.
pub(crate) fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    {
        // Not being able to only makes the generator's lag larger, which is reported.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

/// Number of bytes of memory that the process has in use.
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
