//! From a request's body to what the decision core asks for: model, tokens, content hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_index::hash::content_hashes;
use kvatlas_prompt::{
    Endpoint, Media, Options, Prompted, Prompter, Question, Recalled, Request, TOKENIZE_PATH, Turns, WhyNot,
    tokenize_answer,
};
use kvatlas_service::Follower;
use kvatlas_service::state::Keyspace;
use memchr::memmem;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Config;
use crate::control::ask;
use crate::engine::Engine;
use crate::error::Error;
use crate::learn::Telling;
use crate::media::{MediaTokens, ModelMedia};
use crate::observed::Observed;

/// What a configuration names instead of a tokenizer to have engines asked.
const ENGINE: &str = "engine";

/// Within which an engine must say what a prompt's tokens are: a request does not wait longer to be placed well.
const PATIENCE: Duration = Duration::from_millis(500);

/// Tokens that sound, images and whatever else is not text are taken to be, at most.
const UNREADABLE: u32 = 1_500;

/// Bytes that what is known of chats seen before may take.
const REMEMBERED: usize = 256 << 20;

/// The prompters of all models.
pub(crate) struct Prompts {
    /// For models that have none of their own.
    any: Arc<Prompter>,
    by_model: HashMap<String, Arc<Prompter>>,
    turns: Turns,
    /// Whether engines are asked for the tokens of prompts.
    asks_engines: bool,
    /// What the policy looks at.
    wants: Wants,
    /// The index in another process, if that learns by prompts.
    observed: Option<Arc<Observed>>,
    /// Whether the tokens of completions are kept, to be forwarded.
    keeps_ids: bool,
    block_size: u32,
    routing_group: String,
    /// As many long prompts are read at once as there are cores. Each thread that reads has a tokenizer's memory of
    /// words, so more of them would be slower and larger.
    helpers: Semaphore,
    /// Prompts without tokens, by [`Endpoint::ALL`] and [`WhyNot::ALL`].
    pub(crate) why_not: [[AtomicU64; WhyNot::ALL.len()]; Endpoint::ALL.len()],
    /// What images and the like are taken for.
    pub(crate) media: MediaTokens,
}

/// Bytes of a body that no policy looks into, from which on it is worth to look for what is not text.
const LARGE: usize = 16 << 10;

/// What a policy looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Content hashes.
    pub(crate) hashes: bool,
    /// The prompt as text.
    pub(crate) text: bool,
}

/// What is known of a request before it is placed.
#[derive(Default)]
pub(crate) struct Known {
    /// The model, if the request names one.
    pub(crate) model: Option<String>,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
    pub(crate) hashes: Arc<[u64]>,
    pub(crate) text: Option<String>,
    pub(crate) session: Option<u64>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) answers: u32,
    /// Whether the answer comes token by token.
    pub(crate) streams: bool,
    /// Whether it is a stream whose client has not asked how many tokens it has, though it could.
    pub(crate) lacks_usage: bool,
    /// Whether it has `stream_options` at all.
    pub(crate) has_stream_options: bool,
    /// What is not text in it.
    pub(crate) media: Option<ModelMedia>,
    /// Whether `tokens` is what an engine must count for this prompt, if it makes the same tokens of it.
    pub(crate) is_counted: bool,
    /// The answer that it goes on from.
    pub(crate) previous: Option<String>,
    /// True if an engine goes on with it when the client has left.
    pub(crate) in_background: bool,
    /// The one engine that can take it, as it keeps what the request goes on from.
    pub(crate) only: Option<Arc<str>>,
    /// The tokens, where they may be forwarded.
    pub(crate) ids: Option<Vec<u32>>,
    /// Why it has no tokens, or not all, as long as an engine may still tell them.
    pub(crate) why_not: Option<WhyNot>,
    adapter: Option<Arc<str>>,
    salt: Option<String>,
    /// What the index may learn by it.
    pub(crate) telling: Option<Arc<Telling>>,
    /// Where the index has the model's blocks.
    pub(crate) keyspace: Option<Arc<Keyspace>>,
}

impl Prompts {
    /// Reads the tokenizers that the configuration names.
    /// `observed`: the index in another process, if that learns by prompts.
    pub(crate) fn new(config: &Config, wants: Wants, observed: Option<Arc<Observed>>) -> Result<Self, Error> {
        let options = Options { text: wants.text, ..Options::default() };
        let failed = |path: &str, error: kvatlas_prompt::Error| Error::config(format!("tokenizer {path}: {error}"));
        let without = || Prompter::without_tokenizer(options.clone()).map_err(|error| failed("none", error));
        let load = |path: &str| -> Result<Arc<Prompter>, Error> {
            let prompter = Prompter::open(path, options.clone()).map_err(|error| failed(path, error))?;
            prompter.notes().iter().for_each(|note| tracing::warn!(path, "{note}"));
            Ok(Arc::new(prompter))
        };
        let any = match &config.tokenizer {
            Some(path) if (wants.hashes || wants.text) && path != ENGINE => load(path)?,
            _ => Arc::new(without()?),
        };
        let mut by_model = HashMap::new();
        for (model, path) in &config.tokenizers {
            let path = path.as_str().ok_or_else(|| Error::config(format!("tokenizers.{model} must be a path")))?;
            by_model.insert(model.clone(), load(path)?);
        }
        Ok(Self {
            any,
            by_model,
            turns: Turns::new(REMEMBERED),
            asks_engines: config.tokenizer.as_deref() == Some(ENGINE) && wants.hashes,
            wants,
            observed,
            keeps_ids: config.forward_tokens,
            block_size: config.block_size,
            routing_group: config.routing_group.clone(),
            helpers: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
            why_not: Default::default(),
            media: MediaTokens::default(),
        })
    }

    /// Waits until a long prompt may be read; it is read while what is returned is held.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.helpers.acquire().await.ok()
    }

    /// What is known of a body from chats seen before.
    pub(crate) fn recall(&self, endpoint: Endpoint, body: &[u8]) -> Recalled {
        if self.wants.hashes || self.wants.text { self.turns.recall(endpoint, body) } else { Recalled::nothing(body) }
    }

    /// What a body says. Of one that cannot be read nothing is known, and the engine says what is wrong with it.
    pub(crate) fn read(
        &self,
        service: Option<&Follower>,
        endpoint: Endpoint,
        body: &[u8],
        recalled: &Recalled,
    ) -> Known {
        let request = match recalled.parse(endpoint, body) {
            Ok(request) => request,
            Err(why_not) => {
                self.count(endpoint, why_not);
                return Known { tokens: estimate(body), block_size: self.block_size, answers: 1, ..Known::default() };
            }
        };
        let mut known = Known {
            model: request.model.as_deref().map(str::to_owned),
            tokens: estimate(body),
            block_size: self.block_size,
            session: request.session.as_deref().map(session),
            max_tokens: request.max_tokens,
            priority: request.priority,
            answers: request.answers,
            streams: request.stream,
            lacks_usage: request.stream
                && !request.include_usage
                && matches!(endpoint, Endpoint::Chat | Endpoint::Completions),
            has_stream_options: request.has_stream_options,
            ..Known::default()
        };
        if !self.wants.hashes && !self.wants.text {
            if body.len() > LARGE {
                self.weigh(&mut known, request.media());
            }
            return known;
        }
        let model = known.model.as_deref().unwrap_or_default();
        let found = service.and_then(|service| service.fleet().find(model, &self.routing_group).ok());
        let base = found.as_ref().map_or(model, |found| &*found.keyspace.model);
        let prompter = self.by_model.get(model).or_else(|| self.by_model.get(base)).unwrap_or(&self.any);
        let mut prompted = self.turns.prompt(prompter, &request, recalled, body);
        if request.skips_cache && self.wants.hashes {
            prompted.why_not = Some(WhyNot::SkipsCache);
        }
        if self.is_asked_for(&prompted) {
            known.why_not = prompted.why_not;
        } else if let Some(why_not) = prompted.why_not {
            self.count(endpoint, why_not);
        }
        let counted = u32::try_from(prompted.token_count()).unwrap_or(u32::MAX);
        known.tokens = prompted.prompt_tokens.max(counted);
        if prompted.prompts > 1 {
            known.tokens = known.tokens.max(estimate(body));
        }
        self.weigh(&mut known, prompted.media);
        known.tokens = known.tokens.max(counted);
        // Of several prompts or answers, and of what engines add to other kinds of requests, the sum would be counted.
        let is_one = prompted.prompts == 1 && request.answers == 1 && prompted.token_count() > 0;
        known.is_counted = is_one && prompted.whole && matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
        if let Some(found) = &found {
            known.block_size = found.keyspace.block_size;
        }
        known.adapter = found.as_ref().and_then(|found| found.adapter.clone());
        known.salt = request.cache_salt.as_deref().map(str::to_owned);
        known.keyspace = found.map(|found| found.keyspace);
        if self.wants.hashes && prompted.token_count() > 0 && !request.skips_cache {
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| prompted.content_hashes(size, adapter, salt);
            known.hash(hashes, || prompted.tokens(), self.observed.as_ref());
        }
        if self.wants.text && !prompted.text.is_empty() {
            known.text = Some(std::mem::take(&mut prompted.text));
        }
        if self.keeps_ids && endpoint == Endpoint::Completions && prompted.whole && prompted.prompts == 1 {
            known.ids = Some(prompted.tokens().to_vec()).filter(|ids| !ids.is_empty());
        }
        known
    }

    /// The question that tells an engine's tokens of a prompt.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn question(
        endpoint: Endpoint,
        body: &[u8],
        model: Option<&str>,
        has_media: bool,
    ) -> Result<Question, WhyNot> {
        Question::of(&Request::parse(endpoint, body)?, model, has_media)
    }

    /// Asks an engine for the tokens of a prompt, and counts what it does not tell.
    pub(crate) async fn ask(
        &self,
        engine: Option<&Engine>,
        endpoint: Endpoint,
        question: Result<Question, WhyNot>,
        known: &mut Known,
    ) {
        if let Some(why_not) = self.told_by(engine, question, known).await.err().or(known.why_not.take()) {
            self.count(endpoint, why_not);
        }
    }

    /// The tokens of a prompt as the engine tells them; what it is not asked for is left in `known.why_not`.
    async fn told_by(
        &self,
        engine: Option<&Engine>,
        question: Result<Question, WhyNot>,
        known: &mut Known,
    ) -> Result<(), WhyNot> {
        let engine = engine.ok_or(WhyNot::NotAnswered)?;
        let question = question?;
        let asked = tokio::time::timeout(PATIENCE, ask(engine, "POST", TOKENIZE_PATH, &question.body)).await;
        let tokens = match asked {
            Ok(Ok((200, answer))) => tokenize_answer(&answer).ok_or(WhyNot::NotAnswered)?,
            _ => return Err(WhyNot::NotAnswered),
        };
        let counted = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        // Of one text or chat the engine has counted all; of others, what it has not is estimated.
        let is_all = question.prompts == 1 && question.cut.is_none();
        known.tokens = if is_all { counted } else { known.tokens.max(counted) };
        known.why_not = question.cut;
        let hashes =
            |size, adapter: Option<&str>, salt: Option<&str>| content_hashes(&tokens, size as usize, adapter, salt);
        known.hash(hashes, || &tokens, self.observed.as_ref());
        Ok(())
    }

    /// Whether an engine is asked for a prompt's tokens. A prompt that skips the cache needs none.
    fn is_asked_for(&self, prompted: &Prompted) -> bool {
        self.asks_engines && prompted.token_count() == 0 && prompted.why_not != Some(WhyNot::SkipsCache)
    }

    /// Notes what of a prompt is not text, and how many tokens it should have with that.
    fn weigh(&self, known: &mut Known, media: Option<Media>) {
        let Some(media) = media else { return };
        let model = known.model.clone().unwrap_or_default();
        known.tokens = self.media.estimate(&model, &media);
        known.media = Some(ModelMedia { model, media });
    }

    /// Whether engines are asked for the tokens of prompts.
    pub(crate) fn asks_engines(&self) -> bool {
        self.asks_engines
    }

    fn count(&self, endpoint: Endpoint, why_not: WhyNot) {
        let of = Endpoint::ALL.iter().position(|other| *other == endpoint);
        let at = WhyNot::ALL.iter().position(|other| *other == why_not);
        let Some(count) = of.zip(at).map(|(of, at)| &self.why_not[of][at]) else { return };
        if count.fetch_add(1, Relaxed) == 0 && !why_not.is_mistake() {
            tracing::info!(
                endpoint = endpoint.word(),
                reason = why_not.word(),
                "prompts are not tokenized, or only in part, and so placed with less knowledge of caches: {why_not}; \
                 further ones are only counted"
            );
        }
    }
}

impl Known {
    /// What is known of a request without a prompt that is read: it is work all the same, of some tokens.
    pub(crate) fn of_work(model: Option<String>, body: &[u8]) -> Self {
        let is_json = body.first().is_some_and(|first| matches!(first, b'{' | b'['));
        let is_text = is_json && memmem::find(body, b";base64,").is_none();
        let most = if is_text { u32::MAX } else { UNREADABLE };
        Self { model, tokens: estimate(body).clamp(1, most), answers: 1, ..Self::default() }
    }

    /// Whether it is for an adapter, as far as the index knows.
    pub(crate) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// `tokens` are asked for only where the index learns by them, or calls blocks under a key.
    fn hash<'t>(
        &mut self,
        hashes: impl FnOnce(u32, Option<&str>, Option<&str>) -> Vec<u64>,
        tokens: impl Fn() -> &'t [u32],
        observed: Option<&Arc<Observed>>,
    ) {
        let (adapter, salt) = (self.adapter.as_deref(), self.salt.as_deref());
        self.hashes = match &self.keyspace {
            Some(keyspace) if keyspace.identity().is_keyed() => {
                keyspace.identity().words(tokens(), self.block_size as usize, adapter, salt).into()
            }
            _ => hashes(self.block_size, adapter, salt).into(),
        };
        self.telling = match (&self.keyspace, observed, &self.model) {
            (Some(keyspace), ..) => Telling::of(keyspace, tokens, self.adapter.as_ref(), salt),
            (None, Some(observed), Some(model)) => Telling::elsewhere(observed, model, tokens, salt),
            _ => None,
        };
    }
}

/// What a session's name stands for.
pub(crate) fn session(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

/// Tokens that a body may be, where they cannot be counted.
fn estimate(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(4)).unwrap_or(u32::MAX)
}
