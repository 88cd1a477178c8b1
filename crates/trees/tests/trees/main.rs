//! StringTree and TokenTree against a plain model, under random operations, from many threads, and from bad bytes.

#[path = "trees/concurrent.rs"]
mod concurrent;
#[path = "trees/histories.rs"]
mod histories;
#[path = "trees/model.rs"]
mod model;
mod random;
#[path = "trees/rules.rs"]
mod rules;
#[path = "trees/snapshots.rs"]
mod snapshots;
