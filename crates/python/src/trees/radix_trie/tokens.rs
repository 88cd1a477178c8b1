//! Tokens in the trie's form, 32 bits each.
//!
//! A token id below 2^31 is stored as itself, so that arrays of such ids are read in place. Any other token (a negative
//! or greater int, a string) is a symbol: a number from 2^31 on that stands for the token as long as the trie contains
//! it.

use std::collections::HashMap;

use bytemuck::cast_slice;
use kvatlas_trees::radix_trie::{Tokens, WideTokens};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString, PyTuple};

use crate::errors;
use crate::raw::{Array, Offer, offer, plain_ints};
use crate::scalars::{describe, int, string};

/// Number of the first symbol, which stands for a token that is not a small int.
const SYMBOLS: u32 = 1 << 31;
/// Number that stands for any token without a symbol in the trie, which matches nothing.
const UNKNOWN: u32 = u32::MAX;

/// Tokens given to a call: an array read in place, or converted items of a list.
pub(super) enum Words {
    U32(Array<u32>),
    I32(Array<i32>),
    U64(Array<u64>),
    I64(Array<i64>),
    Items(Vec<u32>),
    /// Tokens of which some are symbols: negative or large ints, or strings.
    Raw(Vec<Token>),
}

/// A token as the caller gives it: an int or a string.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Int(i128),
    Text(Box<str>),
}

impl Token {
    fn plain(&self) -> Option<u32> {
        match self {
            Self::Int(id) => u32::try_from(*id).ok().filter(|&id| id < SYMBOLS),
            Self::Text(_) => None,
        }
    }

    pub(super) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Int(id) => Ok(id.into_pyobject(py)?.into_any()),
            Self::Text(text) => Ok(PyString::new(py, text).into_any()),
        }
    }
}

impl Words {
    pub(super) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let small = |bits: u64| bits < SYMBOLS.into();
        if let Ok(list) = object.cast::<PyList>() {
            let plain = plain_ints(list, |id| small(id).then_some(id as u32), |_| None);
            return plain.map_or_else(|| items(object), |items| Ok(Self::Items(items)));
        }
        let wanted = || {
            let message = format!("tokens must be an array or a list of ints or of strs, got {}", describe(object));
            errors::wrong_type(&message)
        };
        if [
            object.is_instance_of::<PyBytes>(),
            object.is_instance_of::<PyByteArray>(),
            object.is_instance_of::<PyString>(),
        ]
        .contains(&true)
        {
            return Err(wanted());
        }
        match offer(object, "tokens")? {
            Offer::U32(array) if small(array.iter().fold(0, |all, &id| all | id).into()) => Ok(Self::U32(array)),
            Offer::I32(array) if array.iter().fold(0, |all, &id| all | id) >= 0 => Ok(Self::I32(array)),
            Offer::U64(array) if small(array.iter().fold(0, |all, &id| all | id)) => Ok(Self::U64(array)),
            Offer::I64(array) if small(array.iter().fold(0, |all, &id| all | id.cast_unsigned())) => {
                Ok(Self::I64(array))
            }
            Offer::Nothing if object.is_instance_of::<PyTuple>() => items(object),
            // Arrays with gaps, of other widths, of strings: as the list that they say they are.
            _ => match object.call_method0(intern!(object.py(), "tolist")) {
                Ok(list) if list.is_instance_of::<PyList>() => Self::new(&list),
                _ if object.try_iter().is_ok() => items(object),
                _ => Err(wanted()),
            },
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::U32(array) => array.len(),
            Self::I32(array) => array.len(),
            Self::U64(array) => array.len(),
            Self::I64(array) => array.len(),
            Self::Items(items) => items.len(),
            Self::Raw(items) => items.len(),
        }
    }
}

/// An operation on tokens, for any memory layout of the tokens.
pub(super) trait TokenCall<T> {
    fn with(self, tokens: &(impl Tokens + ?Sized)) -> T;
}

impl Words {
    /// Runs an operation on the tokens. `raw`: the tokens' numbers, used if some tokens are symbols.
    pub(super) fn give<T>(&self, raw: &[u32], to: impl TokenCall<T>) -> T {
        match self {
            Self::U32(array) => to.with(&**array),
            Self::I32(array) => to.with(cast_slice::<i32, u32>(array)),
            Self::U64(array) => to.with(&WideTokens(array)),
            Self::I64(array) => to.with(&WideTokens(cast_slice(array))),
            Self::Items(items) => to.with(&**items),
            Self::Raw(_) => to.with(raw),
        }
    }
}

/// Converts each token of a list or other iterable; the result is `Raw` only if there is a symbol.
fn items(object: &Bound<'_, PyAny>) -> PyResult<Words> {
    let convert = |at: usize, item: &Bound<'_, PyAny>| {
        let what = || format!("tokens[{at}]");
        if item.is_instance_of::<PyString>() {
            return Ok(Token::Text(string(item, &what())?.into()));
        }
        let id = int(item, what).map_err(|_| {
            errors::wrong_type(&format!("tokens[{at}] must be an int or a str, got {}", describe(item)))
        })?;
        let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
        match id.extract::<i128>() {
            Ok(id) if range.contains(&id) => Ok(Token::Int(id)),
            _ => Err(errors::argument(
                "out_of_range",
                &format!("tokens[{at}] must be from -2**63 to 2**64 - 1, got {id}"),
            )),
        }
    };
    let tokens = object.try_iter()?.enumerate().map(|(at, item)| convert(at, &item?)).collect::<PyResult<Vec<_>>>()?;
    let plain: Option<Vec<u32>> = tokens.iter().map(Token::plain).collect();
    Ok(plain.map_or(Words::Raw(tokens), Words::Items))
}

/// Symbols of a trie, which stand for tokens that are not small ints, each with the number of its occurrences in the
/// trie.
#[derive(Default)]
pub(super) struct Symbols {
    numbers: HashMap<Token, u32>,
    symbols: Vec<(Option<Token>, usize)>,
    vacant: Vec<u32>,
}

impl Symbols {
    /// Returns the numbers of tokens for a lookup; empty if no token is a symbol, since the tokens themselves then
    /// serve.
    pub(super) fn find(&self, words: &Words) -> Vec<u32> {
        let Words::Raw(tokens) = words else { return Vec::new() };
        let find = |token: &Token| match token.plain() {
            Some(plain) => plain,
            None => self.numbers.get(token).map_or(UNKNOWN, |number| SYMBOLS + number),
        };
        tokens.iter().map(find).collect()
    }

    /// Returns the numbers of tokens to be stored, and counts one more occurrence of each symbol.
    pub(super) fn hold(&mut self, words: &Words) -> Vec<u32> {
        let Words::Raw(tokens) = words else { return Vec::new() };
        tokens.iter().map(|token| token.plain().unwrap_or_else(|| self.hold_one(token))).collect()
    }

    fn hold_one(&mut self, token: &Token) -> u32 {
        let number = match self.numbers.get(token) {
            Some(&number) => number,
            None => {
                let number = self.vacant.pop().unwrap_or_else(|| {
                    self.symbols.push((None, 0));
                    (self.symbols.len() - 1) as u32
                });
                self.symbols[number as usize].0 = Some(token.clone());
                self.numbers.insert(token.clone(), number);
                number
            }
        };
        self.symbols[number as usize].1 += 1;
        SYMBOLS + number
    }

    /// Counts one occurrence less of each symbol among tokens that were removed from the trie; unused symbols are
    /// freed.
    pub(super) fn release(&mut self, words: &[u32]) {
        if self.numbers.is_empty() {
            return;
        }
        for number in words.iter().filter_map(|word| word.checked_sub(SYMBOLS)) {
            let (symbol, count) = &mut self.symbols[number as usize];
            *count -= 1;
            if *count == 0
                && let Some(symbol) = symbol.take()
            {
                self.numbers.remove(&symbol);
                self.vacant.push(number);
            }
        }
        if self.numbers.is_empty() {
            *self = Self::default();
        }
    }

    /// Token for which a number in the trie stands.
    pub(super) fn token(&self, word: u32) -> Token {
        let symbol = word.checked_sub(SYMBOLS).and_then(|number| self.symbols.get(number as usize));
        symbol.and_then(|(symbol, _)| symbol.clone()).unwrap_or(Token::Int(word.into()))
    }

    pub(super) fn tokens(&self, words: &[u32]) -> Vec<Token> {
        words.iter().map(|&word| self.token(word)).collect()
    }
}
