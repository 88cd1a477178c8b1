//! Requests of other APIs converted to chats, as engines do: `POST /v1/responses` and `POST /v1/messages`.

mod messages;
mod responses;
mod tools;

use std::borrow::Cow;

use minijinja::Value;

use crate::messages::{Message, Part, object};

pub(crate) use self::messages::from_messages;
pub(crate) use self::responses::from_responses;
pub(crate) use self::tools::tools;

/// A chat converted from a request of another API.
#[derive(Debug, Default)]
pub(crate) struct ConvertedChat<'a> {
    /// The system message given beside the list.
    pub(crate) first: Option<Message<'a>>,
    /// The messages made from the list.
    pub(crate) messages: Vec<Message<'a>>,
    /// For each item of the list, the offset where it ends and the number of messages made up to there.
    pub(crate) ends: Vec<(usize, usize)>,
    /// True if the answer continues the last message.
    pub(crate) continues: bool,
    /// True if no item changes messages made from earlier items, except an assistant's message just before it.
    pub(crate) is_apart: bool,
}

impl<'a> ConvertedChat<'a> {
    /// All messages, the system message first.
    pub(crate) fn all(self) -> Vec<Message<'a>> {
        self.first.into_iter().chain(self.messages).collect()
    }
}

fn system(text: Cow<'_, str>) -> Message<'_> {
    of_text("system", text)
}

/// A message whose content is one text.
fn of_text<'a>(role: impl Into<Cow<'a, str>>, text: Cow<'a, str>) -> Message<'a> {
    Message { role: role.into(), content: vec![Part::Text(text)], ..Message::default() }
}

/// A function call in the form for templates.
fn call(id: Option<Value>, function: Value) -> Value {
    object([("id", id.unwrap_or(Value::from(()))), ("function", function), ("type", "function".into())])
}
