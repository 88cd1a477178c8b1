//! The beginning of an event stream: buffering of the events before the first one with content, and recognition of
//! events that carry generated text.
//!
//! Engines send comments to keep a connection open, and events that only report that work has begun: a role,
//! `response.created`, `message_start`. If an error comes right after these events, another engine can still answer the
//! request, provided that no event has reached the client. These events are therefore buffered until another kind of
//! event arrives; a stream that begins with the first token passes without delay.
//!
//! If one of these early events were counted as the first token, the engine would look many times faster than it is.
//! All events up to the first token are therefore parsed, in the format of the API; later events are only counted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Dialect, read};

/// Maximum size of the buffered beginning of a stream, in bytes.
pub(super) const MOST_HELD: usize = 256 << 10;

/// Maximum size of the data of an event that is recognized as a ping (which only keeps the connection open), in bytes.
const LONGEST_PING: usize = 96;

/// Buffer of the lines at the beginning of a stream, before the first event with content.
#[derive(Debug, Default)]
pub(super) struct Preamble {
    held: BytesMut,
    /// True once an event with content for the client has arrived; from then on lines are forwarded at once.
    is_over: bool,
    /// True if the buffered lines include an event, not only comments.
    has_event: bool,
    /// True if buffered comments were dropped because the buffer was full.
    has_dropped: bool,
}

impl Preamble {
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// True if the buffer has an event, not only comments.
    pub(super) fn holds_event(&self) -> bool {
        !self.is_over && self.has_event
    }

    /// True if buffered comments were dropped because the buffer was full; they never reach the client.
    pub(super) fn has_dropped(&self) -> bool {
        self.has_dropped
    }

    /// Records the arrival of an event without content, which only reports that the engine has begun to work.
    pub(super) fn note_event(&mut self) {
        self.has_event = true;
    }

    /// Ends the buffering at the beginning of a stream: the buffered lines are forwarded next, later lines at once.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Adds the next lines of the stream; returns the lines that are forwarded now, buffered ones first.
    pub(super) fn pass(&mut self, lines: Bytes) -> Bytes {
        if self.is_over && self.held.is_empty() {
            return lines;
        }
        self.held.extend_from_slice(&lines);
        if !self.is_over && self.held.len() > MOST_HELD {
            self.is_over = self.has_event;
            if !self.has_event {
                // A client does not miss comments, and they would be taken for an answer.
                self.held.clear();
                self.has_dropped = true;
            }
        }
        if self.is_over { self.held.split().freeze() } else { Bytes::new() }
    }

    /// Ends the buffering at the beginning of a stream, and returns the buffered lines.
    pub(super) fn release(&mut self) -> Bytes {
        self.is_over = true;
        self.held.split().freeze()
    }
}

/// True if an event is a ping, which only keeps the connection open, or has no data. `data`: data of the event.
pub(super) fn is_ping(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    let may_be = data.len() <= LONGEST_PING && memmem::find(data, b"\"type\"").is_some();
    data.is_empty()
        || may_be && serde_json::from_slice::<Event<'_>>(data).is_ok_and(|event| names_ping(event.kind.as_bytes()))
}

/// True if `name` is the name of a ping event.
pub(super) fn names_ping(name: &[u8]) -> bool {
    matches!(name, b"ping" | b"keepalive" | b"keep-alive" | b"keep_alive" | b"heartbeat")
}

/// True if an event only reports that the engine has begun to work, judged by the event's data.
pub(super) fn is_preamble(data: &[u8], dialect: Dialect) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
        #[serde(borrow)]
        choices: Option<&'a RawValue>,
    }
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else { return false };
    match dialect {
        Dialect::Chat => {
            let choices = read::<Vec<BTreeMap<Cow<'_, str>, &RawValue>>>(event.choices);
            choices.is_some_and(|choices| choices.iter().all(is_empty_choice))
        }
        Dialect::Responses | Dialect::Messages => read::<Cow<'_, str>>(event.kind).is_some_and(|kind| {
            matches!(&*kind, "response.created" | "response.queued" | "response.in_progress" | "message_start")
        }),
        Dialect::Generate | Dialect::Other => false,
    }
}

/// True if a choice of a chunk has no fields with content besides its index and the role.
fn is_empty_choice(choice: &BTreeMap<Cow<'_, str>, &RawValue>) -> bool {
    choice.iter().all(|(name, value)| match &**name {
        "index" => true,
        "delta" => read::<BTreeMap<Cow<'_, str>, &RawValue>>(Some(value))
            .is_some_and(|delta| delta.iter().all(|(name, value)| name == "role" || is_nothing(value))),
        _ => is_nothing(value),
    })
}

fn is_nothing(raw: &RawValue) -> bool {
    matches!(raw.get(), "null" | "\"\"" | "[]" | "{}")
}

/// Fields of an event that can have generated output, over all APIs.
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

/// One choice of a chunk of a streamed chat or completion.
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

/// Text and tool calls generated since the last event, with the field names of all APIs.
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

/// Log probabilities of tokens, present for every generated token, even for a token without text yet.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Logprobs<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tokens: Option<&'a RawValue>,
}

/// True if the data of an event carries generated output: text, reasoning, a tool call or another part of the answer.
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

/// True if a content block or output item is a tool call with at least the tool's name.
fn is_call(raw: Option<&RawValue>) -> bool {
    let kind = read::<Delta<'_>>(raw).and_then(|block| read::<Cow<'_, str>>(block.kind));
    kind.is_some_and(|kind| kind.ends_with("tool_use") || kind.ends_with("_call"))
}

/// True if a JSON value is present and not empty.
fn is_full(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "\"\"" | "[]" | "{}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_says_that_work_has_begun() {
        for (data, dialect) in [
            (
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
                Dialect::Chat,
            ),
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]}"#, Dialect::Chat),
            (r#"{"choices":[],"prompt_filter_results":[{}]}"#, Dialect::Chat),
            (r#"{"type":"response.created","response":{}}"#, Dialect::Responses),
            (r#"{"type":"response.in_progress","response":{}}"#, Dialect::Responses),
            (r#"{"type":"message_start","message":{}}"#, Dialect::Messages),
        ] {
            assert!(is_preamble(data.as_bytes(), dialect), "{data}");
        }
        for (data, dialect) in [
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"delta":{"role":"assistant","novel":"a"}}]}"#, Dialect::Chat),
            (r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, Dialect::Chat),
            (r#"{"choices":null}"#, Dialect::Chat),
            (r#"{"type":"response.output_item.added"}"#, Dialect::Responses),
            (r#"{"type":"content_block_start"}"#, Dialect::Messages),
            (r#"{"choices":[]}"#, Dialect::Other),
            ("text", Dialect::Chat),
        ] {
            assert!(!is_preamble(data.as_bytes(), dialect), "{data}");
        }
    }

    #[test]
    fn what_only_says_that_the_engine_lives() {
        for data in ["", r#"{"type":"ping"}"#, r#"{ "type" : "ping" }"#, r#"{"type":"keepalive","sequence_number":3}"#]
        {
            assert!(is_ping(data.as_bytes()), "{data}");
        }
        for data in ["ping", r#"{"type":"pong"}"#, r#"{"text":"ping","type":"text"}"#] {
            assert!(!is_ping(data.as_bytes()), "{data}");
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut opening = Preamble::default();
        let comments = Bytes::from(vec![b':'; MOST_HELD / 2]);
        for _ in 0..9 {
            assert!(opening.pass(comments.clone()).is_empty());
        }
        assert!(opening.has_dropped() && opening.held.len() <= MOST_HELD && !opening.is_over());
        opening.note_event();
        assert!(opening.holds_event());
        let passed: usize = (0..3).map(|_| opening.pass(comments.clone()).len()).sum();
        assert!(passed > MOST_HELD && opening.is_over() && !opening.holds_event());
        assert_eq!(opening.pass(Bytes::from_static(b"a")), "a");
    }

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
