//! StringTree and TokenTree against a plain model, under random operations, from many threads, and from bad bytes.

mod concurrent;
mod histories;
mod model;
mod rules;
mod snapshots;
