//! Parts that several policies are made of. Nothing in here knows a policy.

pub(crate) mod books;
pub(crate) mod pieces;
pub(crate) mod sent_blocks;
