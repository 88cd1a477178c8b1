//! Marks by which a snapshot is compared with its engine, and what came of that.

use serde::{Deserialize, Serialize};

/// A batch, by its number and the XXH3-64 of its bytes: proves a life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The batch's number.
    pub seq: u64,
    /// The XXH3-64 of the batch's bytes.
    pub hash: u64,
}

/// The outcome of what a snapshot had of a stream.
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
    /// The stream's block size, topic, way of counting copies, or the key of contents is another now.
    Settings,
    /// The stream's blocks would not go under the same ranks.
    Ranks,
    /// The stream has more than a limit allows, or than the index can number.
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

/// The reason why a stream is not in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// Nothing of it was applied yet, or nothing of it is held.
    Nothing,
    /// The holdings were not proved to be of the connected engine, or contradict themselves.
    Unproven,
    /// The model has several cache groups.
    Hybrid,
    /// The stream was cleared again and again, or ended, while it was copied.
    Changing,
    /// The stream's task did not answer in time.
    NoAnswer,
}

impl Skip {
    /// All, in order of their numbers.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Unproven, Self::Hybrid, Self::Changing, Self::NoAnswer];

    /// The name in metrics and answers.
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
