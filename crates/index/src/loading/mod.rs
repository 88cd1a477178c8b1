//! Blocks that engines can load: those beyond their device memory, of their own and in pools that several share.
//!
//! Engines that offload look for a prompt's continuation from where their device has no more of it, chunk by chunk: a
//! chunk is some consecutive blocks, kept and moved as one, and it begins at a multiple of their number. Each chunk is
//! looked for in host memory first, then in the other tiers. Names include all that comes before a block, so a chunk is
//! held where the name of its last block is, and what an engine holds below a hole of its device counts if it can get
//! there by chunks.
//!
//! | file | what |
//! |---|---|
//! | `names.rs` | the names that one holder has, and which beginning of a prompt each one ends |
//! | `settings.rs` | what operators say of engines and pools |
//! | `book.rs` | all holders that offload and all pools: what events change |
//! | `shrink.rs` | blocks of pools that go unannounced: for want of room, or as a look at the store shows |
//! | `walk.rs` | a look-up, and its answer |
//! | `saved.rs` | blocks of pools, copied for a snapshot |
//!
//! Only ranks that have offloaded something, or that may load from a pool, are in the book; of the others it costs a
//! look at a flag in each event.

mod book;
mod names;
mod saved;
mod settings;
mod shrink;
mod walk;

pub(crate) use book::{HeldName, LoadBook, Outside};
pub(crate) use names::only;
pub use saved::{SavedPool, SavedPoolBlock};
pub use settings::{Members, OffloadSettings, SharedPool};
pub use walk::{Loadable, Segment};
