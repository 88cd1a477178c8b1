//! The ladder: designs of one index, from a nested dictionary up, behind one interface, for comparison.
//!
//! Each rung is a known idea, built well and kept recognisable, so that the benefit of each next one is visible.
//! Deviations (known errors) of a design are documented where it is defined, with the smallest example, and corrected
//! by `strict` where that is possible without becoming another design. [`kvatlas_index::BlockIndex`] is the top of the
//! ladder.
//!
//! | rung | type | threads |
//! |---|---|---|
//! | 1 nested dictionary | [`nested::NestedMap`] | one, or behind an actor (rung 2) |
//! | 2 actor | [`actor::Actor`] over any [`LocalDesign`] design | its own |
//! | 3 inverted | [`inverted::InvertedIndex`] | one |
//! | 4 radix tree | [`radix::RadixTree`]; sharded by worker: [`actor::ShardedActors`] | one each |
//! | 5 concurrent radix tree | [`concurrent::ConcurrentRadixTree`] in an [`pool::EventPool`] | any |
//! | 6 positional | [`positional::PositionalIndexer`], [`grouped::GroupedIndex`] in an [`pool::EventPool`] | any |
//! | 7 runs with levels | [`block_index::BlockIndexRung`] over [`kvatlas_index::BlockIndex`] in an [`pool::EventPool`] | any |
//!
//! There are two kinds of designs: a [`LocalDesign`] belongs to one thread at a time, a [`ConcurrentDesign`] may be
//! read and changed by many. A [`Feed`] makes either usable from many threads without blocking the sender of events.
//! [`open()`] creates each of them by its name.
//!
//! In all designs a block announced twice is held once: one removal ends it, as in every published design. The tests
//! compare with [`kvatlas_index::reference::ReferenceIndex`] without `count_copies`, which does the same.

pub mod actor;
pub mod block_index;
mod collections;
pub mod concurrent;
pub mod grouped;
mod interface;
pub mod inverted;
mod mailbox;
pub mod nested;
mod open;
pub mod pool;
pub mod positional;
pub mod radix;

pub use interface::{Change, ConcurrentDesign, Feed, LadderStats, LocalDesign, Refusal, RwLocked, Scores, WorkerId};
pub use open::{Deviation, OpenError, Options, RUNGS, Rung, open};
