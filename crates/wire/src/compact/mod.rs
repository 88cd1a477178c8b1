//! Messages of a relay about an engine's events: what changed in its cache, without token ids, in few bytes.
//!
//! ```text
//!   engine's batch ──Reader──▶ index
//!                      └─▶ Recorder ──▶ Frame ──▶ Message ═══▶ Message ──▶ Change ──▶ another index
//! ```
//!
//! A [`Message`] has the relay's life and a number within that life; it contains [`Frame`]s, and these contain
//! [`Change`]s. Blocks have their content hashes. Instead of the engine's names they have numbers, given by the
//! [`Recorder`] in the order in which the blocks were first seen: names have eight to 32 bytes that nothing compresses,
//! and consecutive numbers are encoded by the first of them. A reader needs nothing but the numbers, which name the
//! same blocks for as long as the engine's names would.
//!
//! The bytes are described in `docs/reference/relay-format.md`.

mod message;
mod recorder;

use kvatlas_codec::ReadError;
use kvatlas_index::BlockHash;

pub use self::message::{
    Change, Changes, Frame, MOST_BLOCKS, Message, MessageWriter, Status, VERSION, is_compact, weight,
};
pub use self::recorder::Recorder;

/// Reason why bytes are not a relay's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a message of a relay: {0}")]
pub struct FormatError(pub(crate) &'static str);

impl From<ReadError> for FormatError {
    fn from(error: ReadError) -> Self {
        Self(error.into())
    }
}

/// Name in an index of the block with this number. Different numbers have different names, which are spread evenly.
#[must_use]
pub fn name_of(number: u64) -> BlockHash {
    // The finalizer of SplitMix64; each step can be undone.
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    BlockHash(word ^ word >> 31)
}
