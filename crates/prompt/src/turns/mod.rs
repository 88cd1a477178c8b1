//! Growing chats: data of a chat's earlier requests (turns) is kept, so that the next request costs only its new
//! messages.
//!
//! The body of the next request begins with the messages of the request before, byte for byte. [`Turns`] keeps of each
//! chat the bytes of its messages, the messages as values for templates, the text, and the tokens. For the next request
//! it compares the bytes, and only the rest is parsed. The chat template renders all messages, since its output may
//! depend on the last message or on their number; or only the first and the last messages if the template writes each
//! message independently (`template/local.rs`). The text is compared with the text before, and tokens are reused up to
//! a place where both can be cut. The tokens are therefore the same as without kept data, for every template.

mod memory;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use memchr::memmem;
use minijinja::Value;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::endpoint::Endpoint;
use crate::messages::field;
use crate::prompt_tokens::{KeptHashes, PromptFailure, PromptTokens};
use crate::prompter::Prompter;
use crate::request::Request;
use crate::rope::Rope;
use crate::turn::{KnownMessages, NewTurn, Turn};
use memory::Memory;

/// Cache of recent chats, which makes tokenizing the next request of a chat fast. May be shared by threads.
#[derive(Debug)]
pub struct Turns {
    memory: Mutex<Memory<Turn>>,
    /// Random seed of the hashes. Clients choose the bodies, and with a known seed could choose bodies of equal hash.
    seed: u64,
}

/// Part of a request's body that is known from an earlier request of the same chat, and the rest to parse.
#[derive(Debug)]
pub struct RecalledBody {
    /// Offset of the body's list of messages, in bytes.
    list: usize,
    keys: Vec<u64>,
    known: Option<EarlierTurn>,
    new_bytes: usize,
}

#[derive(Debug)]
struct EarlierTurn {
    before: KnownMessages,
    /// Copy of the body without the known messages.
    short: Vec<u8>,
    /// Offset in the body at which the list continues after the known messages, in bytes.
    rest: usize,
}

impl Turns {
    /// Creates an empty cache of chats, of at most about `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { memory: Mutex::new(Memory::new(bytes)), seed: RandomState::new().hash_one(0) }
    }

    /// Looks up the beginning of a body among recent chats.
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
        if body.len() < STEP {
            return recalled;
        }
        let Some(at) = list(body, name) else { return recalled };
        recalled.list = at;
        let list = &body[at..];
        recalled.keys = keys(list, self.seed);
        let found = self.memory.lock().get(&recalled.keys);
        recalled.known = found.filter(|turn| turn.endpoint == endpoint).and_then(|turn| {
            let count = turn.items(turn.list.common(0, list));
            let end = at + turn.ends.get(count.checked_sub(1)?)?.0;
            let (short, rest) = without(body, at, end)?;
            Some(EarlierTurn { before: KnownMessages { turn, count }, short, rest })
        });
        recalled.new_bytes = recalled.known.as_ref().map_or(body.len(), |known| known.short.len());
        recalled
    }

    /// Converts a request's prompt to tokens, equal to those of [`Prompter::prompt`]. `body` and `request`: the body
    /// passed to `recall`, and the request [parsed](RecalledBody::parse) from it.
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
        let Some((mut prompted, made)) = prompter.after(request, before) else {
            // The messages belong to another prompter, or the request needs all of its own.
            return Request::parse(request.endpoint, body).map_or_else(
                |_| prompter.prompt(request),
                |mut whole| {
                    whole.limits.until = request.limits.until;
                    prompter.prompt(&whole)
                },
            );
        };
        prompted.tokens.before = before.map(|before| before.turn.hashes.clone());
        let has_list = |made: &NewTurn| {
            let begins = request.list().map(|raw| raw.get().as_ptr() as usize + 1);
            // Without new messages there is nothing to store.
            begins == Some(request.body.as_ptr() as usize + list) && !made.ends.is_empty()
        };
        if let Some(made) = made.filter(|_| !keys.is_empty()).filter(has_list) {
            let known = known.as_ref().filter(|_| is_short);
            // Offsets count from the opening bracket of the parsed list.
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
            let hashes = Arc::<KeptHashes>::default();
            prompted.tokens.kept = Some(hashes.clone());
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
                hashes,
                weight: made.weight + known.map_or(0, |known| known.before.turn.weight),
            };
            let keys = keys.iter().copied().take(whole / STEP).collect();
            let bytes = turn.bytes();
            let gone = self.memory.lock().put(keys, turn, bytes);
            drop(gone);
        }
        prompted
    }
}

impl Turn {
    /// Number of leading items of a list of messages that are known, given that the list shares its first `common`
    /// bytes with the list of this earlier request.
    fn items(&self, common: usize) -> usize {
        let mut count = self.ends.partition_point(|(end, _)| *end <= common);
        let is_assistants = |(_, messages): &(usize, usize)| {
            let last = messages.checked_sub(1).and_then(|last| field(&self.messages[last], "role"));
            last.is_none_or(|role| role.as_str() == Some("assistant"))
        };
        // The next item of an input may extend the assistant's last message.
        while self.endpoint == Endpoint::Responses && count > 0 && is_assistants(&self.ends[count - 1]) {
            count -= 1;
        }
        count
    }

    /// Memory of the data kept of the chat's request, in bytes.
    fn bytes(&self) -> usize {
        let places = size_of::<(usize, usize)>() * self.ends.capacity() + size_of::<usize>() * self.begins.capacity();
        let others = self.around.bytes() + self.weight + places + size_of::<Value>() * self.messages.capacity();
        let hashes = KeptHashes::bytes(self.tokens.ids.len());
        self.list.bytes() + others + self.text.bytes() + self.tokens.bytes() + hashes
    }
}

impl RecalledBody {
    /// Creates the record of a request body none of whose messages is known from an earlier request.
    #[must_use]
    pub fn nothing(body: &[u8]) -> Self {
        Self { list: 0, keys: Vec::new(), known: None, new_bytes: body.len() }
    }

    /// Size of the part of the body that no earlier request contained, in bytes.
    #[must_use]
    pub fn new_bytes(&self) -> usize {
        self.new_bytes
    }

    /// Parses the body, without the known messages if there are any.
    ///
    /// # Errors
    ///
    /// Those of [`Request::parse`].
    pub fn parse<'a>(&'a self, endpoint: Endpoint, body: &'a [u8]) -> Result<Request<'a>, PromptFailure> {
        if let Some(known) = &self.known
            && let Ok(request) = Request::parse(endpoint, &known.short)
            && let Some(list) = request.list()
            // The list found was another one, or there are two.
            && list.get().as_ptr() as usize + 1 == known.short.as_ptr() as usize + self.list
        {
            return Ok(Request { body_len: body.len(), ..request });
        }
        Request::parse(endpoint, body)
    }
}

/// Distance between the ends of two hashed beginnings of a list of messages, in bytes.
const STEP: usize = 4096;

/// Returns the offset in a JSON body after the opening bracket of a list. `name`: the list's key with its quotes.
/// `None` if the body has no such list.
fn list(body: &[u8], name: &str) -> Option<usize> {
    let at = memmem::find(body, name.as_bytes())? + name.len();
    let at = past(body, at, b':')?;
    past(body, at, b'[')
}

/// Returns the offset in a JSON body after white space and the byte `wanted`; `None` if another byte follows the white
/// space.
fn past(body: &[u8], at: usize, wanted: u8) -> Option<usize> {
    let at = space(body, at);
    (body.get(at) == Some(&wanted)).then_some(at + 1)
}

/// Returns the offset of the first byte in a JSON body, from `at` on, that is not white space.
fn space(body: &[u8], at: usize) -> usize {
    let rest = body.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(rest.len())
}

/// Computes the hashes of the beginnings of a JSON list of messages, at lengths [`STEP`] bytes apart.
fn keys(list: &[u8], seed: u64) -> Vec<u64> {
    let mut before = seed;
    let next = |step: &[u8]| {
        before = xxh3_64_with_seed(step, before);
        before
    };
    list.chunks_exact(STEP).map(next).collect()
}

/// Copy of a request's body without the first messages. The list of messages begins at the offset `list`; the removed
/// messages end at `end`. Also returns the offset in the body at which the rest of the list begins. `None` if no comma
/// or closing bracket follows the removed messages.
fn without(body: &[u8], list: usize, end: usize) -> Option<(Vec<u8>, usize)> {
    let at = space(body, end);
    let rest = match body.get(at)? {
        b']' => at,
        b',' if body.get(space(body, at + 1)) != Some(&b']') => at + 1,
        _ => return None,
    };
    Some(([&body[..list], &body[rest..]].concat(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (body, rest) in [
            (r#"{"messages": [1]}"#, Some("1]}")),
            ("{\"a\": 1, \"messages\" :\n[ 1]}", Some(" 1]}")),
            (r#"{"messages": {}}"#, None),
            (r#"{"message": [1]}"#, None),
            (r#"{"messages""#, None),
            ("", None),
        ] {
            assert_eq!(list(body.as_bytes(), r#""messages""#).map(|at| &body[at..]), rest, "{body}");
        }
    }

    #[test]
    fn bodies_without_what_is_known() {
        for (body, end, expected) in [
            ("[1, 2]}", 2, Some("[ 2]}")),
            ("[1 ,2]}", 2, Some("[2]}")),
            ("[1]}", 2, Some("[]}")),
            ("[1 ] }", 2, Some("[] }")),
            ("[1,]}", 2, None),
            ("[1, ]}", 2, None),
            ("[1 2]}", 2, None),
            ("[1", 2, None),
        ] {
            let found = without(body.as_bytes(), 1, end);
            let texts = found.map(|(short, rest)| {
                assert_eq!(short[1..], body.as_bytes()[rest..]);
                String::from_utf8(short).unwrap()
            });
            assert_eq!(texts.as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn beginnings() {
        let text: Vec<u8> = (0..9000_u32).map(|at| (at * at) as u8).collect();
        for at in [0, 1, 1023, 1024, 1025, 5000, 8999] {
            let mut other = text.clone();
            other[at] ^= 1;
            let (some, all) = (keys(&other, 1), keys(&text, 1));
            assert_eq!(some.iter().zip(&all).take_while(|(left, right)| left == right).count(), (at / STEP).min(2));
        }
    }
}
