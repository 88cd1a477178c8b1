//! A turn of a chat: the data kept for its next turn.

use std::sync::Arc;

use minijinja::Value;

use crate::chat::TemplateContext;
use crate::endpoint::Endpoint;
use crate::prompt_tokens::KeptHashes;
use crate::rope::Rope;
use crate::tokenizer::TextTokens;

/// Data of a chat that are kept for the chat's next turn.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Number of the prompter that prepared the chat.
    pub(crate) prompter: u64,
    /// Endpoint of the request, which determines how messages are made.
    pub(crate) endpoint: Endpoint,
    /// True if contents of messages were converted to lists of parts.
    pub(crate) as_parts: bool,
    /// Number of leading messages that all dialects render equally.
    pub(crate) plain: usize,
    /// All inputs of the template besides the messages.
    pub(crate) around: TemplateContext,
    /// JSON of the list of messages, after its opening bracket up to the end of the last message.
    pub(crate) list: Rope<u8>,
    /// For each item of the list, the offset in bytes where it ends and the number of messages made up to there, which
    /// may differ from the number of items.
    pub(crate) ends: Vec<(usize, usize)>,
    /// System message given beside the list of messages, in the form for templates; `None` without one.
    pub(crate) first: Option<Value>,
    /// Messages made from the list, in the form for templates.
    pub(crate) messages: Vec<Value>,
    /// Rendered text of the chat.
    pub(crate) text: Rope<u8>,
    /// Offsets, in bytes, at which the text of each message begins; empty if unknown.
    pub(crate) begins: Vec<usize>,
    /// Tokens of the rendered text.
    pub(crate) tokens: TextTokens,
    /// Content hashes of the prompt's blocks.
    pub(crate) hashes: Arc<KeptHashes>,
    /// Number of bytes counted for the messages.
    pub(crate) weight: usize,
}

/// The part of a [`Turn`] that the prompter makes.
pub(crate) struct NewTurn {
    pub(crate) as_parts: bool,
    pub(crate) plain: usize,
    pub(crate) around: TemplateContext,
    /// For each item of the parsed list, the offset in bytes where it ends and the number of new messages made up to
    /// there.
    pub(crate) ends: Vec<(usize, usize)>,
    pub(crate) first: Option<Value>,
    pub(crate) messages: Vec<Value>,
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: TextTokens,
    /// Number of bytes counted for the new messages.
    pub(crate) weight: usize,
}

/// Leading messages of a chat that are known from an earlier turn.
#[derive(Debug)]
pub(crate) struct KnownMessages {
    pub(crate) turn: Arc<Turn>,
    /// Number of leading items of the list that are known, at least 1.
    pub(crate) count: usize,
}

impl KnownMessages {
    /// Known messages, in the form for templates.
    pub(crate) fn messages(&self) -> &[Value] {
        &self.turn.messages[..self.turn.ends[self.count - 1].1]
    }
}
