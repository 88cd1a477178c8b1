//! Chats that go on: what was made of the turns before is kept, and a next turn costs what is new in it.
//!
//! The body of a next turn begins with the messages of the turn before, byte for byte. [`Turns`] keeps of each chat the
//! bytes of its messages, the messages as a template takes them, the text, and the tokens. Of the next turn it compares
//! the bytes, and has the rest parsed. The template always renders all messages, since it may look at the last of them or
//! at how many there are; the text is compared with the text before, and tokens are taken from there up to a place where
//! both can be cut. So the tokens are those that the body has without any memory, whatever the template does.

mod body;
mod memory;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::Value;

use crate::chat::Around;
use crate::endpoint::Endpoint;
use crate::prompted::Prompted;
use crate::prompter::Prompter;
use crate::request::Request;
use crate::rope::Rope;
use crate::tokenizer::Tokenized;
use crate::why_not::WhyNot;
use memory::Memory;

/// The chats that were seen last. Threads share one.
#[derive(Debug)]
pub struct Turns {
    memory: Mutex<Memory<Turn>>,
    /// Clients choose the bodies: without it they could choose bodies with one hash.
    seed: u64,
}

/// What is kept of a chat.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Which prompter it was.
    pub(crate) prompter: u64,
    /// Whether contents of messages are lists of parts.
    pub(crate) as_parts: bool,
    /// What else the template was given.
    pub(crate) around: Around,
    /// The list of messages, from behind its bracket to the end of the last one.
    list: Rope<u8>,
    /// Where each message ends in it.
    ends: Vec<usize>,
    /// As a template takes them.
    pub(crate) messages: Vec<Value>,
    /// What a template made of them, where each begins in it if that is known, and its tokens.
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: Tokenized,
}

/// What a prompter made of a chat, to be kept.
pub(crate) struct Made {
    pub(crate) as_parts: bool,
    pub(crate) around: Around,
    /// Where the messages that were not known end in the list that was parsed.
    pub(crate) ends: Vec<usize>,
    pub(crate) messages: Vec<Value>,
    pub(crate) text: Rope<u8>,
    pub(crate) begins: Vec<usize>,
    pub(crate) tokens: Tokenized,
}

/// The first messages of a chat that was seen before.
#[derive(Debug)]
pub(crate) struct Before {
    pub(crate) turn: Arc<Turn>,
    /// How many there are.
    pub(crate) count: usize,
}

/// A body, and what is known of it from before.
#[derive(Debug)]
pub struct Recalled {
    /// Where its list of messages begins.
    list: usize,
    keys: Vec<u64>,
    known: Option<Known>,
    new_bytes: usize,
}

#[derive(Debug)]
struct Known {
    before: Before,
    /// The body without those messages.
    short: Vec<u8>,
    /// Where the list goes on in the body.
    rest: usize,
}

impl Turns {
    /// An empty one that takes at most about so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { memory: Mutex::new(Memory::new(bytes)), seed: RandomState::new().hash_one(0) }
    }

    /// What is known of a body's beginning.
    #[must_use]
    pub fn recall(&self, endpoint: Endpoint, body: &[u8]) -> Recalled {
        let mut recalled = Recalled::nothing(body);
        if endpoint != Endpoint::Chat || body.len() < body::STEP {
            return recalled;
        }
        let Some(at) = body::list(body) else { return recalled };
        recalled.list = at;
        let list = &body[at..];
        recalled.keys = body::keys(list, self.seed);
        let found = self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(&recalled.keys);
        recalled.known = found.and_then(|turn| {
            let common = turn.list.common(0, list);
            let count = turn.ends.partition_point(|end| *end <= common);
            let end = at + *turn.ends.get(count.checked_sub(1)?)?;
            let (short, rest) = body::without(body, at, end)?;
            Some(Known { before: Before { turn, count }, short, rest })
        });
        recalled.new_bytes = recalled.known.as_ref().map_or(body.len(), |known| known.short.len());
        recalled
    }

    /// The tokens of a request's prompt, as [`Prompter::prompt`] has them. `body` and `request`: what `recalled` was
    /// made from, and what it was [parsed](Recalled::parse) to.
    #[must_use]
    pub fn prompt(&self, prompter: &Prompter, request: &Request<'_>, recalled: &Recalled, body: &[u8]) -> Prompted {
        let Recalled { list, keys, known, .. } = recalled;
        let list = *list;
        let is_short = request.body.len() != request.body_len;
        let before = known.as_ref().filter(|_| is_short).map(|known| &known.before);
        let Some((prompted, made)) = prompter.after(request, before) else {
            // Another prompter's messages, or a request that needs all of its own.
            return Request::parse(request.endpoint, body)
                .map_or_else(|_| prompter.prompt(request), |request| prompter.prompt(&request));
        };
        let has_list = |made: &Made| {
            let messages = request.parts.messages.map(|raw| raw.get().as_ptr() as usize + 1);
            // Where nothing is new, nothing has to be kept.
            messages == Some(request.body.as_ptr() as usize + list) && !made.ends.is_empty()
        };
        if let Some(made) = made.filter(|_| !keys.is_empty()).filter(has_list) {
            let known = known.as_ref().filter(|_| is_short);
            // Ends are counted from behind the bracket of the list that was parsed.
            let (mut ends, offset) = match known {
                None => (Vec::new(), 0),
                Some(known) => (known.before.turn.ends[..known.before.count].to_vec(), known.rest - list),
            };
            ends.extend(made.ends.iter().map(|end| end + offset));
            let whole = ends.last().map_or(0, |end| *end);
            let all = &body[list..list + whole];
            let kept = match known {
                None => Rope::from(all.to_vec()),
                Some(known) => {
                    let Before { turn, count } = &known.before;
                    let same = count.checked_sub(1).map_or(0, |last| turn.ends[last]);
                    turn.list.followed(same, &all[same..])
                }
            };
            let turn = Turn {
                prompter: prompter.id,
                as_parts: made.as_parts,
                around: made.around,
                list: kept,
                ends,
                messages: made.messages,
                text: made.text,
                begins: made.begins,
                tokens: made.tokens,
            };
            let keys = keys.iter().copied().take(whole / body::STEP).collect();
            let bytes = turn.bytes();
            let gone = self.memory.lock().unwrap_or_else(PoisonError::into_inner).put(keys, turn, bytes);
            drop(gone);
        }
        prompted
    }
}

impl Turn {
    /// Bytes that it takes. Messages have their text, and a little beside it.
    fn bytes(&self) -> usize {
        2 * self.list.bytes() + 512 * self.ends.len() + self.text.bytes() + self.tokens.bytes()
    }
}

impl Recalled {
    /// Nothing is known of a body.
    #[must_use]
    pub fn nothing(body: &[u8]) -> Self {
        Self { list: 0, keys: Vec::new(), known: None, new_bytes: body.len() }
    }

    /// Bytes of the body that were not seen before.
    #[must_use]
    pub fn new_bytes(&self) -> usize {
        self.new_bytes
    }

    /// Parses the body that this was made from.
    ///
    /// # Errors
    ///
    /// As [`Request::parse`].
    pub fn parse<'a>(&'a self, endpoint: Endpoint, body: &'a [u8]) -> Result<Request<'a>, WhyNot> {
        if let Some(known) = &self.known
            && let Ok(request) = Request::parse(endpoint, &known.short)
            && let Some(messages) = request.parts.messages
            // Else it was another list, or there are two.
            && messages.get().as_ptr() as usize + 1 == known.short.as_ptr() as usize + self.list
        {
            return Ok(Request { body_len: body.len(), ..request });
        }
        Request::parse(endpoint, body)
    }
}
