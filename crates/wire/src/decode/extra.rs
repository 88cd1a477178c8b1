//! `extra_keys`: for each block a list in which LoRA name, items, salt and embeddings stand without saying which is
//! which.
//!
//! In vLLM's order the LoRA name comes first, if there is one, and the salt stands in a prompt's first block only. So
//! a string is the LoRA name if it equals it and comes first, and the salt in the first block otherwise; any other
//! string is kept as a key that nobody can mistake for nothing. Tagged tuples, as the engine hashes them, are taken
//! as well: their shapes are different.

use super::fault::Fault;
use super::msgpack::{Cursor, Value};
use crate::error::Reason;
use crate::event::StoredOf;
use crate::keys::Key;

/// Prefix that one integration puts before the salts that it hands to the engine.
const PREFIX: &str = "dynamo-cache-salt:";

/// The salt that a client knows, of what an engine shows; none if it is empty.
pub(crate) fn salt(shown: &str) -> Option<&str> {
    let salt = shown.strip_prefix(PREFIX).unwrap_or(shown);
    (!salt.is_empty()).then_some(salt)
}

/// One key as sent.
enum RawKey<'a> {
    Text(&'a str),
    Lora(&'a str),
    Salt(&'a str),
    Key(Key),
}

/// Reads the keys of all blocks into the event, whose other fields are known.
pub(crate) fn read<N>(cursor: &mut Cursor<'_>, stored: &mut StoredOf<N>) -> Result<(), Fault> {
    let blocks = match cursor.value()? {
        Value::Nil => return Ok(()),
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&format!("must be an array or nil, found {}", other.kind()))),
    };
    for block in 0..blocks {
        let start = *cursor;
        let keys = match cursor.value()? {
            Value::Nil => continue,
            Value::Array(keys) => keys,
            _ => {
                // A key that nobody has put into a list.
                *cursor = start;
                1
            }
        };
        for at in 0..keys {
            let key = sent(cursor)?;
            if block >= stored.block_hashes.len() {
                return Err(wrong(&format!("are for {blocks} blocks, but there are {}", stored.block_hashes.len())));
            }
            understand(key, block, at, stored);
        }
    }
    Ok(())
}

fn understand<N>(key: RawKey<'_>, block: usize, at: usize, stored: &mut StoredOf<N>) {
    let key = match key {
        RawKey::Lora(name) => {
            stored.lora.get_or_insert_with(|| name.into());
            return;
        }
        RawKey::Text(name) if at == 0 && stored.lora.as_deref() == Some(name) => return,
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

/// A key of several parts: an item as shown, or a tagged tuple. None if it is neither.
fn tuple<'a>(mut inside: Cursor<'a>, parts: usize) -> Result<Option<RawKey<'a>>, Fault> {
    let Some(first) = text(inside.value()?) else { return Ok(None) };
    let second = inside.value()?;
    if matches!(second, Value::Array(_) | Value::Map(_)) {
        return Ok(None);
    }
    if parts == 2 {
        return Ok(match (first, second) {
            ("cache_salt", Value::Text(salt)) => text(Value::Text(salt)).map(RawKey::Salt),
            ("prompt_embeds", Value::Bytes(digest)) => Some(RawKey::Key(Key::Embeds(digest.into()))),
            (identifier, offset) => integer(offset).map(|offset| item(identifier, offset)),
        });
    }
    let (second, third) = (text(second), inside.value()?);
    Ok(match (first, second, third) {
        ("lora", Some(name), Value::Text(_)) => Some(RawKey::Lora(name)),
        ("mm", Some(identifier), offset) => integer(offset).map(|offset| item(identifier, offset)),
        _ => None,
    })
}

fn item(identifier: &str, offset: i64) -> RawKey<'static> {
    RawKey::Key(Key::Item { identifier: identifier.into(), offset })
}

fn text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Text(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

fn integer(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Unsigned(number) => number.try_into().ok(),
        Value::Negative(number) => Some(number),
        _ => None,
    }
}

fn wrong(what: &str) -> Fault {
    Fault::Event(Reason::InvalidField, format!("extra_keys {what}"))
}
