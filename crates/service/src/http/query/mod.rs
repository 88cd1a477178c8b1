//! What a query asks: read from its body, checked, its blocks hashed.

mod name;
mod parameters;
mod prompt;
mod read;
mod scope;
mod scratch;
mod seen;

pub(crate) use self::name::{MAX_TEXT, check_name};
pub(crate) use self::prompt::Kind;
pub(crate) use self::read::{Asked, Body, batch, single};
pub(crate) use self::scope::{DEFAULT_ROUTING_GROUP, Scope};
pub(crate) use self::scratch::Scratch;
