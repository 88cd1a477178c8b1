//! Requests of a run to the operating system: pinning of threads, exact sleeps, the memory of the process. Absent where
//! the system has no support.

use crate::error::Error;

/// Pins this thread, and the threads it will start, to the given processors.
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

/// Makes this thread's sleeps end on time: Linux otherwise adds up to 50 µs to save wake-ups.
pub(crate) fn sleep_exactly() {
    #[cfg(target_os = "linux")]
    {
        // Without it only the generator's lag is larger, which is reported.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

/// Resident memory of the process, in bytes.
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
