//! Reason for the end of an answer. It predicts the next request: a tool's result comes within seconds, a person's
//! message within minutes.
//!
//! Only names and values are looked for: quotes within a string are escaped, so no text that a model writes looks like
//! one.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

use super::Dialect;

/// The reason for which an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The model called a tool that the client runs.
    Tool,
    /// The model had said all.
    End,
    /// The limit of tokens was reached.
    Length,
}

/// Bytes within which a name and its value fit.
const LONGEST: usize = 64;

/// Names that are looked for in each answer, with the search made ready.
static FINISH_REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\""));
static STOP_REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"stop_reason\""));
static TOOL_CALLS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"tool_calls\""));
static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"reason\""));

/// Items of a Responses answer that have the client run something. Engines run the others themselves.
const CALLS: [&[u8]; 6] = [
    b"\"function_call\"",
    b"\"custom_tool_call\"",
    b"\"local_shell_call\"",
    b"\"shell_call\"",
    b"\"apply_patch_call\"",
    b"\"computer_call\"",
];

impl Stop {
    /// The reason in a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::End => "end",
            Self::Length => "length",
        }
    }

    fn of(value: &[u8]) -> Option<Self> {
        match value {
            b"tool_calls" | b"function_call" | b"tool_use" | b"pause_turn" => Some(Self::Tool),
            b"length" | b"max_tokens" | b"max_output_tokens" | b"model_context_window_exceeded" => Some(Self::Length),
            b"abort" | b"error" | b"cancelled" => None,
            _ => Some(Self::End),
        }
    }
}

/// Search for the reason in an answer, as it passes.
#[derive(Debug, Default)]
pub(super) struct Reason {
    stop: Option<Stop>,
    /// The last bytes that passed, in which a name may have begun.
    tail: Vec<u8>,
}

impl Reason {
    pub(super) fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// Examines a piece of a JSON text.
    pub(super) fn pass(&mut self, data: &[u8], dialect: Dialect) {
        if !self.tail.is_empty() {
            let mut joined = std::mem::take(&mut self.tail);
            let kept = joined.len();
            joined.extend_from_slice(&data[..data.len().min(LONGEST)]);
            self.look(&joined, dialect);
            joined.truncate(kept);
            self.tail = joined;
        }
        self.look(data, dialect);
        self.tail.extend_from_slice(&data[data.len().saturating_sub(LONGEST)..]);
        self.tail.drain(..self.tail.len().saturating_sub(LONGEST));
    }

    /// Examines a complete text, such as the data of an event. True if it says that the answer, or one of several, is
    /// finished.
    pub(super) fn look(&mut self, text: &[u8], dialect: Dialect) -> bool {
        match dialect {
            Dialect::Chat => {
                if self.stop != Some(Stop::Tool) && has_calls(text) {
                    self.stop = Some(Stop::Tool);
                }
                self.values(text, &FINISH_REASON)
            }
            Dialect::Messages => self.values(text, &STOP_REASON),
            Dialect::Generate => self.kinds(text, &FINISH_REASON),
            Dialect::Responses => {
                self.item(text);
                false
            }
            Dialect::Other => false,
        }
    }

    /// Takes over the values of this name. A tool that one of several answers calls counts for all.
    fn values(&mut self, text: &[u8], name: &Finder<'_>) -> bool {
        let mut any = false;
        for at in name.find_iter(text) {
            let Some(value) = string(&text[at + name.needle().len()..]) else { continue };
            any = true;
            if self.stop != Some(Stop::Tool) {
                self.stop = Stop::of(value).or(self.stop);
            }
        }
        any
    }

    /// Takes over the values of this name, which are objects with a type.
    fn kinds(&mut self, text: &[u8], name: &Finder<'_>) -> bool {
        let mut any = false;
        for at in name.find_iter(text) {
            let Some(object) =
                after_colon(&text[at + name.needle().len()..]).and_then(|value| value.strip_prefix(b"{"))
            else {
                continue;
            };
            any = true;
            const TYPE: &[u8] = b"\"type\"";
            let object = &object[..object.len().min(LONGEST)];
            let kind = memmem::find(object, TYPE).and_then(|at| string(&object[at + TYPE.len()..]));
            self.stop = kind.and_then(Stop::of).or(self.stop);
        }
        any
    }

    /// Looks at a Responses answer, or at one of its events.
    fn item(&mut self, text: &[u8]) {
        if self.stop == Some(Stop::Tool) {
            return;
        }
        const CALL: &[u8] = b"_call\"";
        let has_call = memmem::find(text, CALL).is_some()
            && memmem::find_iter(text, b"\"type\"").any(|at| {
                let value = after_colon(&text[at + 6..]);
                value.is_some_and(|value| CALLS.iter().any(|call| value.starts_with(call)))
            });
        if has_call {
            self.stop = Some(Stop::Tool);
            return;
        }
        // An answer that is incomplete says why.
        let is_cut = self.values(text, &REASON);
        let is_complete =
            || [&b"\"response.completed\""[..], b"\"completed\""].iter().any(|end| memmem::find(text, end).is_some());
        if !is_cut && self.stop.is_none() && is_complete() {
            self.stop = Some(Stop::End);
        }
    }
}

/// True if a chat's chunk or message has calls of tools. Where the client forces one, engines say that the answer just
/// stopped.
fn has_calls(text: &[u8]) -> bool {
    TOOL_CALLS.find_iter(text).any(|at| {
        let list = after_colon(&text[at + TOOL_CALLS.needle().len()..]).and_then(|value| value.strip_prefix(b"["));
        list.is_some_and(|list| list.trim_ascii_start().starts_with(b"{"))
    })
}

/// The text behind white space and a colon.
fn after_colon(text: &[u8]) -> Option<&[u8]> {
    Some(text.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start())
}

/// Returns the string after a name, if it is complete.
fn string(text: &[u8]) -> Option<&[u8]> {
    let value = after_colon(text)?.strip_prefix(b"\"")?;
    Some(&value[..memchr::memchr(b'"', value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str, dialect: Dialect) -> Option<Stop> {
        let stops = [1, 7, 64, 100_000].map(|cut| {
            let mut reason = Reason::default();
            text.as_bytes().chunks(cut).for_each(|piece| reason.pass(piece, dialect));
            reason.stop()
        });
        assert!(stops.iter().all(|stop| *stop == stops[0]), "{text}: {stops:?}");
        stops[0]
    }

    #[test]
    fn chats() {
        for (text, expected) in [
            (r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}"#, Some(Stop::End)),
            (r#"{"choices":[{"finish_reason" : "tool_calls"}]}"#, Some(Stop::Tool)),
            (r#"{"choices":[{"finish_reason":"tool_calls"},{"finish_reason":"stop"}]}"#, Some(Stop::Tool)),
            (r#"{"choices":[{"message":{"tool_calls":[{"id":"x"}]},"finish_reason":"stop"}]}"#, Some(Stop::Tool)),
            (r#"{"choices":[{"message":{"tool_calls":[]},"finish_reason":"length"}]}"#, Some(Stop::Length)),
            (r#"{"choices":[{"finish_reason":"function_call"}]}"#, Some(Stop::Tool)),
            (r#"{"choices":[{"finish_reason":null,"stop_reason":"tool_use"}]}"#, None),
            (r#"{"choices":[{"finish_reason":"abort"}]}"#, None),
            (
                r#"{"message":{"content":"{\"finish_reason\": \"tool_calls\"}"},"finish_reason":"stop"}"#,
                Some(Stop::End),
            ),
        ] {
            assert_eq!(whole(text, Dialect::Chat), expected, "{text}");
        }
    }

    #[test]
    fn messages() {
        let used = r#"{"content":[{"type":"tool_use","input":{"stop_reason":"x"}}],"stop_reason":"tool_use"}"#;
        assert_eq!(whole(used, Dialect::Messages), Some(Stop::Tool));
        let mut stream = Reason::default();
        stream.look(br#"{"type":"message_start","message":{"stop_reason":null}}"#, Dialect::Messages);
        assert_eq!(stream.stop(), None);
        stream.look(br#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#, Dialect::Messages);
        assert_eq!(stream.stop(), Some(Stop::Length));
        assert_eq!(whole(r#"{"stop_reason":"end_turn"}"#, Dialect::Messages), Some(Stop::End));
        assert_eq!(whole(r#"{"stop_reason":"pause_turn"}"#, Dialect::Messages), Some(Stop::Tool));
    }

    #[test]
    fn objects_of_sglang() {
        for (reason, expected) in [
            (r#"{"type": "length", "length": 8}"#, Some(Stop::Length)),
            (r#"{"type":"stop","matched":2}"#, Some(Stop::End)),
            (r#"{"matched":"\"type\": \"length\"","type":"stop"}"#, Some(Stop::End)),
            (r#"{"type":"abort","message":"x"}"#, None),
            ("null", None),
            (r#""stop""#, None),
        ] {
            let text = format!(r#"{{"text":"a","meta_info":{{"id":"1","finish_reason":{reason},"cached_tokens":0}}}}"#);
            assert_eq!(whole(&text, Dialect::Generate), expected, "{text}");
        }
    }

    #[test]
    fn responses() {
        for (text, expected) in [
            (r#"{"status":"completed","output":[{"type":"message","status":"completed"}]}"#, Some(Stop::End)),
            (r#"{"output":[{"type": "function_call","name":"f"}],"status":"completed"}"#, Some(Stop::Tool)),
            (r#"{"output":[{"type":"web_search_call"}],"status":"completed"}"#, Some(Stop::End)),
            (r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#, Some(Stop::Length)),
            (r#"{"status":"in_progress","tools":[{"type":"function"}],"tool_choice":"auto"}"#, None),
            (r#"{"type":"response.output_item.added","item":{"type":"custom_tool_call"}}"#, Some(Stop::Tool)),
            (r#"{"type":"response.completed","response":{}}"#, Some(Stop::End)),
            (r#"{"output":[{"text":"\"type\":\"function_call\""}],"status":"completed"}"#, Some(Stop::End)),
        ] {
            assert_eq!(whole(text, Dialect::Responses), expected, "{text}");
        }
    }
}
