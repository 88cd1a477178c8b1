//! From a request's body to what the decision core asks for: model, tokens, content hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_index::hash::content_hashes;
use kvatlas_prompt::{
    Endpoint, Options, Prompter, Recalled, Request, TOKENIZE_PATH, Turns, WhyNot, tokenize_answer, tokenize_body,
};
use kvatlas_service::Follower;
use kvatlas_service::state::Keyspace;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::config::Config;
use crate::control::ask;
use crate::engine::Engine;
use crate::error::Error;
use crate::learn::Telling;
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
    /// Prompts without tokens, by [`WhyNot::ALL`].
    pub(crate) why_not: [AtomicU64; WhyNot::ALL.len()],
}

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
                self.count(why_not);
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
            ..Known::default()
        };
        if !self.wants.hashes && !self.wants.text {
            return known;
        }
        let model = known.model.as_deref().unwrap_or_default();
        let found = service.and_then(|service| service.fleet().find(model, &self.routing_group).ok());
        let base = found.as_ref().map_or(model, |found| &*found.keyspace.model);
        let prompter = self.by_model.get(model).or_else(|| self.by_model.get(base)).unwrap_or(&self.any);
        let mut prompted = self.turns.prompt(prompter, &request, recalled, body);
        if let Some(why_not) = prompted.why_not {
            self.count(why_not);
        }
        known.tokens = prompted.prompt_tokens.max(u32::try_from(prompted.token_count()).unwrap_or(u32::MAX));
        // Of several prompts or answers, and of what engines add to other kinds of requests, the sum would be counted.
        let is_one = prompted.prompts == 1 && request.answers == 1 && prompted.token_count() > 0;
        known.is_counted = is_one && prompted.whole && matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
        if let Some(found) = &found {
            known.block_size = found.keyspace.block_size;
        }
        known.adapter = found.as_ref().and_then(|found| found.adapter.clone());
        known.salt = request.cache_salt.as_deref().map(str::to_owned);
        known.keyspace = found.map(|found| found.keyspace);
        if self.wants.hashes && prompted.token_count() > 0 {
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

    /// What an engine is asked for the tokens of a prompt; nothing if the body has none.
    pub(crate) fn question(endpoint: Endpoint, body: &[u8], model: Option<&str>) -> Option<Vec<u8>> {
        Request::parse(endpoint, body).and_then(|request| tokenize_body(&request, model)).ok()
    }

    /// Asks an engine for the tokens of a prompt.
    pub(crate) async fn ask(&self, engine: &Engine, question: &[u8], known: &mut Known) {
        let asked = tokio::time::timeout(PATIENCE, ask(engine, "POST", TOKENIZE_PATH, question)).await;
        if let Ok(Ok((200, answer))) = asked
            && let Some(tokens) = tokenize_answer(&answer)
        {
            known.tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            let hashes =
                |size, adapter: Option<&str>, salt: Option<&str>| content_hashes(&tokens, size as usize, adapter, salt);
            known.hash(hashes, || &tokens, self.observed.as_ref());
        }
    }

    /// Whether engines are asked for the tokens of prompts.
    pub(crate) fn asks_engines(&self) -> bool {
        self.asks_engines
    }

    fn count(&self, why_not: WhyNot) {
        if let Some(at) = WhyNot::ALL.iter().position(|other| *other == why_not) {
            self.why_not[at].fetch_add(1, Relaxed);
        }
    }
}

impl Known {
    /// What is known of a request without a prompt that is read: it is work all the same, of some tokens.
    pub(crate) fn of_work(model: Option<String>, body: &[u8]) -> Self {
        let is_text = body.first().is_some_and(|first| matches!(first, b'{' | b'['));
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
