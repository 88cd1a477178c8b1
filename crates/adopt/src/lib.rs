//! Adoption: adding blocks to the index that engines announced before the service began to follow them.
//!
//! Engines announce a block once, when it is written, and not when it is hit. So a service that begins later misses the
//! oldest and most used blocks, and cannot match later blocks that continue their chains. But a store event proves that
//! the engine held all blocks before the stored ones, and the block hashes of engines can be computed from the tokens
//! in queries. Blocks that are both proved to be held and known by their tokens are adopted.
//!
//! | file | content |
//! |---|---|
//! | `dialect.rs` | block hashes computed from tokens, as vLLM and SGLang do |
//! | `frontier.rs` | block hashes that a stream proved to be held without announcing the blocks, and the removals since |
//! | `chains.rs` | block hashes computed from prompts, with the contents of their blocks |
//! | `late.rs` | adoption for one stream: proofs by its batches, and adoption of blocks that are proved and known |
//!
//! Adopted blocks never make a matched depth too large. A block is adopted only if it was proved to be held and not
//! removed since; one removal removes all its copies; and if more blocks were removed than are remembered, none is
//! adopted.

pub mod chains;
pub mod dialect;
pub mod frontier;
pub mod late;

pub use chains::{Chain, Chains};
pub use dialect::{Algorithm, Dialect, Form, Namer, Scheme};
pub use frontier::{Frontier, FrontierState, Moment};
pub use late::{AdoptionFailure, Counts, Outcome, RankAdoption, RankPlace};
