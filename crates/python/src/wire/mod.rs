//! `kvatlas.wire`: events of engines as Python objects, their payloads, and the index's state of each stream.

mod batch;
mod changes;

use kvatlas_index::Tier;
use kvatlas_wire::encode::Dialect;
use kvatlas_wire::{self as wire, Event, Name};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};

pub(crate) use self::batch::{Batch, Readers, RefusedEvent, Tally, decode_batch, encode_batch, keyed_content_hashes};
pub(crate) use self::changes::{Removed, Stored};
use crate::errors;
use crate::scalars::{describe, int, string};
use crate::sequences::tokens as convert;

type Object<'py> = Bound<'py, PyAny>;

/// An event by which an engine announces that a rank has lost all its blocks.
#[pyclass(frozen, eq, hash, module = "kvatlas._native")]
#[derive(PartialEq, Hash)]
pub(crate) struct Cleared;

#[pymethods]
impl Cleared {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __repr__(&self) -> &'static str {
        "Cleared()"
    }
}

fn to_python<'py>(py: Python<'py>, event: &Event) -> PyResult<Object<'py>> {
    match event {
        Event::Stored(it) => Ok(Bound::new(py, Stored { tier: it.tier(), it: wire::Stored::clone(it) })?.into_any()),
        Event::Removed(it) => Ok(Bound::new(py, Removed { tier: it.tier(), it: it.clone() })?.into_any()),
        Event::Cleared(_) => Ok(Bound::new(py, Cleared)?.into_any()),
    }
}

fn from_python(event: &Object<'_>, at: usize, dialect: Dialect) -> PyResult<Event> {
    let medium = |tier| Some(dialect.medium(tier).into());
    if let Ok(stored) = event.cast::<Stored>() {
        let Stored { it, tier } = stored.get();
        let mut it = it.clone();
        it.medium = it.medium.or_else(|| medium(*tier));
        return Ok(it.into());
    }
    if let Ok(removed) = event.cast::<Removed>() {
        let Removed { it, tier } = removed.get();
        let mut it = it.clone();
        it.medium = it.medium.or_else(|| medium(*tier));
        return Ok(it.into());
    }
    if event.is_instance_of::<Cleared>() {
        return Ok(wire::Cleared.into());
    }
    let given = describe(event);
    Err(errors::wrong_type(&format!("events[{at}] must be a Stored, Removed or Cleared of kvatlas.wire, got {given}")))
}

/// Tier of an event, from its arguments tier and medium, which must agree if both are given.
fn agreed(said: Tier, has_medium: bool, medium: Tier) -> PyResult<Tier> {
    match (said, has_medium) {
        (said, false) => Ok(said),
        (Tier::Gpu, true) => Ok(medium),
        (said, true) if said == medium => Ok(said),
        (said, true) => {
            let message = format!("tier is \"{said}\", but the medium is of tier \"{medium}\": give one of them");
            Err(errors::argument("conflicting_arguments", &message))
        }
    }
}

/// Text of an event's fields that are not None, for its `repr`.
fn said(event: &Bound<'_, PyAny>, fields: &[&str]) -> PyResult<String> {
    let mut text = String::new();
    for field in fields {
        let value = event.getattr(*field)?;
        if !value.is_none() {
            text += &format!(", {field}={}", value.repr()?);
        }
    }
    Ok(text)
}

fn name_to_python<'py>(py: Python<'py>, name: &Name) -> PyResult<Object<'py>> {
    Ok(match name {
        Name::Unsigned(name) => name.into_pyobject(py)?.into_any(),
        Name::Signed(name) => name.into_pyobject(py)?.into_any(),
        Name::Bytes(name) => PyBytes::new(py, name).into_any(),
    })
}

fn names_to_python<'py>(py: Python<'py>, names: &[Name]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, names.iter().map(|name| name_to_python(py, name)).collect::<PyResult<Vec<_>>>()?)
}

/// Converts a block hash to a form that can be sent: an int of 64 bits, or bytes.
fn name(value: &Object<'_>, what: impl Fn() -> String) -> PyResult<Name> {
    if let Ok(digest) = value.cast::<PyBytes>() {
        return Ok(Name::from(digest.as_bytes()));
    }
    let number = int(value, &what)
        .map_err(|_| errors::wrong_type(&format!("{} must be an int or bytes, got {}", what(), describe(value))))?;
    if let Ok(name) = number.extract::<u64>() {
        return Ok(Name::from(name));
    }
    let name = number.extract::<i64>();
    name.map(Name::from).map_err(|_| {
        let message = format!("{} must be from -2**63 to 2**64 - 1 to be sent, got {number}", what());
        errors::argument("out_of_range", &message)
    })
}

fn names(values: &Object<'_>) -> PyResult<Vec<Name>> {
    each(values, "block_hashes", "a list of ints or bytes")?
        .enumerate()
        .map(|(at, value)| name(&value?, || format!("block_hashes[{at}]")))
        .collect()
}

/// Iterates over a sequence that is not a string, bytes or dict. `what` and `kinds`: the argument's name and expected
/// type, for errors.
fn each<'py>(
    values: &Object<'py>,
    what: &str,
    kinds: &str,
) -> PyResult<impl Iterator<Item = PyResult<Object<'py>>> + use<'py>> {
    let wrong = || errors::wrong_type(&format!("{what} must be {kinds}, got {}", describe(values)));
    if values.is_instance_of::<PyString>() || values.is_instance_of::<PyBytes>() || values.is_instance_of::<PyDict>() {
        return Err(wrong());
    }
    values.try_iter().map_err(|_| wrong())
}

/// Converts an integer that must fit the type of an event's field.
fn number<T: IntegerRange>(value: &Object<'_>, what: &str) -> PyResult<T> {
    let value = int(value, || what.to_owned())?;
    T::of(&value).ok_or_else(|| {
        errors::argument("out_of_range", &format!("{what} must be from {} to {}, got {value}", T::MIN, T::MAX))
    })
}

trait IntegerRange: Sized {
    const MIN: &str;
    const MAX: &str;
    fn of(value: &Bound<'_, PyInt>) -> Option<Self>;
}

macro_rules! bounded {
    ($($type:ty: $min:literal, $max:literal;)*) => {$(
        impl IntegerRange for $type {
            const MIN: &str = $min;
            const MAX: &str = $max;
            fn of(value: &Bound<'_, PyInt>) -> Option<Self> {
                value.extract().ok()
            }
        }
    )*};
}

bounded! {
    u32: "0", "2**32 - 1";
    u64: "0", "2**64 - 1";
    i64: "-2**63", "2**63 - 1";
}

/// Converts tokens, or pairs of tokens: returns the first tokens, and the second tokens if pairs are given.
fn tokens_or_pairs(tokens: &Object<'_>) -> PyResult<(Vec<u32>, Option<Vec<u32>>)> {
    let first = if tokens.is_instance_of::<PyList>() || tokens.is_instance_of::<PyTuple>() {
        tokens.try_iter()?.next().transpose()?
    } else {
        None
    };
    if !first.is_some_and(|first| first.is_instance_of::<PyTuple>() || first.is_instance_of::<PyList>()) {
        return Ok((convert(tokens)?.as_slice().to_vec(), None));
    }
    let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
    for (at, pair) in tokens.try_iter()?.enumerate() {
        let pair = pair?;
        let (first, second) = pair
            .extract::<(Object<'_>, Object<'_>)>()
            .or_else(|_| {
                let [first, second] = pair.extract::<[Object<'_>; 2]>()?;
                Ok::<_, PyErr>((first, second))
            })
            .map_err(|_| {
                errors::wrong_type(&format!("tokens[{at}] must be a pair of ints, got {}", describe(&pair)))
            })?;
        firsts.push(number(&first, &format!("tokens[{at}][0]"))?);
        seconds.push(number(&second, &format!("tokens[{at}][1]"))?);
    }
    Ok((firsts, Some(seconds)))
}

fn token_lists(lists: &Object<'_>) -> PyResult<Vec<Vec<u32>>> {
    each(lists, "lookahead", "a list of lists of ints")?.map(|list| Ok(convert(&list?)?.as_slice().to_vec())).collect()
}

/// Converts the extra keys of all blocks. Returns each key with the index of its block.
fn keys(blocks: &Object<'_>) -> PyResult<Vec<(u32, wire::Key)>> {
    let mut all = Vec::new();
    for (at, keys) in each(blocks, "extra_keys", "a list of lists of keys or None")?.enumerate() {
        let keys = keys?;
        if keys.is_none() {
            continue;
        }
        let block = u32::try_from(at).map_err(|_| errors::argument("out_of_range", "extra_keys is too long"))?;
        for sent in each(&keys, &format!("extra_keys[{at}]"), "a list of keys or None")? {
            all.push((block, key(&sent?, at)?));
        }
    }
    Ok(all)
}

fn key(value: &Object<'_>, at: usize) -> PyResult<wire::Key> {
    if let Ok(digest) = value.cast::<PyBytes>() {
        return Ok(wire::Key::Embeds(digest.as_bytes().into()));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(wire::Key::Text(string(value, &format!("a key of extra_keys[{at}]"))?.into()));
    }
    if let Ok((packed,)) = value.extract::<(Bound<'_, PyBytes>,)>() {
        return Ok(wire::Key::Other(packed.as_bytes().into()));
    }
    let parts = value.extract::<(Object<'_>, Object<'_>)>();
    let parts = parts.or_else(|_| value.extract::<[Object<'_>; 2]>().map(|[identifier, offset]| (identifier, offset)));
    let Ok((identifier, offset)) = parts else {
        let message =
            format!("a key of extra_keys[{at}] must be (str, int), bytes, str or (bytes,), got {}", describe(value));
        return Err(errors::wrong_type(&message));
    };
    let identifier = string(&identifier, &format!("the identifier of a key of extra_keys[{at}]"))?.into();
    Ok(wire::Key::Item { identifier, offset: number(&offset, &format!("the offset of a key of extra_keys[{at}]"))? })
}

fn key_to_python<'py>(py: Python<'py>, key: &wire::Key) -> PyResult<Object<'py>> {
    Ok(match key {
        wire::Key::Item { identifier, offset } => (&**identifier, offset).into_pyobject(py)?.into_any(),
        wire::Key::Embeds(digest) => PyBytes::new(py, digest).into_any(),
        wire::Key::Text(text) => PyString::new(py, text).into_any(),
        wire::Key::Other(packed) => PyTuple::new(py, [PyBytes::new(py, packed)])?.into_any(),
    })
}
