//! Header and list in one piece of memory behind a thin pointer, so that one word leads readers to both.
//!
//! **Protocol.** The memory is complete before it is linked, and never changed afterwards, except atomics in the
//! header; it is unlinked, and freed once no reader can use it, like a box.
//!
//! **Invariants.** A [`ThinRef`] points to memory made by [`ThinBox::new`]: a header, the length, and that number of
//! items, all written. It is used only while the box lives, or while a reader's guard keeps the memory from being
//! freed.
//!
//! **Checked by** the test below, and with the sets and levels that use this type: `tests/random_streams.rs` and
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

/// Owning pointer to a header and a list in one piece of memory.
pub(crate) struct ThinBox<H, T: Copy>(NonNull<Memory<H, T>>);

// SAFETY: it owns its content as a Box does.
unsafe impl<H: Send, T: Copy + Send> Send for ThinBox<H, T> {}
// SAFETY: as above.
unsafe impl<H: Sync, T: Copy + Sync> Sync for ThinBox<H, T> {}

/// Reference to a header and a list in one piece of memory.
pub(super) struct ThinRef<'p, H, T> {
    memory: NonNull<Memory<H, T>>,
    owned: PhantomData<&'p Memory<H, T>>,
}

/// Number of items by which the capacities of the lists in a [`ThinBox`] differ: each is a multiple of it.
const CLASS: usize = 4;

fn class(len: usize) -> usize {
    len.div_ceil(CLASS)
}

impl<H, T: Copy> ThinBox<H, T> {
    pub(crate) fn new(head: H, items: &[T]) -> Self {
        let layout = Self::layout(items.len());
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) }.cast::<Memory<H, T>>();
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: just allocated with the layout of this length.
        unsafe { Self::write(memory, head, items) }
    }

    /// Writes a header and a list to unused memory.
    ///
    /// # Safety
    ///
    /// The memory is unused, and has the layout for a list of this length.
    unsafe fn write(memory: NonNull<Memory<H, T>>, head: H, items: &[T]) -> Self {
        const { assert!(!std::mem::needs_drop::<H>()) };
        let len = u32::try_from(items.len()).expect("a list is at most a fleet long");
        // SAFETY: by contract.
        unsafe {
            memory.write(Memory { head, len, items: [] });
            let to = (&raw mut (*memory.as_ptr()).items).cast::<T>();
            to.copy_from_nonoverlapping(items.as_ptr(), items.len());
        }
        Self(memory)
    }

    fn layout(len: usize) -> Layout {
        let items = Layout::array::<T>(class(len) * CLASS).expect("a list is at most a fleet long");
        let (layout, _) = Layout::new::<Memory<H, T>>().extend(items).expect("a list is at most a fleet long");
        layout
    }

    #[inline]
    pub(super) fn get(&self) -> ThinRef<'_, H, T> {
        ThinRef { memory: self.0, owned: PhantomData }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut Memory<H, T> {
        self.0.as_ptr()
    }

    pub(super) fn into_raw(self) -> *mut Memory<H, T> {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes back the ownership of memory that `into_raw` gave away.
    ///
    /// # Safety
    ///
    /// The pointer came from `into_raw`, and no other box is made of it.
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

impl<'p, H, T> ThinRef<'p, H, T> {
    /// Reference to the header and list at this address.
    ///
    /// # Safety
    ///
    /// The pointer came from a box that is not freed during `'p`.
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
        // SAFETY: by contract of `of`; the header's number of items was written behind it.
        unsafe {
            let memory = self.memory.as_ptr();
            slice::from_raw_parts((&raw const (*memory).items).cast::<T>(), (*memory).len as usize)
        }
    }
}

/// Freed boxes that no reader uses any longer, kept to be reused: most new boxes are as large as one that was freed.
pub(crate) struct Spares<H, T: Copy> {
    /// Freed boxes that are kept for reuse, by their capacity in steps of `CLASS` items.
    classes: Vec<Vec<ThinBox<H, T>>>,
    bytes: usize,
}

/// Largest number of different capacities of freed boxes that are kept for reuse.
const MOST_CLASSES: usize = 64;
/// Largest total size of the freed boxes that are kept for reuse, in bytes.
const MOST_BYTES: usize = 64 << 10;

impl<H, T: Copy> Spares<H, T> {
    pub(crate) fn new() -> Self {
        Self { classes: Vec::new(), bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        let lists = self.classes.iter().map(|class| class.capacity() * 8).sum::<usize>();
        self.bytes + self.classes.capacity() * size_of::<Vec<ThinBox<H, T>>>() + lists
    }

    /// Creates a box like [`ThinBox::new`], in the memory of a freed box if possible.
    pub(crate) fn make(&mut self, head: H, items: &[T]) -> ThinBox<H, T> {
        let Some(spare) = self.classes.get_mut(class(items.len())).and_then(Vec::pop) else {
            return ThinBox::new(head, items);
        };
        self.bytes -= spare.bytes();
        // SAFETY: it was owned, so it is unused now; a class has one layout.
        unsafe { ThinBox::write(std::mem::ManuallyDrop::new(spare).0, head, items) }
    }

    /// Keeps the memory of a freed box for reuse, unless enough boxes are kept already. No reader uses the box any
    /// longer.
    pub(crate) fn keep(&mut self, it: ThinBox<H, T>) {
        let (class, bytes) = (class(it.get().items().len()), it.bytes());
        if class >= MOST_CLASSES || self.bytes + bytes > MOST_BYTES {
            return;
        }
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        self.bytes += bytes;
        self.classes[class].push(it);
    }

    /// Frees the memory of all boxes that are kept for reuse.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_its_list_are_kept_together() {
        let it = ThinBox::new(7_u8, &[1_u64, 2, 3]);
        assert_eq!((*it.get().head(), it.get().items()), (7, &[1, 2, 3][..]));
        assert_eq!(it.bytes(), 8 + 4 * 8);
        let nothing = ThinBox::<u32, u64>::new(1, &[]);
        assert_eq!(nothing.get().items(), []);
        let raw = nothing.into_raw();
        // SAFETY: just taken out.
        drop(unsafe { ThinBox::from_raw(NonNull::new(raw).unwrap()) });
    }

    #[test]
    fn what_is_not_needed_is_written_anew() {
        let mut spares = Spares::new();
        let lists: Vec<Vec<u64>> = (0..300).map(|n| (0..n).collect()).collect();
        for round in 0..3_u32 {
            let made: Vec<_> = lists.iter().map(|list| spares.make(round, list)).collect();
            for (it, list) in made.iter().zip(&lists) {
                assert_eq!((*it.get().head(), it.get().items()), (round, &list[..]));
            }
            made.into_iter().for_each(|it| spares.keep(it));
            assert_eq!(spares.bytes, spares.classes.iter().flatten().map(ThinBox::bytes).sum::<usize>());
            assert!(spares.bytes > MOST_BYTES / 2 && spares.bytes <= MOST_BYTES);
        }
        spares.clear();
        assert_eq!(spares.bytes(), 0);
    }
}
