//! Parts of the settings of every crate. Python declares the settings and checks them; Rust reads what it is handed
//! as JSON.
//!
//! * [`Secret`]: a key that one program shows to another.
//! * [`seconds`]: durations, as numbers of seconds.
//! * [`defaults`], [`merge`]: the defaults, which Python declares and `tools/generate_defaults.py` writes to files, and
//!   settings over them.

#![forbid(unsafe_code)]

mod merge;
pub mod seconds;
mod secret;

pub use merge::{defaults, merge};
pub use secret::{MAX_KEY, Secret, warn_if_others_read};
