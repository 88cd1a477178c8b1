//! Memory that readers access while the writer changes it: all `unsafe` of this crate, a file for each protocol.
//!
//! | file | protocol |
//! |---|---|
//! | `reclaim.rs` | when to free memory that readers may still access |
//! | `boxes.rs` | a content that the writer replaces as a whole |
//! | `thin.rs` | a header and a list behind one pointer |
//! | `set.rs` | a set of holders (ranks' caches), in a word or behind it |
//! | `head.rs` | the levels of a run (a number of blocks, with their holders), read under a sequence number |
//! | `levels.rs` | the words of levels, and the record of a change |
//! | `run.rs` | the hashes of a run (a list of consecutive blocks), appended beyond the part that readers see |
//! | `table.rs` | a hash table that is probed while it changes |
//! | `zeroed.rs` | no protocol: a long list whose memory is provided when it is written to |
//! | `children.rs` | a hash table of runs |
//! | `found.rs` | the results of a lookup, with the guard that protects them |
//! | `cpu.rs` | no protocol: some processor instructions |
//!
//! All protocols rely on these rules:
//!
//! 1. **One writer.** Only the holder of the index's [`WriterToken`], which is behind its lock, creates, changes,
//!    unlinks or frees memory; it frees nothing before [`RetiredList`] has handed it back.
//! 2. **Readers hold a [`Guard`] of the same index** from before they follow the first pointer until after the last
//!    use. Each entry point of readers knows its index, and refuses the guard and the token of another index by a
//!    panic; data found from there is bound to the guard by its type.
//! 3. **The part of a run that readers may see is written once.** The content hashes below the end of a published level
//!    never change in place: to change one of them, the run moves to new memory, and the old memory is retired.
//! 4. **The levels of a run** are read under a sequence number, or as they were before a change that is not complete.
//!
//! Reason for unsafe code: a lookup costs about as much as its cache misses. With reference-counted runs, every lookup
//! of every thread would write to the cache line of the first run, which they all share; with indices into growing
//! arrays, each run would take one more dependent miss. `docs/design/` has the measurement.

mod boxes;
mod children;
mod cpu;
mod found;
mod head;
mod levels;
mod reclaim;
mod run;
mod set;
mod table;
mod thin;
#[cfg(not(loom))]
mod zeroed;

pub(crate) use boxes::{SharedBox, SwapCell, WriterToken};
pub(crate) use children::Children;
pub(crate) use cpu::{equal_lanes, lesser_lanes, prefetch, prefetch_all};
pub(crate) use found::{Reaches, WalkResult};
pub(crate) use head::LevelsNow;
pub(crate) use levels::{Level, SpilledLevels};
pub(crate) use reclaim::{Guard, Readers, RetiredList};
pub(crate) use run::Run;
pub(crate) use set::{CountedToken, MASK_HOLDERS, Members, Set, SetBox, SetHead, SetWord};
pub(crate) use thin::Spares;
