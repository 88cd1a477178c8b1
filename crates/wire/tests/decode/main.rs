//! Payloads of engines, and others that are like them.

mod fields;
mod forms;
mod helpers;
#[path = "../payload/mod.rs"]
mod payload;
mod refusals;
