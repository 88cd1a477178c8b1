//! The facts of a request that are known before it is placed: its model, tokens and blocks.

use std::sync::Arc;

use kvatlas_follow::state::Keyspace;
use kvatlas_prompt::{Dialect, Endpoint, Pictures, PromptFailure};
use memchr::memmem;

use crate::remote::cache_reports::CacheReporter;
use crate::requests::evidence::PromptEvidence;
use crate::requests::media::ModelMedia;
use crate::requests::pictures::ExpandedPrompt;
use crate::requests::salts::Salts;
use crate::requests::sessions::{BodyNames, Name, Prompt, Turn};

/// Tokens that a prompt is taken to have, at most, if they cannot be counted.
const LONGEST: u32 = 128 << 10;
/// Tokens that sound, images and whatever else is not text are taken to be, at most.
const UNREADABLE: u32 = 1_500;

/// A request, as far as it is known before it is placed.
#[derive(Default)]
pub(crate) struct RequestFacts {
    /// The model, if the request names one.
    pub(crate) model: Option<String>,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
    /// The prompt's blocks, as most engines of the model make it.
    pub(crate) hashes: Arc<[u64]>,
    /// The prompt's blocks as engines of other dialects make it.
    pub(crate) others: Vec<DialectBlocks>,
    pub(crate) text: Option<String>,
    /// The sessions that fields of the body name.
    pub(crate) in_body: BodyNames,
    /// The session that it names.
    pub(crate) session: Option<Name>,
    /// The request as a part of its session, if that is known.
    pub(crate) turn: Option<Arc<Turn>>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) answers: u32,
    /// True if engines generate an answer to it.
    pub(crate) generates: bool,
    /// True if the answer comes token by token.
    pub(crate) streams: bool,
    /// True if it is a stream whose client has not asked how many tokens it has, though it could.
    pub(crate) lacks_usage: bool,
    /// True if it has `stream_options` at all.
    pub(crate) has_stream_options: bool,
    /// The parts of it that are not text.
    pub(crate) media: Option<ModelMedia>,
    /// The pictures in it, if engines get it with names for them.
    pub(crate) pictured: Option<RequestPictures>,
    /// True if `tokens` is what an engine must count for this prompt, if it makes the same tokens of it.
    pub(crate) is_counted: bool,
    /// True if `tokens` is surely what an engine makes of this prompt, and it may not cut it.
    pub(crate) is_exact: bool,
    /// True if it lets the engine cut its prompt.
    pub(crate) may_be_cut: bool,
    /// Tokens that its answer may need beside the prompt; none if it has no answer of tokens.
    pub(crate) answer_room: Option<u32>,
    /// The field of its body with the prompt.
    pub(crate) prompt_field: &'static str,
    /// The answer that it goes on from.
    pub(crate) previous: Option<String>,
    /// True if an engine goes on with it when the client has left.
    pub(crate) in_background: bool,
    /// True if engines of every dialect make the same of its prompt.
    pub(crate) is_alike: bool,
    /// The one engine that can take it, as it keeps what the request goes on from.
    pub(crate) only: Option<Arc<str>>,
    /// The tokens, where they may be forwarded.
    pub(crate) ids: Option<Vec<u32>>,
    /// The reason that it has no tokens, or not all, as long as an engine may still tell them.
    pub(crate) why_not: Option<PromptFailure>,
    pub(crate) adapter: Option<Arc<str>>,
    pub(crate) salts: Salts,
    /// The prompt that the index may learn by.
    pub(crate) telling: Option<Arc<PromptEvidence>>,
    /// The keyspace in which the index has the model's blocks.
    pub(crate) keyspace: Option<Arc<Keyspace>>,
}

/// A request's pictures, by whose names its blocks are known.
pub(crate) struct RequestPictures {
    pub(crate) pictures: Pictures,
    pub(crate) expanded: ExpandedPrompt,
    /// The blocks before the first of them.
    before: Arc<[u64]>,
}

/// A prompt's blocks as engines of a dialect make it.
#[derive(Debug, Clone)]
pub(crate) struct DialectBlocks {
    pub(crate) dialect: Dialect,
    pub(crate) hashes: Arc<[u64]>,
}

impl RequestFacts {
    /// The prompt, as far as it tells which session it continues.
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        Prompt { hashes: &self.hashes, tokens: self.tokens, block_size: self.block_size }
    }

    /// Tokens that the context of an engine must have room for; 0 if they were not counted. An engine that computes the
    /// prompt for another one (`is_prefill`) generates a token, and one that embeds it none.
    pub(crate) fn room(&self, is_prefill: bool) -> u32 {
        match self.answer_room {
            _ if !self.is_exact => 0,
            Some(tokens) if is_prefill => self.tokens.saturating_add(tokens.min(1)),
            Some(tokens) => self.tokens.saturating_add(tokens),
            None => self.tokens,
        }
    }

    /// Notes the tokens that a request's answer may have to have, at an endpoint, and the field with its prompt.
    pub(crate) fn note_lengths(&mut self, endpoint: Endpoint) {
        self.answer_room = match endpoint {
            Endpoint::Embeddings => None,
            // vLLM gives such an answer what room there is.
            Endpoint::Responses => Some(1),
            _ => Some(self.max_tokens.unwrap_or(1)),
        };
        self.prompt_field = match endpoint {
            Endpoint::Chat | Endpoint::Messages => "messages",
            Endpoint::Completions => "prompt",
            Endpoint::Responses | Endpoint::Embeddings => "input",
            Endpoint::Generate => "input_ids",
            Endpoint::Tokens => "token_ids",
            Endpoint::ChatTokens => "tokens",
        };
    }

    /// Returns what is known of a request without a prompt that is read: it is work all the same, of some tokens.
    pub(crate) fn of_work(model: Option<String>, body: &[u8]) -> Self {
        let is_json = body.first().is_some_and(|first| matches!(first, b'{' | b'['));
        let is_text = is_json && memmem::find(body, b";base64,").is_none();
        let most = if is_text { LONGEST } else { UNREADABLE };
        Self { model, tokens: estimate(body).clamp(1, most), answers: 1, ..Self::default() }
    }

    /// True if it is for an adapter, as far as the index knows.
    pub(crate) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// Takes the pictures of a chat, of which everything before the first one is known.
    pub(crate) fn has_pictures(&mut self, pictures: Pictures, expanded: ExpandedPrompt) {
        let (adapter, salt) = (self.adapter.as_deref(), self.salts.main());
        let before = std::mem::replace(&mut self.hashes, expanded.content_hashes(self.block_size, adapter, salt));
        let counted = u32::try_from(expanded.tokens.len()).unwrap_or(u32::MAX);
        self.tokens = if expanded.is_whole { counted } else { self.tokens.max(counted) };
        self.is_counted = expanded.is_whole && expanded.is_counted && self.answers == 1;
        self.is_exact = false;
        self.pictured = Some(RequestPictures { pictures, expanded, before });
    }

    /// Notes that engines get the request as it came: its pictures have no names.
    pub(crate) fn is_passed_as_it_came(&mut self) {
        self.lacks_usage = false;
        if let Some(pictured) = self.pictured.take() {
            self.hashes = pictured.before;
        }
    }

    /// The names of the prompt's blocks in the index.
    pub(crate) fn words<'t>(
        &self,
        salt: Option<&str>,
        hashes: impl FnOnce(u32, Option<&str>, Option<&str>) -> Vec<u64>,
        tokens: impl Fn() -> &'t [u32],
    ) -> Arc<[u64]> {
        let adapter = self.adapter.as_deref();
        match &self.keyspace {
            Some(keyspace) if keyspace.identity().is_keyed() => {
                keyspace.identity().words(tokens(), self.block_size as usize, adapter, salt).into()
            }
            _ => hashes(self.block_size, adapter, salt).into(),
        }
    }

    /// `tokens` are asked for only where the index learns by them, or calls blocks under a key.
    pub(crate) fn hash<'t>(
        &mut self,
        hashes: impl FnOnce(u32, Option<&str>, Option<&str>) -> Vec<u64>,
        tokens: impl Fn() -> &'t [u32],
        cache_reporter: Option<&Arc<CacheReporter>>,
    ) {
        let salt = self.salts.main();
        self.hashes = self.words(salt, hashes, &tokens);
        // What is announced of blocks under such a key is not told from others.
        if self.salts.is_own {
            return;
        }
        self.telling = match (&self.keyspace, cache_reporter, &self.model) {
            (Some(keyspace), ..) => PromptEvidence::of(keyspace, tokens, self.adapter.as_ref(), salt),
            (None, Some(cache_reporter), Some(model)) => {
                PromptEvidence::of_process(cache_reporter, model, tokens, salt)
            }
            _ => None,
        };
    }
}

/// Tokens that a body may be, where they cannot be counted. One prompt has no more than models take.
pub(crate) fn estimate(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(4)).unwrap_or(u32::MAX).min(LONGEST)
}
