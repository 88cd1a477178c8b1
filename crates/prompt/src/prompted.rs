//! What a prompt became.

use std::sync::Arc;

use kvatlas_index::hash;

use crate::WhyNot;

/// A prompt's tokens, or as many as are known from its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompted {
    pub(crate) tokens: Arc<Vec<u32>>,
    /// Tokens of the whole prompt: counted if `whole`, else estimated from its length in bytes.
    pub prompt_tokens: u32,
    /// Whether [`tokens`](Self::tokens) are all of them.
    pub whole: bool,
    /// How many prompts the body has, if it has a list of them: the tokens are those of the first.
    pub prompts: u32,
    /// The prompt as text: what the template made of a chat, or the text of a completion. Where there is no tokenizer,
    /// the words of a chat one after another. Empty if not asked for by an option, or if the prompt was given as tokens.
    pub text: String,
    /// Why there are no tokens, or not all.
    pub why_not: Option<WhyNot>,
}

impl Prompted {
    /// The token ids from the beginning of the prompt.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The same, to keep.
    #[must_use]
    pub fn into_tokens(self) -> Vec<u32> {
        Arc::unwrap_or_clone(self.tokens)
    }

    /// The content hashes of the tokens' full blocks: [`hash::content_hashes`].
    ///
    /// Made anew each time, for as many block sizes as a fleet has: 12,000 tokens take about 3 µs.
    #[must_use]
    pub fn content_hashes(&self, block_size: u32, lora: Option<&str>, salt: Option<&str>) -> Vec<u64> {
        hash::content_hashes(&self.tokens, block_size as usize, lora, salt)
    }
}
