//! Reader of a streamed answer (server-sent events) on its way from an engine to the client.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memmem, memrchr};
use serde_json::json;

use super::failure::{Failure, may_be_aborted, may_be_error, status_of};
use super::opening::{Preamble, is_generated, is_ping, is_preamble, names_ping};
use super::stop::Reason;
use super::usage::{Scan, UsageNumbers, is_usage_alone, read_meta, read_usage};
use super::{AnswerFacts, AnswerFormat, Dialect};

/// Maximum size of an incomplete line of an event stream that is buffered until its end arrives, in bytes. A longer
/// line is forwarded in pieces.
const MAX_LINE: usize = 256 << 10;

/// Reader of an answer's event stream on its way to the client. Only complete lines are forwarded, so that the router
/// can append an error event to a stream that breaks off.
#[derive(Debug)]
pub(crate) struct Events {
    reading: AnswerFormat,
    seen: AnswerFacts,
    told: UsageNumbers,
    reason: Reason,
    /// Number of received events that have data, whatever the data are.
    count: u64,
    /// The incomplete line at the end of the bytes received so far.
    partial: BytesMut,
    /// Search for the answer's token counts (`usage`) in the rest of a line that is too long to be buffered; None while
    /// no line of that length is being forwarded.
    long: Option<Scan>,
    /// Buffer of the events before the first one with content for the client; the buffered events are not forwarded
    /// yet.
    opening: Preamble,
    /// Lines of the current event that came before its data, buffered while the event may still have to be hidden from
    /// the client.
    fields: BytesMut,
    /// Name of the current event, if the router handles events of this name specially.
    name: Name,
    /// True if data other than comments have arrived since the last call of `take_progress`.
    has_progress: bool,
    /// True if the last line forwarded to the client was empty: an empty line ends an event, so that the stream is
    /// between two events.
    between: bool,
    /// True while the empty line that ends a hidden event has not arrived.
    is_hiding: bool,
    /// True if the current event is the last one of the stream.
    is_last: bool,
}

/// Decision on a line of an event stream: forward, hide or buffer the line.
enum Fate {
    Goes,
    /// Hides the line from the client, together with the buffered lines of the same event.
    Hidden,
    /// Buffers the line until the data of the line's event arrive; the line is then forwarded or hidden together with
    /// them.
    Waits,
}

/// Names of server-sent events that the router handles specially.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Any,
    Error,
    Ping,
}

impl Events {
    pub(super) fn new(reading: AnswerFormat) -> Self {
        Self {
            reading,
            seen: AnswerFacts::default(),
            told: UsageNumbers::default(),
            reason: Reason::default(),
            count: 0,
            partial: BytesMut::new(),
            long: None,
            opening: Preamble::default(),
            fields: BytesMut::new(),
            name: Name::Any,
            has_progress: false,
            between: true,
            is_hiding: false,
            is_last: false,
        }
    }

    pub(super) fn seen(&self) -> AnswerFacts {
        AnswerFacts { usage: self.told.usage(), stop: self.reason.stop(), ..self.seen }
    }

    pub(super) fn hides(&self) -> bool {
        self.reading.hides_usage || self.opening.has_dropped()
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.seen.failure
    }

    pub(super) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progress)
    }

    pub(super) fn holds_event(&self) -> bool {
        self.opening.holds_event()
    }

    pub(super) fn release(&mut self) -> Bytes {
        self.opening.release()
    }

    /// True if the stream is between two events, so that the next line begins a new event.
    pub(super) fn is_between(&self) -> bool {
        self.between && !self.is_hiding
    }

    pub(super) fn tokens(&self) -> u32 {
        self.seen.events
    }

    pub(super) fn rest(&mut self) -> Bytes {
        // It has no end, and may have said something all the same.
        let partial = self.partial.split().freeze();
        let is_hidden = !partial.is_empty() && matches!(self.line(&partial), Fate::Hidden);
        let mut held = BytesMut::from(self.opening.release());
        if !is_hidden {
            held.unsplit(self.fields.split());
            held.extend_from_slice(&partial);
        }
        held.freeze()
    }

    pub(super) fn held_back(&self) -> usize {
        self.fields.len() + self.partial.len()
    }

    pub(super) fn pass(&mut self, mut data: Bytes) -> Bytes {
        if let Some(scan) = &mut self.long {
            let end = memchr(b'\n', &data);
            let rest = end.map(|end| data.split_off(end + 1));
            scan.pass(&data);
            self.has_progress = true;
            let Some(rest) = rest else { return data };
            self.told.merge(scan.told);
            self.long = None;
            let rest = self.pass(rest);
            return if rest.is_empty() { data } else { [&*data, &*rest].concat().into() };
        }
        let Some(end) = memrchr(b'\n', &data) else {
            self.partial.extend_from_slice(&data);
            self.has_progress |= has_data(&self.partial);
            // Its end is not worth waiting for.
            return if self.partial.len() > MAX_LINE { self.let_go() } else { Bytes::new() };
        };
        let mut lines = data;
        let rest = lines.split_off(end + 1);
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&lines);
            lines = self.partial.split().freeze();
        }
        if !rest.is_empty() {
            self.has_progress |= has_data(&rest);
            self.partial.extend_from_slice(&rest);
        }
        let lines = self.look(lines);
        self.opening.pass(lines)
    }

    /// Forwards the beginning of a line that is too long to be buffered. The rest of the line is searched for token
    /// counts as the rest arrives.
    fn let_go(&mut self) -> Bytes {
        let line = self.partial.split().freeze();
        self.between = false;
        self.opening.end();
        if line.starts_with(b"data:") {
            self.count += 1;
            // What is that long has been generated, be it before.
            self.seen.events = self.seen.events.saturating_add(1);
        }
        self.reason.look(&line, self.reading.dialect);
        let mut scan = Scan::default();
        scan.pass(&line);
        self.long = Some(scan);
        let mut fields = self.fields.split();
        if fields.is_empty() {
            return self.opening.pass(line);
        }
        fields.extend_from_slice(&line);
        self.opening.pass(fields.freeze())
    }

    /// Examines complete lines of a stream; returns those lines that are forwarded to the client now.
    fn look(&mut self, lines: Bytes) -> Bytes {
        // Those that go, from the first that does not.
        let mut kept: Option<BytesMut> = None;
        let mut at = 0;
        while let Some(end) = memchr(b'\n', &lines[at..]) {
            let line = &lines[at..=at + end];
            match (&mut kept, self.line(line)) {
                (Some(kept), Fate::Goes) => {
                    kept.unsplit(self.fields.split());
                    kept.extend_from_slice(line);
                }
                (None, Fate::Goes) if !self.fields.is_empty() => {
                    let mut made = BytesMut::from(&lines[..at]);
                    made.unsplit(self.fields.split());
                    made.extend_from_slice(line);
                    kept = Some(made);
                }
                (None, Fate::Goes) => {}
                (_, fate) => {
                    kept.get_or_insert_with(|| BytesMut::from(&lines[..at]));
                    match fate {
                        Fate::Waits => self.fields.extend_from_slice(line),
                        _ => self.fields.clear(),
                    }
                }
            }
            at += end + 1;
        }
        kept.map_or(lines, BytesMut::freeze)
    }

    /// Examines one complete line and decides whether the line is forwarded, hidden or buffered.
    fn line(&mut self, line: &[u8]) -> Fate {
        if matches!(line, b"\n" | b"\r\n") {
            self.name = Name::Any;
            if std::mem::take(&mut self.is_last) {
                (self.seen.over, self.seen.finished) = (true, true);
            }
            if std::mem::take(&mut self.is_hiding) {
                return Fate::Hidden;
            }
            self.between = true;
            return Fate::Goes;
        }
        // An engine that forgets to make events of what it says has said it all the same.
        let data = line.strip_prefix(b"data:").or_else(|| (!is_field(line)).then_some(line));
        if let Some(data) = data {
            if self.data(data.trim_ascii()) {
                self.is_hiding = true;
                return Fate::Hidden;
            }
            self.between = false;
            return Fate::Goes;
        }
        if let Some(name) = line.strip_prefix(b"event:") {
            // Of an event that is too long to wait for, this is all that is seen.
            self.is_last = ends(name, self.reading.dialect);
            self.name = match name.trim_ascii() {
                b"error" => Name::Error,
                name if names_ping(name) => Name::Ping,
                _ => Name::Any,
            };
        }
        if self.reading.hides_usage && !line.starts_with(b":") && self.fields.len() < MAX_LINE {
            // Its data is what decides.
            return Fate::Waits;
        }
        self.between = false;
        Fate::Goes
    }

    /// Examines the data of an event for errors, token counts and the end of the answer; true if the event is hidden
    /// from the client.
    fn data(&mut self, data: &[u8]) -> bool {
        if data == b"[DONE]" {
            self.seen.over = true;
            self.has_progress = true;
            self.opening.end();
            return false;
        }
        if self.name != Name::Error && (self.name == Name::Ping || is_ping(data)) {
            return false;
        }
        self.count += 1;
        self.has_progress = true;
        let (was_finished, is_end) = (self.seen.finished, self.reason.look(data, self.reading.dialect));
        self.seen.finished |= is_end;
        self.is_last |= ends(data, self.reading.dialect);
        let is_generated = self.seen.events > 0 || is_generated(data, self.reading.dialect);
        if self.reading.finds_errors && self.fails(data, is_generated, is_end) {
            return false;
        }
        if is_generated {
            self.seen.events = self.seen.events.saturating_add(1);
            self.opening.end();
        } else if !self.opening.is_over() {
            if is_preamble(data, self.reading.dialect) { self.opening.note_event() } else { self.opening.end() }
        }
        if self.reading.dialect == Dialect::Generate {
            // Each event counts what came before, so the last one is enough. Of several answers each has a last one.
            if is_end {
                self.told = if was_finished { UsageNumbers::default() } else { read_meta(data) };
            }
            return false;
        }
        let Some(usage) = read_usage(data) else { return false };
        self.told.merge(usage);
        self.reading.hides_usage && is_usage_alone(data)
    }

    /// True if the data of an event are an error, which is then recorded as the failure of the answer. `is_generated`:
    /// true if the data look like generated output; `is_end`: true if the data state why the answer ends.
    fn fails(&mut self, data: &[u8], is_generated: bool, is_end: bool) -> bool {
        let is_first = !self.opening.is_over();
        // Most data need not be read for that.
        let may_be = is_first && !is_generated
            || may_be_error(data)
            || (is_end || self.reading.dialect == Dialect::Other) && may_be_aborted(data)
            || self.is_last && memmem::find(data, b"response.failed").is_some();
        let said = may_be.then(|| status_of(data)).flatten();
        // An event of that name is an error, whatever its data looks like.
        let Some(status) = said.or((self.name == Name::Error).then_some(500)) else { return false };
        self.opening.end();
        self.seen.failure.get_or_insert(Failure { status, is_first });
        true
    }

    pub(super) fn last_words(&mut self, message: &str, code: &str) -> Bytes {
        let held = self.opening.release();
        let open = if self.between { "" } else { "\n" };
        let dialect = self.reading.dialect;
        let kind = if dialect == Dialect::Messages { "api_error" } else { "upstream_error" };
        let words = format!("{open}{}", error_event(dialect, kind, code, message, self.count));
        if held.is_empty() { words.into() } else { [&*held, words.as_bytes()].concat().into() }
    }
}

/// Makes an error event in the format of an API, with the lines that end the stream after an error. `before`: number of
/// earlier events in the stream.
pub(crate) fn error_event(dialect: Dialect, kind: &str, code: &str, message: &str, before: u64) -> String {
    let (error, end) = match dialect {
        Dialect::Responses => {
            // Twice: as the API's documents have it, and in `error`, for which SDKs raise an exception.
            let mut event = json!({ "type": "error", "code": code, "message": message, "param": null });
            let mut error = event.clone();
            error["type"] = kind.into();
            event["sequence_number"] = before.into();
            event["error"] = error;
            (event, "")
        }
        Dialect::Messages => (json!({ "type": "error", "error": { "type": kind, "message": message } }), ""),
        Dialect::Chat | Dialect::Generate | Dialect::Other => {
            let error = json!({ "message": message, "type": kind, "param": null, "code": code });
            (json!({ "error": error }), "data: [DONE]\n\n")
        }
    };
    format!("event: error\ndata: {error}\n\n{end}")
}

/// True if a line is a comment, or a field of an event other than its data.
fn is_field(line: &[u8]) -> bool {
    [&b":"[..], b"event:", b"id:", b"retry:"].iter().any(|field| line.starts_with(field))
}

/// True if an incomplete line is a data line, judged by the bytes received so far.
fn has_data(line: &[u8]) -> bool {
    !matches!(line.first(), None | Some(b':' | b'e' | b'i' | b'r' | b'\r'))
}

/// True if the name or the data of an event marks the end of a stream, as in the Responses and the Messages API.
fn ends(text: &[u8], dialect: Dialect) -> bool {
    const ENDS: [&[u8]; 4] = [b"response.completed", b"response.incomplete", b"response.failed", b"message_stop"];
    // In data they are strings, and quotes within a string are escaped.
    let is_whole = |at: usize, len: usize| match text.get(at.wrapping_sub(1)) {
        Some(b'"') => text.get(at + len) == Some(&b'"'),
        _ => text[..at].trim_ascii().is_empty(),
    };
    !matches!(dialect, Dialect::Chat | Dialect::Generate)
        && ENDS.iter().any(|end| memmem::find(text, end).is_some_and(|at| is_whole(at, end.len())))
}

#[cfg(test)]
mod tests {
    use super::super::{Observer, Usage};
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":\
        {\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

    fn stream(dialect: Dialect) -> Observer {
        Observer::of(Some(b"text/event-stream; charset=utf-8"), AnswerFormat { dialect, ..AnswerFormat::default() })
    }

    #[test]
    fn usage_that_the_client_has_not_asked_for_is_hidden_however_it_is_cut() {
        let usage = STREAM.find("data: {\"choices\":[],").expect("it is there");
        let expected = format!("{}data: [DONE]\n\n", &STREAM[..usage]);
        for text in [STREAM.to_owned(), STREAM.replace('\n', "\r\n")] {
            for cut in 1..text.len() {
                let reading = AnswerFormat { hides_usage: true, ..AnswerFormat::default() };
                let mut observer = Observer::of(Some(b"text/event-stream"), reading);
                let mut out = Vec::new();
                for piece in text.as_bytes().chunks(cut) {
                    out.extend_from_slice(&observer.pass(Bytes::copy_from_slice(piece)));
                }
                out.extend_from_slice(&observer.rest());
                assert_eq!(String::from_utf8_lossy(&out).replace("\r\n", "\n"), expected, "pieces of {cut}");
                assert_eq!(observer.seen().usage, Usage { prompt: Some(9), cached: Some(8), output: Some(2) });
            }
        }
    }

    #[test]
    fn streams_pass_whole_however_they_are_cut() {
        for cut in 1..STREAM.len() {
            let mut observer = stream(Dialect::Chat);
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
        let mut observer = stream(Dialect::Chat);
        let first = observer.pass(Bytes::from_static(b"data: {\"a\":1}\n\ndata: {\"b"));
        let last = observer.last_words("gone", "engine_failed").expect("a stream");
        let text = [&*first, &*last].concat();
        let text = String::from_utf8(text).expect("utf-8");
        let events: Vec<_> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.len(), 3, "{text}");
        assert!(events[1].starts_with("event: error\ndata: {\"error\"") && events[2] == "data: [DONE]");
        let _ = observer.pass(Bytes::from_static(b"x\n"));
        assert!(observer.last_words("gone", "x").expect("a stream").starts_with(b"\n"));
    }

    #[test]
    fn errors_are_told_in_the_dialect_of_the_stream() {
        for (dialect, expected) in [
            (
                Dialect::Responses,
                concat!(
                    r#"{"code":"engine_failed","error":{"code":"engine_failed","message":"gone","param":null,"#,
                    r#""type":"upstream_error"},"message":"gone","param":null,"sequence_number":2,"type":"error"}"#
                ),
            ),
            (Dialect::Messages, r#"{"error":{"message":"gone","type":"api_error"},"type":"error"}"#),
        ] {
            let mut observer = stream(dialect);
            let _ = observer.pass(Bytes::from_static(b"event: a\ndata: {\"type\":\"a\"}\n\nevent: b\ndata: {}\n\n"));
            let last = observer.last_words("gone", "engine_failed").expect("a stream");
            assert_eq!(last, format!("event: error\ndata: {expected}\n\n"));
        }
    }

    #[test]
    fn errors_are_found_however_they_are_cut() {
        let role = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
        let text = r#"data: {"choices":[{"index":0,"delta":{"content":"\"error\": {}"}}]}"#;
        let error = r#"data: {"error":{"message":"x","code":503}}"#;
        for (lines, expected) in [
            (vec![": ping", "", error, "", "data: [DONE]"], Some((503, true))),
            (vec![role, "", error], Some((503, true))),
            (vec!["event: error", "data: it broke"], Some((500, true))),
            (vec![&error[6..]], Some((503, true))),
            (vec![role, "", text, "", error], Some((503, false))),
            (vec![text, "", "event: error", "data: {}"], Some((500, false))),
            (vec![role, "", text, "", "data: [DONE]"], None),
        ] {
            for (between, end) in [("\n", "\n\n"), ("\r\n", "\r\n\r\n"), ("\n", "")] {
                let stream = lines.join(between) + end;
                for cut in 1..=stream.len() {
                    let format = AnswerFormat { finds_errors: true, ..AnswerFormat::default() };
                    let mut observer = Observer::of(Some(b"text/event-stream"), format);
                    let mut out = Vec::new();
                    for piece in stream.as_bytes().chunks(cut) {
                        out.extend_from_slice(&observer.pass(Bytes::copy_from_slice(piece)));
                    }
                    out.extend_from_slice(&observer.rest());
                    assert_eq!(out, stream.as_bytes());
                    let found = observer.failure().map(|failure| (failure.status, failure.is_first));
                    assert_eq!(found, expected, "{stream} in pieces of {cut}");
                }
            }
        }
    }

    #[test]
    fn usage_at_the_end_of_a_line_that_is_too_long_is_seen() {
        let line = format!(
            "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":\"{}\",\"usage\":\
             {{\"input_tokens\":9,\"output_tokens\":2}},\"metadata\":\"{}\"}}}}\n\n",
            "x".repeat(2 * MAX_LINE),
            "y".repeat(MAX_LINE)
        );
        for cut in [1000, 16 << 10, 10 << 20] {
            let mut observer = stream(Dialect::Responses);
            let mut out = Vec::new();
            for piece in line.as_bytes().chunks(cut) {
                out.extend_from_slice(&observer.pass(Bytes::copy_from_slice(piece)));
            }
            assert!(out == line.as_bytes() && observer.held_back() == 0, "{cut}");
            let seen = observer.seen();
            assert_eq!(seen.usage, Usage { prompt: Some(9), cached: None, output: Some(2) }, "{cut}");
            assert!(seen.over && seen.finished);
        }
    }
}
