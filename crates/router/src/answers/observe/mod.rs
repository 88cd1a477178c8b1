//! Extraction of facts from an answer on its way to the client: number of generated tokens, number of cached prompt
//! tokens, and reason for the answer's end.
//!
//! Only the `usage` objects, the events of a stream up to the first token, and possible errors are parsed.

mod events;
mod failure;
mod opening;
mod stop;
mod usage;
mod whole;

use bytes::Bytes;
use kvatlas_prompt::Endpoint;
use serde::Deserialize;
use serde_json::value::RawValue;

pub(crate) use events::{Events, error_event};
pub(crate) use failure::Failure;
pub(crate) use stop::Stop;
pub(crate) use usage::Usage;
pub(crate) use whole::WholeAnswer;

/// Facts read from an engine's answer: token counts, the reason for its end, and an error if there is one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnswerFacts {
    pub(crate) usage: Usage,
    /// Number of events in an event stream, counted from the first event that has a generated token.
    pub(crate) events: u32,
    /// True if the answer stated a finish reason (the reason for the end of the generated text).
    pub(crate) finished: bool,
    /// Finish reason of the answer; None if missing or unknown to the router.
    pub(crate) stop: Option<Stop>,
    /// Error that is the whole answer, or ends the answer; None for an answer without an error.
    pub(crate) failure: Option<Failure>,
    /// True if the end marker of the answer's format has arrived, such as `[DONE]`.
    pub(crate) over: bool,
}

/// Reader that extracts facts from an answer while the answer passes to the client.
#[derive(Debug)]
pub(crate) enum Observer {
    /// Reader of an answer that is an event stream.
    Events(Events),
    /// Reader of an answer that is one JSON text.
    Whole(WholeAnswer),
    /// No reader: answers of other content types are not examined.
    Blind,
}

impl Observer {
    /// Makes the reader that fits an answer's content type, for an answer of the format `reading`.
    pub(crate) fn of(content_type: Option<&[u8]>, reading: AnswerFormat) -> Self {
        match content_type.unwrap_or_default() {
            kind if starts(kind, b"text/event-stream") => Self::Events(Events::new(reading)),
            kind if starts(kind, b"application/json") => Self::Whole(WholeAnswer::new(reading)),
            _ => Self::Blind,
        }
    }

    /// Examines the next piece of the answer; returns all bytes that can be sent to the client now, earlier buffered
    /// bytes included.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Events(events) => events.pass(data),
            Self::Whole(whole) => whole.pass(data),
            Self::Blind => data,
        }
    }

    /// True if a part of the answer has arrived since the last call of this function. Comments, and white space before
    /// the answer, do not count.
    pub(crate) fn take_progress(&mut self) -> bool {
        match self {
            Self::Events(events) => events.take_progress(),
            Self::Whole(whole) => whole.has_begun(),
            Self::Blind => true,
        }
    }

    /// True if a part of the answer is buffered until it is clear whether the answer is an error.
    pub(crate) fn is_holding(&self) -> bool {
        match self {
            Self::Events(events) => events.holds_event(),
            Self::Whole(whole) => whole.has_begun() && !whole.held_back().is_empty(),
            Self::Blind => false,
        }
    }

    /// Returns the buffered bytes of the answer at once, without waiting until it is clear whether the answer is an
    /// error.
    pub(crate) fn release(&mut self) -> Bytes {
        match self {
            Self::Events(events) => events.release(),
            Self::Whole(whole) => whole.release(),
            Self::Blind => Bytes::new(),
        }
    }

    /// Error found in the answer so far; None if none was found.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Events(events) => events.failure(),
            Self::Whole(whole) => whole.failure(),
            Self::Blind => None,
        }
    }

    /// True if a successful answer with this content type always has a body that is not empty.
    pub(crate) fn expects_some(&self) -> bool {
        !matches!(self, Self::Blind)
    }

    /// Returns the bytes of a complete answer that are still buffered, for the client.
    pub(crate) fn rest(&mut self) -> Bytes {
        match self {
            Self::Events(events) => events.rest(),
            Self::Whole(whole) => whole.rest(),
            Self::Blind => Bytes::new(),
        }
    }

    /// True if the router can insert a comment into the event stream now: between two events, before the first token.
    pub(crate) fn takes_comments(&self) -> bool {
        matches!(self, Self::Events(events) if events.tokens() == 0 && events.is_between())
    }

    /// Number of bytes that have arrived from the engine and are not forwarded yet.
    pub(crate) fn held_back(&self) -> usize {
        match self {
            Self::Events(events) => events.held_back(),
            Self::Whole(whole) => whole.held_back().len(),
            Self::Blind => 0,
        }
    }

    /// True if the observer has hidden a part of the answer from the client, or may still hide one.
    pub(crate) fn hides(&self) -> bool {
        matches!(self, Self::Events(events) if events.hides())
    }

    /// Returns the facts found in the answer; called when the answer ends.
    pub(crate) fn seen(&self) -> AnswerFacts {
        match self {
            Self::Events(events) => events.seen(),
            Self::Whole(whole) => whole.seen(),
            Self::Blind => AnswerFacts::default(),
        }
    }

    /// Number of events with generated tokens so far; 0 for an answer that is not an event stream.
    pub(crate) fn tokens(&self) -> u32 {
        match self {
            Self::Events(events) => events.tokens(),
            _ => 0,
        }
    }

    /// Makes the error event with which the router ends a stream that the engine broke off; None if the answer is not
    /// an event stream.
    pub(crate) fn last_words(&mut self, message: &str, code: &str) -> Option<Bytes> {
        match self {
            Self::Events(events) => Some(events.last_words(message, code)),
            _ => None,
        }
    }
}

/// Finds the error in a complete JSON answer; None if the answer is no error.
pub(crate) fn error_of(answer: &[u8]) -> Option<Failure> {
    let may_be = failure::may_be_error(answer) || failure::may_be_aborted(answer);
    may_be.then(|| failure::status_of(answer)).flatten().map(|status| Failure { status, is_first: true })
}

fn starts(kind: &[u8], wanted: &[u8]) -> bool {
    kind.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
}

/// API of an answer, which determines the format of its events and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's chats and completions: chunks with choices, and `[DONE]` at the end.
    Chat,
    /// OpenAI's Responses API: the events of `/v1/responses`.
    Responses,
    /// Anthropic's Messages API: the events of `/v1/messages`.
    Messages,
    /// SGLang's `/generate`: objects that each repeat all text generated before, and `[DONE]` at the end.
    Generate,
    /// Unknown format, of an answer at a path that is not known to accept prompts.
    Other,
}

/// Format of an answer, and rules for hiding and interpreting its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerFormat {
    /// API that determines the format of the answer.
    pub(crate) dialect: Dialect,
    /// True if chunks with only `usage` are hidden from the client, because the router requested them and the client
    /// did not.
    pub(crate) hides_usage: bool,
    /// True if an error in the answer means that the request failed; false for answers that describe another object,
    /// such as a stored answer.
    pub(crate) finds_errors: bool,
}

impl Dialect {
    /// Returns the API whose format the answers at an endpoint have.
    pub(crate) fn of(endpoint: Option<Endpoint>) -> Self {
        match endpoint {
            Some(Endpoint::Responses) => Self::Responses,
            Some(Endpoint::Messages) => Self::Messages,
            Some(Endpoint::Generate) => Self::Generate,
            Some(_) => Self::Chat,
            None => Self::Other,
        }
    }

    /// Returns the API whose format error answers at a path have, whether or not the path accepts prompts.
    pub(crate) fn at(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Messages,
            _ => Self::Other,
        }
    }
}

impl Default for AnswerFormat {
    fn default() -> Self {
        Self { dialect: Dialect::Chat, hides_usage: false, finds_errors: false }
    }
}

/// Parses a JSON value; None if the value is missing or of another type.
fn read<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_seen_wherever_it_stands() {
        let long = "x".repeat(60_000);
        for answer in [
            format!(r#"{{"choices":[{{"text":"{long}"}}],"usage":{{"prompt_tokens":5,"completion_tokens":7}}}}"#),
            format!(r#"{{"usage":{{"prompt_tokens":5,"completion_tokens":7}},"choices":[{{"text":"{long}"}}]}}"#),
        ] {
            for cut in [1, 100, 5000, 70_000] {
                let mut observer = Observer::of(Some(b"application/json"), AnswerFormat::default());
                for piece in answer.as_bytes().chunks(cut) {
                    assert_eq!(observer.pass(Bytes::copy_from_slice(piece)), piece);
                }
                assert_eq!(observer.seen().usage, Usage { prompt: Some(5), cached: None, output: Some(7) }, "{cut}");
            }
        }
        assert!(Observer::of(Some(b"application/json"), AnswerFormat::default()).last_words("gone", "x").is_none());
    }
}
