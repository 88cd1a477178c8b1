//! Data of a chat request that are kept to parse the chat's next request faster.

use std::sync::Arc;

use minijinja::Value;

use crate::chat::TemplateContext;
use crate::endpoint::Endpoint;
use crate::prompt_tokens::KeptHashes;
use crate::rope::Rope;
use crate::tokenizer::TextTokens;

/// A turn: data of one request of a chat, kept so that the chat's next request is not parsed and tokenized from the
/// start.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Number of the [`Prompter`](crate::Prompter) that prepared the chat.
    pub(crate) prompter: u64,
    /// API of the request, which determines how its messages are converted.
    pub(crate) endpoint: Endpoint,
    /// True if contents of messages were converted to lists of parts for the chat template, not to strings.
    pub(crate) as_parts: bool,
    /// Number of leading messages that are rendered equally for all supported engines and versions.
    pub(crate) plain: usize,
    /// All inputs of the chat template besides the messages, as fields of the request.
    pub(crate) around: TemplateContext,
    /// JSON of the list of messages, after its opening bracket up to the end of the last message.
    pub(crate) list: Rope<u8>,
    /// For each item of the list of messages: the offset of its end, in bytes, and the number of messages made from all
    /// items so far, which may differ from the number of items.
    pub(crate) ends: Vec<(usize, usize)>,
    /// System message given beside the list of messages, in the form for templates; `None` without one.
    pub(crate) first: Option<Value>,
    /// Messages made from the list, in the form for templates.
    pub(crate) messages: Vec<Value>,
    /// Rendered text of the chat.
    pub(crate) text: Rope<u8>,
    /// Offset at which each message begins in the rendered text, in bytes; empty if unknown.
    pub(crate) begins: Vec<usize>,
    /// Tokens of the rendered text.
    pub(crate) tokens: TextTokens,
    /// Content hashes of the prompt's blocks.
    pub(crate) hashes: Arc<KeptHashes>,
    /// Memory counted for the chat's messages, in bytes.
    pub(crate) weight: usize,
}

/// The part of a [`Turn`], the data kept of a chat request, that the prompter makes.
pub(crate) struct NewTurn {
    pub(crate) as_parts: bool,
    pub(crate) plain: usize,
    pub(crate) around: TemplateContext,
    /// For each item of the parsed list of messages: the offset of its end, in bytes, and the number of new messages
    /// made from all items so far.
    pub(crate) ends: Vec<(usize, usize)>,
    pub(crate) first: Option<Value>,
    pub(crate) messages: Vec<Value>,
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: TextTokens,
    /// Memory counted for the new messages (those that no earlier request of the chat contained), in bytes.
    pub(crate) weight: usize,
}

/// Leading messages of a chat that are known from an earlier request of the same chat.
#[derive(Debug)]
pub(crate) struct KnownMessages {
    pub(crate) turn: Arc<Turn>,
    /// Number of leading items of the list of messages that are known from an earlier request, at least 1.
    pub(crate) count: usize,
}

impl KnownMessages {
    /// Returns the known messages, as values for chat templates.
    pub(crate) fn messages(&self) -> &[Value] {
        &self.turn.messages[..self.turn.ends[self.count - 1].1]
    }
}
