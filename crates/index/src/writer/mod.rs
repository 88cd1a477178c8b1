//! The writer: all there is to know about who holds what.
//!
//! A holder's *regular* blocks are those reachable from the root whose positions it covers under one name; nearly all
//! are. In each run they are a prefix, so a holder is one cutoff a run, kept in the run's levels. Whatever is not like
//! that (blocks below a hole, orphans, second names of one position) is *irregular* and kept aside by name.
//!
//! Readers see only levels. They change from the root down when a holder gains and from the leaves up when it loses,
//! so that at every moment what a reader sees of a holder is a prefix that it holds then.
//!
//! All of it is methods of one [`Writer`], in layers; each file calls only those above it in this table:
//!
//! | file | what |
//! |---|---|
//! | `lines.rs`, `slot_lines.rs`, `slots.rs`, `own.rs`, `names.rs`, `private_names.rs` | block hash to position: the hash tables, of shared names and of a holder's own |
//! | `ordered_runs.rs` | a holder's runs, put in order in steps |
//! | `branch.rs`, `list_cleanup.rs` | a branch of a holder; how far its list of runs has been put right |
//! | `irregular.rs`, `holder.rs`, `workers.rs` | what is kept of a holder's irregular blocks, of a holder, of a worker's ranks |
//! | `departing.rs`, `watches.rs` | what is kept of holders that are cleared, and of ranks that are being copied |
//! | `state.rs` | the writer: what it is made of, and when it frees |
//! | `watch.rs` | what a copy in slices must hear about |
//! | `lookup.rs` | what a holder has, by name and by position |
//! | `entered.rs` | the list of runs that a holder has entered |
//! | `cover.rs` | how far a holder covers a run: levels and names change together |
//! | `departures.rs` | holders that are cleared take their leave in steps |
//! | `branches.rs`, `detach.rs`, `lose.rs` | a holder loses blocks: those with many others below them, those with few, then all |
//! |  | (`lookup.rs`, `cover.rs` and `departures.rs` ask `branches.rs`, too: a branch is part of what a holder has) |
//! | `private.rs` | a holder gets names of its own, at once or in steps |
//! | `link.rs`, `gain.rs` | a holder gains blocks: one of any kind, then chains |
//! | `ranks.rs` | a rank of a worker becomes known |
//! | `chains.rs`, `tiers.rs` | a holder's blocks as chains; the holders of the views beyond the device |
//! | `new_view.rs`, `clearing.rs` | a view that a rank needs, and a tier that is cleared, in steps |
//! | `store.rs`, `remove.rs`, `clear.rs` | the events, for a worker's rank |
//! | `adopt.rs` | blocks that were never announced: what is missing, and what is learnt of it otherwise |
//! | `later.rs` | what events leave to be done |
//! | `slices.rs`, `stats.rs` | what a rank holds, in slices, and how much all hold |

mod adopt;
mod branch;
mod branches;
mod chains;
mod clear;
mod clearing;
mod cover;
mod departing;
mod departures;
mod detach;
mod entered;
mod gain;
mod holder;
mod irregular;
mod later;
mod lines;
mod link;
mod list_cleanup;
mod lookup;
mod lose;
mod names;
mod new_view;
mod ordered_runs;
mod own;
mod private;
mod private_names;
mod ranks;
mod remove;
mod slices;
mod slot_lines;
mod slots;
mod state;
mod stats;
mod store;
#[cfg(all(test, not(loom)))]
mod tests;
mod tiers;
mod watch;
mod watches;
mod workers;

pub use adopt::{Adoption, Roots};
pub(crate) use remove::Way;
pub(crate) use slices::{LargeCopy, Slice};
pub(crate) use state::Writer;
pub(crate) use store::Chain;
