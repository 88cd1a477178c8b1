//! A turn of a chat: what is kept of it for the next one.

use std::sync::Arc;

use minijinja::Value;

use crate::chat::TemplateContext;
use crate::endpoint::Endpoint;
use crate::rope::Rope;
use crate::tokenizer::TextTokens;

/// The data kept of a chat, for its next turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The number of the prompter that prepared the chat.
    pub(crate) prompter: u64,
    /// The kind of request, which says what messages are made of.
    pub(super) endpoint: Endpoint,
    /// True if contents of messages are lists of parts.
    pub(crate) as_parts: bool,
    /// Number of leading messages of which every dialect makes the same.
    pub(crate) plain: usize,
    /// The other fields that the template was given.
    pub(crate) around: TemplateContext,
    /// The list of messages, from behind its bracket to the end of the last one.
    pub(super) list: Rope<u8>,
    /// Places where each item ends in the list, and how many messages there are then: it may be more or less than one.
    pub(super) ends: Vec<(usize, usize)>,
    /// The system message that stands beside the list, and the list's, as a template takes them.
    pub(crate) first: Option<Value>,
    pub(crate) messages: Vec<Value>,
    /// The text that a template made of the messages, where each begins in it if that is known, and its tokens.
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: TextTokens,
    /// Bytes that the messages take.
    pub(crate) weight: usize,
}

/// The data that a prompter made of a chat, to be kept.
pub(crate) struct NewTurn {
    pub(crate) as_parts: bool,
    pub(crate) plain: usize,
    pub(crate) around: TemplateContext,
    /// Places where items end in the list that was parsed, and how many new messages there are then.
    pub(crate) ends: Vec<(usize, usize)>,
    pub(crate) first: Option<Value>,
    pub(crate) messages: Vec<Value>,
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: TextTokens,
    /// Bytes that the new messages take.
    pub(crate) weight: usize,
}

/// The first messages of a chat that was seen before.
#[derive(Debug)]
pub(crate) struct KnownMessages {
    pub(crate) turn: Arc<Turn>,
    /// Number of leading items of the list that are known; there is one at least.
    pub(super) count: usize,
}

impl KnownMessages {
    /// The messages that are known.
    pub(crate) fn messages(&self) -> &[Value] {
        &self.turn.messages[..self.turn.ends[self.count - 1].1]
    }
}
