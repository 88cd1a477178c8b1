//! What an answer says of itself on its way to the client: how many tokens it has, how many were cached, why it ended.
//!
//! Nothing is parsed but the `usage` object itself. Pieces of a stream are searched as they pass; of other answers the
//! end is looked at.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memmem, memrchr};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes at the end of an answer among which its usage is looked for.
const TAIL: usize = 16 << 10;

/// Bytes of a line of a stream that may wait for its end.
const MAX_LINE: usize = 256 << 10;

/// Tokens, as an engine counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub(crate) prompt: Option<u32>,
    /// Of those, the ones that were in its cache.
    pub(crate) cached: Option<u32>,
    /// Generated.
    pub(crate) output: Option<u32>,
}

/// What an answer was seen to say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) usage: Usage,
    /// Events of a stream with something in them.
    pub(crate) events: u32,
    /// Whether it said why it ended.
    pub(crate) finished: bool,
    /// Whether it is over by its own account.
    pub(crate) over: bool,
}

/// Looks at an answer while it passes.
#[derive(Debug)]
pub(crate) enum Observer {
    /// An event stream.
    Events(Events),
    /// JSON.
    Whole(Tail),
    /// Something else.
    Blind,
}

/// An event stream. Lines leave it whole, so that a stream that breaks off can be ended well.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) seen: Seen,
    /// The beginning of a line, whose end has not come yet.
    partial: BytesMut,
    /// Whether the last line that left was an empty one, so that no event is open.
    between: bool,
}

/// The end of an answer.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    last: [Bytes; 2],
}

impl Observer {
    /// For an answer of this type.
    pub(crate) fn of(content_type: Option<&[u8]>) -> Self {
        match content_type.unwrap_or_default() {
            kind if starts(kind, b"text/event-stream") => Self::Events(Events { between: true, ..Events::default() }),
            kind if starts(kind, b"application/json") => Self::Whole(Tail::default()),
            _ => Self::Blind,
        }
    }

    /// What of `data` can go to the client now.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Events(events) => events.pass(data),
            Self::Whole(tail) => {
                tail.pass(&data);
                data
            }
            Self::Blind => data,
        }
    }

    /// True if an answer of this type cannot be empty.
    pub(crate) fn expects_some(&self) -> bool {
        !matches!(self, Self::Blind)
    }

    /// What was held back, at the end of an answer that is whole.
    pub(crate) fn rest(&mut self) -> Bytes {
        match self {
            Self::Events(events) => events.partial.split().freeze(),
            _ => Bytes::new(),
        }
    }

    /// Bytes that came and did not leave yet.
    pub(crate) fn held_back(&self) -> usize {
        match self {
            Self::Events(events) => events.partial.len(),
            _ => 0,
        }
    }

    /// What was seen, at the end.
    pub(crate) fn seen(&self) -> Seen {
        match self {
            Self::Events(events) => events.seen,
            Self::Whole(tail) => tail.seen(),
            Self::Blind => Seen::default(),
        }
    }

    /// An event that ends a stream which broke off; None where the answer is no stream.
    pub(crate) fn last_words(&mut self, message: &str, code: &str) -> Option<Bytes> {
        let Self::Events(events) = self else { return None };
        let error = serde_json::json!({
            "error": { "message": message, "type": "upstream_error", "param": null, "code": code }
        });
        let open = if events.between { "" } else { "\n" };
        Some(Bytes::from(format!("{open}event: error\ndata: {error}\n\ndata: [DONE]\n\n")))
    }
}

fn starts(kind: &[u8], wanted: &[u8]) -> bool {
    kind.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
}

impl Events {
    fn pass(&mut self, data: Bytes) -> Bytes {
        let Some(end) = memrchr(b'\n', &data) else {
            self.partial.extend_from_slice(&data);
            // Nobody can wait for the end of that.
            return if self.partial.len() > MAX_LINE { self.partial.split().freeze() } else { Bytes::new() };
        };
        let mut lines = data;
        let rest = lines.split_off(end + 1);
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&lines);
            lines = self.partial.split().freeze();
        }
        if !rest.is_empty() {
            self.partial.extend_from_slice(&rest);
        }
        self.look(&lines);
        lines
    }

    fn look(&mut self, lines: &[u8]) {
        self.between = lines.ends_with(b"\n\n") || lines.ends_with(b"\n\r\n") || lines == b"\n" || lines == b"\r\n";
        let mut rest = lines;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, next) = rest.split_at(end + 1);
            rest = next;
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                self.seen.over = true;
                continue;
            }
            self.seen.events += 1;
            if !self.seen.finished && names_value(data, b"\"finish_reason\":") {
                self.seen.finished = true;
            }
            if let Some(usage) = usage(data) {
                merge(&mut self.seen.usage, usage);
            }
            // The Responses API and the Messages API end with an event of their own.
            if memmem::find(data, b"\"response.completed\"").is_some()
                || memmem::find(data, b"\"message_stop\"").is_some()
            {
                (self.seen.over, self.seen.finished) = (true, true);
            }
        }
    }
}

impl Tail {
    fn pass(&mut self, data: &Bytes) {
        let keep = data.slice(data.len().saturating_sub(TAIL)..);
        if self.last[1].len() >= TAIL || self.last[0].is_empty() {
            self.last = [std::mem::take(&mut self.last[1]), keep];
        } else {
            // Small pieces: one copy, so that the last two hold enough.
            let joined = [&*std::mem::take(&mut self.last[1]), &*keep].concat();
            self.last[1] = Bytes::from(joined);
        }
    }

    fn seen(&self) -> Seen {
        let joined;
        let end: &[u8] = if self.last[0].is_empty() {
            &self.last[1]
        } else {
            joined = self.last.concat();
            &joined
        };
        Seen { usage: usage(end).unwrap_or_default(), finished: true, over: true, events: 0 }
    }
}

/// Whether `name` is there with a value that is not null.
fn names_value(text: &[u8], name: &[u8]) -> bool {
    memmem::find_iter(text, name).any(|at| !text[at + name.len()..].trim_ascii_start().starts_with(b"null"))
}

fn merge(into: &mut Usage, new: Usage) {
    let Usage { prompt, cached, output } = new;
    into.prompt = prompt.or(into.prompt);
    into.cached = cached.or(into.cached);
    into.output = output.or(into.output);
}

/// The last `usage` object in a text.
fn usage(text: &[u8]) -> Option<Usage> {
    const NAME: &[u8] = b"\"usage\":";
    let at = memmem::rfind(text, NAME)?;
    let object = text[at + NAME.len()..].trim_ascii_start();
    if object.first() != Some(&b'{') {
        return None;
    }
    let told: Told<'_> = serde_json::Deserializer::from_slice(object).into_iter().next()?.ok()?;
    let details = |raw| read::<Details<'_>>(raw).and_then(|details| read(details.cached_tokens));
    let cached = details(told.prompt_tokens_details).or_else(|| details(told.input_tokens_details));
    Some(Usage {
        prompt: read(told.prompt_tokens).or_else(|| read(told.input_tokens)),
        cached: cached.or_else(|| read(told.cache_read_input_tokens)),
        output: read(told.completion_tokens).or_else(|| read(told.output_tokens)),
    })
}

/// A `usage` object, by the names of all dialects. What is of another type than it should be is not there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":\
        {\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn streams_pass_whole_however_they_are_cut() {
        for cut in 1..STREAM.len() {
            let mut observer = Observer::of(Some(b"text/event-stream; charset=utf-8"));
            let mut out = Vec::new();
            for piece in STREAM.as_bytes().chunks(cut) {
                let passed = observer.pass(Bytes::copy_from_slice(piece));
                assert!(passed.is_empty() || passed.ends_with(b"\n"));
                out.extend_from_slice(&passed);
            }
            out.extend_from_slice(&observer.rest());
            assert_eq!(out, STREAM.as_bytes());
            let seen = observer.seen();
            assert_eq!(seen.usage, Usage { prompt: Some(9), cached: Some(8), output: Some(2) }, "pieces of {cut}");
            assert!(seen.finished && seen.over && seen.events == 3);
        }
    }

    #[test]
    fn a_stream_that_breaks_off_ends_in_an_event() {
        let mut observer = Observer::of(Some(b"text/event-stream"));
        let first = observer.pass(Bytes::from_static(b"data: {\"a\":1}\n\ndata: {\"b"));
        let last = observer.last_words("gone", "engine_failed").expect("a stream");
        let text = [&*first, &*last].concat();
        let text = String::from_utf8(text).expect("utf-8");
        let events: Vec<_> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.len(), 3, "{text}");
        assert!(events[1].starts_with("event: error\ndata: {\"error\"") && events[2] == "data: [DONE]");
        let _ = observer.pass(Bytes::from_static(b"x\n"));
        assert!(observer.last_words("gone", "x").expect("a stream").starts_with(b"\n"));
        assert!(Observer::of(Some(b"application/json")).last_words("gone", "x").is_none());
    }

    #[test]
    fn the_end_of_an_answer() {
        let answer = format!(
            "{{\"choices\":[{{\"text\":\"{}\"}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":7}}}}",
            "x".repeat(60_000)
        );
        for cut in [1, 100, 5000, 70_000] {
            let mut observer = Observer::of(Some(b"application/json"));
            for piece in answer.as_bytes().chunks(cut) {
                assert_eq!(observer.pass(Bytes::copy_from_slice(piece)), piece);
            }
            assert_eq!(observer.seen().usage, Usage { prompt: Some(5), cached: None, output: Some(7) }, "{cut}");
        }
        let messages = br#"{"usage":{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":1}}"#;
        assert_eq!(usage(messages), Some(Usage { prompt: Some(3), cached: Some(2), output: Some(1) }));
        for none in [&b"{}"[..], b"{\"usage\":null}", b"{\"usage\":{\"prompt", b""] {
            assert_eq!(usage(none), None);
        }
    }
}
