//! Parsing of clients' requests: their routes, bodies, prompts and sessions.
//!
//! | file | contents |
//! |---|---|
//! | `routes` | the table of routes |
//! | `task.rs` | kinds of work for engines |
//! | `cors.rs` | cross-origin access for web pages (CORS) |
//! | `read_body.rs` | reading of a body: receiving, decompression (`encoding.rs`) and parsing; on other threads (`long_work.rs`) if that takes long |
//! | `reserved` | detection of ids and fields that only the router may write |
//! | `facts.rs` | the facts about a request: body fields, prompt, routing hints |
//! | `prompts.rs`, `engine_tokens.rs` | conversion of prompts to tokens and content hashes, by the router or by engines |
//! | `media.rs`, `pictures.rs` | tokens and blocks of images and other media |
//! | `evidence.rs` | prompts from which an index learns which blocks engines hold |
//! | `unread.rs` | prompts that cannot be converted to tokens |
//! | `sessions` | sessions and their turns |
//! | `fleet_secret.rs` | the secret from which ids of images and sessions are derived |

pub(crate) mod cors;
pub(crate) mod encoding;
pub(crate) mod engine_tokens;
pub(crate) mod evidence;
pub(crate) mod facts;
pub(crate) mod fleet_secret;
pub(crate) mod long_work;
pub(crate) mod media;
pub(crate) mod pictures;
pub(crate) mod prompts;
pub(crate) mod read_body;
pub(crate) mod reserved;
pub(crate) mod routes;
pub(crate) mod sessions;
pub(crate) mod task;
pub(crate) mod unread;
