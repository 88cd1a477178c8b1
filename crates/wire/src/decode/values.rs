//! The values of fields: each read with its own types and limits, and what was found instead said in the refusal.

use std::borrow::Cow;

use super::draft::{Fault, Field};
use super::msgpack::{Cursor, Value};
use crate::error::Reason;
use crate::name::BlockName;

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

/// Reads token ids, or pairs of them: the second of each pair is returned.
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

/// Interns the kind of a cache group, so that no event needs a string of its own.
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
