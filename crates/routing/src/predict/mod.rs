//! Predictions of what nobody has announced: prompts on their way, and caches whose engines announce nothing at all.

mod on_the_way;
mod unheard;

pub(crate) use on_the_way::{Insertion, Leaf, OnTheWay};
pub use unheard::{Forgets, PredictedIndex};
