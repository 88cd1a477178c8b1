//! A test of whether a message is of now. Clocks of several machines do not show that. So the log is asked each second
//! for its last message: what is behind it in the log was published since.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::message::LOOK;

/// A message that was published within this time is of now.
const NOW: Duration = Duration::from_secs(2);

/// The messages that the log kept a short while ago, by number. The oldest comes first.
#[derive(Default)]
pub(super) struct Ends {
    ends: VecDeque<End>,
    /// The last message that did not come although it was there.
    missed: u64,
}

/// The first and the last message that the log kept at a moment.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) at: Instant,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Ends {
    /// True if a message was published within [`NOW`], for sure.
    pub(super) fn is_before(&mut self, sequence: u64) -> bool {
        self.forget();
        self.ends.front().is_some_and(|end| sequence > end.last)
    }

    /// True if there are messages from `next` on that should have come by now: then they are not sent any more. For
    /// each of them this is said once, as it may be one that somebody has deleted.
    pub(super) fn are_missed(&mut self, next: Option<u64>) -> bool {
        self.forget();
        let next = next.unwrap_or(0);
        let is_there = |end: &&End| end.at.elapsed() > LOOK / 2 && end.first.max(next) <= end.last;
        let missed = self.ends.iter().filter(is_there).map(|end| end.last).max();
        missed.is_some_and(|last| last > std::mem::replace(&mut self.missed, last))
    }

    /// Adds what the log keeps now.
    pub(super) fn add(&mut self, end: End) {
        self.ends.push_back(end);
    }

    /// The log was opened again, and keeps this.
    pub(super) fn begin(&mut self, end: End) {
        self.ends.clear();
        self.missed = self.missed.min(end.last);
        self.add(end);
    }

    fn forget(&mut self) {
        while self.ends.front().is_some_and(|end| end.at.elapsed() > NOW) {
            self.ends.pop_front();
        }
    }
}
