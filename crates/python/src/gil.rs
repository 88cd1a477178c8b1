//! Detaching from the interpreter, which lets other Python threads run.
//!
//! Letting go of the interpreter and taking it back costs about 0.1 µs when no thread wants it and up to a switch
//! interval (5 ms) when one does: worth it around work of more than about 10 µs, ruinous around a find.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::Python;
use pyo3::marker::Ungil;

/// Does the work, detached from the interpreter if it is long.
pub(crate) fn detach_if<T, F>(py: Python<'_>, long: bool, work: F) -> T
where
    F: Ungil + FnOnce() -> T,
    T: Ungil,
{
    if long { py.detach(work) } else { work() }
}

/// Number of long calls that are using the index's only write access.
///
/// A short write behind a long call would wait for it, and every Python thread with it, so it detaches as well. The
/// number is a hint: reading it a moment too early costs one wait.
#[derive(Debug, Default)]
pub(crate) struct Writers(AtomicUsize);

impl Writers {
    /// Does the work of one writer, detached if it is long or would wait for one that is.
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
