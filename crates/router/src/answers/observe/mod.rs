//! Extracts facts from an answer on its way to the client: the number of its tokens, how many prompt tokens were
//! cached, why the answer ended.
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

/// Facts that an answer states about itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnswerFacts {
    pub(crate) usage: Usage,
    /// Number of events of a stream, counted from the first one that carries a token.
    pub(crate) events: u32,
    /// True if the answer stated a reason for its end.
    pub(crate) finished: bool,
    /// Reason for the answer's end, if it is a known one.
    pub(crate) stop: Option<Stop>,
    /// Error that the answer consists of, or ends with; None if it has none.
    pub(crate) failure: Option<Failure>,
    /// True if the answer's own end marker has arrived.
    pub(crate) over: bool,
}

/// Examiner of an answer while it passes to the client.
#[derive(Debug)]
pub(crate) enum Observer {
    /// Examiner of an event stream.
    Events(Events),
    /// Examiner of a JSON text.
    Whole(WholeAnswer),
    /// No examination, for answers of other content types.
    Blind,
}

impl Observer {
    /// Makes the observer for an answer with this content type.
    pub(crate) fn of(content_type: Option<&[u8]>, reading: AnswerFormat) -> Self {
        match content_type.unwrap_or_default() {
            kind if starts(kind, b"text/event-stream") => Self::Events(Events::new(reading)),
            kind if starts(kind, b"application/json") => Self::Whole(WholeAnswer::new(reading)),
            _ => Self::Blind,
        }
    }

    /// Takes the next piece of the answer; returns the bytes, held-back ones included, that can go to the client now.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Events(events) => events.pass(data),
            Self::Whole(whole) => whole.pass(data),
            Self::Blind => data,
        }
    }

    /// True if a part of the answer arrived since the last call; comments, and white space before the answer, do not
    /// count.
    pub(crate) fn take_progress(&mut self) -> bool {
        match self {
            Self::Events(events) => events.take_progress(),
            Self::Whole(whole) => whole.has_begun(),
            Self::Blind => true,
        }
    }

    /// True if a part of the answer is held back until it is clear whether the answer is an error.
    pub(crate) fn is_holding(&self) -> bool {
        match self {
            Self::Events(events) => events.holds_event(),
            Self::Whole(whole) => whole.has_begun() && !whole.held_back().is_empty(),
            Self::Blind => false,
        }
    }

    /// Returns the held-back bytes at once, without waiting until it is clear whether the answer is an error.
    pub(crate) fn release(&mut self) -> Bytes {
        match self {
            Self::Events(events) => events.release(),
            Self::Whole(whole) => whole.release(),
            Self::Blind => Bytes::new(),
        }
    }

    /// The error that the answer consists of or has ended with; None so far.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Events(events) => events.failure(),
            Self::Whole(whole) => whole.failure(),
            Self::Blind => None,
        }
    }

    /// True if a successful answer with this content type cannot be empty.
    pub(crate) fn expects_some(&self) -> bool {
        !matches!(self, Self::Blind)
    }

    /// Returns the held-back bytes at the end of a complete answer.
    pub(crate) fn rest(&mut self) -> Bytes {
        match self {
            Self::Events(events) => events.rest(),
            Self::Whole(whole) => whole.rest(),
            Self::Blind => Bytes::new(),
        }
    }

    /// True if a comment can be inserted now: in a stream, between two events, before the first token.
    pub(crate) fn takes_comments(&self) -> bool {
        matches!(self, Self::Events(events) if events.tokens() == 0 && events.is_between())
    }

    /// Number of bytes that have arrived but were not passed on yet.
    pub(crate) fn held_back(&self) -> usize {
        match self {
            Self::Events(events) => events.held_back(),
            Self::Whole(whole) => whole.held_back().len(),
            Self::Blind => 0,
        }
    }

    /// True if a part of the answer is hidden from the client, or may be.
    pub(crate) fn hides(&self) -> bool {
        matches!(self, Self::Events(events) if events.hides())
    }

    /// Returns the facts found in the answer, at its end.
    pub(crate) fn seen(&self) -> AnswerFacts {
        match self {
            Self::Events(events) => events.seen(),
            Self::Whole(whole) => whole.seen(),
            Self::Blind => AnswerFacts::default(),
        }
    }

    /// Number of events that carry tokens so far; 0 for an answer that is no stream.
    pub(crate) fn tokens(&self) -> u32 {
        match self {
            Self::Events(events) => events.tokens(),
            _ => 0,
        }
    }

    /// Makes the error event that ends a stream which broke off; None if the answer is no stream.
    pub(crate) fn last_words(&mut self, message: &str, code: &str) -> Option<Bytes> {
        match self {
            Self::Events(events) => Some(events.last_words(message, code)),
            _ => None,
        }
    }
}

/// The error that a complete JSON answer consists of; None if it is no error.
pub(crate) fn error_of(answer: &[u8]) -> Option<Failure> {
    let may_be = failure::may_be_error(answer) || failure::may_be_aborted(answer);
    may_be.then(|| failure::status_of(answer)).flatten().map(|status| Failure { status, is_first: true })
}

fn starts(kind: &[u8], wanted: &[u8]) -> bool {
    kind.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
}

/// API that determines the format of an answer's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chunks with choices, and `[DONE]` at the end: chats and completions.
    Chat,
    /// The events of `/v1/responses`.
    Responses,
    /// The events of `/v1/messages`.
    Messages,
    /// The objects of SGLang's `/generate`, each with all text generated before, and `[DONE]`.
    Generate,
    /// Any format, at a path that is not known to take prompts.
    Other,
}

/// Format of an answer, and what is done with parts of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerFormat {
    /// API that determines the format of the answer.
    pub(crate) dialect: Dialect,
    /// True if chunks that hold only `usage` are hidden from the client, who has not requested them.
    pub(crate) hides_usage: bool,
    /// True if an error in the answer means that the request failed; false for answers that report on something else,
    /// such as a stored answer.
    pub(crate) finds_errors: bool,
}

impl Dialect {
    /// The dialect of the answers at an endpoint.
    pub(crate) fn of(endpoint: Option<Endpoint>) -> Self {
        match endpoint {
            Some(Endpoint::Responses) => Self::Responses,
            Some(Endpoint::Messages) => Self::Messages,
            Some(Endpoint::Generate) => Self::Generate,
            Some(_) => Self::Chat,
            None => Self::Other,
        }
    }

    /// The dialect of the error answers at a path, whether or not the path takes prompts.
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

/// Parses a JSON value; None if it is missing or of another type.
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
