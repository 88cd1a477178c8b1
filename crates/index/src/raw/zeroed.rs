//! Long list of zeros whose memory the system provides only when it is first written to.
//!
//! Writing zeros to tens of megabytes takes tens of milliseconds, nearly all of it for the system to provide the
//! memory. Memory that is requested as zeros is provided page by page, at the first write to each. Allocators do so
//! only for memory without special alignment. Therefore this list requests words, and starts at the first one that is
//! aligned.
//!
//! **Protocol.** None: access to the list is access to its elements, which have a protocol of their own.
//!
//! **Invariants.** `memory` points to `words` words, made by a `Box`, initially zero. The `len` elements at `first` lie
//! within them, or the list was freed by [`Self::shed`] and has no elements.
//!
//! **Checked by** the tests of `table.rs`, by Miri (`make miri`), and by the address sanitizer (`make sanitize`).

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// Type for which all-zero memory is a valid value.
///
/// # Safety
/// Zeros must be a valid value of the type, and dropping a value must do nothing.
pub(super) unsafe trait Zeroable {}

/// List whose elements are initially zero, and whose memory the system provides page by page at the first write.
pub(super) struct ZeroedList<T: Zeroable> {
    first: NonNull<T>,
    len: usize,
    memory: NonNull<u64>,
    words: usize,
    owns: PhantomData<Box<[T]>>,
}

/// Largest number of words that are freed at once: 2 MiB, for which the system needs a fifth of a millisecond.
const PIECE: usize = 256 << 10;

// SAFETY: it owns its elements as a Box does.
unsafe impl<T: Zeroable + Send> Send for ZeroedList<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Sync> Sync for ZeroedList<T> {}

impl<T: Zeroable> ZeroedList<T> {
    pub(super) fn new(len: usize) -> Self {
        let aligned = align_of::<T>().div_ceil(size_of::<u64>());
        let words = (len * size_of::<T>()).div_ceil(size_of::<u64>()) + aligned - 1;
        let memory = Self::give(vec![0; words].into_boxed_slice());
        let skipped = memory.cast::<u8>().align_offset(align_of::<T>());
        debug_assert!(skipped / size_of::<u64>() < aligned);
        // SAFETY: there is memory for as many words more as may be skipped.
        let first = unsafe { memory.cast::<u8>().add(skipped) }.cast();
        Self { first, len, memory, words, owns: PhantomData }
    }

    fn give(memory: Box<[u64]>) -> NonNull<u64> {
        NonNull::from(Box::leak(memory)).cast()
    }

    fn take(&mut self) -> Box<[u64]> {
        let words = std::mem::take(&mut self.words);
        self.len = 0;
        // SAFETY: given by a box of that number of words; there are no elements any more.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.memory.as_ptr(), words)) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.words * size_of::<u64>()
    }

    /// Frees a part of the memory of this list of zeros; returns true if more is left. The elements must not be
    /// accessed afterwards.
    pub(super) fn shed(&mut self) -> bool {
        let mut memory = self.take().into_vec();
        memory.truncate(memory.len().saturating_sub(PIECE));
        let memory = memory.into_boxed_slice();
        self.words = memory.len();
        self.memory = Self::give(memory);
        self.words > 0
    }
}

impl<T: Zeroable> Deref for ZeroedList<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: that number of elements is there, all zero at first, which is a value; changed only through `&[T]`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> Drop for ZeroedList<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
