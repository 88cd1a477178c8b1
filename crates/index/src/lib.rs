//! Exact index of every cached KV block across an LLM inference fleet.
//!
//! Engines cache the keys and values of prompts in blocks, and announce which blocks they store and evict. A
//! [`BlockIndex`] applies these events and answers, for a prompt, which worker holds how many of its leading blocks
//! *right now*. For each place where stored chains diverge, a lookup reads one cache line of one table, the head of one
//! run (a list of consecutive blocks) and the hashes to compare, which are consecutive (and one more cache line for a
//! run with many levels); the number of workers does not matter.
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
//! - **Runs** form a trie. A chain that diverges after `fork` blocks of a run becomes a child, found in one hash table
//!   by (run, fork, content hash) (`runs/`, `raw/children.rs`).
//! - **Levels**: the blocks of a run that a holder has are always the first ones, so their number describes them. A
//!   level is this number, with the set of all holders that have it. Blocks below a hole or without a known parent are
//!   kept separately (`writer/holders/irregular.rs`). So the levels of the runs that a query visits, one after the
//!   other, *are* its result (`find.rs`).
//! - **Sets** of holders are one word each; equal sets are equal words (`sets/`, `raw/set.rs`).
//! - **Names**: the engines' block hashes lead to positions, in one table for all workers that use the same block
//!   hashes, in a private table for a worker that uses others (`writer/names/private.rs`).
//! - **Readers** take no lock and write to no memory but counters that hardly any two of them share
//!   (`raw/reclaim.rs`). One writer at a time changes the index meanwhile (`writer/`).
//!
//! # Where to read
//!
//! Each row imports only from those above it in this table.
//!
//! | file | content |
//! |---|---|
//! | `types.rs`, `stats.rs` | arguments and results of calls: errors; block hash, tier, view, event; statistics |
//! | `hash.rs` | tokens to content hashes and prefix hashes |
//! | `position.rs`, `spread.rs`, `fingerprint.rs`, `sync.rs` | number of a block's position; mixing of hashes; fingerprint of a rank's blocks; atomics |
//! | `segmented.rs` | a long list, and hash tables for rare entries, in segments: no change moves or rebuilds them as a whole |
//! | `raw/` | the memory that readers access while the writer changes it, a file for each protocol: all `unsafe` |
//! | `sets.rs` | sets of holders |
//! | `roster.rs` | the worker and rank behind each holder's number |
//! | `handle.rs` | a rank by name, and by a handle that is looked up once |
//! | `retire.rs` | unlinked items that wait for the last reader |
//! | `runs/` | the trie of runs: numbers of positions, children of runs, the runs |
//! | `loading/` | blocks that engines can load: beyond their devices, and in pools that they share |
//! | `writer/` | the blocks of each holder: its own text lists its folders |
//! | `find.rs` | lookups and their results |
//! | `index.rs` | [`BlockIndex`]: the writer's lock, the readers' entry, and single changes |
//! | `changes.rs` | [`Changes`]: many changes under one lock |
//! | `adopt.rs` | blocks that were never announced |
//! | `copied.rs`, `copier.rs` | copies of the blocks of one rank, made while writers go on, and of all ranks |
//! | `snapshot/` | the format in which blocks and their holders are stored |
//! | `reference.rs` | [`reference::ReferenceIndex`]: the same index in plain maps |
//!
//! For a first reading: `reference.rs` for the correct results, then `find.rs`, `runs/mod.rs`, `writer/mod.rs`,
//! `raw/mod.rs`.
//!
//! [`reference::ReferenceIndex`] defines all results of this index; tests compare the two.
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
pub use loading::{
    EvictionOrder, ListedChunk, Loadable, Members, NamedBlocks, OffloadSettings, SavedPool, SavedPoolBlock, Segment,
    SharedPool,
};
pub use stats::{RankStats, Stats};
pub use types::{BlockHash, Error, Event, Tier, View};
pub use writer::{Adoption, Roots};
