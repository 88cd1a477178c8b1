//! Predictions of what nobody has announced: prompts on their way, and caches whose engines announce nothing at all.

mod due;
mod sent_prompts;
mod unheard;

pub(crate) use sent_prompts::{Insertion, Leaf, SentPrompts};
pub use unheard::{PredictedIndex, Retention};
