//! What engines send, and what is like it.

mod fields;
mod forms;
mod helpers;
#[path = "../payload/mod.rs"]
mod payload;
mod refusals;
