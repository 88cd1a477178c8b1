//! What an answer says of itself on its way to the client: how many tokens it has, how many were cached, why it ended.
//!
//! Nothing is parsed but the `usage` objects themselves, and the events of a stream up to the first token.

mod events;
mod generated;
mod usage;

use bytes::Bytes;
use kvatlas_prompt::Endpoint;
use serde::Deserialize;
use serde_json::value::RawValue;

pub(crate) use events::Events;
use usage::Scan;
pub(crate) use usage::Usage;

/// What an answer was seen to say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) usage: Usage,
    /// Events of a stream from the first one that carries a token.
    pub(crate) events: u32,
    /// Whether it said why it ended.
    pub(crate) finished: bool,
    /// Whether it is over by its own account.
    pub(crate) over: bool,
}

/// The API that gives a stream its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chunks with choices, and `[DONE]`: chats and completions.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// Any, at a path that is not known to have a prompt.
    Other,
}

/// How an answer is to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The API that it is of.
    pub(crate) dialect: Dialect,
    /// Whether chunks with nothing but `usage` are kept from the client, who has not asked for them.
    pub(crate) hides_usage: bool,
}

/// Looks at an answer while it passes.
#[derive(Debug)]
pub(crate) enum Observer {
    /// An event stream.
    Events(Events),
    /// JSON.
    Whole(Whole),
    /// Something else.
    Blind,
}

/// An answer that comes as a whole.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    scan: Scan,
}

impl Dialect {
    /// That of the answers at an endpoint.
    pub(crate) fn of(endpoint: Option<Endpoint>) -> Self {
        match endpoint {
            Some(Endpoint::Responses) => Self::Responses,
            Some(Endpoint::Messages) => Self::Messages,
            Some(_) => Self::Chat,
            None => Self::Other,
        }
    }
}

impl Default for Reading {
    fn default() -> Self {
        Self { dialect: Dialect::Chat, hides_usage: false }
    }
}

impl Observer {
    /// For an answer of this type.
    pub(crate) fn of(content_type: Option<&[u8]>, reading: Reading) -> Self {
        match content_type.unwrap_or_default() {
            kind if starts(kind, b"text/event-stream") => Self::Events(Events::new(reading)),
            kind if starts(kind, b"application/json") => Self::Whole(Whole::default()),
            _ => Self::Blind,
        }
    }

    /// What of `data` can go to the client now.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Events(events) => events.pass(data),
            Self::Whole(whole) => {
                whole.scan.pass(&data);
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
            Self::Events(events) => events.rest(),
            _ => Bytes::new(),
        }
    }

    /// Bytes that came and did not leave yet.
    pub(crate) fn held_back(&self) -> usize {
        match self {
            Self::Events(events) => events.held_back(),
            _ => 0,
        }
    }

    /// Whether anything may be kept from the client.
    pub(crate) fn hides(&self) -> bool {
        matches!(self, Self::Events(events) if events.hides())
    }

    /// What was seen, at the end.
    pub(crate) fn seen(&self) -> Seen {
        match self {
            Self::Events(events) => events.seen(),
            Self::Whole(whole) => Seen { usage: whole.scan.told.usage(), finished: true, over: true, events: 0 },
            Self::Blind => Seen::default(),
        }
    }

    /// Events of a stream that carry tokens, so far.
    pub(crate) fn tokens(&self) -> u32 {
        match self {
            Self::Events(events) => events.tokens(),
            _ => 0,
        }
    }

    /// An event that ends a stream which broke off; None where the answer is no stream.
    pub(crate) fn last_words(&mut self, message: &str, code: &str) -> Option<Bytes> {
        match self {
            Self::Events(events) => Some(events.last_words(message, code)),
            _ => None,
        }
    }
}

fn starts(kind: &[u8], wanted: &[u8]) -> bool {
    kind.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
}

/// A value, if it is there and of that type.
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
                let mut observer = Observer::of(Some(b"application/json"), Reading::default());
                for piece in answer.as_bytes().chunks(cut) {
                    assert_eq!(observer.pass(Bytes::copy_from_slice(piece)), piece);
                }
                assert_eq!(observer.seen().usage, Usage { prompt: Some(5), cached: None, output: Some(7) }, "{cut}");
            }
        }
        assert!(Observer::of(Some(b"application/json"), Reading::default()).last_words("gone", "x").is_none());
    }
}
