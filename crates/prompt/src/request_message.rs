//! A message of a chat request. Messages make up most of a long body, so each text is decoded once, directly from the
//! body.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json_string::leading;

/// A message of a chat request. A null field counts as missing.
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

/// The content of a message.
#[derive(Debug)]
pub(crate) enum RequestContent<'a> {
    Text(Cow<'a, str>),
    /// Any other JSON.
    Other(&'a RawValue),
}

impl<'a> RequestMessage<'a> {
    /// Reads the message at the beginning of JSON that was checked when the body was parsed, and returns the number of
    /// bytes it takes. None if it is not an object, has a field twice, or a string with an invalid escape.
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

    /// Reads the value of a field at the beginning of some JSON. Returns the number of bytes it takes.
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

/// Stores a value. Returns false if there was one already.
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
