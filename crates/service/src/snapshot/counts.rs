//! What became of snapshots, for `/metrics` and `/health`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use super::encode::Written;
use crate::state::lock;

/// What became of what a snapshot had of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine has shown that it is the same; all of it is in use.
    Kept,
    /// The engine has restarted since.
    Restarted,
    /// The engine's replay buffer does not reach back to the mark any more.
    TurnedOver,
    /// The engine did not answer at its replay socket.
    NoAnswer,
    /// The stream has no replay socket, so nothing can prove it.
    NoReplay,
    /// Its block size, topic, way of counting copies, or the key of contents is another now.
    Settings,
    /// Its blocks would not go under the same ranks.
    Ranks,
    /// It is more than a limit allows, or than the index can number.
    Limit,
    /// No such stream was registered in time.
    NotRegistered,
}

impl Outcome {
    /// All, in order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Kept,
        Self::Restarted,
        Self::TurnedOver,
        Self::NoAnswer,
        Self::NoReplay,
        Self::Settings,
        Self::Ranks,
        Self::Limit,
        Self::NotRegistered,
    ];

    /// The name in metrics and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Restarted => "restarted",
            Self::TurnedOver => "turned_over",
            Self::NoAnswer => "no_answer",
            Self::NoReplay => "no_replay",
            Self::Settings => "settings",
            Self::Ranks => "ranks",
            Self::Limit => "limit",
            Self::NotRegistered => "not_registered",
        }
    }
}

/// Why a stream is not in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// Nothing of it was applied yet, or nothing of it is held.
    Nothing,
    /// What is held was not proved to be of the connected engine, or contradicts itself.
    Unproven,
    /// The model has several cache groups.
    Hybrid,
    /// It was cleared again and again, or ended, while it was copied.
    Changing,
    /// Its task did not answer in time.
    NoAnswer,
}

impl Skip {
    /// All, in order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Nothing, Self::Unproven, Self::Hybrid, Self::Changing, Self::NoAnswer];

    /// The name in metrics and answers.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Unproven => "unproven",
            Self::Hybrid => "hybrid",
            Self::Changing => "changing",
            Self::NoAnswer => "no_answer",
        }
    }
}

/// The last snapshot that was written to disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastWrite {
    pub(crate) written: Written,
    /// Streams that are not in it, by reason.
    pub(crate) skipped: [u64; Skip::ALL.len()],
    pub(crate) took: Duration,
    pub(crate) ended: Instant,
    pub(crate) at: SystemTime,
}

/// Counts since the service began.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    pub(crate) writes: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    /// Snapshots that could not be loaded.
    pub(crate) refused: AtomicU64,
    last: Mutex<Option<LastWrite>>,
    /// What is wrong with the directory now.
    error: Mutex<Option<String>>,
}

impl Counts {
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    pub(crate) fn wrote(&self, last: LastWrite) {
        self.writes.fetch_add(1, Relaxed);
        *lock(&self.last) = Some(last);
        *lock(&self.error) = None;
    }

    pub(crate) fn failed(&self, error: String) {
        self.failed_writes.fetch_add(1, Relaxed);
        *lock(&self.error) = Some(error);
    }

    pub(crate) fn last(&self) -> Option<LastWrite> {
        *lock(&self.last)
    }

    pub(crate) fn error(&self) -> Option<String> {
        lock(&self.error).clone()
    }
}
