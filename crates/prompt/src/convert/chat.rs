//! A chat that a request of another kind was made into.

use crate::messages::Message;

/// A chat made of a request of another kind.
#[derive(Debug, Default)]
pub(crate) struct ConvertedChat<'a> {
    /// The system message that stands beside the list.
    pub(crate) first: Option<Message<'a>>,
    /// The messages that the list was made into.
    pub(crate) messages: Vec<Message<'a>>,
    /// Places where the items of the list end in it, and how many messages there are then.
    pub(crate) ends: Vec<(usize, usize)>,
    /// True if the answer goes on with the last message.
    pub(crate) continues: bool,
    /// True if no item changes the messages of those before it, but for an assistant's just before.
    pub(crate) is_apart: bool,
}

impl<'a> ConvertedChat<'a> {
    /// All messages.
    pub(crate) fn all(self) -> Vec<Message<'a>> {
        self.first.into_iter().chain(self.messages).collect()
    }
}
