//! The result of tokenizing a prompt.

use std::sync::{Arc, LazyLock, OnceLock};

use kvatlas_index::hash;
use memchr::memmem::Finder;

use crate::dialect::BILLING;
use crate::media::Media;
use crate::prompt_failure::PromptFailure;
use crate::rope::Rope;

/// A prompt's tokens, or as many as are known from its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    pub(crate) tokens: Tokens,
    /// Tokens of the whole prompt: counted if `whole`, else estimated from its bytes of text, and from
    /// how many images and the like it has.
    pub prompt_tokens: u32,
    /// True if [`tokens`](Self::tokens) are all of the prompt's tokens.
    pub whole: bool,
    /// Number of prompts that the body has, if it has a list of them: the tokens are those of the first.
    pub prompts: u32,
    /// The prompt as text: what the template made of a chat, or the text of a completion. Where there is no tokenizer,
    /// the words of a chat one after another. Empty if not asked for by an option, or if the prompt was given as tokens.
    pub text: String,
    /// The parts of the body that are not text, if there are any.
    pub media: Option<Media>,
    /// The reason why there are no tokens, or not all.
    pub why_not: Option<PromptFailure>,
    /// The whole prompt of a chat with images, if that is asked for and known; else the tokens end before the first one.
    pub placeholders: Option<Placeholders>,
    /// True if engines of every dialect make the same of it, but for lines of billing.
    pub(crate) is_plain: bool,
}

/// The tokens of a chat with images, in which one token stands for each image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// The token ids.
    pub tokens: Vec<u32>,
    /// The places of those that stand for images.
    pub places: Vec<usize>,
}

impl Placeholders {
    /// Takes tokens in which this one stands for each of so many images. None if it is not there as often.
    pub(crate) fn of(tokens: Vec<u32>, image: u32, images: usize) -> Option<Self> {
        let found = tokens.iter().enumerate().filter(|(_, token)| **token == image);
        let places: Vec<usize> = found.map(|(place, _)| place).collect();
        (places.len() == images).then_some(Self { tokens, places })
    }
}

/// Token ids, most of which may be those of an earlier prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    ids: Rope<u32>,
    /// The token ids in one place, once somebody asks for them.
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

impl PromptTokens {
    /// A prompt that was not read, of about so many tokens.
    #[must_use]
    pub fn unread(why_not: PromptFailure, prompt_tokens: u32) -> Self {
        Self { prompt_tokens, prompts: 1, why_not: Some(why_not), ..Self::default() }
    }

    /// True if engines of every dialect make the same prompt of the body that it comes from.
    #[must_use]
    pub fn is_alike(&self, body: &[u8]) -> bool {
        static BILLING_LINE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BILLING));
        self.is_plain && BILLING_LINE.find(body).is_none()
    }

    /// The token ids from the beginning of the prompt.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.tokens.get()
    }

    /// Leaves only so many of the first tokens, for that reason.
    pub(crate) fn end_at(&mut self, most: usize, why_not: Option<PromptFailure>) {
        if self.token_count() <= most {
            return;
        }
        let known: Rope<u32> = self.tokens.get()[..most].to_vec().into();
        self.tokens = known.into();
        self.whole = false;
        self.why_not = self.why_not.or(why_not);
    }

    /// Number of tokens.
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
