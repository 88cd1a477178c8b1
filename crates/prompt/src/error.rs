//! The errors that a tokenizer's files can have.

use std::path::PathBuf;

/// The reason why a model's prompts cannot be turned into tokens at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not there, or cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, and what would be right.
        message: String,
    },
    /// The chat template is not valid, or uses what is not supported.
    #[error("the chat template {message}")]
    Template {
        /// The fault in the template.
        message: String,
    },
}
