//! Fields of a request's body, and fields of a chat message in it, as JSON. Messages make up most of a long body, so
//! each text is decoded once, directly from the body.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::json_string::{Key, leading};
use crate::request::{Parts, SessionFields, Skips, first, is_there, read, text};

#[derive(serde::Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// Sampling parameters of a request, in the APIs that have a separate object for them.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct SamplingFields<'a> {
    #[serde(borrow)]
    pub(crate) n: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) max_new_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) prompt_logprobs: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) skip_reading_prefix_cache: Option<&'a RawValue>,
}

/// Fields of a request's body. Of duplicate keys the last counts, as in engines.
#[derive(Default)]
pub(crate) struct Fields<'a> {
    pub(crate) model: Option<&'a RawValue>,
    pub(crate) stream: Option<&'a RawValue>,
    pub(crate) stream_options: Option<&'a RawValue>,
    pub(crate) n: Option<&'a RawValue>,
    pub(crate) best_of: Option<&'a RawValue>,
    pub(crate) max_tokens: Option<&'a RawValue>,
    pub(crate) max_completion_tokens: Option<&'a RawValue>,
    pub(crate) max_output_tokens: Option<&'a RawValue>,
    pub(crate) priority: Option<&'a RawValue>,
    pub(crate) cache_salt: Option<&'a RawValue>,
    pub(crate) prompt_logprobs: Option<&'a RawValue>,
    pub(crate) echo: Option<&'a RawValue>,
    pub(crate) logprobs: Option<&'a RawValue>,
    pub(crate) top_logprobs: Option<&'a RawValue>,
    pub(crate) task: Option<&'a RawValue>,
    pub(crate) background: Option<&'a RawValue>,
    pub(crate) sampling_params: Option<&'a RawValue>,
    pub(crate) lora_path: Option<&'a RawValue>,
    pub(crate) session: SessionFields<'a>,
    pub(crate) parts: Parts<'a>,
}

impl<'a> Fields<'a> {
    /// Kinds of engines that compute the whole prompt of the request without their cache. Fields such as
    /// `skip_reading_prefix_cache` (vLLM since 0.11) and `logprob_start_len` (SGLang since 0.5) have this effect, each
    /// on the engine's own endpoints; other endpoints ignore them.
    pub(crate) fn skips(&self, endpoint: Endpoint, sampling: &SamplingFields<'_>) -> Skips {
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

/// Positions of images and other media among a prompt's tokens, by kind.
#[derive(serde::Deserialize)]
pub(crate) struct Features {
    pub(crate) mm_placeholders: FirstPlace,
}

/// Lowest position in a JSON list of positions; `None` if the list is empty.
pub(crate) struct FirstPlace(pub(crate) Option<usize>);

#[derive(serde::Deserialize)]
pub(crate) struct Placeholder {
    pub(crate) offset: usize,
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

/// A message of a chat request, as JSON. A null field counts as missing.
#[derive(Debug, Default)]
pub(crate) struct RequestMessage<'a> {
    pub(crate) role: Option<Cow<'a, str>>,
    pub(crate) content: Option<RequestContent<'a>>,
    pub(crate) tool_calls: Option<&'a RawValue>,
    pub(crate) reasoning: Option<&'a RawValue>,
    pub(crate) reasoning_content: Option<&'a RawValue>,
    pub(crate) tool_call_id: Option<&'a RawValue>,
    pub(crate) tools: Option<&'a RawValue>,
    pub(crate) name: Option<&'a RawValue>,
}

/// Content of a message in a chat request.
#[derive(Debug)]
pub(crate) enum RequestContent<'a> {
    Text(Cow<'a, str>),
    /// Content of the message that is any other JSON than a string.
    Other(&'a RawValue),
}

impl<'a> RequestMessage<'a> {
    /// Parses the message at the beginning of JSON whose syntax was checked. Also returns the length of the message, in
    /// bytes. `None` if the JSON is not an object, has a field twice, or has a string with an invalid escape.
    pub(crate) fn leading(json: &'a str) -> Option<(Self, usize)> {
        let mut message = Self::default();
        let mut rest = json.strip_prefix('{')?;
        // Fields are separated by commas, and the object ends with a brace.
        loop {
            rest = rest.trim_start_matches([' ', '\n', '\r', '\t', ',']);
            if let Some(after) = rest.strip_prefix('}') {
                return Some((message, json.len() - after.len()));
            }
            let (key, length) = leading(rest)?;
            rest = rest[length..].trim_start_matches([' ', '\n', '\r', '\t', ':']);
            rest = &rest[message.take(&key, rest)?..];
        }
    }

    /// Parses the value of the message's field `key` at the beginning of `json`. Returns the length of the value, in
    /// bytes.
    fn take(&mut self, key: &str, json: &'a str) -> Option<usize> {
        let is_text = json.starts_with('"');
        if key == "role" && (is_text || !json.starts_with("null")) {
            let (role, length) = leading(json)?;
            return put(&mut self.role, role).then_some(length);
        }
        if key == "content" && is_text {
            let (text, length) = leading(json)?;
            return put(&mut self.content, RequestContent::Text(text)).then_some(length);
        }
        let mut stream = serde_json::Deserializer::from_str(json).into_iter::<&RawValue>();
        let raw = stream.next()?.ok()?;
        let length = stream.byte_offset();
        let is_new = match key {
            _ if raw.get() == "null" => true,
            "content" => put(&mut self.content, RequestContent::Other(raw)),
            "tool_calls" => put(&mut self.tool_calls, raw),
            "reasoning" => put(&mut self.reasoning, raw),
            "reasoning_content" => put(&mut self.reasoning_content, raw),
            "tool_call_id" => put(&mut self.tool_call_id, raw),
            "tools" => put(&mut self.tools, raw),
            "name" => put(&mut self.name, raw),
            _ => true,
        };
        is_new.then_some(length)
    }
}

/// Stores a value in `place` if `place` is empty. Returns false if `place` had a value already.
fn put<T>(place: &mut Option<T>, value: T) -> bool {
    place.replace(value).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<String> {
        // Checked JSON, as in a parsed body.
        let _: &RawValue = serde_json::from_str(json).unwrap();
        let behind = format!("{json}, {{\"role\": \"next\"}}]");
        let (message, length) = RequestMessage::leading(&behind)?;
        assert_eq!(length, json.len(), "{json}");
        let content = message.content.map(|content| match content {
            RequestContent::Text(text) => format!("text {text}"),
            RequestContent::Other(raw) => format!("other {raw}"),
        });
        let others = [message.tool_calls, message.reasoning, message.reasoning_content, message.name, message.tools];
        let others = others.map(|raw| raw.map_or("-", RawValue::get)).join(" ");
        Some(format!("{}|{}|{others}", message.role.as_deref().unwrap_or("-"), content.as_deref().unwrap_or("-")))
    }

    #[test]
    fn messages() {
        for (json, expected) in [
            (r#"{"role": "user", "content": "a\n\"b\""}"#, Some("user|text a\n\"b\"|- - - - -")),
            (r#"{ "content" :[ "a" ],"r\u006fle":"u\u00e9" }"#, Some("u\u{e9}|other [ \"a\" ]|- - - - -")),
            ("{\n}", Some("-|-|- - - - -")),
            (r#"{"role": null, "content": null, "name": null}"#, Some("-|-|- - - - -")),
            (r#"{"other": {"role": "}"}, "other": "x", "role": "a"}"#, Some("a|-|- - - - -")),
            (
                r#"{"tool_calls": [{"a": "]"}], "reasoning": "r", "name": 1.5e3}"#,
                Some("-|-|[{\"a\": \"]\"}] \"r\" - 1.5e3 -"),
            ),
            (r#"{"role": "a", "role": "b"}"#, None),
            (r#"{"content": "a", "content": ["b"]}"#, None),
            (r#"{"role": 1}"#, None),
            (r#"{"role": ["a"]}"#, None),
            (r#"{"content": "\ud800"}"#, None),
            (r#"["user", "a"]"#, None),
            (r#""user""#, None),
            ("1", None),
        ] {
            assert_eq!(read(json).as_deref(), expected, "{json}");
        }
    }
}
