//! The memory that readers look at while the writer changes it: all `unsafe` of this crate, a file for each protocol.
//!
//! | file | protocol |
//! |---|---|
//! | `reclaim.rs` | when may be freed what readers could still see |
//! | `boxes.rs` | a thing that the writer replaces as a whole |
//! | `thin.rs` | a header and a list behind one pointer |
//! | `set.rs` | a set of holders in a word, or behind it |
//! | `head.rs` | a run's levels, under a sequence number |
//! | `run.rs` | a run's hashes, appended behind what readers see |
//! | `table.rs` | a hash table that is probed while it changes |
//! | `directory.rs` | that table in segments, so that no change takes long |
//! | `children.rs` | that table, of runs |
//! | `cpu.rs` | no protocol: two instructions |
//!
//! The rules, which all of them rely on:
//!
//! 1. **One writer.** Only the holder of the index's writer lock creates, changes, unlinks or frees; it never frees a
//!    thing before [`reclaim::Retired`] has handed it back.
//! 2. **Readers hold a [`Pin`] of the same index** from before they follow the first pointer until after the last use.
//! 3. **What readers may see of a run is written once.** The content hashes below the end of a published level never
//!    change in place: a run that must change one of them moves to new memory, and the old is retired.
//! 4. **The rest of a run that readers see** (its levels) is read under a sequence number and read again if it changed.
//!
//! Why unsafe at all: a lookup costs about as much as its cache misses. With reference-counted runs instead, every
//! lookup of every thread would write to the line of the first run they all share; with indices into growing arrays
//! it would take one more dependent miss a run. `docs/design/` has the measurement.

mod boxes;
mod children;
mod cpu;
mod directory;
mod head;
mod reclaim;
mod run;
mod set;
mod table;
mod thin;

pub(crate) use boxes::{Held, Owned, Published, WriterToken};
pub(crate) use children::{Children, Links};
pub(crate) use cpu::{equal_lanes, prefetch};
pub(crate) use directory::Unlinked;
pub(crate) use head::{Level, LevelsRef, Spilled};
pub(crate) use reclaim::{Pin, Readers, Retired};
pub(crate) use run::Run;
pub(crate) use set::{CountedToken, MASK_HOLDERS, Members, Set, SetBox, SetHead, SetWord};
pub(crate) use thin::Spares;
