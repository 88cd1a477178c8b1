//! States of a stream, outcomes of its restored holdings, and marks by which a snapshot is compared with its engine.

use serde::{Deserialize, Serialize};

/// State of an engine's event stream, as shown in answers and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not connected, or connected and not verified yet.
    Connecting,
    /// The holdings are being read from the engine's replay buffer.
    Replaying,
    /// Batches are applied as they arrive.
    Live,
    /// Batches are missing, and are requested.
    Gap,
    /// The engine has been silent for too long.
    Stale,
    /// Batches contradict each other, as if two engines published on this stream.
    Conflict,
    /// The stream is being removed.
    Stopped,
    /// A limit of this service is reached, and no block of the stream is held.
    Limited,
    /// Events of unknown types keep coming, which may have removed blocks.
    Unreadable,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Connecting,
        Self::Replaying,
        Self::Live,
        Self::Gap,
        Self::Stale,
        Self::Conflict,
        Self::Stopped,
        Self::Limited,
        Self::Unreadable,
    ];

    /// Name of the state in answers and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Gap => "gap",
            Self::Stale => "stale",
            Self::Conflict => "conflict",
            Self::Stopped => "stopped",
            Self::Limited => "limited",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Number and hash of a batch. An engine that still has the very batch is in the same life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Sequence number of the batch.
    pub seq: u64,
    /// XXH3-64 of the bytes of the batch.
    pub hash: u64,
}

/// Outcome of the holdings that a loaded snapshot had for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine has proved to be the same; the holdings are in use.
    Kept,
    /// The engine has restarted since the snapshot.
    Restarted,
    /// The engine's replay buffer no longer reaches back to the mark.
    TurnedOver,
    /// The engine did not answer at its replay socket.
    NoAnswer,
    /// The stream has no replay socket, so nothing can prove the holdings.
    NoReplay,
    /// The stream's block size, topic, way of counting copies, or key of content hashes has changed.
    Settings,
    /// The stream's blocks would now be stored under other ranks.
    Ranks,
    /// The stream has more blocks than a limit allows, or than the index can number.
    Limit,
    /// The stream was not registered in time.
    NotRegistered,
}

impl Outcome {
    /// All outcomes, in the order of their numbers.
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

    /// Name of the outcome in metrics and answers.
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

/// Reason to leave a stream out of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// No batch has been applied yet, or no block is held.
    Nothing,
    /// The holdings are not proved to be the connected engine's, or contradict themselves.
    Unproven,
    /// The model has several cache groups.
    Hybrid,
    /// The stream was cleared repeatedly, or ended, while it was being copied.
    Changing,
    /// The stream's task did not answer in time.
    NoAnswer,
}

impl Skip {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Unproven, Self::Hybrid, Self::Changing, Self::NoAnswer];

    /// Name of the reason in metrics and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Unproven => "unproven",
            Self::Hybrid => "hybrid",
            Self::Changing => "changing",
            Self::NoAnswer => "no_answer",
        }
    }
}
