//! Conversion of sequences of numbers: tokens, content hashes, block hashes. Arrays are read in place, lists item by
//! item.

use std::fmt::Display;

use bytemuck::cast_slice;
use kvatlas_index::BlockHash;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView, PySequence, PyString, PyTuple};

use crate::errors;
use crate::raw::{Array, Offer, offer, plain_ints};
use crate::scalars::{block_hash, describe, int};

const CONTENT: &str = "content_hashes";
const NAMES: &str = "block_hashes";
const TOKENS: &str = "tokens";

/// Content hashes, read in place from the caller's array or copied from a list.
pub(crate) enum Contents {
    Array(Array<u64>),
    Items(Vec<u64>),
}

impl Contents {
    pub(crate) fn as_slice(&self) -> &[u64] {
        match self {
            Self::Array(array) => array,
            Self::Items(items) => items,
        }
    }
}

/// Reads content hashes from an array of `uint64` or a sequence of ints.
pub(crate) fn contents(object: &Bound<'_, PyAny>) -> PyResult<Contents> {
    if let Some(items) = plain_list(object, Some, |_| None) {
        return Ok(Contents::Items(items));
    }
    let wanted = || wanted(object, CONTENT, "a uint64 array or a list of ints");
    let item = |at: usize, item: &Bound<'_, PyAny>| {
        let value = int(item, || format!("{CONTENT}[{at}]"))?;
        value.extract().map_err(|_| out_of_range(CONTENT, at, &value, "2**64 - 1"))
    };
    match offer(object, CONTENT)? {
        Offer::U64(array) => Ok(Contents::Array(array)),
        Offer::Irregular => items(object, item).map(Contents::Items),
        Offer::Nothing if is_sequence(object) => items(object, item).map(Contents::Items),
        _ => Err(wanted()),
    }
}

/// Reads block hashes from an array of integers or a sequence of ints or bytes.
pub(crate) fn names(object: &Bound<'_, PyAny>) -> PyResult<Vec<BlockHash>> {
    if let Some(items) = plain_list(object, |name| Some(BlockHash(name)), |name| Some(BlockHash::from_i64(name))) {
        return Ok(items);
    }
    let wanted = || wanted(object, NAMES, "a list of ints or bytes, or an integer array");
    let item = |at: usize, item: &Bound<'_, PyAny>| block_hash(item, || format!("{NAMES}[{at}]"));
    match offer(object, NAMES)? {
        Offer::U64(array) => Ok(array.iter().map(|&name| BlockHash(name)).collect()),
        Offer::I64(array) => Ok(array.iter().map(|&name| BlockHash::from_i64(name)).collect()),
        Offer::U32(array) => Ok(array.iter().map(|&name| BlockHash(name.into())).collect()),
        Offer::I32(array) => Ok(array.iter().map(|&name| BlockHash::from_i64(name.into())).collect()),
        Offer::Irregular => items(object, item),
        Offer::Nothing if is_sequence(object) => items(object, item),
        _ => Err(wanted()),
    }
}

/// Token ids, read in place from the caller's array or copied from a list.
pub(crate) enum Tokens {
    Unsigned(Array<u32>),
    Signed(Array<i32>),
    Bytes(Array<u8>),
    Items(Vec<u32>),
}

impl Tokens {
    pub(crate) fn as_slice(&self) -> &[u32] {
        match self {
            Self::Unsigned(array) => array,
            Self::Signed(array) => cast_slice(array),
            Self::Bytes(array) => cast_slice(array),
            Self::Items(items) => items,
        }
    }
}

/// Reads tokens from an array of 32 or 64-bit integers, the bytes of little-endian `uint32`s, or a sequence of ints.
pub(crate) fn tokens(object: &Bound<'_, PyAny>) -> PyResult<Tokens> {
    if let Some(items) = plain_list(object, |token| token.try_into().ok(), |_| None) {
        return Ok(Tokens::Items(items));
    }
    let wanted = || {
        wanted(
            object,
            TOKENS,
            "an array of uint32, int32, uint64 or int64, bytes of little-endian uint32s, or a list of ints",
        )
    };
    let item = |at: usize, item: &Bound<'_, PyAny>| {
        let value = int(item, || format!("{TOKENS}[{at}]"))?;
        value.extract::<u32>().map_err(|_| out_of_range(TOKENS, at, &value, "2**32 - 1"))
    };
    match offer(object, TOKENS)? {
        Offer::U32(array) => Ok(Tokens::Unsigned(array)),
        Offer::I32(array) => {
            in_range(&array, array.iter().fold(0, |all, &token| all | token) >= 0)?;
            Ok(Tokens::Signed(array))
        }
        Offer::U64(array) => narrow(&array, |token| token),
        Offer::I64(array) => narrow(&array, |token| token as u64),
        Offer::U8(array) if is_bytes(object) => from_bytes(array),
        Offer::Irregular => items(object, item).map(Tokens::Items),
        Offer::Nothing if is_sequence(object) => items(object, item).map(Tokens::Items),
        _ => Err(wanted()),
    }
}

/// Copies bytes from any object with a contiguous buffer of bytes.
pub(crate) fn bytes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    match offer(object, what)? {
        Offer::U8(bytes) => Ok(bytes.to_vec()),
        _ => Err(wanted(object, what, "bytes")),
    }
}

/// Converts 64-bit integers to tokens. All bits are checked in one pass without branches, which the compiler
/// vectorizes.
fn narrow<T: Copy + Display + TryInto<u32>>(array: &[T], bits: impl Fn(T) -> u64) -> PyResult<Tokens> {
    in_range(array, array.iter().fold(0, |all, &token| all | bits(token)) <= u32::MAX.into())?;
    Ok(Tokens::Items(array.iter().map(|&token| bits(token) as u32).collect()))
}

/// Returns an error that names the first item which is not a valid token; no error if `all` is true.
fn in_range<T: Copy + Display + TryInto<u32>>(array: &[T], all: bool) -> PyResult<()> {
    if all {
        return Ok(());
    }
    let wrong = array.iter().enumerate().find(|&(_, &token)| token.try_into().is_err());
    wrong.map_or(Ok(()), |(at, token)| Err(out_of_range(TOKENS, at, token, "2**32 - 1")))
}

fn from_bytes(bytes: Array<u8>) -> PyResult<Tokens> {
    if !bytes.len().is_multiple_of(size_of::<u32>()) {
        let message = format!("{TOKENS} are bytes of little-endian uint32s, 4 for each; got {} bytes", bytes.len());
        return Err(errors::argument("token_bytes", &message));
    }
    if cfg!(target_endian = "little") && bytes.as_ptr().cast::<u32>().is_aligned() {
        return Ok(Tokens::Bytes(bytes));
    }
    let (tokens, _) = bytes.as_chunks();
    Ok(Tokens::Items(tokens.iter().map(|&token| u32::from_le_bytes(token)).collect()))
}

/// Reads a list of plain ints the fast way. `None` for any other object or item, which the slower conversion then
/// handles with detailed errors.
fn plain_list<T>(
    object: &Bound<'_, PyAny>,
    from: impl Fn(u64) -> Option<T>,
    from_negative: impl Fn(i64) -> Option<T>,
) -> Option<Vec<T>> {
    plain_ints(object.cast::<PyList>().ok()?, from, from_negative)
}

/// Converts each item of a list, tuple or other iterable.
fn items<T>(object: &Bound<'_, PyAny>, convert: impl Fn(usize, &Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<Vec<T>> {
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().enumerate().map(|(at, item)| convert(at, &item)).collect();
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return tuple.iter().enumerate().map(|(at, item)| convert(at, &item)).collect();
    }
    object.try_iter()?.enumerate().map(|(at, item)| convert(at, &item?)).collect()
}

fn is_sequence(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.cast::<PySequence>().is_ok() && !object.is_instance_of::<PyString>()
}

fn is_bytes(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>()
        || object.is_instance_of::<PyMemoryView>()
}

fn wanted(object: &Bound<'_, PyAny>, what: &str, kinds: &str) -> PyErr {
    errors::wrong_type(&format!("{what} must be {kinds}, got {}", describe(object)))
}

fn out_of_range(what: &str, at: usize, value: impl Display, limit: &str) -> PyErr {
    errors::argument("out_of_range", &format!("{what}[{at}] must be from 0 to {limit}, got {value}"))
}
