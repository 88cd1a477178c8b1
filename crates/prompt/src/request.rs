//! The body of a request, parsed once, and only as far as routing needs.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::allowance::{FirstOfList, LONGEST_TEXT, Limits, MOST_TOKENS};
use crate::endpoint::Endpoint;
pub(crate) use crate::json_string::{Key, beginning, string};
use crate::media::Media;
use crate::prompt_tokens::PromptFailure;
use crate::request_fields::{Features, Fields, SamplingFields, StreamOptions};

/// Maximum length of a model's name, in bytes of its JSON.
const LONGEST_NAME: usize = 4096;

/// Parts of a request's body that routing needs. Large parts stay in the body as JSON until they are requested.
///
/// A value of a type that no engine accepts counts as missing: the engine refuses the request itself.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Endpoint that the request is for.
    pub endpoint: Endpoint,
    /// Name of the model in the body, which may be an adapter's; `None` if missing.
    pub model: Option<Cow<'a, str>>,
    /// True if the answer is to be streamed.
    pub stream: bool,
    /// True if the client wants token counts at the end of a streamed answer (`stream_options.include_usage`).
    pub include_usage: bool,
    /// True if the request has any `stream_options`.
    pub has_stream_options: bool,
    /// Kinds of engines that compute the whole prompt without their cache, because values are requested that a cache
    /// does not keep.
    pub(crate) skips: Skips,
    /// Number of requested answers: the larger of `n` and `best_of`, at least 1.
    pub answers: u32,
    /// Maximum length of the answer, in tokens; `None` if the request sets none.
    pub max_tokens: Option<u32>,
    /// Priority of the request (`priority`). Engines define whether low or high numbers are served first.
    pub priority: i32,
    /// Cache salt (`cache_salt`): prompts with different salts share no blocks.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Name of the LoRA adapter, if given in a separate field (`lora_path` of SGLang).
    pub adapter: Option<Cow<'a, str>>,
    /// Identifier of the earlier answer that the request continues (`previous_response_id`).
    pub previous_response: Option<Cow<'a, str>>,
    /// True if the engine replies at once and computes the answer in the background.
    pub in_background: bool,
    /// Fields of the body that may identify the request's session (conversation).
    pub session: SessionFields<'a>,
    pub(crate) parts: Parts<'a>,
    /// Bytes of the body that were parsed, without messages known from an earlier request.
    pub(crate) body: &'a [u8],
    /// Length of the whole body in bytes, including messages known from an earlier request, which were not parsed.
    pub(crate) body_len: usize,
    /// Limits of memory and time for parsing the prompt.
    pub(crate) limits: Limits,
}

/// Kinds of engines that compute the whole prompt of a request without their cache.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Skips {
    pub(crate) vllm: bool,
    pub(crate) sglang: bool,
}

/// Fields of a body that may identify the request's session (conversation), as JSON; each client uses its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionFields<'a> {
    /// Field `session_id`.
    pub session_id: Option<&'a RawValue>,
    /// Field `session_params` of SGLang.
    pub session_params: Option<&'a RawValue>,
    /// Field `agentic_context`, which engines expect within `vllm_xargs`.
    pub agentic_context: Option<&'a RawValue>,
    /// Field `vllm_xargs`: vLLM's extra arguments.
    pub vllm_xargs: Option<&'a RawValue>,
    /// Field `nvext` of Dynamo.
    pub nvext: Option<&'a RawValue>,
    /// Field `metadata`.
    pub metadata: Option<&'a RawValue>,
    /// Field `prompt_cache_key`.
    pub prompt_cache_key: Option<&'a RawValue>,
}

/// Fields of a body that determine the prompt, as unparsed JSON.
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
    /// Field `input_ids`, the prompt as token ids: beside the messages of a chat, or alone in SGLang's `/generate`.
    pub(crate) input_ids: Option<&'a RawValue>,
    /// Field `token_ids`, the prompt of vLLM's `/inference/v1/generate`.
    pub(crate) token_ids: Option<&'a RawValue>,
    /// Field `tokens`, the prompt of a chat as token ids, which training frameworks send beside the messages.
    pub(crate) tokens: Option<&'a RawValue>,
    /// Field `text`, the prompt of SGLang's `/generate` as text.
    pub(crate) text: Option<&'a RawValue>,
    pub(crate) input_embeds: Option<&'a RawValue>,
    pub(crate) image_data: Option<&'a RawValue>,
    pub(crate) video_data: Option<&'a RawValue>,
    pub(crate) audio_data: Option<&'a RawValue>,
    /// Positions of images and other media in a prompt given as tokens.
    pub(crate) features: Option<&'a RawValue>,
    /// Images and other media of a prompt given as tokens, at positions that the engine determines.
    pub(crate) content_parts: Option<&'a RawValue>,
    pub(crate) return_logprob: Option<&'a RawValue>,
    pub(crate) logprob_start_len: Option<&'a RawValue>,
    /// SGLang's `extra_key`: requests share blocks only if their keys are equal.
    pub(crate) extra_key: Option<&'a RawValue>,
}

/// A prompt as the request's body gives it: tokens, text or a chat.
#[derive(Debug)]
pub(crate) enum BodyPrompt<'a> {
    /// Token ids of the first of `prompts` prompts.
    Tokens { first: TokenIds, prompts: u32 },
    /// Text of the first of `prompts` prompts. `cut`: true if the text is only the beginning of a long one.
    Text { first: Cow<'a, str>, cut: bool, prompts: u32 },
    /// Messages of a chat, from which the engine renders the prompt.
    Chat,
}

impl<'a> Request<'a> {
    /// Parses a request's body.
    ///
    /// # Errors
    ///
    /// [`PromptFailure::NotJson`]: the body is not a JSON object. Other errors are returned when the prompt is parsed.
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

    /// Sets the deadline for parsing the prompt.
    #[must_use]
    pub fn until(mut self, time: Instant) -> Self {
        self.limits.until = Some(time);
        self
    }

    /// Length of the whole body in bytes, including messages known from an earlier request, which were not parsed.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// True if the request allows the engine to truncate a prompt that is too long.
    #[must_use]
    pub fn may_be_cut(&self) -> bool {
        let is_auto = |raw| text(raw).is_some_and(|how| how == "auto");
        is_there(self.parts.truncate_prompt_tokens) || is_auto(self.parts.truncation)
    }

    /// Counts the images, sounds and other values of the body that are not text; `None` if there are none.
    #[must_use]
    pub fn media(&self) -> Option<Media> {
        let media = Media::of(self.body)?;
        // Known messages are not parsed, and contain only text.
        Some(Media { text: media.text + (self.body_len - self.body.len()), ..media })
    }

    /// Returns the JSON list of the request's messages or input items.
    pub(crate) fn list(&self) -> Option<&'a RawValue> {
        if self.endpoint == Endpoint::Responses { self.parts.input } else { self.parts.messages }
    }

    /// Parses the prompt as the body gives it: tokens, text or a chat.
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

    /// Kind of media in a request of SGLang's `/generate`, as the reason why its tokens are unknown; `None` if the
    /// request has no media.
    fn own_media(&self) -> Option<PromptFailure> {
        let parts = &self.parts;
        let kinds = [
            (parts.image_data, PromptFailure::Image),
            (parts.video_data, PromptFailure::Video),
            (parts.audio_data, PromptFailure::Audio),
        ];
        kinds.into_iter().find_map(|(raw, why_not)| has_some(raw).then_some(why_not))
    }

    /// Number of leading tokens of the prompt that are known and can be cached, and the reason why the following tokens
    /// are unknown; `None` if all are known.
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

/// Token ids of a prompt, up to the maximum number of tokens that the router reads.
#[derive(Debug)]
pub(crate) struct TokenIds {
    pub(crate) ids: Vec<u32>,
    /// Number of all token ids of the prompt, including those beyond the maximum.
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

/// Parses a list of token ids as the only prompt of a request.
fn one_prompt(raw: Option<&RawValue>) -> Result<BodyPrompt<'_>, PromptFailure> {
    match read::<TokenIds>(raw) {
        Some(first) if !first.ids.is_empty() => Ok(BodyPrompt::Tokens { first, prompts: 1 }),
        _ => Err(PromptFailure::NoPrompt),
    }
}

/// Parses a field with one or several prompts: a string, a list of token ids, or a list of strings or of lists of token
/// ids.
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

/// Decodes a prompt given as a JSON string, up to the maximum length of text that the router reads.
fn one_text(json: &str, prompts: u32) -> Result<BodyPrompt<'_>, PromptFailure> {
    if json.len() <= LONGEST_TEXT {
        let first = string(json).ok_or(PromptFailure::NoPrompt)?;
        return Ok(BodyPrompt::Text { first, cut: false, prompts });
    }
    let first = beginning(json, LONGEST_TEXT).ok_or(PromptFailure::TooLong)?;
    Ok(BodyPrompt::Text { first: first.into(), cut: true, prompts })
}

/// Deserializes a JSON value; `None` if the value is missing or of another type.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Returns the value itself, or its first item if the value is a list: a request with several prompts may give one
/// value for each prompt.
pub(crate) fn first(raw: Option<&RawValue>) -> Option<&RawValue> {
    match raw {
        Some(list) if list.get().starts_with('[') => read::<FirstOfList<&RawValue>>(raw)?.first,
        one => one,
    }
}

/// True if a JSON value exists and is neither null nor empty.
fn has_some(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "[]" | "{}" | "\"\""))
}

/// True if a JSON value exists and is not null.
pub(crate) fn is_there(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() != "null")
}

/// Text of a JSON string, borrowed from the body if it has no escapes; `None` if the value is not a string.
pub(crate) fn text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    string(raw?.get())
}

/// Parses the name of a model; `None` if longer than any valid name.
fn name(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    text(raw.filter(|raw| raw.get().len() <= LONGEST_NAME))
}

/// Parses the cache salt of a request. A long salt is replaced by its hash, since no announced block has a salt of that
/// length.
fn salt(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let json = raw?.get();
    if json.len() > LONGEST_NAME && json.starts_with('"') { Some(shortened(json)) } else { string(json) }
}

/// Returns the text itself, or the hash of a text that is too long to keep.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() > LONGEST_NAME { format!("blake3\0{}", blake3::hash(text.as_bytes())).into() } else { text.into() }
}
