//! Parts that policies are made of, here and elsewhere. Nothing in here knows a policy.

pub mod draw;
pub mod ring;
pub mod sheet;
