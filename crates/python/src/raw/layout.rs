//! CPython's lists and ints read where they lie, and references counted many at a time.
//!
//! The stable ABI has a function for one item, one int, one reference. Where prompts come as lists of thousands of ints
//! these calls are nearly all that a call costs: 4,000 tokens take 15 us by them and 4 us this way, and to give out
//! 4,000 objects takes 19 us and 10 us, mostly waiting for the memory of objects not used for a while.
//!
//! How lists and ints lie in memory does not change within a minor version of Python; extensions that are built for one
//! version read them so all the time. This file does it for the versions it knows, after a look at whether it is so in the
//! interpreter that runs. In any other interpreter `Layout::of` gives nothing, and callers ask item by item.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

/// The minor versions of Python 3 whose lists and ints are known to be as described here.
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
    /// The sign and the number of digits.
    tag: usize,
    /// The lowest 30 bits; there only if the number has a digit.
    digit: u32,
}

/// The running interpreter's layout of lists, ints and counts; and the hold on it without which none may be touched.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'py> {
    facts: Facts,
    py: Python<'py>,
}

#[derive(Clone, Copy)]
struct Facts {
    /// The bits of a tag that say sign and number of digits; then their values for one digit, and for zero.
    tag: usize,
    one_digit: usize,
    zero: usize,
    /// True if counts have 32 bits, and those of objects that stay for ever have the highest of them set.
    immortals: bool,
}

impl<'py> Layout<'py> {
    /// The layout of the running interpreter; `None` if it is not known.
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

    /// True if the facts hold of the interpreter, seen at examples.
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

    /// The items of a list.
    ///
    /// # Safety
    ///
    /// Nothing may change the list while the items are used: no Python code may run, and no function be called that
    /// may run some.
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

    /// The items of a list that holds nothing but ints from 0 to 2^30 - 1 that `from` takes; `None` if there is anything
    /// else in it.
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

    /// Makes new references to the items of a list from `start` to before `end`; fewer if the list is shorter. Makes no
    /// object and runs nothing.
    #[cfg(feature = "trees")]
    pub(crate) fn part(self, list: &Bound<'_, PyList>, start: usize, end: usize) -> Vec<Py<PyAny>> {
        // SAFETY: counting references up runs nothing; we hold the GIL.
        let items = unsafe { self.items(list) };
        let end = end.min(items.len());
        let items: &[*mut ffi::PyObject] = items.get(start..end).unwrap_or_default();
        // SAFETY: `Py` is a pointer to an object that is there, as every item is; they are only borrowed here.
        self.copies(unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) })
    }

    /// Makes new references to objects. Makes no object and runs nothing.
    pub(crate) fn copies(self, objects: &[Py<PyAny>]) -> Vec<Py<PyAny>> {
        let mut copies = Vec::new();
        self.copy(objects, &mut copies);
        copies
    }

    /// Appends new references to objects. Makes no object and runs nothing.
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

    /// Makes a list of objects.
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
