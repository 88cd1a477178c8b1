//! Parts that several policies are made of. Nothing in here knows a policy.

pub(super) mod books;
pub(super) mod draw;
pub(super) mod pieces;
pub(super) mod ring;
pub(super) mod sent_blocks;
pub(super) mod sheet;
