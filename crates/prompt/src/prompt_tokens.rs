//! Result of tokenizing a prompt: its tokens, the truncation that the request asks for, and the reasons why tokens are
//! missing.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock};

use kvatlas_index::hash;
use memchr::memmem::Finder;

use crate::dialect::BILLING;
use crate::endpoint::Endpoint;
use crate::media::Media;
use crate::request::{Request, read};
use crate::rope::Rope;

/// Tokens of a prompt, or its leading tokens as far as they could be determined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptTokens {
    pub(crate) tokens: Tokens,
    /// Number of tokens of the whole prompt: counted if `whole`, else estimated from the bytes of text and from images
    /// and other media.
    pub prompt_tokens: u32,
    /// True if [`tokens`](Self::tokens) returns all of the prompt's tokens.
    pub whole: bool,
    /// Number of prompts in the request's body: 1, or the length of its list of prompts. The tokens are those of the
    /// first prompt.
    pub prompts: u32,
    /// Text of the prompt: the rendered chat, or the text of a completion. Without a tokenizer, the roles and texts of
    /// a chat one after another. Empty unless an option requests the text, and for prompts given as tokens.
    pub text: String,
    /// Number of images, sounds and other values of the request's body that are not text; `None` if there are none.
    pub media: Option<Media>,
    /// Reason why tokens are missing; `None` if no tokens are missing.
    pub why_not: Option<PromptFailure>,
    /// Tokens of the whole prompt of a chat with images, one placeholder for each image; `None` if not requested or
    /// unknown. [`tokens`](Self::tokens) end before the first image.
    pub placeholders: Option<Placeholders>,
    /// True if all supported engines and versions make the same prompt of the request's body, apart from lines with
    /// billing data.
    pub(crate) is_plain: bool,
}

/// Tokens of a chat with images, with one placeholder token for each image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// Token ids of the chat, including the placeholders.
    pub tokens: Vec<u32>,
    /// Indexes of the placeholder tokens in `tokens`, ascending.
    pub places: Vec<usize>,
}

impl Placeholders {
    /// Wraps the tokens of a chat in which the token `image` stands for an image. `None` if the number of these tokens
    /// is not `images`.
    pub(crate) fn of(tokens: Vec<u32>, image: u32, images: usize) -> Option<Self> {
        let found = tokens.iter().enumerate().filter(|(_, token)| **token == image);
        let places: Vec<usize> = found.map(|(place, _)| place).collect();
        (places.len() == images).then_some(Self { tokens, places })
    }
}

/// Token ids of a prompt in pieces; most pieces may be shared with an earlier prompt of the same chat.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    ids: Rope<u32>,
    /// Token ids as one slice, made when first requested.
    flat: OnceLock<Arc<Vec<u32>>>,
    /// Content hashes of the blocks of an earlier prompt, reused for the blocks that this prompt shares with it.
    pub(crate) before: Option<Arc<KeptHashes>>,
    /// Place where the content hashes of this prompt's blocks are kept for later prompts; `None` to keep none.
    pub(crate) kept: Option<Arc<KeptHashes>>,
}

/// Content hashes of a prompt's blocks, kept for later prompts that share its beginning. Only the hashes for the first
/// requested block size, adapter and salt are kept.
#[derive(Debug, Default)]
pub(crate) struct KeptHashes(OnceLock<BlockHashes>);

/// Minimum block size, in tokens, for which hashes are kept: the hashes of larger blocks occupy at most one byte per
/// token.
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
    /// Maximum memory that the kept hashes of a prompt with `tokens` tokens take, in bytes.
    pub(crate) fn bytes(tokens: usize) -> usize {
        size_of::<BlockHashes>() + tokens
    }

    /// Content hashes of the leading blocks that a prompt with the tokens `ids` shares with the earlier prompt whose
    /// hashes were kept.
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
    /// Creates the result for a prompt that was not read, with an estimate of its number of tokens.
    #[must_use]
    pub fn unread(why_not: PromptFailure, prompt_tokens: u32) -> Self {
        Self { prompt_tokens, prompts: 1, why_not: Some(why_not), ..Self::default() }
    }

    /// True if all supported engines and versions make an equal prompt of the request's body `body`.
    #[must_use]
    pub fn is_alike(&self, body: &[u8]) -> bool {
        static BILLING_LINE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(BILLING));
        self.is_plain && BILLING_LINE.find(body).is_none()
    }

    /// Token ids from the beginning of the prompt.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.tokens.get()
    }

    /// Keeps only the first `most` tokens of the prompt, and stores the reason `why_not` for which the others are
    /// missing.
    pub(crate) fn end_at(&mut self, most: usize, why_not: Option<PromptFailure>) {
        if self.token_count() <= most {
            return;
        }
        let known: Rope<u32> = self.tokens.get()[..most].to_vec().into();
        self.tokens = known.into();
        self.whole = false;
        self.why_not = self.why_not.or(why_not);
    }

    /// Number of the prompt's leading token ids that are known.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.tokens.ids.len()
    }

    /// Content hashes of the tokens' full blocks, as computed by [`hash::content_hashes`].
    ///
    /// Computed on each call, since a fleet may have several block sizes: 12,000 tokens take about 3 µs. Hashes of
    /// blocks known from the chat's earlier request are reused.
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

/// Cuts a prompt's tokens to those that vLLM keeps if a request has `truncate_prompt_tokens`.
///
/// If the request does not say which side to cut, the tokenizer keeps the end of a prompt for generation, the beginning
/// of a text for embedding, and in both cases the special tokens that it added. If the request says the side, special
/// tokens are cut like others.
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

/// Reason why a prompt was tokenized only in part or not at all. The reasons' names in metrics are the same in every
/// release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PromptFailure {
    /// The body is not a JSON object.
    #[error("the body is not a JSON object")]
    NotJson,
    /// The body has no prompt, or a prompt in a form that no engine accepts.
    #[error("the body has no prompt of a known form")]
    NoPrompt,
    /// The messages are not valid for any engine: for example, a role is missing, or a content is neither a string nor
    /// a list of parts.
    #[error("the messages are not of a known form")]
    BadMessages,
    /// The router has no tokenizer for the request's model.
    #[error("there is no tokenizer")]
    NoTokenizer,
    /// The router has no chat template for the request's model.
    #[error("there is no chat template")]
    NoTemplate,
    /// The chat template refuses the messages or fails.
    #[error("the chat template refuses the messages")]
    TemplateRefuses,
    /// The request contains its own chat template, which the router does not render.
    #[error("the request has a chat template of its own")]
    OwnTemplate,
    /// Part of the prompt is an image, and the tokens end before the first image.
    #[error("the prompt has an image: it is tokenized up to there")]
    Image,
    /// Part of the prompt is audio, and the tokens end before the first audio.
    #[error("the prompt has audio: it is tokenized up to there")]
    Audio,
    /// Part of the prompt is a video, and the tokens end before the first video.
    #[error("the prompt has a video: it is tokenized up to there")]
    Video,
    /// Part of the prompt is a file or other content that is not text, and the tokens end before the first of these
    /// parts.
    #[error("the prompt has a part that is not text: it is tokenized up to there")]
    OtherPart,
    /// The prompt is given as embeddings.
    #[error("the prompt is given as embeddings")]
    Embeds,
    /// The prompt continues an earlier answer that only the engine has (`previous_response_id`, `conversation`).
    #[error("the prompt continues an answer that an engine keeps")]
    Stored,
    /// The prompt has items of a kind that the router cannot convert to text.
    #[error("the prompt has items that the router cannot turn into text")]
    OtherItem,
    /// The prompt is longer than the limit of [`Options::max_bytes`](crate::Options::max_bytes).
    #[error("the prompt is longer than the router tokenizes")]
    TooLong,
    /// The engine computes the whole prompt without its cache, since the request has `prompt_logprobs`, or `echo` with
    /// `logprobs`.
    #[error("the request has the engine compute all of the prompt: no cache counts")]
    SkipsCache,
    /// The router asked an engine for the prompt's tokens, and the engine did not return them.
    #[error("the engine's /tokenize did not tell the tokens, or not in time")]
    NotAnswered,
    /// The values parsed from the prompt would need many times the memory of the request.
    #[error("the prompt has more items than the router reads")]
    TooManyItems,
    /// The deadline passed while the prompt was being parsed.
    #[error("the prompt took too long to be read")]
    TookTooLong,
    /// The router's memory for prompts in progress is used up.
    #[error("there was no memory to read the prompt in")]
    NoRoom,
}

impl PromptFailure {
    /// All reasons for a prompt without tokens, in a fixed order, for metrics that begin at zero.
    pub const ALL: [Self; 20] = [
        Self::NotJson,
        Self::NoPrompt,
        Self::BadMessages,
        Self::NoTokenizer,
        Self::NoTemplate,
        Self::TemplateRefuses,
        Self::OwnTemplate,
        Self::Image,
        Self::Audio,
        Self::Video,
        Self::OtherPart,
        Self::Embeds,
        Self::Stored,
        Self::OtherItem,
        Self::TooLong,
        Self::SkipsCache,
        Self::NotAnswered,
        Self::TooManyItems,
        Self::TookTooLong,
        Self::NoRoom,
    ];

    /// True if the prompt has, or may have, parts that are not text.
    #[must_use]
    pub(crate) const fn may_have_media(self) -> bool {
        !matches!(self, Self::NotJson | Self::NoTokenizer | Self::NoTemplate) && !self.is_limit()
    }

    /// True if a limit of the router was exceeded; engines are then not asked for the tokens of the prompt either.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::TooLong | Self::TooManyItems | Self::TookTooLong | Self::NoRoom)
    }

    /// True if the request is invalid, so that the engine will refuse it.
    #[must_use]
    pub const fn is_mistake(self) -> bool {
        matches!(self, Self::NotJson | Self::NoPrompt | Self::BadMessages)
    }

    /// Name of the reason for a prompt without tokens, in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::NoPrompt => "no_prompt",
            Self::BadMessages => "bad_messages",
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::TemplateRefuses => "template_refuses",
            Self::OwnTemplate => "own_template",
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::OtherPart => "other_part",
            Self::Embeds => "embeds",
            Self::Stored => "stored",
            Self::OtherItem => "other_item",
            Self::TooLong => "too_long",
            Self::SkipsCache => "skips_cache",
            Self::NotAnswered => "not_answered",
            Self::TooManyItems => "too_many_items",
            Self::TookTooLong => "took_too_long",
            Self::NoRoom => "no_room",
        }
    }
}

/// Reason why a model's prompts cannot be tokenized: an error in the model's files or its chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the model is missing or cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    File {
        /// Path of the model's file.
        path: PathBuf,
        /// Description of the error in the file, and of a correct file.
        message: String,
    },
    /// The chat template is not valid, or uses an unsupported feature.
    #[error("the chat template {message}")]
    Template {
        /// Description of the error in the template.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_word_of_its_own() {
        let words: std::collections::HashSet<_> = PromptFailure::ALL.iter().map(|why| why.word()).collect();
        assert_eq!(words.len(), PromptFailure::ALL.len());
    }
}
