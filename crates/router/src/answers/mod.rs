//! Answers to clients: bodies, facts read from engines' answers, refusals, and stored answers.

pub(crate) mod body;
pub(crate) mod observe;
pub(crate) mod refusal;
pub(crate) mod stored;
pub(crate) mod stored_search;
