//! The body of a request, parsed once and only as far as it is needed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::media::Media;
use crate::why_not::WhyNot;

/// What routing needs of a body. Large parts stay where they are in it until they are asked for.
///
/// Values of a type that no engine takes are as if they were not there: the engine refuses such a request itself.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// What it is for.
    pub endpoint: Endpoint,
    /// The model, as the body names it: it may be the name of an adapter.
    pub model: Option<Cow<'a, str>>,
    /// Whether the answer is to come token by token.
    pub stream: bool,
    /// Whether a streamed answer ends with a count of tokens (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Whether it has any `stream_options`.
    pub has_stream_options: bool,
    /// Whether the engine computes all of the prompt, whatever is in its cache, as it is asked for what it only knows
    /// after that: `prompt_logprobs`; `echo`, with log probabilities; `logprob_start_len` of SGLang's.
    pub skips_cache: bool,
    /// How many answers it wants: the larger of `n` and `best_of`, at least 1.
    pub answers: u32,
    /// The most tokens that an answer may have.
    pub max_tokens: Option<u32>,
    /// `priority`, as the engine would have it.
    pub priority: i32,
    /// `cache_salt`: prompts with different ones share no blocks.
    pub cache_salt: Option<Cow<'a, str>>,
    /// What it belongs to: `session_id`, else `prompt_cache_key`, else `user`.
    pub session: Option<Cow<'a, str>>,
    pub(crate) parts: Parts<'a>,
    /// What was parsed.
    pub(crate) body: &'a [u8],
    /// Bytes of the body, of which messages that are known were not parsed.
    pub(crate) body_len: usize,
}

/// Parts of a body as they stand there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts<'a> {
    pub(crate) prompt: Option<&'a RawValue>,
    pub(crate) prompt_embeds: Option<&'a RawValue>,
    pub(crate) messages: Option<&'a RawValue>,
    pub(crate) input: Option<&'a RawValue>,
    pub(crate) system: Option<&'a RawValue>,
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
    pub(crate) truncate_prompt_tokens: Option<&'a RawValue>,
}

/// A prompt as the body gives it.
#[derive(Debug)]
pub(crate) enum Given<'a> {
    /// Token ids; of a list of such prompts the first.
    Tokens { first: Vec<u32>, prompts: u32 },
    /// Text; of a list of texts the first.
    Text { first: Cow<'a, str>, prompts: u32 },
    /// Messages.
    Chat,
}

impl<'a> Request<'a> {
    /// Read a body.
    ///
    /// # Errors
    ///
    /// [`WhyNot::NotJson`]: it is not a JSON object. Anything else wrong with it shows when the prompt is asked for.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, WhyNot> {
        let fields: Fields<'a> = serde_json::from_slice(body).map_err(|_| WhyNot::NotJson)?;
        let answers = [fields.n, fields.best_of].into_iter().filter_map(read::<u32>).max().unwrap_or(1).max(1);
        let limits = [fields.max_completion_tokens, fields.max_output_tokens, fields.max_tokens];
        let sessions = [fields.session_id, fields.prompt_cache_key, fields.user];
        Ok(Self {
            endpoint,
            model: text(fields.model),
            stream: read(fields.stream).unwrap_or(false),
            include_usage: read::<StreamOptions>(fields.stream_options).is_some_and(|options| options.include_usage),
            has_stream_options: fields.stream_options.is_some(),
            skips_cache: fields.skips_cache(endpoint),
            answers,
            max_tokens: limits.into_iter().find_map(read::<u32>),
            priority: read(fields.priority).unwrap_or(0),
            cache_salt: text(fields.cache_salt).filter(|salt| !salt.is_empty()),
            session: sessions.into_iter().find_map(text).filter(|session| !session.is_empty()),
            parts: fields.parts,
            body,
            body_len: body.len(),
        })
    }

    /// Bytes of the body.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body_len
    }

    /// What of the body is not text; none if all of it is.
    #[must_use]
    pub fn media(&self) -> Option<Media> {
        let media = Media::of(self.body)?;
        // Messages that were not parsed are known, and of text.
        Some(Media { text: media.text + (self.body_len - self.body.len()), ..media })
    }

    /// The prompt, or that it is made of messages.
    pub(crate) fn given(&self) -> Result<Given<'a>, WhyNot> {
        let parts = &self.parts;
        match self.endpoint {
            Endpoint::Chat | Endpoint::Messages => parts.messages.map(|_| Given::Chat).ok_or(WhyNot::NoPrompt),
            Endpoint::Responses => parts.input.map(|_| Given::Chat).ok_or(WhyNot::NoPrompt),
            Endpoint::Embeddings if parts.messages.is_some() => Ok(Given::Chat),
            Endpoint::Embeddings => prompt(parts.input),
            Endpoint::Completions if is_there(parts.prompt_embeds) => Err(WhyNot::Embeds),
            Endpoint::Completions => prompt(parts.prompt),
        }
    }
}

/// A string, a list of token ids, or a list of either.
fn prompt(raw: Option<&RawValue>) -> Result<Given<'_>, WhyNot> {
    let raw = raw.ok_or(WhyNot::NoPrompt)?.get();
    if raw.starts_with('"') {
        return Ok(Given::Text { first: string(raw).ok_or(WhyNot::NoPrompt)?, prompts: 1 });
    }
    if let Ok(first) = serde_json::from_str::<Vec<u32>>(raw) {
        return if first.is_empty() { Err(WhyNot::NoPrompt) } else { Ok(Given::Tokens { first, prompts: 1 }) };
    }
    let list: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| WhyNot::NoPrompt)?;
    let prompts = u32::try_from(list.len()).unwrap_or(u32::MAX);
    let first = list.first().ok_or(WhyNot::NoPrompt)?.get();
    if first.starts_with('"') {
        return Ok(Given::Text { first: string(first).ok_or(WhyNot::NoPrompt)?, prompts });
    }
    match serde_json::from_str::<Vec<u32>>(first) {
        Ok(first) if !first.is_empty() => Ok(Given::Tokens { first, prompts }),
        _ => Err(WhyNot::NoPrompt),
    }
}

/// A value, if it is there and of that type.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Whether a value is there and not null.
pub(crate) fn is_there(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() != "null")
}

/// A string, borrowed from the body if it has no escapes.
fn text(raw: Option<&RawValue>) -> Option<Cow<'_, str>> {
    string(raw?.get())
}

/// A JSON string's text, where it stands if it has no escapes.
pub(crate) fn string(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(json).ok().map(|Key(text)| text)
}

#[derive(serde::Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// The fields of a body. Of a key that is there twice the last counts, as engines have it.
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
    session_id: Option<&'a RawValue>,
    prompt_cache_key: Option<&'a RawValue>,
    user: Option<&'a RawValue>,
    prompt_logprobs: Option<&'a RawValue>,
    echo: Option<&'a RawValue>,
    logprobs: Option<&'a RawValue>,
    top_logprobs: Option<&'a RawValue>,
    return_logprob: Option<&'a RawValue>,
    logprob_start_len: Option<&'a RawValue>,
    task: Option<&'a RawValue>,
    parts: Parts<'a>,
}

impl<'a> Fields<'a> {
    fn skips_cache(&self, endpoint: Endpoint) -> bool {
        let is_true = |raw| read::<bool>(raw).unwrap_or(false);
        let echoes = is_true(self.echo)
            && match endpoint {
                // vLLM has `top_logprobs` there, which is 0 unless it is null.
                Endpoint::Chat => self.top_logprobs.is_none_or(|raw| raw.get() != "null"),
                _ => is_there(self.logprobs) && self.logprobs.is_some_and(|raw| raw.get() != "false"),
            };
        let scores = is_true(self.return_logprob) && read::<i64>(self.logprob_start_len).is_some_and(|from| from >= 0);
        // A vector for each token, of which none may be missing.
        let by_token = text(self.task).is_some_and(|task| matches!(&*task, "token_embed" | "token_classify"));
        is_there(self.prompt_logprobs) || echoes || scores || by_token
    }

    fn slot(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        let parts = &mut self.parts;
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
            "session_id" => &mut self.session_id,
            "prompt_cache_key" => &mut self.prompt_cache_key,
            "user" => &mut self.user,
            "prompt_logprobs" => &mut self.prompt_logprobs,
            "echo" => &mut self.echo,
            "logprobs" => &mut self.logprobs,
            "top_logprobs" => &mut self.top_logprobs,
            "return_logprob" => &mut self.return_logprob,
            "logprob_start_len" => &mut self.logprob_start_len,
            "task" => &mut self.task,
            "prompt" => &mut parts.prompt,
            "prompt_embeds" => &mut parts.prompt_embeds,
            "messages" => &mut parts.messages,
            "input" => &mut parts.input,
            "system" => &mut parts.system,
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
            "truncate_prompt_tokens" => &mut parts.truncate_prompt_tokens,
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

/// A key or another string, borrowed if it has no escapes.
pub(crate) struct Key<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}
