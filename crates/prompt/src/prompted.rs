//! What a prompt became.

use std::sync::{Arc, OnceLock};

use kvatlas_index::hash;

use crate::media::Media;
use crate::rope::Rope;
use crate::why_not::WhyNot;

/// A prompt's tokens, or as many as are known from its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompted {
    pub(crate) tokens: Tokens,
    /// Tokens of the whole prompt: counted if `whole`, else estimated from its bytes of text, and from
    /// how many images and the like it has.
    pub prompt_tokens: u32,
    /// Whether [`tokens`](Self::tokens) are all of them.
    pub whole: bool,
    /// How many prompts the body has, if it has a list of them: the tokens are those of the first.
    pub prompts: u32,
    /// The prompt as text: what the template made of a chat, or the text of a completion. Where there is no tokenizer,
    /// the words of a chat one after another. Empty if not asked for by an option, or if the prompt was given as tokens.
    pub text: String,
    /// What of the body is not text, if anything is.
    pub media: Option<Media>,
    /// Why there are no tokens, or not all.
    pub why_not: Option<WhyNot>,
}

/// Token ids, most of which may be those of an earlier prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    ids: Rope<u32>,
    /// The same in one place, once somebody asks for them.
    flat: OnceLock<Arc<Vec<u32>>>,
}

impl From<Rope<u32>> for Tokens {
    fn from(ids: Rope<u32>) -> Self {
        Self { ids, flat: OnceLock::new() }
    }
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Tokens {}

impl Tokens {
    fn get(&self) -> &[u32] {
        let mut pieces = self.ids.pieces();
        match (pieces.next(), pieces.next()) {
            (None, _) => &[],
            (Some(all), None) => all,
            _ => self.flat.get_or_init(|| Arc::new(self.ids.to_vec())),
        }
    }
}

impl Prompted {
    /// The token ids from the beginning of the prompt.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.tokens.get()
    }

    /// How many of them there are.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.tokens.ids.len()
    }

    /// The content hashes of the tokens' full blocks: [`hash::content_hashes`].
    ///
    /// Made anew each time, for as many block sizes as a fleet has: 12,000 tokens take about 3 µs.
    #[must_use]
    pub fn content_hashes(&self, block_size: u32, lora: Option<&str>, salt: Option<&str>) -> Vec<u64> {
        let size = block_size as usize;
        let mut hashes = Vec::with_capacity(self.token_count().checked_div(size).unwrap_or(0));
        // Tokens of a block that ends in a later piece.
        let mut open: Vec<u32> = Vec::new();
        for piece in self.tokens.ids.pieces() {
            let mut rest = piece;
            if !open.is_empty() {
                let (here, after) = rest.split_at((size - open.len()).min(rest.len()));
                open.extend_from_slice(here);
                rest = after;
                if open.len() < size {
                    continue;
                }
                hashes.extend(hash::content_hashes(&open, size, lora, salt));
                open.clear();
            }
            let whole = rest.len() - rest.len().checked_rem(size).unwrap_or(rest.len());
            hashes.extend(hash::content_hashes(&rest[..whole], size, lora, salt));
            if size > 0 {
                open.extend_from_slice(&rest[whole..]);
            }
        }
        hashes
    }
}
