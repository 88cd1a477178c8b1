//! Python's memory as it lies there: all `unsafe` of this crate.
//!
//! | file | what |
//! |---|---|
//! | `layout.rs` | whether the interpreter lays out its ints and lists as this crate expects |
//! | `buffer.rs` | arrays by the buffer protocol, and lists of plain ints |

mod buffer;
mod layout;

pub(crate) use buffer::{Array, NewArray, Offer, offer, plain_ints};
#[cfg(feature = "trees")]
pub(crate) use layout::Layout;
