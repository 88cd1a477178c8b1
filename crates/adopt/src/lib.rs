//! Adoption: what an index that began late can still learn.
//!
//! Engines announce a block once, when it is written, and never say that it was hit. Who begins to listen later never
//! hears of the oldest and hottest blocks, and all that is announced below them waits for them. But a store proves that
//! the engine held all blocks before the stored ones, and the names that engines give to blocks can be computed from
//! tokens, which queries bring. So:
//!
//! | file | what |
//! |---|---|
//! | `dialect.rs` | names from tokens, as vLLM and SGLang compute them |
//! | `frontier.rs` | what a stream has proved without saying what it is, and what it has removed since |
//! | `chains.rs` | names that were computed from prompts, with what they contain |
//! | `late.rs` | one stream's part: it listens to batches, and adopts what is proved and known |
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
