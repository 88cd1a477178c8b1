//! Reports on the router: metrics, state, the page, and changes by its operators.

pub(crate) mod admin;
pub(crate) mod exposition;
pub(crate) mod page;
pub(crate) mod state;
