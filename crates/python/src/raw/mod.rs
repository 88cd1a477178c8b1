//! Python's memory read in place: all `unsafe` code of this crate.
//!
//! Here are arrays by the buffer protocol and lists of plain ints; `layout.rs` tells whether the interpreter lays out its ints
//! and lists as expected.

mod layout;

use std::ops::Deref;
use std::ptr::NonNull;

use bytemuck::AnyBitPattern;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyList;

#[cfg(feature = "trees")]
pub(crate) use self::layout::Layout;
#[cfg(not(feature = "trees"))]
use self::layout::Layout;
use crate::errors;

/// The kind of array that an object offers to those who look for one of integers.
pub(crate) enum Offer {
    U8(Array<u8>),
    U32(Array<u32>),
    I32(Array<i32>),
    U64(Array<u64>),
    I64(Array<i64>),
    /// An array of integers all the same, but with gaps, in foreign byte order or unaligned: to be read one by one.
    Irregular,
    /// An array of something else.
    Other,
    /// The object is not an array.
    Nothing,
}

/// A one-dimensional array that some Python object owns, kept alive and in place by the buffer.
///
/// As with NumPy's own functions, a caller who changes the array from another thread while a call reads it gets an
/// answer about neither the old nor the new contents.
pub(crate) struct Array<T> {
    items: NonNull<[T]>,
    _buffer: PyUntypedBuffer,
}

impl<T> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` checked address, length, alignment and that every bit pattern is a T; the exporter neither
        // frees nor moves the memory before the buffer is released, which is when `self` is dropped.
        unsafe { self.items.as_ref() }
    }
}

impl<T: AnyBitPattern> Array<T> {
    /// Takes a buffer as an array; returns `None` if the items have gaps between them or are not where a `T` may be.
    fn new(buffer: PyUntypedBuffer) -> Option<Self> {
        let start = NonNull::new(buffer.buf_ptr().cast::<T>());
        let start = if buffer.item_count() == 0 { NonNull::dangling() } else { start? };
        let whole = buffer.item_size() == size_of::<T>() && buffer.is_c_contiguous();
        (whole && start.is_aligned())
            .then(|| Self { items: NonNull::slice_from_raw_parts(start, buffer.item_count()), _buffer: buffer })
    }
}

/// Looks at an object as at an array. `what` names the argument in errors.
pub(crate) fn offer(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Offer> {
    // SAFETY: a type check of a live object.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(Offer::Nothing);
    }
    let Ok(buffer) = PyUntypedBuffer::get(object) else {
        return Ok(Offer::Other);
    };
    if buffer.dimensions() != 1 {
        let dimensions = buffer.dimensions();
        return Err(errors::argument(
            "wrong_shape",
            &format!("{what} must have one dimension, got an array of {dimensions} dimensions"),
        ));
    }
    let (order, kind) = match buffer.format().to_bytes() {
        [kind] => (b'@', *kind),
        [order, kind] => (*order, *kind),
        _ => return Ok(Offer::Other),
    };
    let signed = kind.is_ascii_lowercase();
    if !b"bBiIlLqQnN".contains(&kind) {
        return Ok(Offer::Other);
    }
    let foreign = if cfg!(target_endian = "little") { b">!".contains(&order) } else { order == b'<' };
    Ok(match (signed, buffer.item_size()) {
        (_, 4 | 8) if foreign => Offer::Irregular,
        (false, 1) => Array::new(buffer).map_or(Offer::Irregular, Offer::U8),
        (false, 4) => Array::new(buffer).map_or(Offer::Irregular, Offer::U32),
        (true, 4) => Array::new(buffer).map_or(Offer::Irregular, Offer::I32),
        (false, 8) => Array::new(buffer).map_or(Offer::Irregular, Offer::U64),
        (true, 8) => Array::new(buffer).map_or(Offer::Irregular, Offer::I64),
        _ => Offer::Other,
    })
}

/// The items of a list that holds nothing but plain ints of 64 bits that one of the two functions takes, the second
/// those below 0; `None` if there is anything else in it.
pub(crate) fn plain_ints<T>(
    list: &Bound<'_, PyList>,
    from: impl Fn(u64) -> Option<T>,
    from_negative: impl Fn(i64) -> Option<T>,
) -> Option<Vec<T>> {
    let py = list.py();
    if let Some(items) = Layout::of(py).and_then(|layout| layout.ints(list, &from)) {
        return Some(items);
    }
    with_critical_section(list, || {
        let mut items = Vec::with_capacity(list.len());
        for at in 0..list.len() {
            // SAFETY: `at` is within the list, and the borrowed item lives as long as the list is not changed: the
            // critical section (or the GIL) keeps others from it, and converting an exact int runs no Python code.
            let item = unsafe { ffi::PyList_GetItem(list.as_ptr(), at as ffi::Py_ssize_t) };
            // SAFETY: as above.
            if unsafe { ffi::Py_TYPE(item) } != &raw mut ffi::PyLong_Type {
                return None;
            }
            let mut overflow = 0;
            // SAFETY: as above. This way of asking raises nothing, so nothing else runs between the uses of the item.
            let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(item, &raw mut overflow) };
            match overflow {
                0 => items.push(if value < 0 { from_negative(value)? } else { from(value.cast_unsigned())? }),
                1.. => {
                    // SAFETY: as above; it is positive. The item is not used after an exception.
                    let value = unsafe { ffi::PyLong_AsUnsignedLongLong(item) };
                    if value == u64::MAX && PyErr::take(py).is_some() {
                        return None;
                    }
                    items.push(from(value)?);
                }
                _ => return None,
            }
        }
        Some(items)
    })
}

/// A NumPy array of `uint64` that only we know yet, to be filled and handed out.
pub(crate) struct NewArray<'py> {
    object: Bound<'py, PyAny>,
    items: Array<u64>,
}

impl<'py> NewArray<'py> {
    pub(crate) fn with_length(py: Python<'py>, length: usize) -> PyResult<Self> {
        static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static UINT64: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let dtype = UINT64.get_or_try_init(py, || {
            let dtype = py.import("numpy")?.getattr("dtype")?.call1(("uint64",))?;
            Ok::<_, PyErr>(dtype.unbind())
        })?;
        let object = EMPTY.import(py, "numpy", "empty")?.call1((length, dtype))?;
        match offer(&object, "array")? {
            Offer::U64(items) => Ok(Self { object, items }),
            _ => Err(PyRuntimeError::new_err("numpy.empty(n, 'uint64') did not make an array of uint64")),
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u64] {
        // SAFETY: as in `Array::deref`; new arrays are writable, and no other code has this one before `into_object`.
        unsafe { self.items.items.as_mut() }
    }

    pub(crate) fn into_object(self) -> Bound<'py, PyAny> {
        self.object
    }
}
