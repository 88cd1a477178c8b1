//! Conversion of single arguments: worker, rank, tier, names, sizes, block hashes. Each error says what was given and
//! what is expected.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use kvatlas_index::{BlockHash, Tier};
use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString};

use crate::errors;

/// Describes the type of a value, with element type and shape if it is an array: `float`, `numpy.ndarray of float64,
/// shape (3,)`.
pub(crate) fn describe(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    match (value.getattr(intern!(value.py(), "dtype")), value.getattr(intern!(value.py(), "shape"))) {
        (Ok(dtype), Ok(shape)) => format!("{name} of {dtype}, shape {shape}"),
        _ => name,
    }
}

/// Converts a number of seconds, at least 0, to a duration. `name`: the argument's name for errors.
pub(crate) fn duration(name: &str, seconds: f64) -> PyResult<Duration> {
    let wanted = || errors::argument("out_of_range", &format!("{name} must be a number of seconds from 0 on"));
    Duration::try_from_secs_f64(seconds).map_err(|_| wanted())
}

/// Converts an integer to Python's own `int`; booleans, floats and other types are refused.
pub(crate) fn int<'py>(value: &Bound<'py, PyAny>, what: impl Fn() -> String) -> PyResult<Bound<'py, PyInt>> {
    if value.is_exact_instance_of::<PyInt>() {
        return Ok(value.cast::<PyInt>()?.clone());
    }
    let index = if value.is_instance_of::<PyBool>() { None } else { index(value) };
    index.ok_or_else(|| errors::wrong_type(&format!("{} must be an int, got {}", what(), describe(value))))
}

/// Python's `operator.index(value)`, which converts NumPy's integers and similar types.
fn index<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyInt>> {
    let index = value.call_method0(intern!(value.py(), "__index__")).ok()?;
    index.cast_into::<PyInt>().ok()
}

/// Reads an argument that is a worker's name.
pub(crate) fn worker<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    string(value, "worker")
}

/// Reads an optional string argument, such as the name of a LoRA adapter or a salt.
pub(crate) fn optional_string<'a>(value: Option<&'a Bound<'_, PyAny>>, what: &str) -> PyResult<Option<&'a str>> {
    value.map(|value| string(value, what)).transpose()
}

/// Reads a string that can be encoded as UTF-8.
pub(crate) fn string<'a>(value: &'a Bound<'_, PyAny>, what: &str) -> PyResult<&'a str> {
    let value = value
        .cast::<PyString>()
        .map_err(|_| errors::wrong_type(&format!("{what} must be a str, got {}", describe(value))))?;
    value.to_str().map_err(|_| errors::argument("invalid_string", &format!("{what} contains a lone surrogate")))
}

/// Defines types of arguments with a default other than `None`: a separate type lets PyO3 fill in the default, and
/// refuse `None`.
macro_rules! argument {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $convert:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) $type);

        impl FromPyObject<'_, '_> for $name {
            type Error = PyErr;

            fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
                let convert: fn(&Bound<'_, PyAny>) -> PyResult<$type> = $convert;
                convert(&value).map(Self)
            }
        }
    )*};
}
pub(crate) use argument;

argument! {
    /// Argument `rank`: a data-parallel rank.
    Rank(u32) = rank;
    /// Argument `tier`: a tier by its name.
    TierName(Tier) = tier;
    /// Argument `block_size`: number of tokens in a block, at least 1.
    BlockSize(u32) = block_size;
    /// Argument `count_copies`: true if a block announced several times counts as several copies.
    Flag(bool) = |value| flag(value, "count_copies");
    /// Argument `top_k`: maximum number of workers returned.
    TopK(usize) = |value| count(value, "top_k");
}

/// Converts a data-parallel rank.
pub(crate) fn rank(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    within(value, "rank", 0..=u32::MAX)
}

/// Converts an integer that must lie within a range. `what`: the argument's name for errors.
pub(crate) fn within<T>(value: &Bound<'_, PyAny>, what: &str, range: RangeInclusive<T>) -> PyResult<T>
where
    T: for<'a, 'py> FromPyObject<'a, 'py> + PartialOrd + Display,
{
    let value = int(value, || what.to_owned())?;
    match value.extract::<T>() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let (least, most) = range.into_inner();
            Err(errors::argument("out_of_range", &format!("{what} must be from {least} to {most}, got {value}")))
        }
    }
}

/// Converts a finite number that `accepts` approves. `what`: the argument's name, `wanted`: a description of the
/// accepted numbers, both for errors.
pub(crate) fn number(
    value: &Bound<'_, PyAny>,
    what: &str,
    wanted: &str,
    accepts: impl Fn(f64) -> bool,
) -> PyResult<f64> {
    let number = if value.is_instance_of::<PyBool>() { None } else { Some(value.extract::<f64>()) };
    match number {
        Some(Ok(number)) if number.is_finite() && accepts(number) => Ok(number),
        Some(Err(error)) if !error.is_instance_of::<PyOverflowError>(value.py()) => {
            Err(errors::wrong_type(&format!("{what} must be a number, got {}", describe(value))))
        }
        None => Err(errors::wrong_type(&format!("{what} must be a number, got {}", describe(value)))),
        _ => Err(errors::argument("out_of_range", &format!("{what} must be {wanted}, got {value}"))),
    }
}

/// Converts the name of a tier.
pub(crate) fn tier(value: &Bound<'_, PyAny>) -> PyResult<Tier> {
    string(value, "tier")?.parse().map_err(|error| errors::index(&error))
}

/// Converts a number of tokens per block, at least 1.
fn block_size(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let value = int(value, || "block_size".to_owned())?;
    match value.extract::<u32>() {
        Ok(size @ 1..) => Ok(size),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) && value.gt(0)? => {
            Err(errors::argument("out_of_range", &format!("block_size must be from 1 to {}, got {value}", u32::MAX)))
        }
        _ => Err(errors::argument("invalid_block_size", &format!("block_size must be at least 1, got {value}"))),
    }
}

/// Converts a count, at least 0. A count too large for memory becomes the largest possible one.
fn count(value: &Bound<'_, PyAny>, what: &str) -> PyResult<usize> {
    let value = int(value, || what.to_owned())?;
    if value.lt(0)? {
        return Err(errors::argument("out_of_range", &format!("{what} must be at least 0, got {value}")));
    }
    Ok(value.extract().unwrap_or(usize::MAX))
}

/// Converts `True` or `False`; other values that Python treats as true or false are refused.
pub(crate) fn flag(value: &Bound<'_, PyAny>, what: &str) -> PyResult<bool> {
    let value = value
        .cast::<PyBool>()
        .map_err(|_| errors::wrong_type(&format!("{what} must be True or False, got {}", describe(value))))?;
    Ok(value.is_true())
}

/// Converts an engine's block hash: an int of any width and sign, or bytes.
pub(crate) fn block_hash(value: &Bound<'_, PyAny>, what: impl Fn() -> String) -> PyResult<BlockHash> {
    if let Ok(digest) = value.cast::<PyBytes>() {
        return Ok(BlockHash::from_bytes(digest.as_bytes()));
    }
    let name = int(value, &what)
        .map_err(|_| errors::wrong_type(&format!("{} must be an int or bytes, got {}", what(), describe(value))))?;
    if let Ok(name) = name.extract() {
        return Ok(BlockHash(name));
    }
    if let Ok(name) = name.extract() {
        return Ok(BlockHash::from_i64(name));
    }
    wide(&name)
}

/// Converts a block hash that does not fit in 64 bits, as the shortest two's complement that includes its sign.
fn wide(name: &Bound<'_, PyInt>) -> PyResult<BlockHash> {
    let py = name.py();
    let magnitude = if name.lt(0)? { name.call_method0(intern!(py, "__invert__"))? } else { name.clone().into_any() };
    let bits: usize = magnitude.call_method0(intern!(py, "bit_length"))?.extract()?;
    let signed = pyo3::types::PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let bytes = name.call_method(intern!(py, "to_bytes"), (bits / 8 + 1, intern!(py, "little")), Some(&signed))?;
    Ok(BlockHash::from_bytes(bytes.cast::<PyBytes>()?.as_bytes()))
}

/// Reads the argument `among`, an iterable of names.
pub(crate) fn names(among: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    strings(among, "among")
}

/// Reads an iterable of strings. `what`: the argument's name for errors.
pub(crate) fn strings(list: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<String>> {
    let wanted = || errors::wrong_type(&format!("{what} must be an iterable of str, got {}", describe(list)));
    if list.is_instance_of::<PyString>() {
        return Err(wanted());
    }
    let items = list.try_iter().map_err(|_| wanted())?.enumerate();
    items.map(|(at, item)| Ok(string(&item?, &format!("{what}[{at}]"))?.to_owned())).collect()
}
