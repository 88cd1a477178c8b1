//! Limits on the memory and the time for parsing a prompt.
//!
//! JSON is short to send and takes much memory once parsed: `{},` has three bytes, and a parsed message of a chat takes
//! hundreds. The memory of each value made from a request's body is therefore counted before the value is made. Parsing
//! stops before a value that would exceed the allowance, the maximum of memory for the body, and the request is routed
//! without its prompt.
//!
//! The code that makes values lies deep within parsers that know nothing of requests, so the allowance is a variable of
//! the thread that parses. The first failure is stored with the allowance, even if a parser in between drops the error.

use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::prompt_tokens::PromptFailure;

/// Minimum allowance of memory for parsing any body, in bytes.
const LEAST: usize = 4 << 20;

/// Maximum size of the JSON of a chat's messages, in bytes; longer chats are not rendered to text.
pub(crate) const LONGEST_CHAT: usize = 8 << 20;

/// Maximum size of a prompt given as text that is read whole, in bytes; of a longer prompt only the beginning is read.
pub(crate) const LONGEST_TEXT: usize = 4 << 20;

/// Maximum number of tokens that the router reads from one prompt.
pub(crate) const MOST_TOKENS: usize = 1 << 20;

/// Memory counted for a parsed JSON object, in bytes, without its fields.
const OBJECT: usize = 256;
/// Memory counted for each field of a parsed JSON object, in bytes, without the field's text.
const FIELD: usize = 96;
/// Memory counted for each item of a parsed JSON list, in bytes, without the item's text.
const ITEM: usize = 40;

/// Memory counted for a chat message converted to a value for chat templates, in bytes, without its text.
pub(crate) const MESSAGE: usize = 640;
/// Memory counted for a part of a chat message's content converted to a value for chat templates, in bytes, without its
/// text.
pub(crate) const PART: usize = 448;

/// Number of values counted between two checks of the deadline, since reading the clock for each value would be slow.
const LOOK: u32 = 256;

/// Limits of memory and time for parsing one prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of bytes that the values made from the prompt may take.
    bytes: usize,
    /// Deadline for parsing the prompt; `None` for no deadline.
    pub(crate) until: Option<Instant>,
}

impl Limits {
    /// Limits for parsing a request's body, without a deadline. `bytes`: size of the part of the body that an earlier
    /// request of the same chat did not contain.
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes: LEAST + bytes.min(LONGEST_CHAT) / 2 * 3, until: None }
    }
}

/// Maximum memory for parsing a request's body, in bytes, without the body itself: parsed values, rendered text,
/// tokens, and the copy kept for the chat's next request. `new_bytes`: size of the part of the body that an earlier
/// request of the same chat did not contain.
#[must_use]
pub fn reading_memory(new_bytes: usize) -> usize {
    let read = new_bytes.min(LONGEST_CHAT);
    Limits::of(new_bytes).bytes + 3 * read + 4 * read.min(MOST_TOKENS)
}

/// Memory and time that a thread may still use for parsing a prompt: the limits, the remaining bytes, and the first
/// failure.
#[derive(Clone, Copy)]
struct Allowance {
    limits: Limits,
    left: usize,
    calls: u32,
    failure: Option<PromptFailure>,
}

impl Allowance {
    const NONE: Self =
        Self { limits: Limits { bytes: usize::MAX, until: None }, left: usize::MAX, calls: 0, failure: None };

    fn is_late(&self) -> bool {
        self.limits.until.is_some_and(|until| Instant::now() >= until)
    }
}

thread_local! {
    static OPEN: Cell<Allowance> = const { Cell::new(Allowance::NONE) };
}

/// Runs a function that parses a prompt, within limits of memory and time.
///
/// Returns the result of `read`, and the reason why parsing was stopped early; `None` if no limit was reached.
pub(crate) fn within<T>(limits: Limits, read: impl FnOnce() -> T) -> (T, Option<PromptFailure>) {
    /// Guard that restores the thread's earlier limits when dropped, also if parsing panics: the thread may catch the
    /// panic and continue.
    struct OuterAllowance(Allowance);
    impl Drop for OuterAllowance {
        fn drop(&mut self) {
            OPEN.set(self.0);
        }
    }
    let _before = OuterAllowance(OPEN.replace(Allowance { limits, left: limits.bytes, calls: 0, failure: None }));
    let made = read();
    (made, OPEN.get().failure)
}

/// Counts the memory of a value about to be made, in bytes, against the limits of the thread's prompt.
///
/// # Errors
///
/// The reason, if the memory or the time is used up; the caller must then not make the value.
pub(crate) fn take(bytes: usize) -> Result<(), PromptFailure> {
    let mut open = OPEN.get();
    open.calls = open.calls.wrapping_add(1);
    if open.failure.is_none() {
        if open.calls.is_multiple_of(LOOK) && open.is_late() {
            open.failure = Some(PromptFailure::TookTooLong);
        }
        match open.left.checked_sub(bytes) {
            Some(left) => open.left = left,
            None => open.failure = Some(PromptFailure::TooManyItems),
        }
    }
    OPEN.set(open);
    open.failure.map_or(Ok(()), Err)
}

/// Stores the reason why the thread has to stop parsing its prompt.
pub(crate) fn fail(why_not: PromptFailure) {
    let open = OPEN.get();
    if open.limits.bytes == usize::MAX {
        // No request is being parsed on this thread.
        return;
    }
    OPEN.set(Allowance { failure: open.failure.or(Some(why_not)), ..open });
}

/// True if the deadline for parsing the prompt that the thread parses has passed. Unlike [`take`], the check stores no
/// failure, since the values parsed so far may be of use.
pub(crate) fn is_late() -> bool {
    OPEN.get().is_late()
}

/// Memory counted so far for the prompt that the thread parses, in bytes.
pub(crate) fn taken() -> usize {
    let open = OPEN.get();
    open.limits.bytes - open.left
}

/// True if a temporary value of `bytes` bytes is not larger than the whole memory limit of the prompt that the thread
/// parses.
pub(crate) fn has_room_for(bytes: usize) -> bool {
    bytes <= OPEN.get().limits.bytes
}

/// Resets the memory counted for the prompt that the thread parses to zero, after all values parsed so far were
/// dropped.
pub(crate) fn begin_again() {
    let open = OPEN.get();
    OPEN.set(Allowance { left: open.limits.bytes, ..open });
}

/// A parsed JSON list that counts `MORE` bytes of memory for each item, in addition to the memory that the item counts
/// itself.
pub(crate) struct CountedList<T, const MORE: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const MORE: usize> Deserialize<'de> for CountedList<T, MORE> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MORE: usize>(Vec<T>);

        impl<'de, T: Deserialize<'de>, const MORE: usize> Visitor<'de> for List<T, MORE> {
            type Value = CountedList<T, MORE>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
                while let Some(item) = list.next_element()? {
                    take(size_of::<T>() + MORE).map_err(A::Error::custom)?;
                    self.0.push(item);
                }
                Ok(CountedList(self.0))
            }
        }

        deserializer.deserialize_seq(List(Vec::new()))
    }
}

/// First item of a JSON list and the number of items; the other items are not stored.
pub(crate) struct FirstOfList<T> {
    pub(crate) first: Option<T>,
    pub(crate) count: usize,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FirstOfList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(FirstOfList<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = FirstOfList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let Self(mut found) = self;
                found.first = list.next_element()?;
                found.count = usize::from(found.first.is_some());
                while found.first.is_some() && list.next_element::<IgnoredAny>()?.is_some() {
                    found.count += 1;
                }
                Ok(found)
            }
        }

        deserializer.deserialize_seq(List(FirstOfList { first: None, count: 0 }))
    }
}

/// Any JSON, parsed to a value for chat templates; its memory is counted against the limits of the prompt.
pub(crate) struct CountedValue(pub(crate) Value);

impl<'de> Deserialize<'de> for CountedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = CountedValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, value: bool) -> Result<CountedValue, E> {
                Ok(CountedValue(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<CountedValue, E> {
                Ok(CountedValue(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<CountedValue, E> {
                Ok(CountedValue(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<CountedValue, E> {
                Ok(CountedValue(value.into()))
            }

            fn visit_unit<E>(self) -> Result<CountedValue, E> {
                Ok(CountedValue(().into()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CountedValue, E> {
                take(text.len()).map_err(E::custom)?;
                Ok(CountedValue(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CountedValue, A::Error> {
                let mut items: Vec<Value> = Vec::new();
                take(ITEM).map_err(A::Error::custom)?;
                while let Some(CountedValue(item)) = list.next_element()? {
                    take(ITEM).map_err(A::Error::custom)?;
                    items.push(item);
                }
                Ok(CountedValue(items.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CountedValue, A::Error> {
                let mut fields: Vec<(Value, Value)> = Vec::new();
                take(OBJECT).map_err(A::Error::custom)?;
                while let Some((CountedValue(key), CountedValue(value))) = map.next_entry()? {
                    take(FIELD).map_err(A::Error::custom)?;
                    fields.push((key, value));
                }
                Ok(CountedValue(Value::from_pairs(fields)))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits(bytes: usize) -> Limits {
        Limits { bytes, until: None }
    }

    #[test]
    fn what_is_made_of_json_is_counted() {
        let json = r#"{"a": [1, -2, 0.5, null, true, "é\n", {"b": {}}], "a": "last", "c": [[]]}"#;
        let read = || serde_json::from_str::<CountedValue>(json).map(|CountedValue(value)| value).ok();
        let (counted, failure) = within(limits(10_000), read);
        assert_eq!((counted, failure), (serde_json::from_str::<Value>(json).ok(), None));
        let (counted, failure) = within(limits(1_000), read);
        assert_eq!((counted, failure), (None, Some(PromptFailure::TooManyItems)));
        assert!(read().is_some(), "without limits");
    }

    #[test]
    fn a_failure_is_known_wherever_it_is_lost() {
        let (made, failure) = within(limits(100), || {
            let list = serde_json::from_str::<CountedList<u32, 8>>("[1,2,3,4,5,6,7,8,9]").map(|list| list.0);
            list.unwrap_or_default()
        });
        assert_eq!((made, failure), (Vec::new(), Some(PromptFailure::TooManyItems)));
        let until = Some(Instant::now() - Duration::from_millis(1));
        let (_, failure) = within(Limits { bytes: 1 << 20, until }, || (0..=LOOK).try_for_each(|_| take(1)));
        assert_eq!(failure, Some(PromptFailure::TookTooLong));
    }

    #[test]
    fn limits_within_limits() {
        let (inner, outer) = within(limits(100), || {
            let inner = within(limits(10), || take(11)).1;
            assert_eq!((take(50), taken()), (Ok(()), 50));
            begin_again();
            assert_eq!((take(60), taken()), (Ok(()), 60));
            inner
        });
        assert_eq!((inner, outer), (Some(PromptFailure::TooManyItems), None));
    }

    #[test]
    fn only_the_first_of_a_list_is_kept() {
        let read = |json| serde_json::from_str::<FirstOfList<u32>>(json).map(|list| (list.first, list.count)).ok();
        assert_eq!(read("[]"), Some((None, 0)));
        assert_eq!(read(r#"[7, "a", {}]"#), Some((Some(7), 3)));
        assert_eq!((read(r#"["a"]"#), read("{}")), (None, None));
    }
}
