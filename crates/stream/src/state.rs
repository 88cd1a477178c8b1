//! The state of a stream, as its machine and all who look at it call it.

/// The state of a stream in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not connected, or connected and nothing known yet.
    Connecting,
    /// The holdings are being read from the engine's replay buffer.
    Replaying,
    /// Batches are applied as they come.
    Live,
    /// Batches are missing and asked for.
    Gap,
    /// Silent for too long.
    Stale,
    /// Batches contradict each other, as if two engines published here.
    Conflict,
    /// Being removed.
    Stopped,
    /// A limit of this service is reached: nothing of the stream is held.
    Limited,
    /// Events of unknown types keep coming, which may have removed something.
    Unreadable,
}

impl State {
    /// All, in order of their numbers.
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

    /// The name in answers and metrics.
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
