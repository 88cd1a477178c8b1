//! What can be wrong with a tokenizer's files.

use std::path::PathBuf;

/// Why a model's prompts cannot be turned into tokens at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not there, or cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why, and what would be right.
        message: String,
    },
    /// The chat template is not valid, or uses what is not supported.
    #[error("the chat template {message}")]
    Template {
        /// What is wrong with it.
        message: String,
    },
}
