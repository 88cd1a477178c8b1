//! The endpoint of a body without a path, found without building any value of the body.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::request::{Parts, Request};

/// Types of content blocks that occur in the Messages API only.
const BLOCKS: [&str; 7] =
    ["tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "server_tool_use"];

impl Endpoint {
    /// The endpoint of a body; none if the body is not a JSON object. Chats and the Messages API both have messages:
    /// they count as a chat's unless a field or block occurs that only the Messages API has.
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

/// True if a value is a list with an item for which `is_it` holds.
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
