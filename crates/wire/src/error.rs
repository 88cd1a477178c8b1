//! Errors for a payload as a whole, and reasons why single events are refused.

use std::fmt;

/// Reason why a payload is not a batch of events. Single events that cannot be decoded are listed in
/// [`Batch::refused`](crate::Batch::refused) instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload is empty.
    #[error("an empty payload: a batch is a MessagePack array [timestamp, events, rank]")]
    Empty,
    /// The payload is not an array of a timestamp and events.
    #[error("not a batch: {what}; a batch is a MessagePack array [timestamp, events, rank]")]
    NotABatch {
        /// Kind of the value that was found instead, such as a map.
        what: String,
    },
    /// The payload ends before the first event.
    #[error("the payload ends before its events begin, after {bytes} bytes")]
    Truncated {
        /// Length of the payload, in bytes.
        bytes: usize,
    },
    /// The payload is not MessagePack, already from its first byte.
    #[error("not MessagePack: the byte 0xc1 begins no value")]
    Malformed,
}

impl Error {
    /// Returns a stable code of the error, equal in every release, for programs to compare.
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
        /// Reason why an event was refused, while decoding it or while applying it to the index.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in a fixed order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns a stable code of the reason in snake case, equal in every release, which is used as a label of
            /// metrics.
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
    /// Decoding: the payload ends inside the event, so that the events after it are lost too.
    Truncated = "truncated",
    /// Decoding: the event has bytes that are not MessagePack, so that the events after it are lost too.
    Malformed = "malformed",
    /// Decoding: the value is neither a map with a `type` nor an array that begins with a type.
    NotAnEvent = "not_an_event",
    /// Decoding: the event's type is not a store, a removal or a clear.
    UnknownEvent = "unknown_event",
    /// Decoding: a required field is missing.
    MissingField = "missing_field",
    /// Decoding: a field has a type or value that is not allowed.
    InvalidField = "invalid_field",
    /// Decoding: a token is not an unsigned 32-bit integer, but for instance a string.
    InvalidToken = "invalid_token",
    /// Applying: the event's block size differs from the index's.
    BlockSize = "block_size",
    /// Applying: the number of tokens does not match the number of blocks.
    TokenCount = "token_count",
    /// Applying: a block was announced by its hash alone (as an offload placeholder) and its contents are unknown, and
    /// too many other blocks are waiting for their contents already.
    NoContent = "no_content",
    /// Applying: the event belongs to a hybrid model's cache group that is not indexed.
    OtherGroup = "other_group",
    /// Applying: the index has no number left for a further block.
    IndexFull = "index_full",
    /// Applying: the last block of the event is not full or has a smaller size, so that no prompt can match it. The
    /// full blocks of the same event are applied.
    PartialBlock = "partial_block",
    /// Applying: a connector announced a chunk without salt and adapter (as LMCache's does), and the device's blocks do not
    /// show under which of them the chunk is kept.
    HiddenSalt = "hidden_salt",
}

impl Reason {
    /// Number of different reasons.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Event that could not be decoded, or several events refused for the same reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedEvent {
    /// Position in the batch of the first refused event, counted from 0.
    pub at: usize,
    /// Number of refused events that this entry stands for: more than one if later events were lost with the first or
    /// entries were merged.
    pub events: u64,
    /// Reason why the event was refused.
    pub reason: Reason,
    /// True if the event may have removed blocks; false only if it is known to be a single store event.
    pub may_remove: bool,
    /// Human-readable description of the data found instead of a valid event.
    pub detail: String,
}
