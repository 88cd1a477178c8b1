//! KV events that inference engines publish: decoding of the formats that real engines send, application to the index,
//! and encoding for simulated engines.
//!
//! ```text
//!   payload ──decode──▶ Batch ──Reader::apply──▶ BlockIndex
//!      bytes             values      │  one Reader for each (worker, rank): inherited salts, kinds of cache groups
//!                                    └▶ Hybrid: what the other groups of a hybrid model hold
//! ```
//!
//! [`decode()`] parses MessagePack and the engines' fields without access to the index. A [`Reader`] interprets the
//! fields and changes the index. Events that either of them refuses are counted by [`Reason`].
//!
//! ```
//! use kvatlas_index::{BlockIndex, Config, View, hash};
//! use kvatlas_wire::{Reader, Tally, decode};
//!
//! let index = BlockIndex::new(Config { block_size: 4, ..Config::default() })?;
//! let (mut reader, mut tally) = (Reader::new(4), Tally::default());
//! let payload =
//! b"\x93\x01\x91\x97\xabBlockStored\x92\x0a\x0b\xc0\x98\x01\x02\x03\x04\x05\x06\x07\x08\x04\xc0\xa3GPU\x00";
//! reader.apply(&decode(payload)?, &index, "engine-0", 0, &mut tally);
//! let prompt = hash::content_hashes(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 4, None, None);
//! assert_eq!((index.find(&prompt).depth(View::Device), tally.stored_blocks), (2, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod compact;
mod decode;
pub mod encode;
mod error;
mod event;
mod hybrid;
mod identity;
pub mod keys;
mod reader;
pub mod store;

pub use decode::{Decoder, decode};
pub use error::{Error, Reason, RefusedEvent};
pub use event::{
    AdapterDigest, Batch, BatchOf, BlockName, Cleared, Event, EventOf, Name, Removed, RemovedOf, Stored, StoredOf,
};
pub use hybrid::Hybrid;
pub use identity::Identity;
pub use keys::Key;
pub use reader::{Reader, ReaderState, SaltedBlock, Tally};
