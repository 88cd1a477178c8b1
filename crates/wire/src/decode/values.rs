//! Decoding of event fields, with the types and limits of each. A field that cannot be decoded is reported with a
//! description of the value found.
//!
//! The field `extra_keys` has for each block a list in which LoRA name, multimodal items, salt and embeddings follow
//! each other without tags. In vLLM's order the LoRA name comes first, if there is one, and only the first block of a
//! prompt has the salt. So a string is taken for the LoRA name if it equals that name and comes first, and for the salt
//! if it is in the first block; any other string is kept as a key of unknown meaning. Tagged tuples, as the engine
//! hashes them, are accepted too, because their shapes are different.
//!
//! # Digests of adapters
//!
//! Two LoRA adapters that are loaded one after the other under one name have different blocks. An open proposal
//! (vllm-project/vllm#48352, seen in November 2026) adds a digest of the adapter's weights after its name in every
//! block; its form in events is not settled. So a string after the name is taken for a digest in three cases:
//! - it has the tag `lora_identity`;
//! - it is in a block that cannot have a salt: one after the first, or one with a parent;
//! - it looks like a digest and the event has one block only: it may be a salt, so it is marked as unsure.
//!
//! A digest does not enter the content hash of a block, because clients know adapters by name only.

use std::borrow::Cow;

use super::draft::{Fault, Field};
use super::msgpack::{Cursor, Value};
use crate::error::Reason;
use crate::event::{AdapterDigest, BlockName, StoredOf};
use crate::keys::Key;

fn wrong(field: Field, wanted: &str, found: &str) -> Fault {
    Fault::Event(Reason::InvalidField, format!("{} must be {wanted}, found {found}", field.name()))
}

fn name<N: BlockName>(value: Value<'_>, field: Field) -> Result<N, Fault> {
    match value {
        Value::Unsigned(name) => Ok(N::unsigned(name)),
        Value::Negative(name) => Ok(N::signed(name)),
        Value::Bytes(name) => Ok(N::digest(name)),
        other => Err(wrong(field, "integers or bytes", other.kind())),
    }
}

pub(crate) fn optional_name<N: BlockName>(cursor: &mut Cursor<'_>, field: Field) -> Result<Option<N>, Fault> {
    match cursor.value()? {
        Value::Nil => Ok(None),
        value => name(value, field).map(Some),
    }
}

pub(crate) fn names<N: BlockName>(cursor: &mut Cursor<'_>, into: &mut Vec<N>) -> Result<(), Fault> {
    into.clear();
    let count = match cursor.value()? {
        Value::Array(count) => count,
        other => return Err(wrong(Field::BlockHashes, "an array", other.kind())),
    };
    // Not all the memory that a header asks for: it may be lying.
    into.reserve(count.min(cursor.left()).min(4096));
    for _ in 0..count {
        into.push(name(cursor.value()?, Field::BlockHashes)?);
    }
    Ok(())
}

/// Reads token ids into `into`. For pairs of token ids (bigrams), the first ids go into `into` and the second ids are
/// returned; `None` without pairs.
pub(crate) fn tokens(cursor: &mut Cursor<'_>, into: &mut Vec<u32>) -> Result<Option<Vec<u32>>, Fault> {
    into.clear();
    let count = match cursor.value()? {
        Value::Array(count) => count,
        Value::Nil => 0,
        other => return Err(wrong(Field::Tokens, "an array", other.kind())),
    };
    if count > 0
        && let Value::Array(_) = { *cursor }.value()?
    {
        return pairs(cursor, count, into).map(Some);
    }
    ids(cursor, count, into)?;
    Ok(None)
}

fn ids(cursor: &mut Cursor<'_>, count: usize, into: &mut Vec<u32>) -> Result<(), Fault> {
    // Every value takes a byte or more.
    into.resize(count.min(cursor.left()), 0);
    let mut read = cursor.u32s(into);
    while read < count {
        // Something else than the shortest forms.
        let id = id(cursor)?;
        if let Some(slot) = into.get_mut(read) {
            *slot = id;
        }
        read += 1;
        read += cursor.u32s(into.get_mut(read..).unwrap_or_default());
    }
    Ok(())
}

fn id(cursor: &mut Cursor<'_>) -> Result<u32, Fault> {
    let refuse = |what: &str| {
        let detail = format!("token_ids must be integers from 0 to {}, found {what}", u32::MAX);
        Fault::Event(Reason::InvalidToken, detail)
    };
    match cursor.value()? {
        Value::Unsigned(id) => u32::try_from(id).map_err(|_| refuse("a larger one")),
        Value::Negative(_) => Err(refuse("a negative one")),
        other => Err(refuse(other.kind())),
    }
}

fn pairs(cursor: &mut Cursor<'_>, count: usize, into: &mut Vec<u32>) -> Result<Vec<u32>, Fault> {
    let mut seconds = Vec::with_capacity(count.min(cursor.left()).min(4096));
    for _ in 0..count {
        match cursor.value()? {
            Value::Array(2) => {
                into.push(id(cursor)?);
                seconds.push(id(cursor)?);
            }
            other => return Err(wrong(Field::Tokens, "all integers or all pairs of them", other.kind())),
        }
    }
    Ok(seconds)
}

pub(crate) fn lookahead(cursor: &mut Cursor<'_>) -> Result<Option<Vec<Vec<u32>>>, Fault> {
    let count = match cursor.value()? {
        Value::Array(count) => count,
        Value::Nil => return Ok(None),
        other => return Err(wrong(Field::Lookahead, "an array or nil", other.kind())),
    };
    let mut all = Vec::with_capacity(count.min(cursor.left()).min(4096));
    for _ in 0..count {
        let mut after = Vec::new();
        match cursor.value()? {
            Value::Array(count) => ids(cursor, count, &mut after)?,
            Value::Nil => {}
            other => return Err(wrong(Field::Lookahead, "an array of arrays", other.kind())),
        }
        all.push(after);
    }
    Ok(Some(all))
}

pub(crate) fn text<'a>(cursor: &mut Cursor<'a>, field: Field) -> Result<Option<&'a str>, Fault> {
    match cursor.value()? {
        Value::Nil => Ok(None),
        Value::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(wrong(field, "UTF-8", "other bytes")),
        },
        other => Err(wrong(field, "a string or nil", other.kind())),
    }
}

pub(crate) fn unsigned<T: TryFrom<u64>>(cursor: &mut Cursor<'_>, field: Field) -> Result<Option<T>, Fault> {
    match cursor.value()? {
        Value::Nil => Ok(None),
        Value::Unsigned(number) => match T::try_from(number) {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(field, "a smaller integer", "a larger one")),
        },
        Value::Negative(_) => Err(wrong(field, "0 or more", "a negative integer")),
        other => Err(wrong(field, "an integer or nil", other.kind())),
    }
}

pub(crate) fn integer(cursor: &mut Cursor<'_>, field: Field) -> Result<Option<i64>, Fault> {
    match cursor.value()? {
        Value::Nil => Ok(None),
        Value::Negative(number) => Ok(Some(number)),
        Value::Unsigned(number) => match number.try_into() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(field, "a smaller integer", "a larger one")),
        },
        other => Err(wrong(field, "an integer or nil", other.kind())),
    }
}

/// Returns a shared text for the kind of a cache group, so that events do not each allocate a copy.
pub(crate) fn kind(kind: &str) -> Cow<'static, str> {
    const USUAL: [&str; 10] = [
        "full_attention",
        "mla_attention",
        "sliding_window",
        "sliding_window_mla",
        "mamba",
        "chunked_local_attention",
        "sink_full_attention",
        "encoder_only_attention",
        "cross_attention",
        "unknown",
    ];
    let usual = USUAL.iter().find(|&&usual| usual == kind);
    usual.map_or_else(|| Cow::Owned(kind.to_owned()), |&usual| Cow::Borrowed(usual))
}

/// Prefix that Dynamo's integration adds to the cache salts that it passes to engines.
const PREFIX: &str = "dynamo-cache-salt:";

/// Returns the client's cache salt from the salt in an event, without an integration's prefix; `None` if empty.
pub(crate) fn salt(shown: &str) -> Option<&str> {
    let salt = shown.strip_prefix(PREFIX).unwrap_or(shown);
    (!salt.is_empty()).then_some(salt)
}

/// Minimum number of hexadecimal digits for a text to count as a digest.
const DIGITS: usize = 32;

/// Extra key as sent, before its meaning within the event is decided.
enum RawKey<'a> {
    Text(&'a str),
    Lora(&'a str),
    Digest(&'a str),
    Salt(&'a str),
    Key(Key),
}

/// Reads the extra keys of all blocks (keys besides tokens, such as a salt or an image's hash) into a store event whose
/// other fields have been read.
pub(crate) fn read<N>(cursor: &mut Cursor<'_>, stored: &mut StoredOf<N>) -> Result<(), Fault> {
    let blocks = match cursor.value()? {
        Value::Nil => return Ok(()),
        Value::Array(blocks) => blocks,
        other => return Err(wrong_keys(&format!("must be an array or nil, found {}", other.kind()))),
    };
    // A string after the adapter's name in the first block: what it is shows in the second one, if there is any.
    let mut after_name: Option<&str> = None;
    let mut is_elsewhere = false;
    for block in 0..blocks {
        let start = *cursor;
        let keys = match cursor.value()? {
            Value::Nil => continue,
            Value::Array(keys) => keys,
            _ => {
                // A key outside a list.
                *cursor = start;
                1
            }
        };
        let (mut tag, mut after) = (None, 0);
        for at in 0..keys {
            let key = sent(cursor)?;
            if block >= stored.block_hashes.len() {
                return Err(wrong_keys(&format!(
                    "are for {blocks} blocks, but there are {}",
                    stored.block_hashes.len()
                )));
            }
            let key = match key {
                RawKey::Text(text) if tag.is_some() => tagged(tag.take(), text),
                RawKey::Text(text) if is_tag(text, at, keys, stored) => {
                    tag = Some(text);
                    continue;
                }
                RawKey::Text(name) if at == 0 && stored.lora.as_deref() == Some(name) => RawKey::Lora(name),
                key => key,
            };
            match key {
                RawKey::Lora(_) => {
                    after = at + 1;
                    understand(key, block, stored);
                }
                RawKey::Text(text) if after > 0 && after == at && looks_like_digest(text) => {
                    if block > 0 || stored.parent.is_some() {
                        is_elsewhere |= after_name == Some(text);
                        note_digest(stored, text, true);
                    } else {
                        after_name = Some(text);
                    }
                }
                _ => understand(key, block, stored),
            }
        }
    }
    match after_name {
        Some(text) if stored.salt.as_deref() == salt(text) => {}
        // There is one salt at most.
        Some(text) if is_elsewhere || stored.salt.is_some() => note_digest(stored, text, true),
        Some(text) if blocks == 1 => note_digest(stored, text, false),
        Some(text) => understand(RawKey::Salt(text), 0, stored),
        None => {}
    }
    Ok(())
}

/// True if a string is a tag that names the meaning of the string after it, as in the tuples that engines hash.
fn is_tag<N>(text: &str, at: usize, keys: usize, stored: &StoredOf<N>) -> bool {
    let is_known = text == "lora" && at == 0 || text == "lora_identity" && at > 0;
    is_known && at + 1 < keys && stored.lora.as_deref().is_some_and(|name| name != text)
}

/// Makes an extra key of a block (a key besides tokens) from a tag and the string after the tag.
fn tagged<'a>(tag: Option<&str>, text: &'a str) -> RawKey<'a> {
    match tag {
        Some("lora") => RawKey::Lora(text),
        _ => RawKey::Digest(text),
    }
}

/// True if a text looks like the digest of a hash function, with or without the function's name before it.
fn looks_like_digest(text: &str) -> bool {
    let digits = text.rsplit_once(':').map_or(text, |(_, digits)| digits);
    digits.len() >= DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn note_digest<N>(stored: &mut StoredOf<N>, text: &str, is_sure: bool) {
    stored.adapter_digest.get_or_insert_with(|| AdapterDigest { text: text.into(), is_sure });
}

fn understand<N>(key: RawKey<'_>, block: usize, stored: &mut StoredOf<N>) {
    let key = match key {
        RawKey::Lora(name) => {
            stored.lora.get_or_insert_with(|| name.into());
            return;
        }
        RawKey::Digest(text) => return note_digest(stored, text, true),
        RawKey::Salt(shown) | RawKey::Text(shown) => {
            let salt = salt(shown);
            let new = stored.salt.is_none() && block == 0;
            if salt.is_none() || salt == stored.salt.as_deref() {
                return;
            }
            if new {
                stored.salt = salt.map(Into::into);
                return;
            }
            Key::Text(shown.into())
        }
        RawKey::Key(key) => key,
    };
    // No more blocks than a header can count.
    stored.extra_keys.push((block as u32, key));
}

fn sent<'a>(cursor: &mut Cursor<'a>) -> Result<RawKey<'a>, Fault> {
    let start = *cursor;
    let plain = match cursor.value()? {
        Value::Text(text) => std::str::from_utf8(text).ok().map(RawKey::Text),
        Value::Bytes(digest) => Some(RawKey::Key(Key::Embeds(digest.into()))),
        Value::Array(parts @ (2 | 3)) => tuple(*cursor, parts)?,
        _ => None,
    };
    *cursor = start;
    cursor.skip()?;
    Ok(plain.unwrap_or_else(|| RawKey::Key(Key::Other(start.until(cursor).into()))))
}

/// Reads an extra key of a block (a key besides tokens) that has several parts: a multimodal item as published, or a
/// tagged tuple. `None` if it is neither.
fn tuple<'a>(mut inside: Cursor<'a>, parts: usize) -> Result<Option<RawKey<'a>>, Fault> {
    let Some(first) = plain_text(inside.value()?) else { return Ok(None) };
    let second = inside.value()?;
    if matches!(second, Value::Array(_) | Value::Map(_)) {
        return Ok(None);
    }
    if parts == 2 {
        return Ok(match (first, second) {
            ("cache_salt", Value::Text(salt)) => plain_text(Value::Text(salt)).map(RawKey::Salt),
            ("lora", Value::Text(name)) => plain_text(Value::Text(name)).map(RawKey::Lora),
            ("lora_identity", Value::Text(digest)) => plain_text(Value::Text(digest)).map(RawKey::Digest),
            ("prompt_embeds", Value::Bytes(digest)) => Some(RawKey::Key(Key::Embeds(digest.into()))),
            (identifier, offset) => plain_integer(offset).map(|offset| item(identifier, offset)),
        });
    }
    let (second, third) = (plain_text(second), inside.value()?);
    Ok(match (first, second, third) {
        ("lora", Some(name), Value::Text(_)) => Some(RawKey::Lora(name)),
        ("mm", Some(identifier), offset) => plain_integer(offset).map(|offset| item(identifier, offset)),
        _ => None,
    })
}

fn item(identifier: &str, offset: i64) -> RawKey<'static> {
    RawKey::Key(Key::Item { identifier: identifier.into(), offset })
}

fn plain_text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Text(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

fn plain_integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Unsigned(number) => number.try_into().ok(),
        Value::Negative(number) => Some(number),
        _ => None,
    }
}

fn wrong_keys(what: &str) -> Fault {
    Fault::Event(Reason::InvalidField, format!("extra_keys {what}"))
}
