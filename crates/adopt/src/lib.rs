//! Adoption: blocks that an index can still learn of although it began after they were announced.
//!
//! Engines announce a block once, when it is written, and not when it is hit. A service that begins to listen later is
//! never told of the oldest and hottest blocks, and all that is announced below them waits for them. But a store proves
//! that the engine held all blocks before the stored ones, and the names that engines give to blocks can be computed
//! from tokens, which queries bring. So:
//!
//! | file | what |
//! |---|---|
//! | `dialect.rs` | names from tokens, as vLLM and SGLang compute them |
//! | `frontier.rs` | names that a stream has proved without announcing the blocks, and its removals since |
//! | `chains.rs` | names that were computed from prompts, with the contents of their blocks |
//! | `late.rs` | one stream's part: proofs by its batches, and adoption of what is proved and known |
//!
//! Depths that come of it are never too large: a block counts if it was proved and not removed since, one removal
//! removes however many copies there are, and if there were more removals than are remembered, nothing is adopted.

pub mod chains;
pub mod dialect;
pub mod frontier;
pub mod late;

pub use chains::{Chain, Chains};
pub use dialect::{Algorithm, Dialect, Form, Namer, Scheme};
pub use frontier::{Frontier, FrontierState, Moment};
pub use late::{AdoptionFailure, Counts, Outcome, RankAdoption, RankPlace};
