//! Parsing of one prompt of a query: its tokens or content hashes, its LoRA adapter and its cache salt; and memory for
//! the parsed numbers, which is reused by later queries.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;

use super::members::{KeySet, check_text, given_twice, missing, unsigned};
use crate::answer::Refusal;
use crate::json::Reader;

type Result<T> = std::result::Result<T, Refusal>;

const TOKEN_IDS: &str = "token_ids";
const CONTENT_HASHES: &str = "content_hashes";
/// Name of the member [`CONTENT_HASHES`] in the HTTP interface of other routers' indexers.
const BLOCK_HASHES: &str = "block_hashes";

/// Form in which a query gives a prompt: tokens or content hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tokens,
    Hashes,
}

impl Kind {
    /// Returns the name of the JSON member that gives a prompt in this form.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::Tokens => TOKEN_IDS,
            Self::Hashes => CONTENT_HASHES,
        }
    }
}

/// Prompt that was parsed from a query.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    pub(super) kind: Kind,
    /// Position of the prompt's tokens or content hashes within the [`Scratch`] memory.
    pub(super) range: Range<usize>,
    /// Number of tokens in the prompt; `None` if unknown.
    pub(super) tokens: Option<u64>,
    pub(super) lora: Option<Cow<'a, str>>,
    pub(super) salt: Option<Cow<'a, str>>,
}

/// Prompt whose members are being parsed.
#[derive(Default)]
pub(super) struct PartialPrompt<'a> {
    seen: KeySet,
    /// Form in which the prompt was given, and the name of the member that gave it; `None` before that member is read.
    named: Option<(Kind, &'static str)>,
    range: Range<usize>,
    prompt_tokens: Option<u64>,
    lora: Option<Cow<'a, str>>,
    salt: Option<Cow<'a, str>>,
}

impl<'a> PartialPrompt<'a> {
    /// Reads a JSON member of a prompt. Returns false if prompts have no member of this name. `only` is the one form of
    /// prompt (tokens or content hashes) that is allowed; the member for the other form then counts as unknown.
    pub(super) fn member(
        &mut self,
        reader: &mut Reader<'a>,
        key: &str,
        only: Option<Kind>,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        match key {
            "token_ids" if only != Some(Kind::Hashes) => {
                self.names_blocks(Kind::Tokens, TOKEN_IDS)?;
                let start = scratch.tokens.len();
                reader.tokens(key, &mut scratch.tokens)?;
                self.range = start..scratch.tokens.len();
            }
            "content_hashes" | "block_hashes" if only != Some(Kind::Tokens) => {
                let key = if key == CONTENT_HASHES { CONTENT_HASHES } else { BLOCK_HASHES };
                self.names_blocks(Kind::Hashes, key)?;
                let start = scratch.hashes.len();
                reader.hashes(key, &mut scratch.hashes)?;
                self.range = start..scratch.hashes.len();
            }
            "prompt_tokens" if only != Some(Kind::Tokens) => {
                self.seen.note(2, key)?;
                if !reader.null()? {
                    self.prompt_tokens = Some(reader.unsigned(key)?);
                }
            }
            "lora_name" => {
                self.seen.note(0, key)?;
                self.lora = reader.string_or_null(key)?.map(|it| check_text(key, it)).transpose()?;
            }
            "cache_salt" => {
                self.seen.note(1, key)?;
                self.salt = reader.string_or_null(key)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a URL parameter of a prompt. Returns the value if prompts have no parameter of this name.
    pub(super) fn parameter(&mut self, key: &str, value: Cow<'a, str>, kind: Kind) -> Result<Option<Cow<'a, str>>> {
        match key {
            "lora_name" => {
                self.seen.note(0, key)?;
                self.lora = Some(check_text(key, value)?);
            }
            "cache_salt" => {
                self.seen.note(1, key)?;
                self.salt = Some(value);
            }
            "prompt_tokens" if kind == Kind::Hashes => {
                self.seen.note(2, key)?;
                self.prompt_tokens = Some(unsigned(key, &value)?);
            }
            _ => return Ok(Some(value)),
        }
        Ok(None)
    }

    /// Reads a body that consists of little-endian integers: of 32 bits for tokens, of 64 bits for content hashes.
    pub(super) fn bytes(&mut self, body: &[u8], kind: Kind, scratch: &mut Scratch) -> Result<()> {
        self.names_blocks(kind, kind.member())?;
        let left = match kind {
            Kind::Tokens => {
                let (tokens, left) = body.as_chunks();
                let start = scratch.tokens.len();
                scratch.tokens.extend(tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)));
                self.range = start..scratch.tokens.len();
                left
            }
            Kind::Hashes => {
                let (hashes, left) = body.as_chunks();
                let start = scratch.hashes.len();
                scratch.hashes.extend(hashes.iter().map(|bytes| u64::from_le_bytes(*bytes)));
                self.range = start..scratch.hashes.len();
                left
            }
        };
        if left.is_empty() {
            return Ok(());
        }
        let (what, bits) = match kind {
            Kind::Tokens => ("token ids", 32),
            Kind::Hashes => ("content hashes", 64),
        };
        let message = format!(
            "the body must be {what} as little-endian integers of {bits} bits, a multiple of {} bytes, got {} bytes",
            bits / 8,
            body.len()
        );
        Err(Refusal::invalid("wrong_length", message))
    }

    /// Records the name of the member that gave the prompt's tokens or content hashes. Refused if a member gave them
    /// before.
    fn names_blocks(&mut self, kind: Kind, key: &'static str) -> Result<()> {
        match self.named.replace((kind, key)) {
            None => Ok(()),
            Some((_, same)) if same == key => Err(given_twice(key)),
            Some((_, other)) => {
                let message = format!("{other} and {key} are both given; give only one of them");
                Err(Refusal::invalid("ambiguous_query", message))
            }
        }
    }

    pub(super) fn finish(self, otherwise: &'static str) -> Result<Prompt<'a>> {
        let Self { named, range, prompt_tokens, lora, salt, .. } = self;
        let (kind, blocks) = named.ok_or_else(|| missing(otherwise))?;
        if kind == Kind::Hashes && (lora.is_some() || salt.is_some()) {
            let key = if salt.is_some() { "cache_salt" } else { "lora_name" };
            let message = format!("{key} cannot be combined with {blocks}: it is part of the hashes already");
            return Err(Refusal::invalid("salted_hashes", message));
        }
        let tokens = if kind == Kind::Tokens { Some(range.len() as u64) } else { prompt_tokens };
        Ok(Prompt { kind, range, tokens, lora, salt })
    }
}

/// Maximum number of elements for which a thread keeps memory between two queries.
const KEPT: usize = 1 << 18;

/// Memory for the tokens and content hashes of a query, reused for the next query on the same thread.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) tokens: Vec<u32>,
    pub(super) hashes: Vec<u64>,
    /// Content hashes computed from the tokens of one prompt.
    pub(super) content: Vec<u64>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    /// Calls `work` with the thread's reusable memory, emptied. A nested call gets separate memory.
    pub(crate) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut scratch = SCRATCH.take();
        let done = work(&mut scratch);
        let Self { tokens, hashes, content } = &mut scratch;
        tokens.clear();
        tokens.shrink_to(KEPT);
        for numbers in [hashes, content] {
            numbers.clear();
            numbers.shrink_to(KEPT);
        }
        SCRATCH.set(scratch);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_not_kept_for_ever() {
        Scratch::with(|scratch| scratch.tokens.resize(KEPT * 4, 0));
        Scratch::with(|scratch| assert!(scratch.tokens.is_empty() && scratch.tokens.capacity() <= KEPT));
    }
}
