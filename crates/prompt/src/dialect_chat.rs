//! The part of each dialect that concerns chats: messages, tools and variables in the form the engine gives them.

use minijinja::Value;

use crate::dialect::{BILLING, CUSTOM_INPUT, Dialect, THINKS};
use crate::endpoint::Endpoint;
use crate::messages::{Part, field, given, object, with};
use crate::request::Parts;

/// The switches by which a template can be made to think less, or not at all.
pub(crate) struct ThinkingSwitches<'t> {
    /// The effort by which vLLM turns a template's thinking off.
    pub(crate) no_effort: &'t dyn Fn() -> &'static str,
    /// The variable by which SGLang turns a template's thinking off.
    pub(crate) toggle: Option<&'static str>,
}

impl Dialect {
    /// Removes billing lines from the texts of a system message, in whichever API it came.
    pub(crate) fn leave_out_billing(self, role: &str, content: &mut Vec<Part<'_>>) {
        if self != Self::Vllm32 || role != "system" {
            return;
        }
        content.retain_mut(|part| {
            let Part::Text(text) = part else { return true };
            if !text.starts_with(BILLING) {
                return true;
            }
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
            let is_left = !rest.is_empty();
            *text = rest.into();
            is_left
        });
    }

    /// The variables for templates that follow from the request's reasoning effort and thinking settings.
    pub(crate) fn variables(
        self,
        endpoint: Endpoint,
        parts: &Parts<'_>,
        template: &ThinkingSwitches<'_>,
    ) -> Vec<(String, Value)> {
        let there = |value: Value| Some(value).filter(|value| !value.is_none());
        let inner = |raw, name| field(&given(raw)?, name).and_then(there);
        let thinking = inner(parts.thinking, "type").filter(|_| endpoint == Endpoint::Messages);
        let thinks = thinking.as_ref().map(|kind| kind.as_str() != Some("disabled"));
        let mut effort = match endpoint {
            Endpoint::Messages => inner(parts.output_config, "effort"),
            Endpoint::Responses => inner(parts.reasoning, "effort"),
            _ => given(parts.reasoning_effort).and_then(there),
        };
        let mut made = Vec::new();
        if self.is_vllm() {
            if thinks == Some(false) && self != Self::Vllm30 {
                effort = Some((template.no_effort)().into());
            }
            if let Some(effort) = effort {
                let thinks = effort.as_str() != Some("none");
                made.push(("reasoning_effort".to_owned(), effort));
                made.push((THINKS.to_owned(), thinks.into()));
            }
            return made;
        }
        if endpoint == Endpoint::Messages {
            if effort.as_ref().and_then(Value::as_str) == Some("xhigh") {
                effort = Some("max".into());
            }
        } else {
            effort = effort.or_else(|| inner(parts.reasoning, "effort"));
            if let Some(effort) = &effort {
                // Families of models differ in the name.
                let thinks = effort.as_str() != Some("none");
                made.extend(["thinking", THINKS].map(|name| (name.to_owned(), thinks.into())));
            }
        }
        made.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort)));
        made.extend(template.toggle.zip(thinks).map(|(name, thinks)| (name.to_owned(), thinks.into())));
        made
    }

    /// True if the prompt of a chat ends with the beginning of an answer unless the request says otherwise.
    pub(crate) fn begins_answer(self, endpoint: Endpoint) -> bool {
        !(self.is_vllm() && endpoint == Endpoint::Embeddings)
    }

    /// A tool call with its fields in the engine's order. vLLM keeps unknown fields after them, SGLang drops them.
    pub(crate) fn call(self, call: &Value, function: &Value) -> Value {
        if self.is_vllm() {
            let function = ordered(function, &["arguments", "name"]);
            return ordered(&with(call, "function", function), &["id", "function", "type"]);
        }
        let null = || Value::from(());
        let of = |map: &Value, name| field(map, name).unwrap_or_else(null);
        object([
            ("id", of(call, "id")),
            ("index", of(call, "index")),
            ("type", field(call, "type").unwrap_or("function".into())),
            ("function", object(["name", "arguments"].map(|name| (name, of(function, name))))),
        ])
    }
}

/// A map with the given fields first.
fn ordered(map: &Value, first: &[&str]) -> Value {
    let named = first.iter().filter_map(|name| Some((Value::from(*name), field(map, name)?)));
    let keys = map.try_iter().into_iter().flatten();
    let others = keys.filter(|key| key.as_str().is_none_or(|key| !first.contains(&key))).map(|key| {
        let value = map.get_item(&key).unwrap_or_default();
        (key, value)
    });
    Value::from_pairs(named.chain(others))
}

/// Changes the role of the last message from assistant to user: SGLang continues only a user's message.
pub(crate) fn end_with_user(messages: &mut [Value]) {
    let Some(last) = messages.last_mut() else { return };
    let is_assistant = field(last, "role").as_ref().and_then(Value::as_str) == Some("assistant");
    if let Some(content) = field(last, "content").filter(|content| is_assistant && content.as_str().is_some()) {
        *last = object([("role", "user".into()), ("content", content)]);
    }
}

/// Removes the last message of a chat if it is a text of the assistant, and returns the text.
pub(crate) fn take_answer(messages: &mut Vec<Value>) -> Option<String> {
    let last = messages.last()?;
    let is_assistant = field(last, "role").as_ref().and_then(Value::as_str) == Some("assistant");
    let answer = field(last, "content").filter(|_| is_assistant)?.as_str()?.to_owned();
    messages.pop();
    Some(answer)
}

/// The name of a function in a namespace of tools.
pub(crate) fn name_in(namespace: &Value, name: &Value) -> Value {
    format!("{namespace}__{name}").into()
}

/// The parameters of the function that represents a tool of type `custom`.
pub(crate) fn custom_parameters() -> Value {
    let input = object([("type", "string".into()), ("description", "The freeform text payload for this tool.".into())]);
    object([
        ("type", "object".into()),
        ("properties", object([(CUSTOM_INPUT, input)])),
        ("required", vec![Value::from(CUSTOM_INPUT)].into()),
        ("additionalProperties", false.into()),
    ])
}
