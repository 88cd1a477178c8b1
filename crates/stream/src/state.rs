//! States of a stream, outcomes of blocks restored from a snapshot, and marks (sequence number and hash of a batch) by
//! which a snapshot is compared with its engine.

use serde::{Deserialize, Serialize};

/// State of an engine's event stream, as shown in HTTP answers and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The stream is not connected, or connected and not verified yet.
    Connecting,
    /// Past batches are being read from the engine's replay buffer.
    Replaying,
    /// Batches of the engine are applied as they arrive.
    Live,
    /// Batches are missing, and have been requested again.
    Gap,
    /// The engine has been silent for longer than the configured time.
    Stale,
    /// Batches contradict each other, as if two engines published on one stream.
    Conflict,
    /// The stream is being removed.
    Stopped,
    /// A limit of the service has been reached, and no block of the stream is held.
    Limited,
    /// Events of unknown types, which may have removed blocks, keep coming.
    Unreadable,
}

impl State {
    /// All states of a stream, in the order of their declaration.
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

    /// Returns the name of the state in HTTP answers and metrics.
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

/// Mark: sequence number and hash of a batch. An engine whose replay still contains exactly this batch has not
/// restarted since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Sequence number of the batch.
    pub seq: u64,
    /// XXH3-64 hash of the batch's bytes.
    pub hash: u64,
}

/// Outcome of loading a stream's held blocks from a snapshot: kept, or the reason for dropping them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine has proved not to have restarted, and the blocks are in use.
    Kept,
    /// The engine has restarted since the snapshot was made, so that the blocks were dropped.
    Restarted,
    /// The engine's replay buffer no longer contains the last batch covered by the snapshot.
    TurnedOver,
    /// The engine did not answer the replay request.
    NoAnswer,
    /// The stream has no replay socket, so the blocks cannot be proved to be still valid.
    NoReplay,
    /// A setting of the stream has changed: block size, topic, counting of copies, or secret key of content hashes.
    Settings,
    /// The stream's blocks would now be stored under other data-parallel ranks.
    Ranks,
    /// The stream has more blocks than a limit allows or the index can number.
    Limit,
    /// The stream's engine was not registered in time.
    NotRegistered,
}

impl Outcome {
    /// All outcomes for blocks loaded from a snapshot, in the order of their declaration.
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

    /// Returns the name of the outcome, for blocks loaded from a snapshot, in metrics and HTTP answers.
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
    /// The held blocks are not proved to be the connected engine's, or batches contradict each other.
    Unproven,
    /// The model is a hybrid one with several cache groups, whose state cannot be saved.
    Hybrid,
    /// The stream was cleared repeatedly, or ended, while its blocks were copied.
    Changing,
    /// The task that reads the stream did not copy the held blocks in time.
    NoAnswer,
}

impl Skip {
    /// All reasons to leave a stream out of a snapshot, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Unproven, Self::Hybrid, Self::Changing, Self::NoAnswer];

    /// Returns the name of the reason, to leave a stream out of a snapshot, in metrics and HTTP answers.
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
