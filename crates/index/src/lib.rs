//! The exact index of every cached KV block across an LLM inference fleet.
//!
//! Engines cache the keys and values of prompts in blocks, and announce which blocks they store and evict. A
//! [`BlockIndex`] takes these events and answers, for a prompt, which worker holds how many of its leading blocks
//! *right now*. For each place where stored chains part, a lookup reads one line of one table, the head of one run and
//! the hashes to compare, which lie in sequence (and one line more where many levels meet); it reads nothing per
//! worker.
//!
//! # The structure
//!
//! ```text
//!  query  c0 c1 c2 c3 c4 c5 c6 ...                 a run: consecutive blocks of one chain,
//!            │                                     never split, its positions never move
//!   (root,0,c0)──▶ run 1 │c0 c1 c2 c3│
//!                        │ levels: 2 → {a,b,c}     "a, b and c hold the first 2 blocks,
//!                        │         4 → {a,b}   │    a and b hold all 4"
//!                        (1,4,c4)──▶ run 2 │c4 c5 c6│ levels: 3 → {b}
//! ```
//!
//! - **Runs** form a trie. A chain that parts after `fork` blocks of a run becomes a child, found in one hash table
//!   by (run, fork, content hash) (`runs/`, `raw/children.rs`).
//! - **Levels**: within a run each holder is a cutoff, because what it holds and can reach is kept a prefix at write
//!   time; blocks below a hole or without a known parent wait aside (`writer/holders/irregular.rs`). So the levels of the runs
//!   that a query goes through, put in a row, *are* its answer (`find.rs`).
//! - **Sets** of holders are one word each; equal sets are equal words (`sets/`, `raw/set.rs`).
//! - **Names**: the engines' block hashes lead to positions, in one table for all workers while they agree, in a table
//!   of its own for a worker that does not (`writer/names/private.rs`).
//! - **Readers** take no lock and write to nothing they share with other readers but a counter of their own
//!   (`raw/reclaim.rs`). One writer at a time changes things under them (`writer/`).
//!
//! # Where to read
//!
//! Each row imports only from those above it in this table.
//!
//! | file | what |
//! |---|---|
//! | `types.rs`, `stats.rs` | what calls take and give: refusals; block hash, tier, view, event; counts |
//! | `hash.rs` | tokens to content hashes and prefix hashes |
//! | `position.rs`, `spread.rs`, `fingerprint.rs`, `sync.rs` | where a block is; mixing hashes; a rank's word; atomics |
//! | `segmented.rs` | a long list, and hash tables of what is rare, in segments: no change moves or builds them anew as a whole |
//! | `raw/` | the memory that readers look at while the writer changes it, a file for each protocol: all `unsafe` |
//! | `sets.rs` | sets of holders |
//! | `roster.rs` | who is behind a holder's number |
//! | `handle.rs` | a rank by name, and by a handle that is looked up once |
//! | `retire.rs` | what is unlinked and waits for the last reader |
//! | `runs/` | the trie of runs: numbers of positions, where children hang, the runs |
//! | `loading/` | what engines can load: blocks beyond their devices, and in pools that they share |
//! | `writer/` | who holds what: its own text lists its folders |
//! | `find.rs` | a lookup, and its answer |
//! | `index.rs` | [`BlockIndex`]: the lock of the writer, the readers' way in, and changes one by one |
//! | `changes.rs` | [`Changes`]: many changes under one lock |
//! | `adopt.rs` | what was never announced |
//! | `copied.rs`, `copier.rs` | what one rank holds, copied while writers go on, and what all hold |
//! | `snapshot/` | the format in which blocks and their holders are kept |
//! | `reference.rs` | [`reference::ReferenceIndex`]: the same in plain maps |
//!
//! For a first reading: `reference.rs` for what is right, then `find.rs`, `runs/mod.rs`, `writer/mod.rs`, `raw/mod.rs`.
//!
//! [`reference::ReferenceIndex`] says literally what all this must answer; the tests compare.
//!
//! ```
//! use kvatlas_index::{BlockHash, BlockIndex, Config, Tier, View};
//!
//! let index = BlockIndex::new(Config::default())?;
//! let names = [BlockHash(71), BlockHash(72), BlockHash(73)];
//! index.store("w0", 0, Tier::Gpu, None, &names, &[1, 2, 3])?;
//! index.store("w1", 0, Tier::Gpu, None, &names[..2], &[1, 2])?;
//! index.remove("w0", 0, Tier::Gpu, &names[2..]);
//! assert_eq!(index.find(&[1, 2, 3, 4]).depth(View::Device), 2);
//! # Ok::<(), kvatlas_index::Error>(())
//! ```

mod adopt;
mod changes;
mod copied;
mod copier;
mod find;
mod fingerprint;
mod handle;
pub mod hash;
mod index;
mod loading;
mod position;
#[allow(unsafe_code, reason = "the one room that has it; its rules are in its text")]
mod raw;
pub mod reference;
mod retire;
mod roster;
mod runs;
mod segmented;
mod sets;
pub mod snapshot;
mod spread;
mod stats;
mod sync;
mod types;
mod writer;

pub use changes::Changes;
pub use copied::{CopiedBlock, CopiedChain, RankCopy, UniformChain};
pub use copier::{CopyDone, CopyState, Dump, RankCopier};
pub use find::{Match, OwnedMatch};
pub use handle::{RankHandle, RankRef};
pub use index::{BlockIndex, Config};
pub use loading::{Loadable, Members, OffloadSettings, SavedPool, SavedPoolBlock, Segment, SharedPool};
pub use stats::{RankStats, Stats};
pub use types::{BlockHash, Error, Event, Tier, View};
pub use writer::{Adoption, Roots};
