//! The result of tokenizing a prompt, and the truncation that a request asks for.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, OnceLock};

use kvatlas_index::hash;
use memchr::memmem::Finder;

use crate::dialect::BILLING;
use crate::endpoint::Endpoint;
use crate::media::Media;
use crate::prompt_failure::PromptFailure;
use crate::request::{Request, read};
use crate::rope::Rope;

/// A prompt's tokens, or the leading ones that could be determined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    pub(crate) tokens: Tokens,
    /// Number of tokens of the whole prompt: counted if `whole`, else estimated from its bytes of text and its images
    /// and other media.
    pub prompt_tokens: u32,
    /// True if [`tokens`](Self::tokens) are all of the prompt's tokens.
    pub whole: bool,
    /// Number of prompts in the body, if it has a list of them: the tokens are those of the first.
    pub prompts: u32,
    /// The prompt as text: the rendered chat, or the text of a completion. Without a tokenizer, the words of a chat one
    /// after another. Empty unless an option asks for it, or if the prompt was given as tokens.
    pub text: String,
    /// The parts of the body that are not text, if it has any.
    pub media: Option<Media>,
    /// The reason why tokens are missing, if any are.
    pub why_not: Option<PromptFailure>,
    /// The whole prompt of a chat with images, if requested and known; otherwise the tokens end before the first image.
    pub placeholders: Option<Placeholders>,
    /// True if engines of every dialect make the same prompt of the body, billing lines aside.
    pub(crate) is_plain: bool,
}

/// The tokens of a chat with images, one placeholder token for each image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// The token ids.
    pub tokens: Vec<u32>,
    /// Indexes of the placeholder tokens.
    pub places: Vec<usize>,
}

impl Placeholders {
    /// Wraps tokens in which `image` stands for each of `images` images. None if `image` does not occur that often.
    pub(crate) fn of(tokens: Vec<u32>, image: u32, images: usize) -> Option<Self> {
        let found = tokens.iter().enumerate().filter(|(_, token)| **token == image);
        let places: Vec<usize> = found.map(|(place, _)| place).collect();
        (places.len() == images).then_some(Self { tokens, places })
    }
}

/// Token ids in pieces, most of them perhaps shared with an earlier prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    ids: Rope<u32>,
    /// The token ids as one slice, made on the first request for it.
    flat: OnceLock<Arc<Vec<u32>>>,
    /// Hashes of the earlier prompt's blocks, and the place where those of this one are kept.
    pub(crate) before: Option<Arc<KeptHashes>>,
    pub(crate) kept: Option<Arc<KeptHashes>>,
}

/// Content hashes of a prompt's blocks, kept for prompts that share its beginning: the first ones that were asked for.
#[derive(Debug, Default)]
pub(crate) struct KeptHashes(OnceLock<BlockHashes>);

/// Tokens of the smallest block whose hashes are kept: they take a byte a token at most.
const SMALLEST_KEPT: usize = size_of::<u64>();

#[derive(Debug)]
struct BlockHashes {
    ids: Rope<u32>,
    block_size: usize,
    lora: Option<Box<str>>,
    salt: Option<Box<str>>,
    hashes: Vec<u64>,
}

impl KeptHashes {
    /// Most bytes that the hashes of a prompt take, by its number of tokens.
    pub(crate) fn bytes(tokens: usize) -> usize {
        size_of::<BlockHashes>() + tokens
    }

    /// The hashes of leading blocks, in the same pieces, of a prompt with these tokens.
    fn of(&self, ids: &Rope<u32>, block_size: usize, lora: Option<&str>, salt: Option<&str>) -> &[u64] {
        let is_alike = |kept: &&BlockHashes| {
            kept.block_size == block_size && kept.lora.as_deref() == lora && kept.salt.as_deref() == salt
        };
        self.0.get().filter(is_alike).map_or(&[], |kept| {
            let blocks = kept.ids.shared(ids).checked_div(block_size).unwrap_or(0);
            &kept.hashes[..blocks.min(kept.hashes.len())]
        })
    }

    fn keep(&self, ids: &Rope<u32>, block_size: usize, lora: Option<&str>, salt: Option<&str>, hashes: &[u64]) {
        if block_size >= SMALLEST_KEPT {
            self.0.get_or_init(|| BlockHashes {
                ids: ids.clone(),
                block_size,
                lora: lora.map(Box::from),
                salt: salt.map(Box::from),
                hashes: hashes.to_vec(),
            });
        }
    }
}

impl From<Rope<u32>> for Tokens {
    fn from(ids: Rope<u32>) -> Self {
        Self { ids, ..Self::default() }
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
    /// The result for a prompt that was not read, with an estimate of its number of tokens.
    #[must_use]
    pub fn unread(why_not: PromptFailure, prompt_tokens: u32) -> Self {
        Self { prompt_tokens, prompts: 1, why_not: Some(why_not), ..Self::default() }
    }

    /// True if engines of every dialect make the same prompt of its body.
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

    /// Keeps only the first `most` tokens, and stores the reason.
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
    /// Computed on each call, since a fleet may have several block sizes: 12,000 tokens take about 3 µs. Those of an earlier
    /// turn's blocks are taken over.
    #[must_use]
    pub fn content_hashes(&self, block_size: u32, lora: Option<&str>, salt: Option<&str>) -> Vec<u64> {
        let size = block_size as usize;
        let Tokens { ids, before, kept, .. } = &self.tokens;
        let mut hashes = Vec::with_capacity(ids.len().checked_div(size).unwrap_or(0));
        hashes.extend_from_slice(before.as_ref().map_or(&[], |before| before.of(ids, size, lora, salt)));
        let mut known = hashes.len() * size;
        // Tokens of a block that spans pieces.
        let mut open: Vec<u32> = Vec::new();
        for piece in ids.pieces() {
            let here = known.min(piece.len());
            known -= here;
            let mut rest = &piece[here..];
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
        if let Some(kept) = kept {
            kept.keep(ids, size, lora, salt, &hashes);
        }
        hashes
    }
}

/// Cuts a prompt's tokens to those that vLLM keeps (`truncate_prompt_tokens`). If the request names no side, the
/// tokenizer cuts: it keeps the end of a prompt for generation, the beginning of a text for embedding, and in both
/// cases its own special tokens. If the request names a side, special tokens are cut like others.
///
/// `around`: numbers of leading and trailing special tokens added by the tokenizer.
pub(crate) fn truncated(tokens: Rope<u32>, around: (usize, usize), request: &Request<'_>) -> Rope<u32> {
    let most = read::<usize>(request.parts.truncate_prompt_tokens).filter(|most| *most < tokens.len());
    let Some(most) = most else { return tokens };
    let side = read::<Cow<'_, str>>(request.parts.truncation_side);
    let keeps_end = match side.as_deref() {
        Some(side) => side == "left",
        None => request.endpoint != Endpoint::Embeddings,
    };
    let (before, after) = if side.is_none() && around.0 + around.1 <= most { around } else { (0, 0) };
    let all = tokens.to_vec();
    let (begin, rest) = all.split_at(before);
    let (text, end) = rest.split_at(rest.len() - after);
    let room = most - before - after;
    let kept = if keeps_end { &text[text.len() - room..] } else { &text[..room] };
    [begin, kept, end].concat().into()
}
