//! From a request's body to what the decision core asks for: model, tokens, content hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use kvatlas_follow::Follower;
use kvatlas_index::hash::content_hashes;
use kvatlas_prompt::{
    Dialect, Endpoint, Media, Options, PictureNames, PictureScope, Pictures, PromptFailure, PromptTokens, Prompter,
    RecalledBody, Request, Turns,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{Config, Handover, ImageIds};
use crate::engines::fleet::Dialects;
use crate::error::Error;
use crate::remote::cache_reports::CacheReporter;
use crate::requests::facts::{DialectBlocks, RequestFacts, estimate};
use crate::requests::fleet_secret::FleetSecret;
use crate::requests::media::{MediaTokens, ModelMedia};
use crate::requests::reading_turns::ReadingTurns;
use crate::requests::salts::Salts;
use crate::requests::sessions::BodyNames;
use crate::requests::unread::UnreadPrompts;

/// The word that a configuration has instead of a tokenizer to have engines asked.
const ENGINE: &str = "engine";

/// Bytes that what is known of chats seen before may take.
const REMEMBERED: usize = 256 << 20;

/// The prompters of all models.
pub(crate) struct Prompts {
    /// The prompters for models that have none of their own.
    any: Prompters,
    by_model: HashMap<String, Prompters>,
    memory: Turns,
    /// True if engines are asked for the tokens of prompts.
    asks_engines: bool,
    /// The forms of a prompt that the policy looks at.
    wants: PromptForms,
    /// The index in another process, if that learns by prompts.
    cache_reporter: Option<Arc<CacheReporter>>,
    /// True if the tokens of completions are kept, to be forwarded.
    keeps_ids: bool,
    /// Bytes of a prompt beyond which it takes long to read.
    long_prompt: usize,
    block_size: u32,
    routing_group: String,
    /// The rule by which pictures get their names, if any do.
    names_pictures: Option<PictureNames>,
    /// Turns to read long prompts.
    pub(crate) turns: Arc<ReadingTurns>,
    /// Permits for other work on long bodies, which takes only as long as it takes to look at each byte: one for each core.
    helpers: Arc<Semaphore>,
    /// Prompts without tokens, by [`Endpoint::ALL`] and [`PromptFailure::ALL`].
    pub(crate) why_not: [[AtomicU64; PromptFailure::ALL.len()]; Endpoint::ALL.len()],
    /// Prompts that could not be read, as a share of all.
    pub(crate) unread: UnreadPrompts,
    /// True if there is a tokenizer, or engines are asked: that a prompt is not read is no choice then.
    is_read: bool,
    /// Prompts made once more, as engines of another kind or version make others of them.
    pub(crate) again: AtomicU64,
    /// Estimates of how many tokens images and the like are.
    pub(crate) media: MediaTokens,
}

/// Bytes of a body that no policy looks into, from which on it is worth to look for what is not text.
const LARGE: usize = 16 << 10;

/// Bytes of a prompt that were not seen before, beyond which reading it takes a millisecond or more: with the quick
/// tokenizer library, and with the common one.
const LONG_PROMPT: usize = 80 << 10;
const LONG_PROMPT_FOR_COMMON: usize = 2 << 10;

/// The forms of a prompt that a policy looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptForms {
    /// Content hashes.
    pub(crate) hashes: bool,
    /// The prompt as text.
    pub(crate) text: bool,
}

/// The limits within which a prompt is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptLimits {
    /// The time by which it must be read.
    pub(crate) until: Instant,
    /// The reason why it is not read at all, if it is not.
    pub(crate) unread: Option<PromptFailure>,
}

impl PromptLimits {
    pub(crate) fn until(until: Instant) -> Self {
        Self { until, unread: None }
    }
}

/// The tokens that an engine told.
pub(crate) struct EngineTokens {
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompts: u32,
    /// The reason why they end before the prompt does.
    pub(crate) cut: Option<PromptFailure>,
    /// True if the engine has made them of the request itself.
    pub(crate) is_rendered: bool,
}

/// The reason why no engine told the tokens, and what it said instead.
pub(crate) struct Silence {
    pub(crate) why_not: PromptFailure,
    pub(crate) said: Option<String>,
}

impl From<PromptFailure> for Silence {
    fn from(why_not: PromptFailure) -> Self {
        Self { why_not, said: None }
    }
}

/// The prompters of one model, which turn its prompts into tokens, by [`Dialect::ALL`].
struct Prompters([Prompter; Dialect::ALL.len()]);

impl Prompters {
    fn new(first: &Prompter) -> Self {
        Self(Dialect::ALL.map(|dialect| first.with_dialect(dialect)))
    }

    fn of(&self, dialect: Dialect) -> &Prompter {
        &self.0[dialect as usize]
    }
}

impl Prompts {
    /// Reads the tokenizers that the configuration names.
    /// `cache_reporter`: the index in another process, if that learns by prompts.
    pub(crate) fn new(
        config: &Config,
        wants: PromptForms,
        cache_reporter: Option<Arc<CacheReporter>>,
        secret: &FleetSecret,
    ) -> Result<Self, Error> {
        let names_pictures = match config.image_ids {
            ImageIds::Auto => Some(PictureScope::Data),
            ImageIds::Addresses => Some(PictureScope::Addresses),
            ImageIds::Off => None,
        };
        // What is looked at as text ends before a picture, and so do blocks. Sites' routers give names themselves.
        if names_pictures.is_some() && wants.hashes && wants.text {
            tracing::info!(policy = %config.policy, "images get no names (image_ids): the policy reads prompts as text");
        }
        let names_pictures = names_pictures
            .filter(|_| wants.hashes && !wants.text && config.global_url.is_none())
            .map(|scope| PictureNames { scope, secret: secret.key("kvatlas 2026-11-28 names of pictures") });
        let options = Options { text: wants.text, images: names_pictures.is_some(), ..Options::default() };
        let failed = |path: &str, error: kvatlas_prompt::Error| Error::config(format!("tokenizer {path}: {error}"));
        let without = || Prompter::without_tokenizer(options.clone()).map_err(|error| failed("none", error));
        let load = |path: &str| -> Result<Prompters, Error> {
            let prompter = Prompter::open(path, options.clone()).map_err(|error| failed(path, error))?;
            prompter.notes().iter().for_each(|note| tracing::warn!(path, "{note}"));
            Ok(Prompters::new(&prompter))
        };
        let any = match &config.tokenizer {
            Some(path) if (wants.hashes || wants.text) && path != ENGINE => load(path)?,
            _ => Prompters::new(&without()?),
        };
        let mut by_model = HashMap::new();
        for (model, path) in &config.tokenizers {
            let path = path.as_str().ok_or_else(|| Error::config(format!("tokenizers.{model} must be a path")))?;
            by_model.insert(model.clone(), load(path)?);
        }
        let is_quick = by_model.values().chain([&any]).all(|prompters: &Prompters| prompters.0[0].is_quick());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            any,
            by_model,
            long_prompt: if is_quick { LONG_PROMPT } else { LONG_PROMPT_FOR_COMMON },
            memory: Turns::new(REMEMBERED),
            asks_engines: config.tokenizer.as_deref() == Some(ENGINE) && wants.hashes,
            wants,
            cache_reporter,
            keeps_ids: config.forward_tokens,
            names_pictures,
            block_size: config.block_size,
            routing_group: config.routing_group.clone(),
            turns: ReadingTurns::new(cores),
            helpers: Arc::new(Semaphore::new(cores)),
            why_not: Default::default(),
            unread: UnreadPrompts::default(),
            is_read: config.tokenizer.is_some() || !config.tokenizers.is_empty(),
            again: AtomicU64::new(0),
            media: MediaTokens::default(),
        })
    }

    /// Waits until a long body may be worked on, which it is while what is returned is held.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.helpers.clone().acquire_owned().await.ok()
    }

    /// True if anything is made of prompts.
    pub(crate) fn are_read(&self) -> bool {
        self.wants.hashes || self.wants.text
    }

    /// Returns what is known of a body from chats seen before.
    pub(crate) fn recall(&self, endpoint: Endpoint, body: &[u8]) -> RecalledBody {
        if self.are_read() { self.memory.recall(endpoint, body) } else { RecalledBody::nothing(body) }
    }

    /// True if a body takes long to be read, beside what is known of it.
    pub(crate) fn is_long(&self, recalled: &RecalledBody) -> bool {
        self.wants.hashes && recalled.new_bytes() > self.long_prompt
    }

    /// Reads a body. Of one that cannot be read nothing is known, and the engine says what is wrong with it.
    ///
    /// `takes_names`: whether all engines of a model call pictures by the names that a request has for them.
    #[expect(clippy::too_many_arguments, reason = "a body, what is known of it, and of whom its engines are")]
    pub(crate) fn read(
        &self,
        service: Option<&Follower>,
        dialects: impl Fn(Option<&str>) -> Dialects,
        takes_names: impl Fn(Option<&str>) -> bool,
        endpoint: Endpoint,
        body: &[u8],
        recalled: &RecalledBody,
        limits: PromptLimits,
    ) -> RequestFacts {
        let request = match recalled.parse(endpoint, body) {
            Ok(request) => request.until(limits.until),
            Err(why_not) => {
                self.count(endpoint, why_not);
                return RequestFacts {
                    tokens: estimate(body),
                    block_size: self.block_size,
                    answers: 1,
                    generates: endpoint.generates(),
                    ..RequestFacts::default()
                };
            }
        };
        let is_response = endpoint == Endpoint::Responses;
        let may_be_cut = request.may_be_cut();
        let mut known = RequestFacts {
            model: request.model.as_deref().map(str::to_owned),
            tokens: estimate(body),
            block_size: self.block_size,
            in_body: BodyNames::of(&request.session),
            max_tokens: request.max_tokens,
            priority: request.priority,
            answers: request.answers,
            generates: endpoint.generates(),
            streams: request.stream,
            lacks_usage: request.stream && !request.include_usage && endpoint.has_stream_options(),
            has_stream_options: request.has_stream_options,
            previous: request.previous_response.as_deref().filter(|_| is_response).map(str::to_owned),
            in_background: is_response && request.in_background,
            may_be_cut,
            ..RequestFacts::default()
        };
        known.note_lengths(endpoint);
        if !self.are_read() {
            if body.len() > LARGE {
                self.weigh(&mut known, request.media());
            }
            return known;
        }
        self.unread.note(endpoint);
        let Dialects { main, others, only_model } = dialects(known.model.as_deref());
        known.model = known.model.or(only_model);
        let model = known.model.as_deref().unwrap_or_default();
        let found = service.and_then(|service| service.fleet().find(model, &self.routing_group).ok());
        let base = found.as_ref().map_or(model, |found| &*found.keyspace.model);
        let prompters = self.by_model.get(model).or_else(|| self.by_model.get(base)).unwrap_or(&self.any);
        let mut prompted = match limits.unread {
            None => self.memory.prompt(prompters.of(main), &request, recalled, body),
            Some(why_not) => PromptTokens::unread(why_not, estimate(body)),
        };
        let skips_cache = main.engine().skips_cache(&request);
        if skips_cache && self.wants.hashes {
            prompted.why_not = Some(PromptFailure::SkipsCache);
        }
        let is_keyed = found.as_ref().is_some_and(|found| found.keyspace.identity().is_keyed());
        let pictures =
            self.names_pictures.as_ref().filter(|_| prompted.placeholders.is_some() && !skips_cache && !is_keyed);
        let pictures = pictures.filter(|_| takes_names(known.model.as_deref()));
        let pictures = pictures.and_then(|named| Pictures::of(body, named));
        let of_pictures = prompted.placeholders.as_ref().zip(pictures).and_then(|(placeholders, pictures)| {
            Some((self.media.lengths.expand(base, placeholders, &pictures)?, pictures))
        });
        if of_pictures.as_ref().is_some_and(|((expanded, _), _)| expanded.is_whole) {
            prompted.why_not = None;
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
        known.is_counted = is_one && prompted.whole && endpoint.is_counted();
        known.is_exact = prompted.prompts == 1
            && prompted.token_count() > 0
            && prompted.whole
            && !may_be_cut
            && is_given_so(endpoint);
        if let Some(found) = &found {
            known.block_size = found.keyspace.block_size;
        }
        let adapter = request.adapter.as_deref().map(Arc::from);
        known.adapter = adapter.or_else(|| found.as_ref().and_then(|found| found.adapter.clone()));
        known.salts = Salts::new(&request, main.engine());
        known.keyspace = found.map(|found| found.keyspace);
        if self.wants.hashes && prompted.token_count() > 0 && !skips_cache {
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| prompted.content_hashes(size, adapter, salt);
            known.hash(hashes, || prompted.tokens(), self.cache_reporter.as_ref());
        }
        if let Some(((expanded, counting), pictures)) = of_pictures {
            known.has_pictures(pictures, expanded);
            if let Some(media) = &mut known.media {
                media.counting = Some(Arc::new(counting));
            }
        }
        if !known.hashes.is_empty() && !others.is_empty() && !prompted.is_alike(body) {
            (known.is_counted, known.is_exact) = (false, false);
            known.others = self.others(prompters, &others, endpoint, body, &known, limits);
        }
        known.is_alike = prompted.is_alike(body);
        if self.wants.text && !prompted.text.is_empty() {
            known.text = Some(std::mem::take(&mut prompted.text));
        }
        if self.keeps_ids && endpoint == Endpoint::Completions && prompted.whole && prompted.prompts == 1 {
            known.ids = Some(prompted.tokens().to_vec()).filter(|ids| !ids.is_empty());
        }
        known
    }

    /// The blocks of a prompt as engines of other dialects make it.
    fn others(
        &self,
        prompters: &Prompters,
        dialects: &[Dialect],
        endpoint: Endpoint,
        body: &[u8],
        known: &RequestFacts,
        limits: PromptLimits,
    ) -> Vec<DialectBlocks> {
        // What is known of turns is of the main dialect, and with that there is nothing to be read twice.
        let Ok(request) = Request::parse(endpoint, body) else { return Vec::new() };
        let request = request.until(limits.until);
        let made = dialects.iter().map(|dialect| {
            self.again.fetch_add(1, Relaxed);
            let prompted = prompters.of(*dialect).prompt(&request);
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| prompted.content_hashes(size, adapter, salt);
            let salt = known.salts.of(dialect.engine());
            DialectBlocks { dialect: *dialect, hashes: known.words(salt, hashes, || prompted.tokens()) }
        });
        made.collect()
    }

    /// Takes what an engine was asked for the tokens of a prompt, and counts what it did not tell.
    pub(crate) fn take_engine_tokens(
        &self,
        endpoint: Endpoint,
        told: Result<EngineTokens, Silence>,
        known: &mut RequestFacts,
    ) {
        let why_not = match told {
            Ok(told) => {
                let counted = u32::try_from(told.tokens.len()).unwrap_or(u32::MAX);
                // Of one text or chat the engine has counted all; of others, what it has not is estimated.
                let is_all = told.prompts == 1 && told.cut.is_none();
                known.tokens = if is_all { counted } else { known.tokens.max(counted) };
                known.is_exact =
                    is_all && counted > 0 && !known.may_be_cut && (told.is_rendered || is_given_so(endpoint));
                let hashes = |size, adapter: Option<&str>, salt: Option<&str>| {
                    content_hashes(&told.tokens, size as usize, adapter, salt)
                };
                known.hash(hashes, || &told.tokens, self.cache_reporter.as_ref());
                told.cut.map(|cut| (cut, None)).or(known.why_not.take().map(|why_not| (why_not, None)))
            }
            Err(Silence { why_not, said }) => Some((why_not, said)),
        };
        if let Some((why_not, said)) = why_not {
            self.count_as(endpoint, why_not, said.as_deref());
        }
    }

    /// Takes what an engine of another dialect told; nothing is known of the prompt there if it told nothing.
    pub(crate) fn take_other_dialect(&self, dialect: Dialect, told: Option<&EngineTokens>, known: &mut RequestFacts) {
        self.again.fetch_add(1, Relaxed);
        known.is_exact = false;
        let Some(told) = told else { return known.others.push(DialectBlocks { dialect, hashes: Arc::default() }) };
        let hashes = |size, adapter: Option<&str>, salt: Option<&str>| {
            content_hashes(&told.tokens, size as usize, adapter, salt)
        };
        let hashes = known.words(known.salts.of(dialect.engine()), hashes, || &told.tokens);
        known.others.push(DialectBlocks { dialect, hashes });
    }

    /// True if an engine is asked for a prompt's tokens. A prompt that skips the cache needs none.
    fn is_asked_for(&self, prompted: &PromptTokens) -> bool {
        let is_due = |why_not: PromptFailure| why_not != PromptFailure::SkipsCache && !why_not.is_limit();
        self.asks_engines && prompted.token_count() == 0 && prompted.why_not.is_none_or(is_due)
    }

    /// Notes what of a prompt is not text, and how many tokens it should have with that.
    fn weigh(&self, known: &mut RequestFacts, media: Option<Media>) {
        let Some(media) = media else { return };
        let model = known.model.clone().unwrap_or_default();
        known.tokens = self.media.estimate(&model, &media);
        known.media = Some(ModelMedia { model, media, counting: None });
    }

    /// True if engines are asked for the tokens of prompts.
    pub(crate) fn asks_engines(&self) -> bool {
        self.asks_engines
    }

    fn count(&self, endpoint: Endpoint, why_not: PromptFailure) {
        self.count_as(endpoint, why_not, None);
    }

    /// `said`: what an engine said instead of the tokens.
    fn count_as(&self, endpoint: Endpoint, why_not: PromptFailure, said: Option<&str>) {
        let of = Endpoint::ALL.iter().position(|other| *other == endpoint);
        let at = PromptFailure::ALL.iter().position(|other| *other == why_not);
        let Some(count) = of.zip(at).map(|(of, at)| &self.why_not[of][at]) else { return };
        if self.is_read {
            self.unread.note_unread(endpoint, why_not, said);
        }
        if count.fetch_add(1, Relaxed) == 0 && !why_not.is_mistake() {
            tracing::info!(
                endpoint = endpoint.word(),
                reason = why_not.word(),
                said,
                "prompts are not tokenized, or only in part, and so placed with less knowledge of caches: {why_not}; \
                 further ones are only counted"
            );
        }
    }
}

/// True if engines make the prompt of a request at an endpoint of what it says, and of nothing that it is converted to.
fn is_given_so(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings)
}

/// The tokens that the router makes of a request at a path, before an engine of a kind and version, if it does.
///
/// # Errors
///
/// The tokenizer cannot be read, or why the request has no tokens, or not all of them.
pub fn prompt_tokens(
    tokenizer: &str,
    handover: Handover,
    version: Option<&str>,
    path: &str,
    body: &[u8],
) -> Result<Vec<u32>, Error> {
    let options = Options { dialect: Dialect::of(handover.kind(), version), ..Options::default() };
    let prompter = Prompter::open(tokenizer, options).map_err(|error| Error::config(error.to_string()))?;
    let why = |why_not: PromptFailure| Error::config(why_not.to_string());
    let endpoint =
        Endpoint::of_path(path).ok_or_else(|| Error::config(format!("requests at {path} have no prompt")))?;
    let prompted = prompter.prompt(&Request::parse(endpoint, body).map_err(why)?);
    prompted.why_not.map_or_else(|| Ok(prompted.tokens().to_vec()), |why_not| Err(why(why_not)))
}
