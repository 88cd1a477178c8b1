//! Parts of the settings of every crate. Python declares the settings and checks them; Rust reads what it is handed
//! as JSON.
//!
//! * [`Secret`]: a key that one program shows to another.
//! * [`seconds`]: durations, as numbers of seconds.
//! * [`merge`]: settings over the defaults, which Python declares and `tools/generate_defaults.py` writes to files.

#![forbid(unsafe_code)]

mod merge;
pub mod seconds;
mod secret;

pub use merge::merge;
pub use secret::Secret;
