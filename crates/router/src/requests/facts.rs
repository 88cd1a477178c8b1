//! Facts about a request that decide which engine gets it, in three structs: fields of the body, the prompt, and hints
//! on where and when to send the request. Also the priorities of requests by the objective that a header names, as set
//! by a cluster's InferenceObjectives.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hyper::header::HeaderMap;
use kvatlas_follow::state::Keyspace;
use kvatlas_prompt::{Dialect, Endpoint, Engine, Pictures, PromptFailure, Request};
use memchr::memmem;

use crate::model_counts::ModelCounts;
use crate::remote::cache_reports::CacheReporter;
use crate::requests::evidence::PromptEvidence;
use crate::requests::media::ModelMedia;
use crate::requests::pictures::ExpandedPrompt;
use crate::requests::sessions::{BodyNames, Name, Prompt, Turn};

/// Upper limit of the estimated number of tokens in a prompt.
const LONGEST: u32 = 128 << 10;
/// Upper limit of the estimated number of tokens in a body that is not text, such as sound or images.
const UNREADABLE: u32 = 1_500;

/// Body fields and prompt of a request, in one allocation, as both are large and passed between functions often.
pub(crate) type ReadBody = Box<(BodyFields, PromptFacts)>;

/// Facts about a request that decide which engine gets it.
pub(crate) struct RequestFacts {
    pub(crate) body: BodyFields,
    pub(crate) prompt: PromptFacts,
    pub(crate) hints: RoutingHints,
    /// Counters of the request's model.
    pub(crate) model: Arc<ModelCounts>,
    pub(crate) waited: WaitTime,
}

/// Sum of the times for which a request has waited in the router before it was sent to an engine, over all attempts.
#[derive(Debug, Default)]
pub(crate) struct WaitTime(AtomicU64);

impl WaitTime {
    /// Adds a wait of the request that has ended to the sum of its waits.
    pub(crate) fn add(&self, wait: Duration) {
        self.0.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the sum of the request's waits so far, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 1e6
    }
}

/// Fields of a request's body, except its prompt.
#[derive(Default)]
pub(crate) struct BodyFields {
    /// Name of the requested model, or of the fleet's only model if the request names none; None if the fleet has
    /// several.
    pub(crate) model: Option<String>,
    /// Session ids in the fields of the body, by the kind of field.
    pub(crate) session_names: BodyNames,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) priority: i32,
    /// Number of answers to generate for each prompt.
    pub(crate) answers: u32,
    /// True if engines generate tokens for the request.
    pub(crate) generates: bool,
    /// True if the answer is streamed.
    pub(crate) streams: bool,
    /// True for a stream that could report token counts (`usage`) at its end, but whose client has not requested them.
    pub(crate) lacks_usage: bool,
    /// True if the body has the field `stream_options`.
    pub(crate) has_stream_options: bool,
    /// True if the engine may truncate the prompt so that it fits into the model's context.
    pub(crate) may_be_cut: bool,
    /// Number of tokens that the answer needs in the context in addition to the prompt; None if the answer has no
    /// tokens.
    pub(crate) answer_room: Option<u32>,
    /// Name of the body's field that contains the prompt.
    pub(crate) prompt_field: &'static str,
    /// Id of the stored response that the request continues (`previous_response_id`); None for a request without it.
    pub(crate) previous: Option<String>,
    /// True if the engine continues to process the request after the client has left.
    pub(crate) in_background: bool,
}

/// Tokens and blocks of a request's prompt.
#[derive(Default)]
pub(crate) struct PromptFacts {
    /// Number of tokens in the prompt, counted or estimated.
    pub(crate) tokens: u32,
    /// Block size in tokens.
    pub(crate) block_size: u32,
    /// Content hashes of the prompt's blocks, as rendered for most engines of the model; empty if unknown.
    pub(crate) hashes: Arc<[u64]>,
    /// Content hashes of the prompt's blocks as rendered in each other dialect (way of rendering chats).
    pub(crate) others: Vec<DialectBlocks>,
    /// Prompt as text, for policies that use the text.
    pub(crate) text: Option<String>,
    /// Images and other media in the prompt; None for a prompt of text alone.
    pub(crate) media: Option<ModelMedia>,
    /// Images in the prompt, if the router assigns ids to them for the engines.
    pub(crate) pictured: Option<RequestPictures>,
    /// True if an engine whose tokenizer agrees with the router's must report exactly `tokens` prompt tokens.
    pub(crate) is_counted: bool,
    /// True if `tokens` is exact for every engine, and the engine must not truncate the prompt.
    pub(crate) is_exact: bool,
    /// True if the prompt has equal tokens for all engines of the model, whatever their way of rendering chats.
    pub(crate) is_alike: bool,
    /// Token ids of the prompt, if the prompt may be sent to engines as token ids instead of text.
    pub(crate) ids: Option<Vec<u32>>,
    /// Reason why the router has no tokens, while an engine may still provide them; None if tokens are known.
    pub(crate) why_not: Option<PromptFailure>,
    pub(crate) adapter: Option<Arc<str>>,
    pub(crate) salts: Salts,
    /// Prompt from which an index may learn the blocks that an engine holds; None if no index learns from it.
    pub(crate) evidence: Option<Arc<PromptEvidence>>,
    /// Keyspace of the index for the request's model (the part of the index with the model's blocks); None if there is
    /// none.
    pub(crate) keyspace: Option<Arc<Keyspace>>,
}

/// Hints, from the request, on where and when to send it: session, priority, and an engine that must be chosen.
#[derive(Default)]
pub(crate) struct RoutingHints {
    /// Id of the session that the request names; None for a request without one.
    pub(crate) session: Option<Name>,
    /// Position of the request in its session (conversation of several requests); None if unknown.
    pub(crate) turn: Option<Arc<Turn>>,
    pub(crate) priority: i32,
    /// True if a field of the body can tell the engine which blocks to load, and from which engine to pull blocks.
    pub(crate) tells: bool,
    /// Name of the only engine that can answer, because it stores the item that the request continues; None if any
    /// engine can.
    pub(crate) only_engine: Option<Arc<str>>,
}

/// Images of a request, with the ids by which engines identify them.
pub(crate) struct RequestPictures {
    pub(crate) pictures: Pictures,
    pub(crate) expanded: ExpandedPrompt,
}

/// Content hashes of a prompt's blocks as rendered in one dialect (way of rendering chats).
#[derive(Debug, Clone)]
pub(crate) struct DialectBlocks {
    pub(crate) dialect: Dialect,
    pub(crate) hashes: Arc<[u64]>,
}

impl RequestFacts {
    /// Returns the number of tokens that an engine's context must have for the request; 0 if the tokens were not
    /// counted. An engine that computes the prompt for another one (`is_prefill`) generates at most one token, and an
    /// engine that computes embeddings none.
    pub(crate) fn room(&self, is_prefill: bool) -> u32 {
        let tokens = self.prompt.tokens;
        match self.body.answer_room {
            _ if !self.prompt.is_exact => 0,
            Some(answer) if is_prefill => tokens.saturating_add(answer.min(1)),
            Some(answer) => tokens.saturating_add(answer),
            None => tokens,
        }
    }
}

impl BodyFields {
    /// Makes the fields of a parsed request. `as_is`: true if engines get the body unchanged.
    pub(crate) fn of(endpoint: Endpoint, request: &Request<'_>, model: Option<String>, as_is: bool) -> Self {
        let is_response = endpoint == Endpoint::Responses;
        Self {
            model,
            session_names: BodyNames::of(&request.session),
            max_tokens: request.max_tokens,
            priority: request.priority,
            answers: request.answers,
            generates: endpoint.generates(),
            streams: request.stream,
            lacks_usage: !as_is && request.stream && !request.include_usage && endpoint.has_stream_options(),
            has_stream_options: request.has_stream_options,
            may_be_cut: request.may_be_cut(),
            answer_room: match endpoint {
                Endpoint::Embeddings => None,
                // vLLM gives such an answer what room there is.
                Endpoint::Responses => Some(1),
                _ => Some(request.max_tokens.unwrap_or(1)),
            },
            prompt_field: match endpoint {
                Endpoint::Chat | Endpoint::Messages => "messages",
                Endpoint::Completions => "prompt",
                Endpoint::Responses | Endpoint::Embeddings => "input",
                Endpoint::Generate => "input_ids",
                Endpoint::Tokens => "token_ids",
                Endpoint::ChatTokens => "tokens",
            },
            previous: request.previous_response.as_deref().filter(|_| is_response).map(str::to_owned),
            in_background: is_response && request.in_background,
        }
    }

    /// Makes the fields for a body that is not parsed, so that at most its model is known.
    pub(crate) fn unread(model: Option<String>, generates: bool) -> Self {
        Self { model, answers: 1, generates, ..Self::default() }
    }
}

impl PromptFacts {
    /// Makes the facts for a request whose prompt is not parsed, with a number of tokens estimated from the body.
    pub(crate) fn of_work(body: &[u8]) -> Self {
        let is_json = body.first().is_some_and(|first| matches!(first, b'{' | b'['));
        let is_text = is_json && memmem::find(body, b";base64,").is_none();
        let most = if is_text { LONGEST } else { UNREADABLE };
        Self { tokens: estimate(body).clamp(1, most), ..Self::default() }
    }

    /// Content hashes of the prompt's blocks as engines of a dialect (way of rendering chats) render it.
    pub(crate) fn hashes_for(&self, dialect: Dialect) -> &Arc<[u64]> {
        self.others.iter().find(|other| other.dialect == dialect).map_or(&self.hashes, |other| &other.hashes)
    }

    /// Returns the parts of the prompt that are compared with earlier prompts, to find the session that the prompt
    /// continues.
    pub(crate) fn in_session(&self) -> Prompt<'_> {
        Prompt { hashes: &self.hashes, tokens: self.tokens, block_size: self.block_size }
    }

    /// Returns the prompt with the tokens and blocks of its images included.
    pub(super) fn with_pictures(mut self, pictures: Pictures, expanded: ExpandedPrompt, answers: u32) -> Self {
        self.hashes = expanded.content_hashes(self.block_size, self.adapter.as_deref(), self.salts.main());
        let counted = u32::try_from(expanded.tokens.len()).unwrap_or(u32::MAX);
        self.tokens = if expanded.is_whole { counted } else { self.tokens.max(counted) };
        self.is_counted = expanded.is_whole && expanded.is_counted && answers == 1;
        self.is_exact = false;
        self.pictured = Some(RequestPictures { pictures, expanded });
        self
    }

    /// Computes the hashes by which the index identifies the prompt's blocks. `hashes`: function that computes content
    /// hashes by block size, adapter and salt; `tokens`: function that returns the token ids.
    pub(super) fn block_names<'t>(
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

    /// Returns the prompt with the hashes of its blocks. The function `tokens` is called only if an index learns from
    /// the tokens, the index's block hashes are keyed, or the index has pools that LMCache fills.
    pub(super) fn with_blocks<'t>(
        mut self,
        model: Option<&str>,
        hashes: impl FnOnce(u32, Option<&str>, Option<&str>) -> Vec<u64>,
        tokens: impl Fn() -> &'t [u32],
        cache_reporter: Option<&Arc<CacheReporter>>,
    ) -> Self {
        let salt = self.salts.main();
        self.hashes = self.block_names(salt, hashes, &tokens);
        if let Some(keyspace) = self.keyspace.as_ref().filter(|keyspace| keyspace.has_listed_pools()) {
            keyspace.describe_to_pools(tokens(), &self.hashes, self.adapter.as_deref(), salt);
        }
        // What is announced of blocks under such a key is not told from others.
        if self.salts.is_own {
            return self;
        }
        self.evidence = match (&self.keyspace, cache_reporter, model) {
            (Some(keyspace), ..) => PromptEvidence::of(keyspace, tokens, self.adapter.as_ref(), salt),
            (None, Some(cache_reporter), Some(model)) => {
                PromptEvidence::of_process(cache_reporter, model, tokens, salt)
            }
            _ => None,
        };
        self
    }
}

/// Cache salts of a request (secrets that keep equal prompts apart); vLLM and SGLang read them from different fields.
#[derive(Default)]
pub(crate) struct Salts {
    /// Kind of engine (vLLM or SGLang) that most engines of the request's model have.
    main: Engine,
    vllm: Option<String>,
    sglang: Option<String>,
    /// True if most engines of the model keep the request's blocks apart from others by a key that their events do not
    /// announce.
    pub(crate) is_own: bool,
}

impl Salts {
    pub(crate) fn new(request: &Request<'_>, main: Engine) -> Self {
        let of = |kind| request.salt(kind).map(Cow::into_owned);
        Self { main, vllm: of(Engine::Vllm), sglang: of(Engine::Sglang), is_own: request.has_own_key(main) }
    }

    pub(crate) fn of(&self, kind: Engine) -> Option<&str> {
        match kind {
            Engine::Vllm => self.vllm.as_deref(),
            Engine::Sglang => self.sglang.as_deref(),
        }
    }

    pub(crate) fn main(&self) -> Option<&str> {
        self.of(self.main)
    }
}

/// Estimates the number of tokens in a body from its size, up to [`LONGEST`].
pub(crate) fn estimate(body: &[u8]) -> u32 {
    u32::try_from(body.len().div_ceil(4)).unwrap_or(u32::MAX).min(LONGEST)
}

/// Headers that name an objective (a priority class defined in the cluster); the first one present is
/// used.
const OBJECTIVE_HEADERS: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];

/// Names, in the metrics, of the results of looking up a request's objective (priority class).
pub(crate) const OBJECTIVE_FOUND: [&str; 2] = ["known", "unknown"];

/// Priorities of requests by the names of a cluster's objectives (priority classes); empty if the router does not read
/// objectives.
#[derive(Default)]
pub(crate) struct Objectives {
    priorities: ArcSwapOption<HashMap<String, i32>>,
    /// Number of requests that named an objective (a priority class), known or unknown ([`OBJECTIVE_FOUND`]).
    pub(crate) named: [AtomicU64; 2],
}

impl Objectives {
    /// Replaces all objectives (priority classes of requests) and their priorities.
    pub(crate) fn set(&self, priorities: HashMap<String, i32>) {
        self.priorities.store(Some(Arc::new(priorities)));
    }

    /// Returns the priority of a request by the objective that its headers name; None if they name none, or an unknown
    /// one.
    pub(crate) fn priority(&self, headers: &HeaderMap) -> Option<i32> {
        let priorities = self.priorities.load();
        let priorities = priorities.as_deref()?;
        let named = OBJECTIVE_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok())?;
        let found = priorities.get(named.trim()).copied();
        self.named[usize::from(found.is_none())].fetch_add(1, Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn an_objective_has_the_priority_that_was_set_last() {
        let objectives = Objectives::default();
        let asked = headers(&[("x-gateway-inference-objective", " batch ")]);
        assert_eq!(objectives.priority(&asked), None);
        assert_eq!(objectives.named.each_ref().map(|it| it.load(Relaxed)), [0, 0], "nobody follows objectives");
        objectives.set(HashMap::from([("batch".to_owned(), -3), ("chat".to_owned(), 10)]));
        assert_eq!(objectives.priority(&asked), Some(-3));
        let both = headers(&[("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "chat")]);
        assert_eq!(objectives.priority(&both), Some(10), "the newer header counts");
        objectives.set(HashMap::from([("chat".to_owned(), 10)]));
        assert_eq!(objectives.priority(&asked), None);
        assert_eq!(objectives.priority(&HeaderMap::new()), None);
        assert_eq!(objectives.named.each_ref().map(|it| it.load(Relaxed)), [2, 1]);
    }
}
