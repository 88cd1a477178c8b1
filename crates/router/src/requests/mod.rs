//! Requests as they come from clients: their routes, bodies, prompts and sessions.

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
pub(crate) mod reading_turns;
pub(crate) mod reserved;
pub(crate) mod routes;
pub(crate) mod sessions;
pub(crate) mod task;
pub(crate) mod unread;
