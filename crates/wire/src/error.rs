//! Faults of a payload as a whole, and of one event.

use std::fmt;

/// Reason why a payload is no batch. Events that cannot be read are in [`Batch::refused`](crate::Batch::refused).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload is empty.
    #[error("an empty payload: a batch is a MessagePack array [timestamp, events, rank]")]
    Empty,
    /// The payload is not an array of timestamp and events.
    #[error("not a batch: {what}; a batch is a MessagePack array [timestamp, events, rank]")]
    NotABatch {
        /// Kind of the value found instead.
        what: String,
    },
    /// The payload ends before the first event.
    #[error("the payload ends before its events begin, after {bytes} bytes")]
    Truncated {
        /// Length of the payload, in bytes.
        bytes: usize,
    },
    /// The payload is not MessagePack, from its first byte on.
    #[error("not MessagePack: the byte 0xc1 begins no value")]
    Malformed,
}

impl Error {
    /// Stable code of the error, the same in every release, for programs to compare.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty_payload",
            Self::NotABatch { .. } => "not_a_batch",
            Self::Truncated { .. } => "truncated_payload",
            Self::Malformed => "malformed_payload",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Reason why an event was left out.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in a fixed order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Stable code of the reason in snake case, the same in every release, used as a label of metrics.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }
        }
    };
}

reasons! {
    /// Decoding: the payload ends inside the event, so that the events after it are lost as well.
    Truncated = "truncated",
    /// Decoding: bytes that are not MessagePack, so that the events after them are lost as well.
    Malformed = "malformed",
    /// Decoding: neither a map with a `type` nor an array that begins with a tag.
    NotAnEvent = "not_an_event",
    /// Decoding: a type of event other than stores, removals and clears.
    UnknownEvent = "unknown_event",
    /// Decoding: a required field is missing.
    MissingField = "missing_field",
    /// Decoding: a field has a type or value that is not allowed.
    InvalidField = "invalid_field",
    /// Decoding: tokens that are not ids of 32 bits, for instance strings.
    InvalidToken = "invalid_token",
    /// Applying: blocks whose block size differs from the index's.
    BlockSize = "block_size",
    /// Applying: the number of tokens does not fit the number of blocks.
    TokenCount = "token_count",
    /// Applying: blocks announced by name alone (offload placeholders) whose contents are unknown, beyond as many as may wait
    /// for the engine to describe them.
    NoContent = "no_content",
    /// Applying: blocks of a cache group that is not indexed.
    OtherGroup = "other_group",
    /// Applying: the index has no number left for another block.
    IndexFull = "index_full",
    /// Applying: a block that is not full, which no prompt can match, or one of a smaller size. The full blocks of the
    /// same event are applied.
    PartialBlock = "partial_block",
}

impl Reason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// An event that could not be decoded, or several with the same reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedEvent {
    /// Position of the event in the batch as sent, from 0.
    pub at: usize,
    /// Number of refused events in this entry: more than one if later events were lost with the first.
    pub events: u64,
    /// Reason why the event was left out.
    pub reason: Reason,
    /// True if the event may have removed blocks, which is certain not to be so only for a single store.
    pub may_remove: bool,
    /// Description of what was found instead, for people.
    pub detail: String,
}
