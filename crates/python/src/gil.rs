//! Detaching from the Python interpreter, so that other Python threads can run.
//!
//! Detaching and attaching again costs about 0.1 µs when no other thread wants the interpreter and up to a switch
//! interval (5 ms) when one does: useful around work of more than about 10 µs, ruinous around a single lookup.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::Python;
use pyo3::marker::Ungil;

/// Runs a function, detached from the interpreter if the work is long.
pub(crate) fn detach_if<T, F>(py: Python<'_>, long: bool, work: F) -> T
where
    F: Ungil + FnOnce() -> T,
    T: Ungil,
{
    if long { py.detach(work) } else { work() }
}

/// Number of long calls that are using the index's only write access.
///
/// A short write behind a long call would wait for it, and every Python thread with it, so the short write detaches
/// from the interpreter as well. The number is a hint: reading it a moment too early costs one wait.
#[derive(Debug, Default)]
pub(crate) struct Writers(AtomicUsize);

impl Writers {
    /// Runs a function that writes to the index, detached from the interpreter if the work is long or would wait for
    /// another long write.
    pub(crate) fn write<T, F>(&self, py: Python<'_>, long: bool, work: F) -> T
    where
        F: Ungil + FnOnce() -> T,
        T: Ungil,
    {
        if !long {
            return detach_if(py, self.0.load(Ordering::Relaxed) > 0, work);
        }
        let _busy = BusyGuard::new(&self.0);
        py.detach(work)
    }
}

struct BusyGuard<'a>(&'a AtomicUsize);

impl<'a> BusyGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
