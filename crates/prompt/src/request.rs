//! The body of a request, parsed once and only as far as needed.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::allowance::{FirstOfList, LONGEST_TEXT, Limits, MOST_TOKENS};
use crate::endpoint::Endpoint;
pub(crate) use crate::json_string::{Key, beginning, string};
use crate::media::Media;
use crate::prompt_failure::PromptFailure;

/// Longest name of a model, in bytes of its JSON.
const LONGEST_NAME: usize = 4096;

/// The parts of a body that routing needs. Large parts stay in the body as JSON until they are requested.
///
/// A value of a type that no engine accepts counts as missing: the engine refuses the request itself.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The endpoint that the request is for.
    pub endpoint: Endpoint,
    /// The model's name in the body, which may be an adapter's.
    pub model: Option<Cow<'a, str>>,
    /// True if the answer is streamed.
    pub stream: bool,
    /// True if a streamed answer ends with token counts (`stream_options.include_usage`).
    pub include_usage: bool,
    /// True if the request has any `stream_options`.
    pub has_stream_options: bool,
    /// The engines that compute the whole prompt without their cache, because of values that a cache does not keep.
    pub(crate) skips: Skips,
    /// Number of requested answers: the larger of `n` and `best_of`, at least 1.
    pub answers: u32,
    /// Longest allowed answer, in tokens.
    pub max_tokens: Option<u32>,
    /// `priority`, in the engine's order.
    pub priority: i32,
    /// `cache_salt`: prompts with different salts share no blocks.
    pub cache_salt: Option<Cow<'a, str>>,
    /// The adapter, if a separate field names it (`lora_path` of SGLang).
    pub adapter: Option<Cow<'a, str>>,
    /// The answer that the request continues (`previous_response_id`).
    pub previous_response: Option<Cow<'a, str>>,
    /// True if the engine answers at once and works in the background.
    pub in_background: bool,
    /// The fields that may name the request's session.
    pub session: SessionFields<'a>,
    pub(crate) parts: Parts<'a>,
    /// The bytes that were parsed.
    pub(crate) body: &'a [u8],
    /// Length of the whole body in bytes, including known messages that were not parsed.
    pub(crate) body_len: usize,
    /// Limits for reading the prompt.
    pub(crate) limits: Limits,
}

/// The kinds of engines that compute the whole prompt of a request without their cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Skips {
    pub(crate) vllm: bool,
    pub(crate) sglang: bool,
}

/// The fields of a body that may name the request's session, as JSON: each client uses its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionFields<'a> {
    /// `session_id`.
    pub session_id: Option<&'a RawValue>,
    /// `session_params`, of SGLang.
    pub session_params: Option<&'a RawValue>,
    /// `agentic_context`, which engines take within `vllm_xargs`.
    pub agentic_context: Option<&'a RawValue>,
    /// `vllm_xargs`.
    pub vllm_xargs: Option<&'a RawValue>,
    /// `nvext`, of Dynamo.
    pub nvext: Option<&'a RawValue>,
    /// `metadata`.
    pub metadata: Option<&'a RawValue>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<&'a RawValue>,
}

/// Parts of a body as JSON.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) prompt: Option<&'a RawValue>,
    pub(crate) prompt_embeds: Option<&'a RawValue>,
    pub(crate) messages: Option<&'a RawValue>,
    pub(crate) input: Option<&'a RawValue>,
    pub(crate) system: Option<&'a RawValue>,
    pub(crate) stop_sequences: Option<&'a RawValue>,
    pub(crate) instructions: Option<&'a RawValue>,
    pub(crate) previous_response_id: Option<&'a RawValue>,
    pub(crate) conversation: Option<&'a RawValue>,
    pub(crate) tools: Option<&'a RawValue>,
    pub(crate) tool_choice: Option<&'a RawValue>,
    pub(crate) documents: Option<&'a RawValue>,
    pub(crate) chat_template: Option<&'a RawValue>,
    pub(crate) chat_template_kwargs: Option<&'a RawValue>,
    pub(crate) add_generation_prompt: Option<&'a RawValue>,
    pub(crate) continue_final_message: Option<&'a RawValue>,
    pub(crate) add_special_tokens: Option<&'a RawValue>,
    pub(crate) reasoning_effort: Option<&'a RawValue>,
    pub(crate) reasoning: Option<&'a RawValue>,
    pub(crate) thinking: Option<&'a RawValue>,
    pub(crate) output_config: Option<&'a RawValue>,
    pub(crate) truncate_prompt_tokens: Option<&'a RawValue>,
    pub(crate) truncation_side: Option<&'a RawValue>,
    pub(crate) truncation: Option<&'a RawValue>,
    /// A prompt given as tokens: for a chat in addition to its messages, for SGLang's `/generate` alone.
    pub(crate) input_ids: Option<&'a RawValue>,
    /// The prompt of vLLM's `/inference/v1/generate`.
    pub(crate) token_ids: Option<&'a RawValue>,
    /// The prompt of a chat as sent by training frameworks, in addition to its messages.
    pub(crate) tokens: Option<&'a RawValue>,
    /// The prompt of SGLang's `/generate`, if given as text.
    pub(crate) text: Option<&'a RawValue>,
    pub(crate) input_embeds: Option<&'a RawValue>,
    pub(crate) image_data: Option<&'a RawValue>,
    pub(crate) video_data: Option<&'a RawValue>,
    pub(crate) audio_data: Option<&'a RawValue>,
    /// Places of media in a prompt given as tokens.
    pub(crate) features: Option<&'a RawValue>,
    /// Media of a prompt given as tokens, at places that the engine determines.
    pub(crate) content_parts: Option<&'a RawValue>,
    pub(crate) return_logprob: Option<&'a RawValue>,
    pub(crate) logprob_start_len: Option<&'a RawValue>,
    /// SGLang's `extra_key`: requests share blocks only if their keys are equal.
    pub(crate) extra_key: Option<&'a RawValue>,
}

/// A prompt in the form given by the body.
#[derive(Debug)]
pub(crate) enum BodyPrompt<'a> {
    /// Token ids; the first of a list of prompts.
    Tokens { first: TokenIds, prompts: u32 },
    /// Text; the first of a list of texts. `cut`: true if it is only the beginning of a long text.
    Text { first: Cow<'a, str>, cut: bool, prompts: u32 },
    /// Messages, from which the engine renders the prompt.
    Chat,
}

impl<'a> Request<'a> {
    /// Parses a body.
    ///
    /// # Errors
    ///
    /// [`PromptFailure::NotJson`]: the body is not a JSON object. Other errors surface when the prompt is read.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, PromptFailure> {
        let fields: Fields<'a> = serde_json::from_slice(body).map_err(|_| PromptFailure::NotJson)?;
        let sampling = match endpoint {
            Endpoint::Generate => read::<SamplingFields<'a>>(first(fields.sampling_params)),
            Endpoint::Tokens => read(fields.sampling_params),
            _ => None,
        }
        .unwrap_or_default();
        let answers =
            [fields.n, fields.best_of, sampling.n].into_iter().filter_map(read::<u32>).max().unwrap_or(1).max(1);
        let limits = match endpoint {
            Endpoint::Generate => [sampling.max_new_tokens, None, None],
            Endpoint::Tokens => [sampling.max_tokens, None, None],
            _ => [fields.max_completion_tokens, fields.max_output_tokens, fields.max_tokens],
        };
        let is_list = endpoint == Endpoint::Generate;
        let cache_salt = if is_list { first(fields.cache_salt) } else { fields.cache_salt };
        let adapter = first(fields.lora_path).filter(|_| is_list);
        Ok(Self {
            endpoint,
            model: name(fields.model),
            stream: read(fields.stream).unwrap_or(false),
            include_usage: read::<StreamOptions>(fields.stream_options).is_some_and(|options| options.include_usage),
            has_stream_options: fields.stream_options.is_some(),
            skips: fields.skips(endpoint, &sampling),
            answers,
            max_tokens: limits.into_iter().find_map(read::<u32>),
            priority: read(fields.priority).unwrap_or(0),
            cache_salt: salt(cache_salt).filter(|salt| !salt.is_empty()),
            adapter: name(adapter).filter(|adapter| !adapter.is_empty()),
            previous_response: name(fields.parts.previous_response_id),
            in_background: read(fields.background).unwrap_or(false),
            session: fields.session,
            parts: fields.parts,
            body,
            body_len: body.len(),
            limits: Limits::of(body.len()),
        })
    }

    /// Sets the deadline for reading the prompt.
    #[must_use]
    pub fn until(mut self, time: Instant) -> Self {
        self.limits.until = Some(time);
        self
    }

    /// Length of the body in bytes.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// True if the request lets the engine truncate a prompt that is too long.
    #[must_use]
    pub fn may_be_cut(&self) -> bool {
        let is_auto = |raw| text(raw).is_some_and(|how| how == "auto");
        is_there(self.parts.truncate_prompt_tokens) || is_auto(self.parts.truncation)
    }

    /// The parts of the body that are not text; none if all of it is text.
    #[must_use]
    pub fn media(&self) -> Option<Media> {
        let media = Media::of(self.body)?;
        // Known messages are not parsed, and contain only text.
        Some(Media { text: media.text + (self.body_len - self.body.len()), ..media })
    }

    /// The list of messages or input items.
    pub(crate) fn list(&self) -> Option<&'a RawValue> {
        if self.endpoint == Endpoint::Responses { self.parts.input } else { self.parts.messages }
    }

    /// The prompt in the form given by the body.
    pub(crate) fn given(&self) -> Result<BodyPrompt<'a>, PromptFailure> {
        let parts = &self.parts;
        match self.endpoint {
            Endpoint::Chat if is_there(parts.input_ids) => prompt(parts.input_ids),
            Endpoint::Chat | Endpoint::Messages => {
                parts.messages.map(|_| BodyPrompt::Chat).ok_or(PromptFailure::NoPrompt)
            }
            Endpoint::Responses => parts.input.map(|_| BodyPrompt::Chat).ok_or(PromptFailure::NoPrompt),
            Endpoint::Embeddings if parts.messages.is_some() => Ok(BodyPrompt::Chat),
            Endpoint::Embeddings => prompt(parts.input),
            Endpoint::Completions if is_there(parts.prompt_embeds) => Err(PromptFailure::Embeds),
            Endpoint::Completions => prompt(parts.prompt),
            Endpoint::Generate => match self.own_media() {
                Some(why_not) => Err(why_not),
                // SGLang prepends its own memory of the session.
                None if has_some(self.session.session_params) => Err(PromptFailure::Stored),
                None if is_there(parts.input_ids) => prompt(parts.input_ids),
                None if is_there(parts.text) => prompt(parts.text),
                None if is_there(parts.input_embeds) => Err(PromptFailure::Embeds),
                None => Err(PromptFailure::NoPrompt),
            },
            Endpoint::Tokens if has_some(parts.content_parts) => Err(PromptFailure::OtherPart),
            Endpoint::Tokens => one_prompt(parts.token_ids),
            // The engine inserts the media of the messages into the tokens.
            Endpoint::ChatTokens if self.media().is_some() => Err(PromptFailure::OtherPart),
            Endpoint::ChatTokens => one_prompt(parts.tokens),
        }
    }

    /// The kind of media in a request of SGLang's `/generate`, if it has any.
    fn own_media(&self) -> Option<PromptFailure> {
        let parts = &self.parts;
        let kinds = [
            (parts.image_data, PromptFailure::Image),
            (parts.video_data, PromptFailure::Video),
            (parts.audio_data, PromptFailure::Audio),
        ];
        kinds.into_iter().find_map(|(raw, why_not)| has_some(raw).then_some(why_not))
    }

    /// The number of leading tokens that can be cached or are known, if not all of them; and the reason, if the others
    /// are unknown.
    pub(crate) fn known_tokens(&self) -> Option<(usize, Option<PromptFailure>)> {
        let parts = &self.parts;
        match self.endpoint {
            // SGLang computes the tokens whose probabilities are requested.
            Endpoint::Generate if read::<bool>(first(parts.return_logprob)).unwrap_or(false) => {
                Some((read::<usize>(first(parts.logprob_start_len))?, None))
            }
            Endpoint::Tokens if is_there(parts.features) => {
                // If the places cannot be parsed, no token is known.
                let first = read::<Features>(parts.features).map(|features| features.mm_placeholders.0);
                first.map_or(Some((0, Some(PromptFailure::OtherPart))), |first| {
                    first.map(|first| (first, Some(PromptFailure::OtherPart)))
                })
            }
            _ => None,
        }
    }
}

/// Places of media among a prompt's tokens, by kind.
#[derive(serde::Deserialize)]
struct Features {
    mm_placeholders: FirstPlace,
}

/// The smallest of a list of places; none if the list is empty.
struct FirstPlace(Option<usize>);

#[derive(serde::Deserialize)]
struct Placeholder {
    offset: usize,
}

impl<'de> Deserialize<'de> for FirstPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = FirstPlace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of lists")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut kinds: A) -> Result<FirstPlace, A::Error> {
                let mut first: Option<usize> = None;
                while kinds.next_key::<IgnoredAny>()?.is_some() {
                    let places = kinds.next_value::<Vec<Placeholder>>()?;
                    first = places.iter().map(|placeholder| placeholder.offset).chain(first).min();
                }
                Ok(FirstPlace(first))
            }
        }

        deserializer.deserialize_map(Kinds)
    }
}

/// Token ids, up to the largest number that is read.
#[derive(Debug)]
pub(crate) struct TokenIds {
    pub(crate) ids: Vec<u32>,
    /// Number of all ids of the prompt.
    pub(crate) count: usize,
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = TokenIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of token ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenIds, A::Error> {
                let mut ids: Vec<u32> = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                    if ids.len() == MOST_TOKENS {
                        break;
                    }
                }
                let mut count = ids.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(TokenIds { ids, count })
            }
        }

        deserializer.deserialize_seq(List)
    }
}

/// Parses a list of token ids.
fn one_prompt(raw: Option<&RawValue>) -> Result<BodyPrompt<'_>, PromptFailure> {
    match read::<TokenIds>(raw) {
        Some(first) if !first.ids.is_empty() => Ok(BodyPrompt::Tokens { first, prompts: 1 }),
        _ => Err(PromptFailure::NoPrompt),
    }
}

/// Parses a string, a list of token ids, or a list of either.
fn prompt(raw: Option<&RawValue>) -> Result<BodyPrompt<'_>, PromptFailure> {
    let raw = raw.ok_or(PromptFailure::NoPrompt)?.get();
    if raw.starts_with('"') {
        return one_text(raw, 1);
    }
    if let Ok(first) = serde_json::from_str::<TokenIds>(raw) {
        return if first.ids.is_empty() {
            Err(PromptFailure::NoPrompt)
        } else {
            Ok(BodyPrompt::Tokens { first, prompts: 1 })
        };
    }
    let list: FirstOfList<&RawValue> = serde_json::from_str(raw).map_err(|_| PromptFailure::NoPrompt)?;
    let prompts = u32::try_from(list.count).unwrap_or(u32::MAX);
    let first = list.first.ok_or(PromptFailure::NoPrompt)?.get();
    if first.starts_with('"') {
        return one_text(first, prompts);
    }
    match serde_json::from_str::<TokenIds>(first) {
        Ok(first) if !first.ids.is_empty() => Ok(BodyPrompt::Tokens { first, prompts }),
        _ => Err(PromptFailure::NoPrompt),
    }
}

/// Decodes a JSON string, up to the longest text that is read.
fn one_text(json: &str, prompts: u32) -> Result<BodyPrompt<'_>, PromptFailure> {
    if json.len() <= LONGEST_TEXT {
        let first = string(json).ok_or(PromptFailure::NoPrompt)?;
        return Ok(BodyPrompt::Text { first, cut: false, prompts });
    }
    let first = beginning(json, LONGEST_TEXT).ok_or(PromptFailure::TooLong)?;
    Ok(BodyPrompt::Text { first: first.into(), cut: true, prompts })
}

/// Deserializes a value; none if it is missing or of another type.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// The value itself, or the first item if it is a list: a list of prompts may have one value for each.
fn first(raw: Option<&RawValue>) -> Option<&RawValue> {
    match raw {
        Some(list) if list.get().starts_with('[') => read::<FirstOfList<&RawValue>>(raw)?.first,
        one => one,
    }
}

/// True if a value exists and is neither null nor empty.
fn has_some(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "[]" | "{}" | "\"\""))
}

/// True if a value exists and is not null.
pub(crate) fn is_there(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() != "null")
}

/// A string, borrowed from the body if it has no escapes.
fn text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    string(raw?.get())
}

/// A model's name; none if it is longer than any valid name.
fn name(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    text(raw.filter(|raw| raw.get().len() <= LONGEST_NAME))
}

/// A salt. A long one is replaced by its hash, since no announced block has a salt of that length.
fn salt(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let json = raw?.get();
    if json.len() > LONGEST_NAME && json.starts_with('"') { Some(shortened(json)) } else { string(json) }
}

/// The text, or the hash of a long text.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() > LONGEST_NAME { format!("blake3\0{}", blake3::hash(text.as_bytes())).into() } else { text.into() }
}

#[derive(serde::Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// Sampling parameters, in APIs that have an object for them.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct SamplingFields<'a> {
    #[serde(borrow)]
    n: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_new_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    skip_reading_prefix_cache: Option<&'a RawValue>,
}

/// The fields of a body. Of duplicate keys the last counts, as in engines.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    max_output_tokens: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    cache_salt: Option<&'a RawValue>,
    prompt_logprobs: Option<&'a RawValue>,
    echo: Option<&'a RawValue>,
    logprobs: Option<&'a RawValue>,
    top_logprobs: Option<&'a RawValue>,
    task: Option<&'a RawValue>,
    background: Option<&'a RawValue>,
    sampling_params: Option<&'a RawValue>,
    lora_path: Option<&'a RawValue>,
    session: SessionFields<'a>,
    parts: Parts<'a>,
}

impl<'a> Fields<'a> {
    /// Supported by vLLM since 0.11 (`skip_reading_prefix_cache`) and SGLang since 0.5 (`logprob_start_len`), each on
    /// its own endpoints: other endpoints ignore the fields.
    fn skips(&self, endpoint: Endpoint, sampling: &SamplingFields<'_>) -> Skips {
        let echoes = read::<bool>(self.echo).unwrap_or(false);
        match endpoint {
            // vLLM takes `top_logprobs` for an echo, which is 0 unless it is null.
            Endpoint::Chat | Endpoint::ChatTokens => Skips {
                vllm: is_there(self.prompt_logprobs)
                    || echoes && self.top_logprobs.is_none_or(|raw| raw.get() != "null"),
                sglang: false,
            },
            Endpoint::Completions => Skips {
                vllm: is_there(self.prompt_logprobs) || echoes && is_there(self.logprobs),
                sglang: echoes && read::<i64>(self.logprobs).is_some_and(|most| most != 0),
            },
            // A task that returns one vector per token needs every token computed.
            Endpoint::Embeddings => {
                let by_token = |task: Cow<'_, str>| matches!(&*task, "token_embed" | "token_classify");
                Skips { vllm: text(self.task).is_some_and(by_token), sglang: false }
            }
            Endpoint::Responses | Endpoint::Messages => Skips::default(),
            // Only one kind of engine accepts these two endpoints.
            Endpoint::Generate => {
                let starts_at = read::<i64>(first(self.parts.logprob_start_len));
                let skips = read::<bool>(first(self.parts.return_logprob)).unwrap_or(false) && starts_at == Some(0);
                Skips { vllm: skips, sglang: skips }
            }
            Endpoint::Tokens => {
                let says = read::<bool>(sampling.skip_reading_prefix_cache);
                let skips = says.unwrap_or_else(|| is_there(sampling.prompt_logprobs));
                Skips { vllm: skips, sglang: skips }
            }
        }
    }

    fn slot(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        let (parts, session) = (&mut self.parts, &mut self.session);
        Some(match key {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "n" => &mut self.n,
            "best_of" => &mut self.best_of,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "max_output_tokens" => &mut self.max_output_tokens,
            "priority" => &mut self.priority,
            "cache_salt" => &mut self.cache_salt,
            "session_id" => &mut session.session_id,
            "session_params" => &mut session.session_params,
            "agentic_context" => &mut session.agentic_context,
            "vllm_xargs" => &mut session.vllm_xargs,
            "nvext" => &mut session.nvext,
            "metadata" => &mut session.metadata,
            "prompt_cache_key" => &mut session.prompt_cache_key,
            "prompt_logprobs" => &mut self.prompt_logprobs,
            "echo" => &mut self.echo,
            "logprobs" => &mut self.logprobs,
            "top_logprobs" => &mut self.top_logprobs,
            "task" => &mut self.task,
            "background" => &mut self.background,
            "sampling_params" => &mut self.sampling_params,
            "lora_path" => &mut self.lora_path,
            "prompt" => &mut parts.prompt,
            "prompt_embeds" => &mut parts.prompt_embeds,
            "messages" => &mut parts.messages,
            "input" => &mut parts.input,
            "system" => &mut parts.system,
            "stop_sequences" => &mut parts.stop_sequences,
            "instructions" => &mut parts.instructions,
            "previous_response_id" => &mut parts.previous_response_id,
            "conversation" => &mut parts.conversation,
            "tools" => &mut parts.tools,
            "tool_choice" => &mut parts.tool_choice,
            "documents" => &mut parts.documents,
            "chat_template" => &mut parts.chat_template,
            "chat_template_kwargs" => &mut parts.chat_template_kwargs,
            "add_generation_prompt" => &mut parts.add_generation_prompt,
            "continue_final_message" => &mut parts.continue_final_message,
            "add_special_tokens" => &mut parts.add_special_tokens,
            "reasoning_effort" => &mut parts.reasoning_effort,
            "reasoning" => &mut parts.reasoning,
            "thinking" => &mut parts.thinking,
            "output_config" => &mut parts.output_config,
            "truncate_prompt_tokens" => &mut parts.truncate_prompt_tokens,
            "truncation_side" => &mut parts.truncation_side,
            "truncation" => &mut parts.truncation,
            "input_ids" => &mut parts.input_ids,
            "token_ids" => &mut parts.token_ids,
            "tokens" => &mut parts.tokens,
            "text" => &mut parts.text,
            "input_embeds" => &mut parts.input_embeds,
            "image_data" => &mut parts.image_data,
            "video_data" => &mut parts.video_data,
            "audio_data" => &mut parts.audio_data,
            "features" => &mut parts.features,
            "content_parts" => &mut parts.content_parts,
            "return_logprob" => &mut parts.return_logprob,
            "logprob_start_len" => &mut parts.logprob_start_len,
            "extra_key" => &mut parts.extra_key,
            _ => return None,
        })
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Fields::default();
                while let Some(Key(key)) = map.next_key()? {
                    match fields.slot(&key) {
                        Some(slot) => *slot = Some(map.next_value()?),
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Object)
    }
}
