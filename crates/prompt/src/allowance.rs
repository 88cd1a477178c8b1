//! The allowance of a prompt that is read: memory for what is made of it, and time.
//!
//! JSON is short to send and long to hold: `{},` are three bytes, and a message of a chat is hundreds. So what is made of a
//! body is counted as it is made. What would be more than the body's allowance is not made, and the prompt is not read any
//! further: its request is placed without it.
//!
//! Values are made deep within parsers, which know nothing of requests: so the allowance is the thread's that reads. A
//! failure is noted with it, wherever in between it is lost.

use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use minijinja::Value;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::prompt_failure::PromptFailure;

/// Bytes that what is made of a short body may take, whatever it is.
const LEAST: usize = 4 << 20;

/// Bytes of a chat's list, beyond which no text is made of it.
pub(crate) const LONGEST_CHAT: usize = 8 << 20;

/// Bytes of a prompt that is a text, beyond which only its beginning is looked at.
pub(crate) const LONGEST_TEXT: usize = 4 << 20;

/// Tokens of a prompt that are looked at.
pub(crate) const MOST_TOKENS: usize = 1 << 20;

/// Bytes that an object takes, each of its fields, and each item of a list, beside texts.
const OBJECT: usize = 256;
const FIELD: usize = 96;
const ITEM: usize = 40;

/// Bytes that a message, or a part of its content, takes as a template has it, beside its text.
pub(crate) const MESSAGE: usize = 640;
pub(crate) const PART: usize = 448;

/// Calls from one look at the clock to the next.
const LOOK: u32 = 256;

/// The limits within which a prompt is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes that what is made of it may take.
    bytes: usize,
    /// The time by which it must be read.
    pub(crate) until: Option<Instant>,
}

impl Limits {
    /// The limits for a body of so many bytes that are not known from before.
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes: LEAST + bytes.min(LONGEST_CHAT) / 2 * 3, until: None }
    }
}

/// Bytes that reading a body may take at most, beside the body itself, of which so many bytes are new: what is made of it,
/// its text, what is kept of it for the next turn, and its tokens.
#[must_use]
pub fn reading_memory(new_bytes: usize) -> usize {
    let read = new_bytes.min(LONGEST_CHAT);
    Limits::of(new_bytes).bytes + 3 * read + 4 * read.min(MOST_TOKENS)
}

/// The state of an allowance.
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

/// Reads within limits. Returns the reason too why it came to an end before it was done, whatever else it returns, if it
/// did.
pub(crate) fn within<T>(limits: Limits, read: impl FnOnce() -> T) -> (T, Option<PromptFailure>) {
    /// A panic is caught by threads that live on.
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

/// Notes that something is about to be made that takes so many bytes.
///
/// # Errors
/// The reason, if there is no memory or no time left for it: it must not be made then.
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

/// Notes why reading has to end.
pub(crate) fn fail(why_not: PromptFailure) {
    let open = OPEN.get();
    if open.limits.bytes == usize::MAX {
        // Nothing is read for a request.
        return;
    }
    OPEN.set(Allowance { failure: open.failure.or(Some(why_not)), ..open });
}

/// True if there is no time left. Nothing is noted: what is known until now may be of use.
pub(crate) fn is_late() -> bool {
    OPEN.get().is_late()
}

/// Bytes that what was made so far takes.
pub(crate) fn taken() -> usize {
    let open = OPEN.get();
    open.limits.bytes - open.left
}

/// True if something that is needed only for a moment may take so many bytes.
pub(crate) fn has_room_for(bytes: usize) -> bool {
    bytes <= OPEN.get().limits.bytes
}

/// Begins anew, as all that was made is gone.
pub(crate) fn begin_again() {
    let open = OPEN.get();
    OPEN.set(Allowance { left: open.limits.bytes, ..open });
}

/// A list of JSON, each of whose items is counted with `MORE` bytes beside its own.
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

/// The first item of a list, and how many there are: nothing is kept of the others.
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

/// Any JSON as a template has it, which is counted.
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
