//! The memory that readers look at while the writer changes it: all `unsafe` of this crate, a file for each protocol.
//!
//! | file | protocol |
//! |---|---|
//! | `reclaim.rs` | when may be freed what readers could still see |
//! | `boxes.rs` | a thing that the writer replaces as a whole |
//! | `thin.rs` | a header and a list behind one pointer |
//! | `set.rs` | a set of holders in a word, or behind it |
//! | `head.rs` | a run's levels, under a sequence number |
//! | `levels.rs` | the words of that protocol, and the record of a change |
//! | `run.rs` | a run's hashes, appended behind what readers see |
//! | `table.rs` | a hash table that is probed while it changes |
//! | `zeroed.rs` | no protocol: a long list whose memory comes as it is written to |
//! | `children.rs` | that table, of runs |
//! | `found.rs` | what a lookup has found, beside the guard that keeps it |
//! | `cpu.rs` | no protocol: some instructions |
//!
//! The rules, which all of them rely on:
//!
//! 1. **One writer.** Only the holder of the index's [`WriterToken`], which is behind its lock, creates, changes, unlinks
//!    or frees; it never frees a thing before [`RetiredList`] has handed it back.
//! 2. **Readers hold a [`Guard`] of the same index** from before they follow the first pointer until after the last use.
//!    What has an address that readers begin at knows its index, and refuses the guard and the token of another by a
//!    panic; what is found there is bound to the guard by its type.
//! 3. **What readers may see of a run is written once.** The content hashes below the end of a published level never
//!    change in place: a run that must change one of them moves to new memory, and the old is retired.
//! 4. **The rest of a run that readers see** (its levels) is read under a sequence number, or as it was before a change
//!    that is not done.
//!
//! Why unsafe at all: a lookup costs about as much as its cache misses. With reference-counted runs instead, every
//! lookup of every thread would write to the line of the first run they all share; with indices into growing arrays
//! it would take one more dependent miss a run. `docs/design/` has the measurement.

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
