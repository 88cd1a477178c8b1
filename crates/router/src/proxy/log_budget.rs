//! Lines of the log that an outage would repeat for every request: some are written each minute, the others are counted.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines of a kind that are written a minute.
const LINES: u32 = 32;
const MINUTE: Duration = Duration::from_secs(60);

/// The lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogBudget(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// The beginning of the minute that counts.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogBudget {
    /// Returns the number of lines that were left out before this one; none if this one is left out too.
    pub(crate) fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.since.is_none_or(|since| now - since >= MINUTE) {
            (lines.since, lines.written) = (Some(now), 0);
        }
        if lines.written >= LINES {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_a_minute() {
        let (budget, start) = (LogBudget::default(), Instant::now());
        let written = (0..1_000).filter(|_| budget.take_at(start).is_some()).count();
        assert_eq!(written, LINES as usize);
        assert_eq!(budget.take_at(start + MINUTE), Some(1_000 - u64::from(LINES)));
        assert_eq!(budget.take_at(start + MINUTE), Some(0));
    }
}
