//! Compact messages in which a relay (a service that publishes engines' event streams) reports changes of an engine's
//! cache, without token ids.
//!
//! ```text
//!   engine's batch ──Reader──▶ index
//!                      └─▶ Recorder ──▶ Frame ──▶ Message ═══▶ Message ──▶ Change ──▶ another index
//! ```
//!
//! A [`Message`] contains [`Frame`]s, and a frame contains [`Change`]s. Each message has the number of the relay's
//! life, which grows with each restart, and its own number within that life. A block is described by its content hash
//! and by a number that replaces the engine's block hash. The [`Recorder`] numbers blocks in the order in which they
//! were first seen. Block hashes have 8 to 32 bytes that cannot be compressed, whereas consecutive numbers are encoded
//! by the first of them. A reader needs only the numbers, because each number stands for one block hash for as long as
//! the block may be held.
//!
//! The byte format is described in `docs/reference/relay-format.md`.

mod message;
mod recorder;

use kvatlas_codec::ReadError;
use kvatlas_index::BlockHash;

pub use self::message::{
    Change, Changes, Frame, MOST_BLOCKS, Message, MessageWriter, Status, VERSION, is_compact, weight,
};
pub use self::recorder::Recorder;

/// Reason why bytes are not a valid message of a relay (a publisher of engines' streams).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a message of a relay: {0}")]
pub struct FormatError(pub(crate) &'static str);

impl From<ReadError> for FormatError {
    fn from(error: ReadError) -> Self {
        Self(error.into())
    }
}

/// Returns the block hash that stands for a block number in the reader's index. Different numbers have different
/// hashes, which are evenly distributed.
#[must_use]
pub fn name_of(number: u64) -> BlockHash {
    // The finalizer of SplitMix64; each step can be undone.
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    BlockHash(word ^ word >> 31)
}
