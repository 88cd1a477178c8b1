//! Limits on the memory and the time for parsing a prompt.
//!
//! JSON is short to send and takes much memory once parsed: `{},` has three bytes, and a parsed message of a chat takes
//! hundreds. Values made from a body are therefore counted as they are made. A value that would exceed the body's
//! allowance is not made, parsing stops, and the request is placed without its prompt.
//!
//! Values are made deep within parsers that know nothing of requests, so the allowance belongs to the thread that
//! parses. The first failure is stored with it, even if a parser in between drops the error.

use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::prompt_tokens::PromptFailure;

/// Minimum allowance of memory for parsing any body, in bytes.
const LEAST: usize = 4 << 20;

/// Size of the longest list of messages that is rendered to a text, in bytes of JSON.
pub(crate) const LONGEST_CHAT: usize = 8 << 20;

/// Size of the longest prompt given as text that is read whole, in bytes; of a longer one only the beginning is read.
pub(crate) const LONGEST_TEXT: usize = 4 << 20;

/// Maximum number of tokens read from one prompt.
pub(crate) const MOST_TOKENS: usize = 1 << 20;

/// Number of bytes counted for an object, besides its fields.
const OBJECT: usize = 256;
/// Number of bytes counted for each field of an object, besides its text.
const FIELD: usize = 96;
/// Number of bytes counted for each item of a list, besides its text.
const ITEM: usize = 40;

/// Number of bytes counted for a message in the form for templates, besides its text.
pub(crate) const MESSAGE: usize = 640;
/// Number of bytes counted for a part of a message's content in the form for templates, besides its text.
pub(crate) const PART: usize = 448;

/// Number of counted values between two readings of the clock.
const LOOK: u32 = 256;

/// Limits of memory and time for parsing one prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of bytes that the values made from the prompt may take.
    bytes: usize,
    /// Deadline for parsing; `None` for no deadline.
    pub(crate) until: Option<Instant>,
}

impl Limits {
    /// Limits for parsing a body. `bytes`: number of bytes of the body that are not known from an earlier turn.
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes: LEAST + bytes.min(LONGEST_CHAT) / 2 * 3, until: None }
    }
}

/// Maximum number of bytes that parsing a body may take besides the body itself: its values, its text, the copy kept
/// for the next turn, and its tokens. `new_bytes`: number of bytes of the body that are not known from an earlier turn.
#[must_use]
pub fn reading_memory(new_bytes: usize) -> usize {
    let read = new_bytes.min(LONGEST_CHAT);
    Limits::of(new_bytes).bytes + 3 * read + 4 * read.min(MOST_TOKENS)
}

/// Allowance of the prompt that a thread is parsing: limits, what is left of them, and the first failure.
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

/// Runs `read` within limits. Returns its result, and the reason why it was stopped early; `None` if it was not.
pub(crate) fn within<T>(limits: Limits, read: impl FnOnce() -> T) -> (T, Option<PromptFailure>) {
    /// Guard that restores the outer allowance even if `read` panics, as panics are caught by threads that continue.
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

/// Counts `bytes` for a value that is about to be made.
///
/// # Errors
/// The reason, if the memory or the time is used up: then the value must not be made.
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

/// Stores the reason why parsing has to stop.
pub(crate) fn fail(why_not: PromptFailure) {
    let open = OPEN.get();
    if open.limits.bytes == usize::MAX {
        // No request is being parsed on this thread.
        return;
    }
    OPEN.set(Allowance { failure: open.failure.or(Some(why_not)), ..open });
}

/// True if the deadline for parsing has passed. Unlike [`take`], this stores no failure, as the values made so far may
/// be of use.
pub(crate) fn is_late() -> bool {
    OPEN.get().is_late()
}

/// Number of bytes counted so far.
pub(crate) fn taken() -> usize {
    let open = OPEN.get();
    open.limits.bytes - open.left
}

/// True if a temporary value of `bytes` bytes is not larger than the whole allowance.
pub(crate) fn has_room_for(bytes: usize) -> bool {
    bytes <= OPEN.get().limits.bytes
}

/// Resets the count to zero, after all values made so far were dropped.
pub(crate) fn begin_again() {
    let open = OPEN.get();
    OPEN.set(Allowance { left: open.limits.bytes, ..open });
}

/// A JSON list for each of whose items `MORE` bytes are counted, in addition to the item's own.
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

/// Any JSON as a value for templates, whose memory is counted against the allowance.
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
