//! Lists of a fixed length in memory of their own: the writer's, on large pages where they are as large as one.
//!
//! A table of millions of entries that is looked up at random misses the processor's table of pages nearly every time, and
//! in a virtual machine that costs as much as the miss of the cache. Of large pages there are few enough.
//!
//! **Protocol.** None: no reader sees them.
//!
//! **Invariants.** The memory is had from the allocator with [`Piece::layout`] of `len`, and all of it is written.
//! Advice to the operating system changes nothing of its content.
//!
//! **Checked by** the test below, and with the tables of names: `tests/random_streams.rs` under Valgrind and the address
//! sanitizer (`make sanitize`).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Bytes of a large page; on other machines than we know, a size as any other.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// So many items.
pub(crate) struct Piece<T: Copy> {
    items: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory as a Box does.
unsafe impl<T: Copy + Send> Send for Piece<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Piece<T> {}

impl<T: Copy> Piece<T> {
    /// Of no items, and no memory.
    pub(crate) fn none() -> Self {
        Self { items: NonNull::dangling(), len: 0 }
    }

    /// So many times the same.
    pub(crate) fn of(len: usize, item: T) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { items: NonNull::dangling(), len };
        }
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) };
        let Some(items) = NonNull::new(memory.cast::<T>()) else { handle_alloc_error(layout) };
        if layout.size() >= LARGE_PAGE {
            ask_for_large_pages(memory, layout.size());
        }
        // SAFETY: within the allocation.
        (0..len).for_each(|i| unsafe { items.add(i).write(item) });
        Self { items, len }
    }

    fn layout(len: usize) -> Layout {
        let layout = Layout::array::<T>(len).expect("a piece is small");
        let align = if layout.size() >= LARGE_PAGE { LARGE_PAGE } else { layout.align() };
        layout.align_to(align).expect("a piece is small")
    }
}

/// As nobody looks at the memory yet, all of it can be on them from the first. If there are none, nothing has changed.
fn ask_for_large_pages(memory: *mut u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the memory is the caller's, and the advice leaves its content as it is.
    let _ = unsafe { rustix::mm::madvise(memory.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (memory, bytes);
}

impl<T: Copy> Deref for Piece<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: owned, and all of it written.
        unsafe { slice::from_raw_parts(self.items.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Piece<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.items.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Piece<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() > 0 {
            // SAFETY: allocated by `of` with this layout.
            unsafe { dealloc(self.items.as_ptr().cast(), layout) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_what_it_was_made_of_wherever_it_lies() {
        let sizes = if cfg!(miri) { [0, 1, 1_000] } else { [0, 1, LARGE_PAGE / 8] };
        for len in sizes {
            let mut piece = Piece::of(len, 7_u64);
            assert!(piece.iter().all(|it| *it == 7) && piece.len() == len);
            if let Some(last) = piece.last_mut() {
                *last = 8;
            }
            assert_eq!(piece.iter().filter(|it| **it == 8).count(), len.min(1));
        }
        assert!(Piece::<u64>::none().is_empty());
        assert_eq!(Piece::<u64>::layout(LARGE_PAGE / 8).align(), LARGE_PAGE);
    }
}
