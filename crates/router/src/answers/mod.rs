//! Answers to clients: their bodies, what engines' answers say of themselves, refusals, and answers that engines keep.

pub(crate) mod body;
pub(crate) mod observe;
pub(crate) mod refusal;
pub(crate) mod stored;
pub(crate) mod stored_search;
