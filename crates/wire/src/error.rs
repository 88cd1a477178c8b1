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
    /// Decoding: the payload ends inside the event, which costs those after it as well.
    Truncated = "truncated",
    /// Decoding: bytes that are no MessagePack, which costs the events after it as well.
    Malformed = "malformed",
    /// Decoding: neither a map with a `type` nor an array that begins with a tag.
    NotAnEvent = "not_an_event",
    /// Decoding: a type of event that is none of the three.
    UnknownEvent = "unknown_event",
    /// Decoding: a field without which the event means nothing.
    MissingField = "missing_field",
    /// Decoding: a field of a type or value that it cannot have.
    InvalidField = "invalid_field",
    /// Decoding: tokens that are no ids of 32 bits, strings for instance.
    InvalidToken = "invalid_token",
    /// Applying: blocks of another size than the index has.
    BlockSize = "block_size",
    /// Applying: tokens that do not fill the blocks.
    TokenCount = "token_count",
    /// Applying: blocks announced by name alone (offload placeholders) that the rank does not hold, so their contents are
    /// unknown.
    NoContent = "no_content",
    /// Applying: blocks of a cache group that does not decide how long a prefix is.
    OtherGroup = "other_group",
    /// Applying: the index cannot number any more.
    IndexFull = "index_full",
    /// Applying: a block that is not full, by which no prompt can be found, or of a smaller size. The full blocks of the
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
