//! Endpoints of engines whose requests contain prompts. The endpoint follows from a request's path, or from its body
//! alone, without parsing the body's values.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::request::{Parts, Request};

/// An endpoint of an engine's HTTP server whose requests contain prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`, OpenAI's Responses API.
    Responses,
    /// `POST /v1/messages`, Anthropic's Messages API.
    Messages,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /generate` of SGLang, with a prompt as token ids or text.
    Generate,
    /// `POST /inference/v1/generate` of vLLM, with a prompt as token ids.
    Tokens,
    /// `POST /v1/chat/completions/tokens`, added to vLLM by training frameworks: a chat whose prompt is given as token
    /// ids.
    ChatTokens,
}

impl Endpoint {
    /// All endpoints, in a fixed order, for metrics that begin at zero.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Generate,
        Self::Tokens,
        Self::ChatTokens,
    ];

    /// Endpoint at an HTTP path, with or without the leading `/v1`; `None` if requests at the path have no prompts that
    /// can be parsed.
    ///
    /// A query (`?…`) and one slash at the end are ignored.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        match path {
            "/generate" => return Some(Self::Generate),
            "/inference/v1/generate" => return Some(Self::Tokens),
            _ => {}
        }
        match path.strip_prefix("/v1").unwrap_or(path) {
            "/chat/completions/tokens" => Some(Self::ChatTokens),
            "/chat/completions" => Some(Self::Chat),
            "/completions" => Some(Self::Completions),
            "/responses" => Some(Self::Responses),
            "/messages" => Some(Self::Messages),
            "/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// True if engines generate an answer to requests of this endpoint; false for embeddings.
    #[must_use]
    pub const fn generates(self) -> bool {
        !matches!(self, Self::Embeddings)
    }

    /// Name of the endpoint in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Generate => "generate",
            Self::Tokens => "tokens",
            Self::ChatTokens => "chat_tokens",
        }
    }

    /// True if the body contains the prompt itself, as text or tokens, instead of a chat; fields for chats then have no
    /// effect.
    pub(crate) const fn has_plain_prompt(self) -> bool {
        matches!(self, Self::Generate | Self::Tokens | Self::ChatTokens)
    }

    /// True if the token count that an engine reports for a request covers exactly one prompt and one answer.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Generate | Self::Tokens | Self::ChatTokens)
    }

    /// True if requests may have `stream_options`, by which a client asks for token counts.
    #[must_use]
    pub const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Tokens | Self::ChatTokens)
    }
}

/// Types of content blocks that occur in the Messages API only, by which a body of this API is recognized.
const BLOCKS: [&str; 7] =
    ["tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "server_tool_use"];

impl Endpoint {
    /// Endpoint for which a request's body was written; `None` if the body is not a JSON object. Both the chat API and
    /// the Messages API have the field `messages`: the body counts as a chat unless a field or content block occurs
    /// that only the Messages API has.
    #[must_use]
    pub fn of_body(body: &[u8]) -> Option<Self> {
        let parts = Request::parse(Self::Chat, body).ok()?.parts;
        let is_list = |raw: Option<&RawValue>| raw.is_some_and(|raw| raw.get().starts_with('['));
        Some(match (parts.messages, parts.input) {
            (Some(_), _) if is_list(parts.tokens) => Self::ChatTokens,
            (None, None) if is_list(parts.token_ids) => Self::Tokens,
            (None, None) if is_list(parts.input_ids) || parts.text.is_some() => Self::Generate,
            (Some(_), _) if is_of_messages(&parts) => Self::Messages,
            (Some(_), _) => Self::Chat,
            (_, Some(_)) => Self::Responses,
            _ => Self::Completions,
        })
    }
}

fn is_of_messages(parts: &Parts<'_>) -> bool {
    #[derive(Deserialize)]
    struct Tool<'a> {
        #[serde(borrow)]
        input_schema: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    let is_own_tool = |raw: &str| serde_json::from_str::<Tool<'_>>(raw).is_ok_and(|tool| tool.input_schema.is_some());
    let is_own_block = |raw: &str| serde_json::from_str::<Block<'_>>(raw).is_ok_and(|it| BLOCKS.contains(&&*it.kind));
    let has_own_block = |raw: &str| {
        let content = serde_json::from_str::<Message<'_>>(raw).ok().and_then(|message| message.content);
        any_item(content, &is_own_block)
    };
    [parts.system, parts.stop_sequences, parts.thinking].iter().any(Option::is_some)
        || any_item(parts.tools, &is_own_tool)
        || any_item(parts.messages, &has_own_block)
}

/// True if a JSON value is a list with an item for which `is_it` returns true.
fn any_item(list: Option<&RawValue>, is_it: &dyn Fn(&str) -> bool) -> bool {
    struct Items<'f>(&'f dyn Fn(&str) -> bool);

    impl<'de> Visitor<'de> for Items<'_> {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
            let mut found = false;
            while let Some(item) = list.next_element::<&RawValue>()? {
                found = found || self.0(item.get());
            }
            Ok(found)
        }
    }

    let Some(list) = list else { return false };
    serde_json::Deserializer::from_str(list.get()).deserialize_seq(Items(is_it)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/v1/chat/completions", Some(Endpoint::Chat)),
            ("/chat/completions/", Some(Endpoint::Chat)),
            ("/v1/completions?a=b", Some(Endpoint::Completions)),
            ("/v1/responses", Some(Endpoint::Responses)),
            ("/v1/messages", Some(Endpoint::Messages)),
            ("/v1/embeddings", Some(Endpoint::Embeddings)),
            ("/generate/", Some(Endpoint::Generate)),
            ("/v1/generate", None),
            ("/inference/v1/generate", Some(Endpoint::Tokens)),
            ("/v1/chat/completions/tokens", Some(Endpoint::ChatTokens)),
            ("/v1/models", None),
            ("/v1/responses/abc", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::of_path(path), expected, "{path}");
        }
    }

    #[test]
    fn endpoints() {
        for (body, expected) in [
            (r#"{"messages": [{"role": "user", "content": "a"}]}"#, Some(Endpoint::Chat)),
            (
                r#"{"messages": [{"content": [{"type": "text"}, 7]}, 8], "tools": [{"function": {}}, 9]}"#,
                Some(Endpoint::Chat),
            ),
            (r#"{"messages": [], "system": null}"#, Some(Endpoint::Messages)),
            (r#"{"messages": [], "stop_sequences": []}"#, Some(Endpoint::Messages)),
            (r#"{"messages": [], "tools": [1, {"input_schema": {}}]}"#, Some(Endpoint::Messages)),
            (r#"{"messages": [{"content": [{"type": "tool_use"}]}]}"#, Some(Endpoint::Messages)),
            (r#"{"messages": [], "tokens": [1]}"#, Some(Endpoint::ChatTokens)),
            (r#"{"messages": [], "tokens": 1}"#, Some(Endpoint::Chat)),
            (r#"{"token_ids": [1]}"#, Some(Endpoint::Tokens)),
            (r#"{"input_ids": [1]}"#, Some(Endpoint::Generate)),
            (r#"{"text": "a"}"#, Some(Endpoint::Generate)),
            (r#"{"input": "a"}"#, Some(Endpoint::Responses)),
            (r#"{"prompt": "a"}"#, Some(Endpoint::Completions)),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::of_body(body.as_bytes()), expected, "{body}");
        }
    }
}
