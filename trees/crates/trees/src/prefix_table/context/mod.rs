//! One context: which pods hold which prefixes, and by which of their engines' names they say so.
//!
//! What is known is a relation of pod, engine name and prefix, a number of copies for each pod and name, and the
//! prefixes that the router added by itself. A pod holds a prefix while it has any of these for it. Whatever one pod
//! says changes what is known of that pod alone.
//!
//! | file | what |
//! |---|---|
//! | `ways.rs` | who holds an entry, and in which ways |
//! | `evict.rs` | entries go because of their age, or because there are too many |
//! | `change.rs` | what engines and the router say |
//! | `find.rs` | who has how much of a prompt |

mod change;
mod evict;
mod find;
#[cfg(test)]
mod recount;
mod ways;

pub(super) use change::{Rules, StoreOutcome};
pub(super) use ways::Context;
