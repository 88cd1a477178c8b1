//! Finds the events of a stream that carry something that the model has generated.
//!
//! Engines send events before the first token: a role, `response.created`, `message_start`, a ping. Whoever takes the
//! first of those for the first token takes the engine for many times faster than it is. So the events up to the first
//! token are read, by the shape that the API gives them; later ones are only counted.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::dialect::{Dialect, read};

/// An event, in any dialect.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    output_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// One of the choices of a chunk.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
}

/// The text and calls generated since the last event, by the names of all dialects.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking_blocks: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    images: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_json: Option<&'a RawValue>,
}

/// Log probabilities, present for every generated token, even one without text yet.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Logprobs<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tokens: Option<&'a RawValue>,
}

/// True if the data of an event carries text, reasoning, a tool call or another part of the answer.
pub(super) fn is_generated(data: &[u8], dialect: Dialect) -> bool {
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else {
        // Streams of paths that have no prompt may be of any form.
        return dialect == Dialect::Other && !data.is_empty();
    };
    if let Some(kind) = read::<Cow<'_, str>>(event.kind) {
        return match &*kind {
            "content_block_delta" => is_full_delta(event.delta),
            // The name of a tool has been generated when its block begins.
            "content_block_start" => is_full_delta(event.content_block) || is_call(event.content_block),
            "response.output_item.added" => is_call(event.item),
            kind if kind.ends_with(".delta") || kind.ends_with(".done") => {
                // Of SGLang's own and of OpenAI's speech, `delta` may be named after what it holds.
                [event.delta, event.text, event.arguments, event.audio].into_iter().any(is_full)
            }
            _ => false,
        };
    }
    if event.choices.is_some() {
        return read::<Vec<Choice<'_>>>(event.choices).is_some_and(|choices| choices.iter().any(is_full_choice));
    }
    let own = [event.text, event.output_ids, event.token_ids];
    if own.iter().any(Option::is_some) {
        return own.into_iter().any(is_full);
    }
    dialect == Dialect::Other && event.error.is_none()
}

fn is_full_choice(choice: &Choice<'_>) -> bool {
    let scored = read::<Logprobs<'_>>(choice.logprobs).unwrap_or_default();
    [choice.text, choice.token_ids, scored.content, scored.tokens].into_iter().any(is_full)
        || is_full_delta(choice.delta)
}

fn is_full_delta(raw: Option<&RawValue>) -> bool {
    let Some(delta) = read::<Delta<'_>>(raw) else { return false };
    [
        delta.content,
        delta.text,
        delta.reasoning,
        delta.reasoning_content,
        delta.reasoning_details,
        delta.thinking,
        delta.thinking_blocks,
        delta.tool_calls,
        delta.function_call,
        delta.refusal,
        delta.audio,
        delta.images,
        delta.partial_json,
    ]
    .into_iter()
    .any(is_full)
}

/// True if a block or an item is a tool call with at least its name.
fn is_call(raw: Option<&RawValue>) -> bool {
    let kind = read::<Delta<'_>>(raw).and_then(|block| read::<Cow<'_, str>>(block.kind));
    kind.is_some_and(|kind| kind.ends_with("tool_use") || kind.ends_with("_call"))
}

/// True if a value is present and not empty.
fn is_full(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "\"\"" | "[]" | "{}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_first_token_is_none() {
        for data in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[],"reasoning_content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"index":0,"text":"","token_ids":[],"finish_reason":null}]}"#,
            r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":5}}"#,
            r#"{"type":"response.created","response":{"output":[],"instructions":"be brief"}}"#,
            r#"{"type":"response.in_progress","response":{}}"#,
            r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
            r#"{"type":"response.content_part.added","part":{"type":"output_text","text":""}}"#,
            r#"{"type":"response.output_text.delta","delta":""}"#,
            r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":5}}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"text":"","output_ids":[],"meta_info":{"prompt_tokens":5}}"#,
            r#"{"error":{"message":"no"}}"#,
            "{}",
            "",
            "ping",
        ] {
            assert!(!is_generated(data.as_bytes(), Dialect::Chat), "{data}");
        }
    }

    #[test]
    fn whatever_the_model_writes_is_generated() {
        for data in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{}},{"index":1,"delta":{"content":" "}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"so"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"so"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"refusal":"no"}}]}"#,
            r#"{"choices":[{"delta":{"content":""},"logprobs":{"content":[{"token":"\\xe4"}]}}]}"#,
            r#"{"choices":[{"text":"a"}]}"#,
            r#"{"choices":[{"text":"","token_ids":[7]}]}"#,
            r#"{"type":"response.output_text.delta","delta":"a"}"#,
            r#"{"type":"response.reasoning_text.delta","delta":"a"}"#,
            r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#,
            r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}"#,
            r#"{"type":"response.output_text.done","text":"all of it"}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}"#,
            r#"{"text":"a","meta_info":{}}"#,
            r#"{"output_ids":[7],"meta_info":{}}"#,
        ] {
            assert!(is_generated(data.as_bytes(), Dialect::Chat), "{data}");
        }
        assert!(is_generated(b"a line of text", Dialect::Other));
        assert!(is_generated(br#"{"some":"thing"}"#, Dialect::Other));
    }
}
