//! Answers to clients: bodies, facts read from engines' answers, refusals, and stored answers.
//!
//! | file | what |
//! |---|---|
//! | `body.rs` | the body of an answer, complete or streamed |
//! | `observe` | facts that an engine's answer states about itself, read as it passes |
//! | `refusal.rs` | refusals by the router, in the error formats of the APIs |
//! | `stored.rs`, `stored_search.rs` | engines that keep answers, files and batches, and the search for them |

pub(crate) mod body;
pub(crate) mod observe;
pub(crate) mod refusal;
pub(crate) mod stored;
pub(crate) mod stored_search;
