//! Conversion of request bodies to the requested model, prompt tokens and content hashes of blocks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use kvatlas_follow::Follower;
use kvatlas_prompt::{
    Dialect, Endpoint, Media, Options, PictureNames, PictureScope, Pictures, PromptFailure, PromptTokens, Prompter,
    RecalledBody, Request, Turns,
};

use crate::config::{Config, Handover, ImageIds};
use crate::engines::fleet::Dialects;
use crate::error::Error;
use crate::remote::cache_reports::CacheReporter;
use crate::requests::facts::Salts;
use crate::requests::facts::{BodyFields, DialectBlocks, PromptFacts, ReadBody, estimate};
use crate::requests::fleet_secret::FleetSecret;
use crate::requests::media::{MediaTokens, ModelMedia};
use crate::requests::read_body::ReadingTurns;
use crate::requests::unread::UnreadPrompts;

/// Value of the setting `tokenizer` that makes the router ask engines for the tokens of prompts.
const ENGINE: &str = "engine";

/// Memory for cached conversions of chats' earlier turns to tokens, in bytes.
const REMEMBERED: usize = 256 << 20;

/// Converters of prompts to tokens (template and tokenizer) for all models, with a cache of chats' earlier turns.
pub(crate) struct Prompts {
    /// Converters of prompts to tokens, for models without a tokenizer of their own in the configuration.
    any: Prompters,
    by_model: HashMap<String, Prompters>,
    memory: Turns,
    /// True if engines are asked for the tokens of prompts.
    asks_engines: bool,
    /// Forms of a prompt that the policy uses: content hashes, text, or neither.
    wants: PromptForms,
    /// Sender of reports to an index in another process; None if that index does not learn from prompts.
    pub(super) cache_reporter: Option<Arc<CacheReporter>>,
    /// True if the token ids of completions are stored, so that they can be sent to engines.
    keeps_ids: bool,
    /// Size of the uncached part of a prompt, in bytes, above which its conversion takes long. The part known from
    /// earlier turns is cached.
    long_prompt: usize,
    block_size: u32,
    routing_group: String,
    /// Rule by which the router assigns ids to images; None if it assigns none.
    names_pictures: Option<PictureNames>,
    /// Limit on the number of long prompts that are converted concurrently.
    pub(crate) turns: Arc<ReadingTurns>,
    /// Number of prompts that could not be converted to tokens, by endpoint ([`Endpoint::ALL`]) and reason
    /// ([`PromptFailure::ALL`]).
    pub(crate) why_not: [[AtomicU64; PromptFailure::ALL.len()]; Endpoint::ALL.len()],
    /// Share of recent prompts that could not be converted to tokens.
    pub(crate) unread: UnreadPrompts,
    /// True if the router or engines are configured to tokenize prompts, so that failures are reported.
    is_read: bool,
    /// Number of prompts rendered a second time, for engines that render chats differently.
    pub(crate) again: AtomicU64,
    /// Learnt estimates of the number of tokens in images and other media.
    pub(crate) media: MediaTokens,
}

/// Size of a body, in bytes, above which the body is searched for media even if the policy does not use the prompt.
const LARGE: usize = 16 << 10;

/// Number of bytes of a prompt, without those known from earlier turns, above which the conversion takes a millisecond
/// or more with the fast tokenizer library.
const LONG_PROMPT: usize = 80 << 10;
/// Number of bytes of a prompt, without those known from earlier turns, above which the conversion takes a millisecond
/// or more with the common tokenizer library.
const LONG_PROMPT_FOR_COMMON: usize = 2 << 10;

/// Forms of a prompt that the policy uses: content hashes, text, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptForms {
    /// True if the policy uses content hashes.
    pub(crate) hashes: bool,
    /// True if the policy uses the prompt as text.
    pub(crate) text: bool,
}

/// Limits for the conversion of a prompt to tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptLimits {
    /// Deadline for the conversion of the prompt to tokens.
    pub(crate) until: Instant,
    /// Reason for not converting the prompt to tokens at all; None to convert it.
    pub(crate) unread: Option<PromptFailure>,
    /// True if the body is forwarded to the engine unchanged.
    pub(crate) as_is: bool,
}

impl PromptLimits {
    pub(crate) fn until(until: Instant) -> Self {
        Self { until, unread: None, as_is: false }
    }
}

/// Converters of prompts to tokens for one model: one for each dialect (way of rendering chats), in the order of
/// [`Dialect::ALL`].
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
    /// Loads the tokenizers named in the configuration. `cache_reporter`: sender of reports to an index in another
    /// process; `secret`: secret from which the ids of images are derived; `cores`: number of long prompts converted
    /// concurrently.
    pub(crate) fn new(
        config: &Config,
        wants: PromptForms,
        cache_reporter: Option<Arc<CacheReporter>>,
        secret: &FleetSecret,
        cores: usize,
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
            why_not: Default::default(),
            unread: UnreadPrompts::default(),
            is_read: config.tokenizer.is_some() || !config.tokenizers.is_empty(),
            again: AtomicU64::new(0),
            media: MediaTokens::default(),
        })
    }

    /// True if prompts are converted to tokens at all.
    pub(crate) fn are_read(&self) -> bool {
        self.wants.hashes || self.wants.text
    }

    /// Looks up the part of a request body that was converted to tokens in an earlier turn of the chat, and is cached.
    pub(crate) fn recall(&self, endpoint: Endpoint, body: &[u8]) -> RecalledBody {
        if self.are_read() { self.memory.recall(endpoint, body) } else { RecalledBody::nothing(body) }
    }

    /// True if converting the uncached part of a body to tokens takes a millisecond or more.
    pub(crate) fn is_long(&self, recalled: &RecalledBody) -> bool {
        self.wants.hashes && recalled.new_bytes() > self.long_prompt
    }

    /// Reads the fields and the prompt of a body. A body that cannot be parsed is forwarded, as the engine's answer
    /// explains the error.
    ///
    /// `dialects`: function that returns the dialects (ways of rendering chats) of a model's engines; `takes_names`:
    /// function that returns whether all engines of a model identify images by the `uuid` in a request.
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
    ) -> ReadBody {
        let request = match recalled.parse(endpoint, body) {
            Ok(request) => request.until(limits.until),
            Err(why_not) => {
                self.count(endpoint, why_not);
                return Box::new((BodyFields::unread(None, endpoint.generates()), self.estimated(body)));
            }
        };
        let named = request.model.as_deref().map(str::to_owned);
        if !self.are_read() {
            let fields = BodyFields::of(endpoint, &request, named, limits.as_is);
            let mut prompt = self.estimated(body);
            if body.len() > LARGE
                && let Some((tokens, media)) = self.weigh(fields.model.as_deref(), request.media())
            {
                (prompt.tokens, prompt.media) = (tokens, Some(media));
            }
            return Box::new((fields, prompt));
        }
        self.unread.note(endpoint);
        let Dialects { main, others, only_model } = dialects(named.as_deref());
        let fields = BodyFields::of(endpoint, &request, named.or(only_model), limits.as_is);
        let model = fields.model.as_deref().unwrap_or_default();
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
        let takes_pictures = prompted.placeholders.is_some() && !skips_cache && !is_keyed && !limits.as_is;
        let pictures = self.names_pictures.as_ref().filter(|_| takes_pictures);
        let pictures = pictures.filter(|_| takes_names(fields.model.as_deref()));
        let pictures = pictures.and_then(|named| Pictures::of(body, named));
        let of_pictures = prompted.placeholders.as_ref().zip(pictures).and_then(|(placeholders, pictures)| {
            Some((self.media.lengths.expand(base, placeholders, &pictures)?, pictures))
        });
        if of_pictures.as_ref().is_some_and(|((expanded, _), _)| expanded.is_whole) {
            prompted.why_not = None;
        }
        let is_asked_for = self.is_asked_for(&prompted);
        if let Some(why_not) = prompted.why_not.filter(|_| !is_asked_for) {
            self.count(endpoint, why_not);
        }
        let counted = u32::try_from(prompted.token_count()).unwrap_or(u32::MAX);
        let least = if prompted.prompts > 1 { estimate(body) } else { 0 };
        let weighed = self.weigh(fields.model.as_deref(), prompted.media);
        let (tokens, media) =
            weighed.map_or_else(|| (prompted.prompt_tokens.max(least), None), |(tokens, media)| (tokens, Some(media)));
        // Of several prompts or answers, and of what engines add to other kinds of requests, the sum would be counted.
        let is_one = prompted.prompts == 1 && prompted.token_count() > 0 && prompted.whole;
        let adapter = request.adapter.as_deref().map(Arc::from);
        let mut prompt = PromptFacts {
            tokens: tokens.max(counted),
            block_size: found.as_ref().map_or(self.block_size, |found| found.keyspace.block_size),
            media,
            is_counted: is_one && request.answers == 1 && endpoint.is_counted(),
            is_exact: is_one && !fields.may_be_cut && is_given_so(endpoint),
            // It takes a look at the whole body, and matters only where some engines have another dialect.
            is_alike: others.is_empty() || prompted.is_alike(body),
            why_not: prompted.why_not.filter(|_| is_asked_for),
            adapter: adapter.or_else(|| found.as_ref().and_then(|found| found.adapter.clone())),
            salts: Salts::new(&request, main.engine()),
            keyspace: found.map(|found| found.keyspace),
            ..PromptFacts::default()
        };
        if self.wants.hashes && prompted.token_count() > 0 && !skips_cache {
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| prompted.content_hashes(size, adapter, salt);
            let (model, reporter) = (fields.model.as_deref(), self.cache_reporter.as_ref());
            prompt = prompt.with_blocks(model, hashes, || prompted.tokens(), reporter);
        }
        if let Some(((expanded, counting), pictures)) = of_pictures {
            prompt = prompt.with_pictures(pictures, expanded, fields.answers);
            if let Some(media) = &mut prompt.media {
                media.counting = Some(Arc::new(counting));
            }
        }
        if !prompt.hashes.is_empty() && !others.is_empty() && !prompt.is_alike {
            (prompt.is_counted, prompt.is_exact) = (false, false);
            prompt.others = self.others(prompters, &others, endpoint, body, &prompt, limits);
        }
        if self.wants.text && !prompted.text.is_empty() {
            prompt.text = Some(std::mem::take(&mut prompted.text));
        }
        if self.keeps_ids && endpoint == Endpoint::Completions && prompted.whole && prompted.prompts == 1 {
            prompt.ids = Some(prompted.tokens().to_vec()).filter(|ids| !ids.is_empty());
        }
        Box::new((fields, prompt))
    }

    /// Makes the facts about a prompt that is not converted to tokens, with an estimated number of tokens.
    fn estimated(&self, body: &[u8]) -> PromptFacts {
        PromptFacts { tokens: estimate(body), block_size: self.block_size, ..PromptFacts::default() }
    }

    /// Computes the blocks of a prompt as rendered in other dialects (ways of rendering chats).
    fn others(
        &self,
        prompters: &Prompters,
        dialects: &[Dialect],
        endpoint: Endpoint,
        body: &[u8],
        prompt: &PromptFacts,
        limits: PromptLimits,
    ) -> Vec<DialectBlocks> {
        // What is known of turns is of the main dialect, and with that there is nothing to be read twice.
        let Ok(request) = Request::parse(endpoint, body) else { return Vec::new() };
        let request = request.until(limits.until);
        let made = dialects.iter().map(|dialect| {
            self.again.fetch_add(1, Relaxed);
            let prompted = prompters.of(*dialect).prompt(&request);
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| prompted.content_hashes(size, adapter, salt);
            let salt = prompt.salts.of(dialect.engine());
            DialectBlocks { dialect: *dialect, hashes: prompt.block_names(salt, hashes, || prompted.tokens()) }
        });
        made.collect()
    }

    /// True if an engine must be asked for a prompt's tokens. A prompt that does not use the cache needs no tokens.
    fn is_asked_for(&self, prompted: &PromptTokens) -> bool {
        let is_due = |why_not: PromptFailure| why_not != PromptFailure::SkipsCache && !why_not.is_limit();
        self.asks_engines && prompted.token_count() == 0 && prompted.why_not.is_none_or(is_due)
    }

    /// Estimates the number of tokens in a prompt with media; None for a prompt without media.
    fn weigh(&self, model: Option<&str>, media: Option<Media>) -> Option<(u32, ModelMedia)> {
        let media = media?;
        let model = model.unwrap_or_default().to_owned();
        Some((self.media.estimate(&model, &media), ModelMedia { model, media, counting: None }))
    }

    /// True if engines are asked for the tokens of prompts.
    pub(crate) fn asks_engines(&self) -> bool {
        self.asks_engines
    }

    fn count(&self, endpoint: Endpoint, why_not: PromptFailure) {
        self.count_as(endpoint, why_not, None);
    }

    /// Counts a prompt that could not be converted to tokens. `said`: the engine's answer in place of tokens, if any.
    pub(super) fn count_as(&self, endpoint: Endpoint, why_not: PromptFailure, said: Option<&str>) {
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

/// True if engines render the requests of an endpoint as they are, without converting them to another form first.
pub(super) fn is_given_so(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings)
}

/// Computes the tokens of a request's prompt as the router does, for an engine of a given kind and version.
/// `tokenizer`: path of the tokenizer; `path`: path of the request.
///
/// # Errors
///
/// The tokenizer cannot be loaded, or the request has no tokens, or not all of them are known.
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
