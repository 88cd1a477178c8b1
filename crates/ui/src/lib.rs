//! The page to look at, and what keeps it up to date. The service and the router both serve it.
//!
//! No sockets, no threads, no clock: whoever serves it calls [`Feed::update`] as often as it likes, and hands each
//! [`Viewer`]'s bytes to a client. The work of an update is done once, however many watch, and not at all if nobody does.
//!
//! | file | what |
//! |---|---|
//! | `assets.rs` | the page's files, as they are in `assets/`: no build step, nothing from elsewhere |
//! | `feed.rs` | [`Feed`]: states in, server-sent events out; [`Viewer`]: one client |
//!
//! # The events
//!
//! | event | data |
//! |---|---|
//! | `whole` | `{"state": …, "lists": {…}}`: everything; first, and again for whoever read too slowly |
//! | `state` | the state as it is now, if it has changed |
//! | `more` | `{"list": name, "items": […]}`: to be put at the end of that list |

#![forbid(unsafe_code)]

mod assets;
mod feed;

pub use assets::{Asset, CONTENT_SECURITY_POLICY, asset};
pub use feed::{Feed, TooManyViewers, Viewer};
