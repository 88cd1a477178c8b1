//! Chats that go on: what was made of the turns before is kept, and a next turn costs what is new in it.
//!
//! The body of a next turn begins with the messages of the turn before, byte for byte. [`Turns`] keeps of each chat
//! the bytes of its messages, the messages as a template takes them, the text, and the tokens. Of the next turn it
//! compares the bytes, and has the rest parsed. The template renders all messages, since it may look at the last of
//! them or at how many there are, or only the first and the last ones if it writes each message for itself
//! (`template/local.rs`). The text is compared with the text before, and tokens are taken from there up to a place
//! where both can be cut. So the tokens are those that the body has without any memory, whatever the template does.

mod body;
mod memory;
mod turn;

use std::hash::{BuildHasher, RandomState};

use minijinja::Value;
use parking_lot::Mutex;

use crate::endpoint::Endpoint;
use crate::messages::field;
use crate::prompt_failure::PromptFailure;
use crate::prompt_tokens::PromptTokens;
use crate::prompter::Prompter;
use crate::request::Request;
use crate::rope::Rope;
use memory::Memory;
use turn::Turn;
pub(crate) use turn::{KnownMessages, NewTurn};

/// The chats that were seen last. Threads share one.
#[derive(Debug)]
pub struct Turns {
    memory: Mutex<Memory<Turn>>,
    /// Clients choose the bodies: without it they could choose bodies with one hash.
    seed: u64,
}

/// A body, and what is known of it from before.
#[derive(Debug)]
pub struct RecalledBody {
    /// The place where the body's list of messages begins.
    list: usize,
    keys: Vec<u64>,
    known: Option<EarlierTurn>,
    new_bytes: usize,
}

#[derive(Debug)]
struct EarlierTurn {
    before: KnownMessages,
    /// The body without those messages.
    short: Vec<u8>,
    /// The place where the list goes on in the body.
    rest: usize,
}

impl Turns {
    /// Makes an empty memory that takes at most about so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { memory: Mutex::new(Memory::new(bytes)), seed: RandomState::new().hash_one(0) }
    }

    /// Returns what is known of a body's beginning.
    #[must_use]
    pub fn recall(&self, endpoint: Endpoint, body: &[u8]) -> RecalledBody {
        let mut recalled = RecalledBody::nothing(body);
        let name = match endpoint {
            Endpoint::Chat | Endpoint::Messages => r#""messages""#,
            Endpoint::Responses => r#""input""#,
            Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Generate
            | Endpoint::Tokens
            | Endpoint::ChatTokens => return recalled,
        };
        if body.len() < body::STEP {
            return recalled;
        }
        let Some(at) = body::list(body, name) else { return recalled };
        recalled.list = at;
        let list = &body[at..];
        recalled.keys = body::keys(list, self.seed);
        let found = self.memory.lock().get(&recalled.keys);
        recalled.known = found.filter(|turn| turn.endpoint == endpoint).and_then(|turn| {
            let count = turn.items(turn.list.common(0, list));
            let end = at + turn.ends.get(count.checked_sub(1)?)?.0;
            let (short, rest) = body::without(body, at, end)?;
            Some(EarlierTurn { before: KnownMessages { turn, count }, short, rest })
        });
        recalled.new_bytes = recalled.known.as_ref().map_or(body.len(), |known| known.short.len());
        recalled
    }

    /// The tokens of a request's prompt, as [`Prompter::prompt`] has them. `body` and `request`: what `recalled` was
    /// made from, and what it was [parsed](RecalledBody::parse) to.
    #[must_use]
    pub fn prompt(
        &self,
        prompter: &Prompter,
        request: &Request<'_>,
        recalled: &RecalledBody,
        body: &[u8],
    ) -> PromptTokens {
        let RecalledBody { list, keys, known, .. } = recalled;
        let list = *list;
        let is_short = request.body.len() != request.body_len;
        let before = known.as_ref().filter(|_| is_short).map(|known| &known.before);
        let Some((prompted, made)) = prompter.after(request, before) else {
            // Another prompter's messages, or a request that needs all of its own.
            return Request::parse(request.endpoint, body).map_or_else(
                |_| prompter.prompt(request),
                |mut whole| {
                    whole.limits.until = request.limits.until;
                    prompter.prompt(&whole)
                },
            );
        };
        let has_list = |made: &NewTurn| {
            let begins = request.list().map(|raw| raw.get().as_ptr() as usize + 1);
            // Where nothing is new, nothing has to be kept.
            begins == Some(request.body.as_ptr() as usize + list) && !made.ends.is_empty()
        };
        if let Some(made) = made.filter(|_| !keys.is_empty()).filter(has_list) {
            let known = known.as_ref().filter(|_| is_short);
            // Ends are counted from behind the bracket of the list that was parsed.
            let (mut ends, offset) = match known {
                None => (Vec::new(), 0),
                Some(known) => (known.before.turn.ends[..known.before.count].to_vec(), known.rest - list),
            };
            let before = ends.last().map_or(0, |(_, messages)| *messages);
            ends.extend(made.ends.iter().map(|(end, messages)| (end + offset, messages + before)));
            let whole = ends.last().map_or(0, |(end, _)| *end);
            let all = &body[list..list + whole];
            let kept = match known {
                None => Rope::from(all.to_vec()),
                Some(known) => {
                    let KnownMessages { turn, count } = &known.before;
                    let same = count.checked_sub(1).map_or(0, |last| turn.ends[last].0);
                    turn.list.join_slice(same, &all[same..])
                }
            };
            let turn = Turn {
                prompter: prompter.id,
                endpoint: request.endpoint,
                as_parts: made.as_parts,
                plain: made.plain,
                around: made.around,
                list: kept,
                ends,
                first: made.first,
                messages: made.messages,
                text: made.text,
                begins: made.begins,
                tokens: made.tokens,
                weight: made.weight + known.map_or(0, |known| known.before.turn.weight),
            };
            let keys = keys.iter().copied().take(whole / body::STEP).collect();
            let bytes = turn.bytes();
            let gone = self.memory.lock().put(keys, turn, bytes);
            drop(gone);
        }
        prompted
    }
}

impl Turn {
    /// Number of leading items that are known of a list that has so many bytes in common with this one.
    fn items(&self, common: usize) -> usize {
        let mut count = self.ends.partition_point(|(end, _)| *end <= common);
        let is_assistants = |(_, messages): &(usize, usize)| {
            let last = messages.checked_sub(1).and_then(|last| field(&self.messages[last], "role"));
            last.is_none_or(|role| role.as_str() == Some("assistant"))
        };
        // What follows in an input may become a part of an assistant's message.
        while self.endpoint == Endpoint::Responses && count > 0 && is_assistants(&self.ends[count - 1]) {
            count -= 1;
        }
        count
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let places = size_of::<(usize, usize)>() * self.ends.capacity() + size_of::<usize>() * self.begins.capacity();
        let others = self.around.bytes() + self.weight + places + size_of::<Value>() * self.messages.capacity();
        self.list.bytes() + others + self.text.bytes() + self.tokens.bytes()
    }
}

impl RecalledBody {
    /// Makes the record of a body of which nothing is known.
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
    pub fn parse<'a>(&'a self, endpoint: Endpoint, body: &'a [u8]) -> Result<Request<'a>, PromptFailure> {
        if let Some(known) = &self.known
            && let Ok(request) = Request::parse(endpoint, &known.short)
            && let Some(list) = request.list()
            // Else it was another list, or there are two.
            && list.get().as_ptr() as usize + 1 == known.short.as_ptr() as usize + self.list
        {
            return Ok(Request { body_len: body.len(), ..request });
        }
        Request::parse(endpoint, body)
    }
}
