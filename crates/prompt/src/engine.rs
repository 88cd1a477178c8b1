//! Requests to an engine's `POST /tokenize`, which returns a prompt's tokens, and parsing of the answer. The caller
//! sends the request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::allowance::{LONGEST_CHAT, take, within};
use crate::convert;
use crate::dialect::{Dialect, Engine, ThinkingSwitches};
use crate::endpoint::Endpoint;
use crate::messages::{self, Message};
use crate::prompt_tokens::PromptFailure;
use crate::request::{BodyPrompt, Request, is_there, read};

impl Engine {
    /// True if this kind of engine computes the whole prompt of the request without its prefix cache.
    #[must_use]
    pub fn skips_cache(self, request: &Request<'_>) -> bool {
        match self {
            Self::Vllm => request.skips.vllm,
            Self::Sglang => request.skips.sglang,
        }
    }
}

/// Path at which engines return the tokens of a text or a chat.
pub const TOKENIZE_PATH: &str = "/tokenize";

/// Path at which vLLM renders a request of `POST /v1/messages` to tokens, if enabled when vLLM was started.
pub const MESSAGES_RENDER_PATH: &str = "/v1/messages/render";

/// Path at which vLLM renders a request of `POST /v1/responses` to tokens.
pub const RESPONSES_RENDER_PATH: &str = "/v1/responses/render";

/// A request for the tokens of a client's prompt, to be sent to an engine.
#[derive(Debug, PartialEq, Eq)]
pub struct Question {
    /// Path of the engine's HTTP server to send the request to.
    pub path: &'static str,
    /// True if the engine is asked to render the client's request itself, which not every version can.
    pub is_render: bool,
    /// Body of the request for tokens that is sent to the engine.
    pub body: Vec<u8>,
    /// Number of prompts in the client's request: 1, or the length of its list of prompts. Tokens are requested for the
    /// first only.
    pub prompts: u32,
    /// Reason why tokens are requested only for the messages before the first one that is not text; `None` if requested
    /// for all messages.
    pub cut: Option<PromptFailure>,
}

/// Fields of a client's request that affect the prompt's tokens, under their names in the engine's `/tokenize`.
type RequestFields = serde_json::Map<String, serde_json::Value>;

/// Fields of a client's request that affect the prompt's tokens, as JSON, if they have the same names in `/tokenize`.
#[derive(Serialize)]
struct PlainFields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(flatten)]
    parts: BTreeMap<&'static str, &'a RawValue>,
}

impl Question {
    /// Makes the request for the tokens of a prompt.
    ///
    /// `model`: the engine's name for the model, if the engine serves several; `has_media`: true if a part of the
    /// prompt is not text. An engine's `/tokenize` accepts one text or a chat: of several texts the first is sent, and
    /// a request of another API is converted to a chat in the way of the engines. The first part that is not text, and
    /// everything after it, is left out.
    ///
    /// # Errors
    ///
    /// The reason why no request can be made. A prompt given as tokens is [`PromptFailure::NoPrompt`].
    pub fn of(
        request: &Request<'_>,
        dialect: Dialect,
        model: Option<&str>,
        has_media: bool,
    ) -> Result<Self, PromptFailure> {
        if request.body.len() > LONGEST_CHAT {
            return Err(PromptFailure::TooLong);
        }
        let (made, failure) = within(request.limits, || Self::made_of(request, dialect, model, has_media));
        failure.map_or(made, Err)
    }

    fn made_of(
        request: &Request<'_>,
        dialect: Dialect,
        model: Option<&str>,
        has_media: bool,
    ) -> Result<Self, PromptFailure> {
        let request = &dialect.known_fields(request);
        let parts = &request.parts;
        if is_there(parts.previous_response_id) || is_there(parts.conversation) {
            return Err(PromptFailure::Stored);
        }
        match request.endpoint {
            Endpoint::Chat if is_there(parts.input_ids) => Err(PromptFailure::NoPrompt),
            Endpoint::Chat => Self::of_chat(request, dialect, model, has_media),
            Endpoint::Embeddings if parts.messages.is_some() => Self::of_chat(request, dialect, model, has_media),
            Endpoint::Responses | Endpoint::Messages => Self::of_other(request, dialect, model),
            Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Generate
            | Endpoint::Tokens
            | Endpoint::ChatTokens => match request.given()? {
                BodyPrompt::Text { .. } if request.known_tokens().is_some() => Err(PromptFailure::SkipsCache),
                BodyPrompt::Text { first, prompts, .. } => {
                    let mut asked = RequestFields::new();
                    asked.insert("prompt".into(), first.as_ref().into());
                    Self::made(asked, &[("add_special_tokens", parts.add_special_tokens)], model, prompts, None)
                }
                BodyPrompt::Tokens { .. } | BodyPrompt::Chat => Err(PromptFailure::NoPrompt),
            },
        }
    }

    /// Returns the path at which engines of a dialect render requests of an API to tokens; `None` if they cannot. vLLM
    /// can for Messages and Responses.
    #[must_use]
    pub fn render_path(endpoint: Endpoint, dialect: Dialect) -> Option<&'static str> {
        match endpoint {
            Endpoint::Messages if dialect.is_vllm() => Some(MESSAGES_RENDER_PATH),
            Endpoint::Responses if dialect.is_vllm() => Some(RESPONSES_RENDER_PATH),
            _ => None,
        }
    }

    /// Makes a request by which the engine renders the client's request to tokens; `None` if the engine cannot render
    /// requests of this API.
    ///
    /// # Errors
    ///
    /// The reason why no request can be made.
    pub fn rendered(
        request: &Request<'_>,
        dialect: Dialect,
        model: Option<&str>,
    ) -> Result<Option<Self>, PromptFailure> {
        let Some(path) = Self::render_path(request.endpoint, dialect) else { return Ok(None) };
        let parts = &request.parts;
        if is_there(parts.previous_response_id) || is_there(parts.conversation) {
            return Err(PromptFailure::Stored);
        }
        if request.body.len() > LONGEST_CHAT {
            return Err(PromptFailure::TooLong);
        }
        let (fields, failure) = within(request.limits, || serde_json::from_slice::<CountedFields<'_>>(request.body));
        if let Some(why_not) = failure {
            return Err(why_not);
        }
        let CountedFields(mut fields) = fields.map_err(|_| PromptFailure::NotJson)?;
        let model = model.map(serde_json::value::to_raw_value).transpose().map_err(|_| PromptFailure::NotJson)?;
        if let Some(model) = &model {
            fields.insert("model".into(), model);
        }
        let body = serde_json::to_vec(&fields).map_err(|_| PromptFailure::NotJson)?;
        Ok(Some(Self { path, is_render: true, body, prompts: 1, cut: None }))
    }

    /// Makes the request for the tokens of a chat, whose messages are sent unchanged.
    fn of_chat(
        request: &Request<'_>,
        dialect: Dialect,
        model: Option<&str>,
        has_media: bool,
    ) -> Result<Self, PromptFailure> {
        let parts = &request.parts;
        let all = parts.messages.ok_or(PromptFailure::NoPrompt)?;
        let (mut cut, mut first) = (None, None);
        if has_media {
            let (messages, ends) = messages::of_chat(all, dialect)?;
            if let Some((at, why_not)) = messages.iter().enumerate().find_map(|(at, it)| Some((at, it.why_not()?))) {
                let end = *at.checked_sub(1).and_then(|last| ends.get(last)).ok_or(why_not)?;
                let list = format!("{}]", &all.get()[..=end]);
                first = Some(RawValue::from_string(list).map_err(|_| PromptFailure::BadMessages)?);
                cut = Some(why_not);
            }
        }
        let no = RawValue::from_string("false".to_owned()).map_err(|_| PromptFailure::NotJson)?;
        let is_whole = cut.is_none();
        // An engine's `/tokenize` assumes that the chat is to be answered.
        let begins = parts.add_generation_prompt.filter(|raw| is_there(Some(raw)));
        let begins = begins.or_else(|| (!dialect.begins_answer(request.endpoint)).then_some(&*no));
        let asked = [
            ("messages", Some(first.as_deref().unwrap_or(all))),
            ("tools", parts.tools),
            ("add_generation_prompt", if is_whole { begins } else { Some(&*no) }),
            ("continue_final_message", parts.continue_final_message.filter(|_| is_whole)),
            ("add_special_tokens", parts.add_special_tokens),
            ("chat_template", parts.chat_template),
            ("chat_template_kwargs", parts.chat_template_kwargs),
        ];
        let parts = asked.into_iter().filter_map(|(name, raw)| Some((name, raw.filter(|raw| is_there(Some(raw)))?)));
        let body =
            serde_json::to_vec(&PlainFields { model, parts: parts.collect() }).map_err(|_| PromptFailure::NotJson)?;
        Ok(Self { path: TOKENIZE_PATH, is_render: false, body, prompts: 1, cut })
    }

    /// Makes the request for the tokens of a client's request that is not a chat: converted to a chat in the way of the
    /// engines.
    fn of_other(request: &Request<'_>, dialect: Dialect, model: Option<&str>) -> Result<Self, PromptFailure> {
        let parts = &request.parts;
        let mut messages = match request.endpoint {
            Endpoint::Responses => convert::from_responses(parts, dialect, false, false)?,
            // The engine's template is not known here, so a system message stays in its place.
            _ => convert::from_messages(parts, dialect, false, false)?,
        }
        .all();
        let mut cut = None;
        if let Some((at, why_not)) = messages.iter().enumerate().find_map(|(at, it)| Some((at, it.why_not()?))) {
            if at == 0 {
                return Err(why_not);
            }
            messages.truncate(at);
            cut = Some(why_not);
        }
        let mut asked = RequestFields::new();
        asked.insert("messages".into(), messages.iter().map(Message::to_json).collect());
        if let Some(tools) = convert::tools(request.endpoint, parts, dialect)? {
            asked.insert("tools".into(), serde_json::to_value(tools).map_err(|_| PromptFailure::BadMessages)?);
        }
        if cut.is_some() {
            asked.insert("add_generation_prompt".into(), false.into());
        }
        let mut variables = RequestFields::new();
        let thinks = ThinkingSwitches { no_effort: &|| "none", toggle: None };
        for (name, value) in dialect.variables(request.endpoint, parts, &thinks) {
            variables.insert(name, serde_json::to_value(value).map_err(|_| PromptFailure::BadMessages)?);
        }
        let kwargs = messages::given(parts.chat_template_kwargs).and_then(|kwargs| serde_json::to_value(kwargs).ok());
        if let Some(serde_json::Value::Object(kwargs)) = kwargs {
            variables.extend(kwargs);
        }
        if !variables.is_empty() {
            asked.insert("chat_template_kwargs".into(), variables.into());
        }
        Self::made(asked, &[("chat_template", parts.chat_template)], model, 1, cut)
    }

    fn made(
        mut asked: RequestFields,
        more: &[(&str, Option<&RawValue>)],
        model: Option<&str>,
        prompts: u32,
        cut: Option<PromptFailure>,
    ) -> Result<Self, PromptFailure> {
        if let Some(model) = model {
            asked.insert("model".into(), model.into());
        }
        for (name, raw) in more {
            let value = messages::given(*raw).and_then(|value| serde_json::to_value(value).ok());
            if let Some(value) = value.filter(|value| !value.is_null()) {
                asked.insert((*name).into(), value);
            }
        }
        let body = serde_json::to_vec(&asked).map_err(|_| PromptFailure::NotJson)?;
        Ok(Self { path: TOKENIZE_PATH, is_render: false, body, prompts, cut })
    }
}

/// Fields of a request's body; their memory is counted against the limits of the prompt.
struct CountedFields<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for CountedFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = CountedFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
                    take(96 + key.len()).map_err(A::Error::custom)?;
                    fields.insert(key, value);
                }
                Ok(CountedFields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Parses the tokens in an engine's answer; `None` if the body is not an answer of `/tokenize` or of a path that
/// renders requests.
#[must_use]
pub fn tokenize_answer(body: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow, alias = "token_ids")]
        tokens: &'a RawValue,
    }
    let answer: Answer<'_> = serde_json::from_slice(body).ok()?;
    read(Some(answer.tokens))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(endpoint: Endpoint, body: &str) -> Result<(serde_json::Value, Question), PromptFailure> {
        let request = Request::parse(endpoint, body.as_bytes())?;
        let question = Question::of(&request, Dialect::default(), Some("m"), request.media().is_some())?;
        Ok((serde_json::from_slice(&question.body).unwrap(), question))
    }

    fn asked(endpoint: Endpoint, body: &str) -> serde_json::Value {
        ask(endpoint, body).unwrap().0
    }

    #[test]
    fn what_is_asked() {
        assert_eq!(
            asked(Endpoint::Chat, r#"{"messages": [{"role": "user"}], "tools": null, "n": 2, "model": "x"}"#),
            json!({"model": "m", "messages": [{"role": "user"}]})
        );
        assert_eq!(
            asked(Endpoint::Completions, r#"{"prompt": "a\n", "add_special_tokens": false}"#),
            json!({"model": "m", "add_special_tokens": false, "prompt": "a\n"})
        );
        let (first, question) = ask(Endpoint::Completions, r#"{"prompt": ["a", "b"]}"#).unwrap();
        assert_eq!((first, question.prompts), (json!({"model": "m", "prompt": "a"}), 2));
        assert_eq!(asked(Endpoint::Embeddings, r#"{"input": ["a"]}"#), json!({"model": "m", "prompt": "a"}));
        assert_eq!(ask(Endpoint::Completions, r#"{"prompt": [1]}"#).unwrap_err(), PromptFailure::NoPrompt);
        assert_eq!(ask(Endpoint::Completions, r#"{"prompt_embeds": "x"}"#).unwrap_err(), PromptFailure::Embeds);
        assert_eq!(
            ask(Endpoint::Responses, r#"{"input": "x", "previous_response_id": "r"}"#).unwrap_err(),
            PromptFailure::Stored
        );
        assert_eq!(
            ask(Endpoint::Responses, r#"{"input": [{"type": "reasoning"}]}"#).unwrap_err(),
            PromptFailure::OtherItem
        );
    }

    #[test]
    fn what_only_one_engine_has_is_asked_of_that_one() {
        let body = r#"{"messages": [{"role": "user"}], "add_generation_prompt": false, "input_ids": [1]}"#;
        let vllm = json!({"model": "m", "messages": [{"role": "user"}], "add_generation_prompt": false});
        assert_eq!(asked(Endpoint::Chat, body), vllm);
        let request = Request::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        assert_eq!(Question::of(&request, Dialect::Sglang, None, false), Err(PromptFailure::NoPrompt));
        let body = body.replace(r#", "input_ids": [1]"#, "");
        let request = Request::parse(Endpoint::Chat, body.as_bytes()).unwrap();
        let question = Question::of(&request, Dialect::Sglang, None, false).unwrap();
        assert_eq!(question.body, br#"{"messages":[{"role": "user"}]}"#);
        // A chat to be embedded has no beginning of an answer.
        assert_eq!(asked(Endpoint::Embeddings, r#"{"messages": [{"role": "user"}]}"#), vllm);
    }

    #[test]
    fn other_requests_are_asked_as_chats() {
        let responses = r#"{"instructions": "be brief", "input": [{"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call_output", "call_id": "c", "output": "2"}],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}"#;
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
        let tools = json!([{"type": "function", "function":
            {"name": "f", "description": null, "parameters": {"type": "object"}}}]);
        let expected = json!({"model": "m", "tools": tools, "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "c"},
        ]});
        assert_eq!(asked(Endpoint::Responses, responses), expected);
        let messages = r#"{"system": "be brief", "messages": [{"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "2"}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}]}"#;
        assert_eq!(asked(Endpoint::Messages, messages), expected);
    }

    #[test]
    fn what_is_not_text_is_not_sent() {
        let part = r#"{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}"#;
        let body = format!(
            r#"{{"messages": [{{"role": "system", "content": "s"}}, {{"role": "user", "content": [{{"type": "text", "text": "t"}}, {part}]}},
            {{"role": "user", "content": "later"}}], "continue_final_message": true}}"#
        );
        let (asked, question) = ask(Endpoint::Chat, &body).unwrap();
        let expected = json!([{"role": "system", "content": "s"}]);
        assert_eq!(asked, json!({"model": "m", "messages": expected, "add_generation_prompt": false}));
        assert_eq!(question.cut, Some(PromptFailure::Image));
        let first = format!(r#"{{"messages": [{{"role": "user", "content": [{part}]}}]}}"#);
        assert_eq!(ask(Endpoint::Chat, &first).unwrap_err(), PromptFailure::Image);
        let source = r#"{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}"#;
        let messages = format!(r#"{{"system": "s", "messages": [{{"role": "user", "content": [{source}]}}]}}"#);
        let (asked, question) = ask(Endpoint::Messages, &messages).unwrap();
        assert_eq!(asked, json!({"model": "m", "messages": expected, "add_generation_prompt": false}));
        assert_eq!(question.cut, Some(PromptFailure::Image));
    }

    #[test]
    fn what_is_answered() {
        assert_eq!(tokenize_answer(br#"{"count": 2, "tokens": [5, 6], "max_model_len": 9}"#), Some(vec![5, 6]));
        for bad in ["", "[]", r#"{"tokens": [-1]}"#, r#"{"tokens": "a"}"#, r#"{"error": {}}"#] {
            assert_eq!(tokenize_answer(bad.as_bytes()), None, "{bad}");
        }
    }
}
