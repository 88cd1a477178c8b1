//! The tree as many threads use it, and the lock under which each part of the work is done.
//!
//! One lock for the tree: prompts of a fleet begin alike, so that shards by the first unit would be one shard. Nearly all
//! the time of a call is spent comparing its input with what is stored, under the read lock, and storing what is new,
//! under none. The write lock is for splicing, which costs the same for a long prompt and a short one: who
//! has compared under the read lock notes where that ended, and begins there if the node is still the same (`birth`).
//!
//! No lock is held while a caller's function runs, nor across two slices of a long eviction.
//!
//! | file | what |
//! |---|---|
//! | `tree.rs` | the tree and its lock, and how much is held |
//! | `find.rs` | matches |
//! | `evict.rs` | evictions and the budget |
//! | `insert.rs` | inserts, which keep the budget |

mod evict;
mod find;
mod insert;
mod tree;

pub(crate) use tree::SharedTree;
