//! Boxes whose content readers look at: replaced as a whole by the writer, freed when no reader can have them.
//!
//! **Protocol.** A [`Published`] holds one pointer. The writer swaps it and gets the old content back as an [`Owned`],
//! which it retires. A reader loads the pointer under a [`Pin`] and uses what it finds while the pin lives, or keeps it
//! beside its pin as a [`Held`].
//!
//! **Invariants.** The pointer is never null and always made by `Box`; content is never changed while it is linked,
//! but by its own atomics; an `Owned` is dropped by the writer alone, after [`super::reclaim::Retired`] handed it back
//! (rules 1 and 2 of the room).
//!
//! **Checked by** the loom model of `reclaim.rs` for the freeing, and by `tests/concurrency.rs` under Valgrind and the
//! address sanitizer (`make sanitize`).

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::reclaim::Pin;

/// A box whose address may be known to readers.
///
/// Unlike `Box` it may be moved while others point to its content.
pub(crate) struct Owned<T>(pub(super) NonNull<T>);

// SAFETY: it owns its content as a Box does.
unsafe impl<T: Send> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) fn new(it: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(it))))
    }

    /// The address, as a number to be stored in a word.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: owned, and only ever shared by reference.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`; by rule 1 no reader has it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A thing that the writer replaces as a whole.
pub(crate) struct Published<T>(AtomicPtr<T>);

impl<T> Published<T> {
    pub(crate) fn new(it: T) -> Self {
        Self(AtomicPtr::new(Box::into_raw(Box::new(it))))
    }

    #[inline]
    pub(crate) fn load<'p>(&self, _: &'p Pin<'_>) -> &'p T {
        // SAFETY: rule 2: what was linked while the reader was pinned is not freed before it leaves.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// Like [`Self::load`], for a reader that keeps its pin beside the result.
    #[inline]
    pub(crate) fn hold(&self, _: &Pin<'_>) -> Held<T> {
        Held(self.0.load(Ordering::Acquire))
    }

    /// For the writer, which need not be pinned as it alone replaces.
    pub(crate) fn get(&self, _writer: &WriterToken) -> &T {
        // SAFETY: rule 1; the result borrows `self`, and only `replace` unlinks, whose result the caller retires.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }

    /// Links `it`; the result is for the writer to retire.
    pub(crate) fn replace(&self, it: T, _writer: &mut WriterToken) -> Owned<T> {
        let old = self.0.swap(Box::into_raw(Box::new(it)), Ordering::AcqRel);
        // SAFETY: never null, made by `Box::into_raw` as all that is ever linked.
        Owned(unsafe { NonNull::new_unchecked(old) })
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; `&mut self` means there are no readers.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}

/// What was published when a reader looked, good for as long as that reader's pin.
pub(crate) struct Held<T>(*const T);

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> Held<T> {
    /// `pin`: the one it was held under.
    #[inline]
    pub(crate) fn get<'p>(&self, _pin: &'p Pin<'_>) -> &'p T {
        // SAFETY: rule 2.
        unsafe { &*self.0 }
    }
}

/// Shows that the caller is the writer; there is one an index, inside its lock.
pub(crate) struct WriterToken(());

impl WriterToken {
    pub(crate) fn new() -> Self {
        Self(())
    }
}
