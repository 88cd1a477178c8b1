//! A header and a list in one piece of memory, behind a thin pointer: what readers get to by one word.
//!
//! **Protocol.** Whole before it is linked, and never changed after, but by atomics in the header; unlinked and retired
//! like a box.
//!
//! **Invariants.** A [`Thin`] points to memory that [`ThinBox::new`] made: a header, the length, and so many items, all
//! written. It is followed only while that box lives, or while the reader's pin keeps it from being freed.
//!
//! **Checked by** the test below, and with the sets and levels that are kept in such: `tests/random_streams.rs` and
//! `tests/concurrency.rs` under Valgrind and the address sanitizer (`make sanitize`).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

#[repr(C)]
pub(super) struct Memory<H, T> {
    head: H,
    len: u32,
    items: [T; 0],
}

/// Owns a header and its list.
pub(crate) struct ThinBox<H, T: Copy>(NonNull<Memory<H, T>>);

// SAFETY: it owns its content as a Box does.
unsafe impl<H: Send, T: Copy + Send> Send for ThinBox<H, T> {}
// SAFETY: as above.
unsafe impl<H: Sync, T: Copy + Sync> Sync for ThinBox<H, T> {}

/// A header and its list, to be looked at.
pub(super) struct Thin<'p, H, T> {
    memory: NonNull<Memory<H, T>>,
    owned: PhantomData<&'p Memory<H, T>>,
}

impl<H, T: Copy> ThinBox<H, T> {
    /// Of the items of some lists, one after the other.
    pub(crate) fn new(head: H, parts: &[&[T]]) -> Self {
        const { assert!(!std::mem::needs_drop::<H>()) };
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) }.cast::<Memory<H, T>>();
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let len = u32::try_from(len).expect("a list is at most a fleet long");
        // SAFETY: just allocated for a header and so many items.
        unsafe {
            memory.write(Memory { head, len, items: [] });
            let mut to = (&raw mut (*memory.as_ptr()).items).cast::<T>();
            for part in parts {
                to.copy_from_nonoverlapping(part.as_ptr(), part.len());
                to = to.add(part.len());
            }
        }
        Self(memory)
    }

    fn layout(len: usize) -> Layout {
        let items = Layout::array::<T>(len).expect("a list is at most a fleet long");
        let (layout, _) = Layout::new::<Memory<H, T>>().extend(items).expect("a list is at most a fleet long");
        layout
    }

    #[inline]
    pub(super) fn get(&self) -> Thin<'_, H, T> {
        Thin { memory: self.0, owned: PhantomData }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut Memory<H, T> {
        self.0.as_ptr()
    }

    pub(super) fn into_raw(self) -> *mut Memory<H, T> {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    /// The pointer is one that `into_raw` gave, and nobody else makes a box of it.
    pub(super) unsafe fn from_raw(memory: NonNull<Memory<H, T>>) -> Self {
        Self(memory)
    }

    pub(crate) fn bytes(&self) -> usize {
        Self::layout(self.get().items().len()).size()
    }
}

impl<H, T: Copy> Drop for ThinBox<H, T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.get().items().len());
        // SAFETY: allocated by `new` with this layout; by rule 1 no reader has it any more.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

impl<'p, H, T> Thin<'p, H, T> {
    /// # Safety
    /// The pointer is that of a box which is not freed for as long as `'p`.
    #[inline]
    pub(super) unsafe fn of(memory: NonNull<Memory<H, T>>) -> Self {
        Self { memory, owned: PhantomData }
    }

    #[inline]
    pub(super) fn head(&self) -> &'p H {
        // SAFETY: by contract of `of`.
        unsafe { &(*self.memory.as_ptr()).head }
    }

    #[inline]
    pub(super) fn items(&self) -> &'p [T] {
        // SAFETY: by contract of `of`; so many items were written behind the header.
        unsafe {
            let memory = self.memory.as_ptr();
            slice::from_raw_parts((&raw const (*memory).items).cast::<T>(), (*memory).len as usize)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_its_list_are_kept_together() {
        let it = ThinBox::new(7_u8, &[&[1_u64, 2], &[], &[3]]);
        assert_eq!((*it.get().head(), it.get().items()), (7, &[1, 2, 3][..]));
        assert_eq!(it.bytes(), 8 + 3 * 8);
        let nothing = ThinBox::<u32, u64>::new(1, &[]);
        assert_eq!(nothing.get().items(), []);
        let raw = nothing.into_raw();
        // SAFETY: just taken out.
        drop(unsafe { ThinBox::from_raw(NonNull::new(raw).unwrap()) });
    }
}
