//! Messages and calls that requests of all kinds are made into.

use std::borrow::Cow;

use minijinja::Value;

use crate::messages::{Message, Part, object};

pub(super) fn system(text: Cow<'_, str>) -> Message<'_> {
    of_text("system", text)
}

/// A message whose content is one string.
pub(super) fn of_text<'a>(role: impl Into<Cow<'a, str>>, text: Cow<'a, str>) -> Message<'a> {
    Message { role: role.into(), content: vec![Part::Text(text)], ..Message::default() }
}

/// A function call.
pub(super) fn call(id: Option<Value>, function: Value) -> Value {
    object([("id", id.unwrap_or(Value::from(()))), ("function", function), ("type", "function".into())])
}
