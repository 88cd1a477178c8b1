//! From a request's body to what the decision core asks for: model, tokens, content hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvatlas_prompt::{Endpoint, Options, Prompter, Request, WhyNot};
use kvatlas_service::Service;
use kvatlas_service::state::Keyspace;

use crate::config::Config;
use crate::error::Error;

/// The prompters of all models.
pub(crate) struct Prompts {
    /// For models that have none of their own.
    any: Arc<Prompter>,
    by_model: HashMap<String, Arc<Prompter>>,
    /// What the policy looks at.
    wants: Wants,
    block_size: u32,
    routing_group: String,
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
    pub(crate) streams: bool,
    /// Where the index has the model's blocks.
    pub(crate) keyspace: Option<Arc<Keyspace>>,
}

impl Prompts {
    /// Reads the tokenizers that the configuration names.
    pub(crate) fn new(config: &Config, wants: Wants) -> Result<Self, Error> {
        let options = Options { text: wants.text, ..Options::default() };
        let load = |_path: &str| -> Result<Arc<Prompter>, Error> {
            Ok(Arc::new(Prompter::without_tokenizer(options.clone())))
        };
        let any = match &config.tokenizer {
            Some(path) if wants.hashes || wants.text => load(path)?,
            _ => Arc::new(Prompter::without_tokenizer(options.clone())),
        };
        let mut by_model = HashMap::new();
        for (model, path) in &config.tokenizers {
            let path = path.as_str().ok_or_else(|| Error::config(format!("tokenizers.{model} must be a path")))?;
            by_model.insert(model.clone(), load(path)?);
        }
        Ok(Self {
            any,
            by_model,
            wants,
            block_size: config.block_size,
            routing_group: config.routing_group.clone(),
            why_not: Default::default(),
        })
    }

    /// What a body says. Of one that cannot be read nothing is known, and the engine says what is wrong with it.
    pub(crate) fn read(&self, service: Option<&Service>, endpoint: Endpoint, body: &[u8]) -> Known {
        let request = match Request::parse(endpoint, body) {
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
        let prompted = prompter.prompt(&request);
        if let Some(why_not) = prompted.why_not {
            self.count(why_not);
        }
        known.tokens = prompted.prompt_tokens.max(u32::try_from(prompted.tokens().len()).unwrap_or(u32::MAX));
        if let Some(found) = &found {
            known.block_size = found.keyspace.block_size;
        }
        if self.wants.hashes && !prompted.tokens().is_empty() {
            let adapter = found.as_ref().and_then(|found| found.adapter.as_deref());
            let salt = request.cache_salt.as_deref();
            known.hashes = prompted.content_hashes(known.block_size, adapter, salt).into();
        }
        known.keyspace = found.map(|found| found.keyspace);
        if self.wants.text && !prompted.text.is_empty() {
            known.text = Some(prompted.text);
        }
        known
    }

    fn count(&self, why_not: WhyNot) {
        if let Some(at) = WhyNot::ALL.iter().position(|other| *other == why_not) {
            self.why_not[at].fetch_add(1, Relaxed);
        }
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
