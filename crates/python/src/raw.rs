//! Python's memory read in place: all `unsafe` code of this crate.
//!
//! Reads arrays through the buffer protocol and lists of plain ints directly, after checking that the interpreter's
//! ints and lists have the expected memory layout.

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

use crate::errors;

/// A Python object seen as an array of integers, by element type.
pub(crate) enum Offer {
    U8(Array<u8>),
    U32(Array<u32>),
    I32(Array<i32>),
    U64(Array<u64>),
    I64(Array<i64>),
    /// An array of integers with gaps, in foreign byte order or unaligned, whose items must be read one by one.
    Irregular,
    /// An array of anything but integers of a known type.
    Other,
    /// The object is not an array.
    Nothing,
}

/// A one-dimensional array owned by a Python object and read in place; the buffer keeps the memory alive and fixed.
///
/// As with NumPy's own functions, if another thread changes the array while a call reads it, the result matches neither
/// the old nor the new contents.
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
    /// Reads a buffer as an array; `None` if the items have gaps between them or are not aligned for `T`.
    fn new(buffer: PyUntypedBuffer) -> Option<Self> {
        let start = NonNull::new(buffer.buf_ptr().cast::<T>());
        let start = if buffer.item_count() == 0 { NonNull::dangling() } else { start? };
        let whole = buffer.item_size() == size_of::<T>() && buffer.is_c_contiguous();
        (whole && start.is_aligned())
            .then(|| Self { items: NonNull::slice_from_raw_parts(start, buffer.item_count()), _buffer: buffer })
    }
}

/// Reads an object as an array of integers, if it is one. `what`: the argument's name for errors.
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

/// Converts the items of a list of plain 64-bit ints: `from` converts those from 0 on, `from_negative` those below 0.
/// `None` if the list has any other item, or a function refuses one.
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

/// A new NumPy array of `uint64`, not yet visible to other code, to be filled and returned.
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

/// Minor versions of Python 3 whose lists and ints are known to have this memory layout.
const KNOWN: std::ops::RangeInclusive<u8> = 11..=13;

#[repr(C)]
struct ListObject {
    head: ffi::PyObject,
    length: isize,
    items: *mut *mut ffi::PyObject,
}

#[repr(C)]
struct IntObject {
    head: ffi::PyObject,
    /// Sign and number of digits of the int.
    tag: usize,
    /// Lowest 30 bits of the int; present only if the int has a digit.
    digit: u32,
}

/// Memory layout of the running interpreter's lists, ints and reference counts; and proof that the thread is attached
/// to the interpreter.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'py> {
    facts: Facts,
    py: Python<'py>,
}

#[derive(Clone, Copy)]
struct Facts {
    /// Mask of the bits of an int's tag that encode sign and number of digits; the following fields are their values
    /// for one digit and for zero.
    tag: usize,
    one_digit: usize,
    zero: usize,
    /// True if reference counts have 32 bits, and the highest bit marks objects that are never freed.
    immortals: bool,
}

impl<'py> Layout<'py> {
    /// Memory layout of the running interpreter; `None` if unknown.
    #[inline]
    pub(crate) fn of(py: Python<'py>) -> Option<Self> {
        static FACTS: PyOnceLock<Option<Facts>> = PyOnceLock::new();
        FACTS.get_or_init(py, || Self::known(py).ok().flatten()).map(|facts| Self { facts, py })
    }

    fn known(py: Python<'py>) -> PyResult<Option<Facts>> {
        // Free-threaded builds have a larger head, and this file would be compiled anew for one.
        if cfg!(not(all(target_pointer_width = "64", target_endian = "little"))) || size_of::<ffi::PyObject>() != 16 {
            return Ok(None);
        }
        let sys = py.import("sys")?;
        let version = py.version_info();
        let ordinary = sys.getattr("implementation")?.getattr("name")?.eq("cpython")?
            && sys.getattr("int_info")?.getattr("bits_per_digit")?.eq(30)?
            // Builds for debugging Python itself, which count or link all objects.
            && !sys.hasattr("gettotalrefcount")?
            && !sys.hasattr("getobjects")?;
        if !ordinary || version.major != 3 || !KNOWN.contains(&version.minor) {
            return Ok(None);
        }
        let facts = if version.minor == 11 {
            Facts { tag: usize::MAX, one_digit: 1, zero: 0, immortals: false }
        } else {
            // The lowest two bits are the sign (0 is +, 1 is zero), the next marks ints that stay for ever.
            Facts { tag: !4, one_digit: 1 << 3, zero: 1, immortals: true }
        };
        Ok(Self { facts, py }.holds()?.then_some(facts))
    }

    /// Checks the assumed memory layout on examples. True if all are read correctly.
    fn holds(self) -> PyResult<bool> {
        let py = self.py;
        let numbers = [0_u64, 1, 255, 256, 257, 128_000, (1 << 30) - 1];
        let list = PyList::new(py, numbers)?;
        // SAFETY: only addresses are compared, and no list is changed meanwhile.
        let addresses = unsafe { self.items(&list) };
        let same = addresses.len() == numbers.len()
            && addresses.iter().enumerate().all(|(at, &item)| list.get_item(at).is_ok_and(|own| own.as_ptr() == item));
        if !same || self.ints(&list, Some).as_deref() != Some(&numbers) {
            return Ok(false);
        }
        for other in ["2**30", "-1", "2**64", "True", "'a'", "None", "1.0", "object()"] {
            let other = py.eval(&std::ffi::CString::new(other)?, None, None)?;
            if self.ints(&PyList::new(py, [other])?, Some).is_some() {
                return Ok(false);
            }
        }
        let object = PyList::empty(py).into_any();
        // SAFETY: a live object.
        let count = || unsafe { ffi::Py_REFCNT(object.as_ptr()) };
        let before = count();
        let copies = self.copies(std::slice::from_ref(object.as_unbound()));
        let counted = count() == before + 1;
        drop(copies);
        Ok(counted && count() == before)
    }

    /// Items of a list, read in place.
    ///
    /// # Safety
    ///
    /// Nothing may change the list while the items are used: no Python code may run, and no function may be called that
    /// could run some.
    #[inline]
    unsafe fn items<'a>(self, list: &'a Bound<'_, PyList>) -> &'a [*mut ffi::PyObject] {
        let list = list.as_ptr().cast::<ListObject>();
        // SAFETY: a list, or what inherits from it, begins like this in the versions known; `length` items are there,
        // and `items` may be null only if that is 0.
        unsafe {
            match (*list).length {
                0 => &[],
                length => std::slice::from_raw_parts((*list).items, length as usize),
            }
        }
    }

    /// Converts the items of a list of ints from 0 to 2^30 - 1; `None` if the list has any other item, or `from`
    /// refuses one.
    pub(crate) fn ints<T>(self, list: &Bound<'_, PyList>, from: impl Fn(u64) -> Option<T>) -> Option<Vec<T>> {
        // SAFETY: below the memory of the items is read, and `from` converts numbers; we hold the GIL.
        let items = unsafe { self.items(list) };
        let int = &raw mut ffi::PyLong_Type;
        let mut numbers = Vec::with_capacity(items.len());
        for (&item, place) in items.iter().zip(numbers.spare_capacity_mut()) {
            // SAFETY: every item is a live object.
            if unsafe { (*item).ob_type } != int {
                return None;
            }
            let item = item.cast::<IntObject>();
            // SAFETY: it is an int, which begins with head and tag.
            let tag = unsafe { (*item).tag } & self.facts.tag;
            let number = if tag == self.facts.one_digit {
                // SAFETY: it has a digit.
                unsafe { (*item).digit }
            } else if tag == self.facts.zero {
                0
            } else {
                return None;
            };
            place.write(from(number.into())?);
        }
        // SAFETY: a number was written for each item.
        unsafe { numbers.set_len(items.len()) };
        Some(numbers)
    }

    /// Creates new references to the items of a list from index `start` to before `end`, or to the list's end. Creates
    /// no object and runs no Python code.
    #[cfg(feature = "trees")]
    pub(crate) fn part(self, list: &Bound<'_, PyList>, start: usize, end: usize) -> Vec<Py<PyAny>> {
        // SAFETY: counting references up runs nothing; we hold the GIL.
        let items = unsafe { self.items(list) };
        let end = end.min(items.len());
        let items: &[*mut ffi::PyObject] = items.get(start..end).unwrap_or_default();
        // SAFETY: `Py` is a pointer to an object that is there, as every item is; they are only borrowed here.
        self.copies(unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) })
    }

    /// Creates new references to objects. Creates no object and runs no Python code.
    pub(crate) fn copies(self, objects: &[Py<PyAny>]) -> Vec<Py<PyAny>> {
        let mut copies = Vec::new();
        self.copy(objects, &mut copies);
        copies
    }

    /// Appends new references to objects. Creates no object and runs no Python code.
    pub(crate) fn copy(self, objects: &[Py<PyAny>], to: &mut Vec<Py<PyAny>>) {
        to.reserve(objects.len());
        for (object, place) in objects.iter().zip(to.spare_capacity_mut()) {
            // SAFETY: a live object, which begins with its count; no other thread changes that, as we hold the GIL. The copy
            // is the reference that was counted.
            unsafe {
                if self.facts.immortals {
                    let count = object.as_ptr().cast::<u32>();
                    if (*count).cast_signed() >= 0 {
                        *count += 1;
                    }
                } else {
                    *object.as_ptr().cast::<isize>() += 1;
                }
                place.write(std::ptr::read(object));
            }
        }
        // SAFETY: one was written for each.
        unsafe { to.set_len(to.len() + objects.len()) };
    }

    /// Creates a Python list of the given objects.
    #[cfg(feature = "trees")]
    pub(crate) fn list(self, mut objects: Vec<Py<PyAny>>) -> PyResult<Bound<'py, PyList>> {
        // SAFETY: the length is not negative; the result is a new reference to a list, or null with an exception set.
        let list = unsafe { Bound::from_owned_ptr_or_err(self.py, ffi::PyList_New(objects.len() as ffi::Py_ssize_t))? };
        // SAFETY: it is a list of that many empty places that only we know; the objects' references move into it, and
        // nothing can happen between that and forgetting them here.
        unsafe {
            let items = (*list.as_ptr().cast::<ListObject>()).items;
            if !objects.is_empty() {
                std::ptr::copy_nonoverlapping(objects.as_ptr().cast(), items, objects.len());
                objects.set_len(0);
            }
            Ok(list.cast_into_unchecked())
        }
    }
}
