//! Queries: read from their bodies, checked, their blocks hashed.

mod name;
mod parameters;
mod prompt;
mod read;
mod scope;
mod scratch;
mod seen;
mod values;

pub(crate) use self::prompt::Kind;
pub(crate) use self::read::{Body, Queries, batch, single};
pub(crate) use self::scope::Scope;
pub(crate) use self::scratch::Scratch;
