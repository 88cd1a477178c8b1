//! Boxes whose content readers access while the writer may replace it as a whole. The old content is freed when no
//! reader can use it any longer.
//!
//! **Protocol.** A [`SwapCell`] holds one pointer. The writer swaps it and gets the old content back as a
//! [`SharedBox`], which it retires: marks to be freed later. A reader loads the pointer under a [`Guard`] and uses the
//! content while the guard lives, or keeps the pointer together with the guard as a [`GuardedPointer`].
//!
//! **Invariants.** The pointer is never null and always made by `Box`; linked content is never changed, except its own
//! atomics; only the writer drops a `SharedBox`, after [`super::RetiredList`] has handed it back (rules 1 and 2 of
//! `raw/mod.rs`). A guard or a token of another index would protect nothing, and is refused by a panic.
//!
//! **Checked by** the tests and the loom model below (`make loom`), by Miri (`make miri`), and by
//! `tests/concurrency.rs` under Valgrind and the address sanitizer (`make sanitize`).

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::levels::ChangeRecord;
use super::reclaim::{Guard, IndexId, Readers};
use crate::sync::{AtomicPtr, Ordering};

/// Box to whose content readers may have pointers.
///
/// Unlike a `Box`, it may be moved while others point to its content.
pub(crate) struct SharedBox<T>(pub(super) NonNull<T>);

// SAFETY: it owns its content as a Box does.
unsafe impl<T: Send> Send for SharedBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedBox<T> {}

impl<T> SharedBox<T> {
    /// Converts this shared box to a plain one; may be called only when no reader can use the content any longer.
    pub(crate) fn into_box(self) -> Box<T> {
        let it = std::mem::ManuallyDrop::new(self);
        // SAFETY: as when it is dropped, which it is not.
        unsafe { Box::from_raw(it.0.as_ptr()) }
    }
}

impl<T> Deref for SharedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: owned, and only ever shared by reference.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for SharedBox<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak`; by rule 1 no reader has it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Cell whose content readers on any thread can read, and the writer replaces as a whole. As any thread may read,
/// replace and free the content, its type must be `Send` and `Sync`, which the raw pointer in the cell would not
/// ensure.
pub(crate) struct SwapCell<T: Send + Sync> {
    it: AtomicPtr<T>,
    index: IndexId,
}

impl<T: Send + Sync> SwapCell<T> {
    /// Creates a cell with the content `it`, for the index that the writer belongs to.
    pub(crate) fn new(it: T, writer: &WriterToken) -> Self {
        Self { it: AtomicPtr::new(Box::into_raw(Box::new(it))), index: writer.index }
    }

    #[inline]
    pub(crate) fn load<'p>(&self, guard: &'p Guard<'_>) -> &'p T {
        guard.assert_of(self.index);
        // SAFETY: rule 2: what was linked while the reader was under its guard is not freed before it leaves.
        unsafe { &*self.it.load(Ordering::Acquire) }
    }

    /// Loads the content of the cell like [`Self::load`], for a reader that keeps its guard together with the result.
    #[inline]
    pub(super) fn hold(&self, guard: &Guard<'_>) -> GuardedPointer<T> {
        GuardedPointer(ptr::from_ref(self.load(guard)))
    }

    /// Content of the cell, for the writer, which needs no guard because only the writer replaces it.
    #[inline]
    pub(crate) fn get(&self, writer: &WriterToken) -> &T {
        writer.assert_of(self.index);
        // SAFETY: rule 1; the result borrows `self`, and only `replace` unlinks, whose result the caller retires.
        unsafe { &*self.it.load(Ordering::Relaxed) }
    }

    /// Replaces the content by `it`. Returns the old content, which the writer must keep until no reader can use it.
    pub(crate) fn replace(&self, it: T, writer: &mut WriterToken) -> SharedBox<T> {
        writer.assert_of(self.index);
        let old = self.it.swap(Box::into_raw(Box::new(it)), Ordering::AcqRel);
        // SAFETY: never null, made by `Box::into_raw` as all that is ever linked.
        SharedBox(unsafe { NonNull::new_unchecked(old) })
    }
}

impl<T: Send + Sync> Drop for SwapCell<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; `&mut self` means there are no readers.
        drop(unsafe { Box::from_raw(self.it.load(Ordering::Relaxed)) });
    }
}

/// Pointer to the content of a cell that a reader has loaded, valid as long as the reader's guard. This module passes
/// it on only together with the guard.
pub(super) struct GuardedPointer<T>(*const T);

impl<T> PartialEq for GuardedPointer<T> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl<T> GuardedPointer<T> {
    /// Content behind the pointer, for as long as the guard lives.
    ///
    /// # Safety
    ///
    /// `guard` is the guard under which the pointer was loaded.
    #[inline]
    pub(super) unsafe fn get<'p>(&self, _guard: &'p Guard<'_>) -> &'p T {
        // SAFETY: rule 2.
        unsafe { &*self.0 }
    }
}

/// Token that proves that its owner is the writer of an index; each index has one, inside its lock.
pub(crate) struct WriterToken {
    index: IndexId,
    pub(super) under_change: Arc<ChangeRecord>,
}

impl WriterToken {
    /// Creates the token of the writer of the index that has these reader counters; must be called once per index.
    pub(crate) fn of(readers: &Readers) -> Self {
        Self { index: readers.index(), under_change: readers.under_change() }
    }

    #[inline]
    pub(super) fn index(&self) -> IndexId {
        self.index
    }

    #[inline]
    pub(super) fn assert_of(&self, index: IndexId) {
        assert!(self.index == index, "the writer of one index changes another");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a guard of one index, and things of another")]
    fn a_guard_of_another_index_is_refused() {
        let (one, other) = (Readers::new(1), Readers::new(1));
        let published = SwapCell::new(7, &WriterToken::of(&one));
        assert_eq!(*published.load(&one.enter()), 7);
        published.load(&other.enter());
    }

    #[test]
    #[should_panic(expected = "the writer of one index changes another")]
    fn a_writer_of_another_index_is_refused() {
        let (one, other) = (Readers::new(1), Readers::new(1));
        let published = SwapCell::new(7, &WriterToken::of(&one));
        drop(published.replace(8, &mut WriterToken::of(&other)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::AtomicBool;

    use super::*;
    use crate::raw::reclaim::RetiredList;

    struct Thing {
        number: u32,
        freed: Arc<AtomicBool>,
    }

    /// Checks that a reader finds one of the published contents, and none that was given back to be freed.
    #[test]
    fn what_is_loaded_is_whole_and_not_freed() {
        loom::model(|| {
            let readers = Arc::new(Readers::new(1));
            let mut writer = WriterToken::of(&readers);
            let thing = |number| Thing { number, freed: Arc::new(AtomicBool::new(false)) };
            let published = Arc::new(SwapCell::new(thing(0), &writer));
            let reader = {
                let (readers, published) = (readers.clone(), published.clone());
                loom::thread::spawn(move || {
                    let guard = readers.enter();
                    let first = published.load(&guard);
                    let second = published.load(&guard);
                    assert!(first.number <= second.number && second.number <= 2);
                    assert!(!first.freed.load(Ordering::Relaxed) && !second.freed.load(Ordering::Relaxed));
                })
            };
            let (mut retired, mut given_back) = (RetiredList::new(), Vec::new());
            for number in 1..=2 {
                retired.push(published.replace(thing(number), &mut writer));
                // Freed as far as readers may know; really when no reader can be mistaken any more.
                retired.advance(&readers, usize::MAX, |old: SharedBox<Thing>| {
                    old.freed.store(true, Ordering::Relaxed);
                    given_back.push(old);
                });
            }
            reader.join().unwrap();
        });
    }
}
