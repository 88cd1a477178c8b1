//! Run, a list of consecutive blocks: its head, its content hashes and its block hashes in one piece of memory.
//!
//! **Protocol.** The writer appends after the last block, and afterwards publishes a level (a number of blocks with
//! their holders) that includes the new blocks. A reader reads the levels first, and then no further than the end of
//! the last level. The hashes of removed blocks stay in this memory: if equal blocks are added again, they are reused,
//! otherwise the run moves to other memory and the old memory is freed once no reader can use it.
//!
//! **Invariants.** `len <= written <= room`. Content hashes below `written` never change (rule 3); no level that was
//! published from this memory reaches beyond `written`. Only the writer accesses the block hashes.
//!
//! **Checked by** `tests/random_streams.rs` and `tests/concurrency.rs`, both under Valgrind and the address sanitizer
//! (`make sanitize`), and by the tests below under Miri (`make miri`).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;

use super::boxes::WriterToken;
use super::head::RunHead;
use super::levels::{Level, LevelsRef};
use super::reclaim::Guard;
use super::thin::Spares;
use crate::position::NO_NAME;

/// Run, a list of consecutive blocks, in one piece of memory: a head, then space for content hashes, then space for
/// block hashes.
///
/// Readers access the head and the content hashes up to the end of its last level. Only the writer accesses the block
/// hashes.
pub(crate) struct Run {
    head: NonNull<RunHead>,
    room: u32,
    /// Number of blocks in the run (a list of consecutive blocks).
    len: u32,
    /// Number of content hashes ever written to the run's memory. Readers may still read those beyond `len`.
    written: u32,
}

// SAFETY: it owns its memory; what readers see of it is atomic or, by rule 3, written before it is published.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    /// Creates an empty run of blocks with space for `room` blocks.
    pub(crate) fn new(id: u32, parent: u32, fork: u32, room: usize) -> Self {
        let layout = Self::layout(room);
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) }.cast::<RunHead>();
        let Some(head) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: just allocated, large and aligned enough. The hashes stay uninitialised until there are blocks.
        unsafe { head.write(RunHead::new(id, parent, fork)) };
        Self { head, room: room as u32, len: 0, written: 0 }
    }

    fn layout(room: usize) -> Layout {
        let hashes = Layout::array::<u64>(room * 2).expect("a run is at most MAX_RUN long");
        Layout::new::<RunHead>().extend(hashes).expect("a run is at most MAX_RUN long").0
    }

    pub(crate) fn bytes(&self) -> usize {
        Self::layout(self.room()).size()
    }

    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn head(&self) -> &RunHead {
        // SAFETY: owned.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn hashes(&self) -> *mut u64 {
        // SAFETY: the hashes follow the head, whose size is a multiple of theirs.
        unsafe { self.head.as_ptr().add(1).cast() }
    }

    #[inline]
    pub(crate) fn contents(&self) -> &[u64] {
        // SAFETY: within the allocation, written by `extend`; not written again while shared (rule 3).
        unsafe { slice::from_raw_parts(self.hashes(), self.len()) }
    }

    #[inline]
    pub(crate) fn names(&self) -> &[u64] {
        // SAFETY: within the allocation, written by `extend`; the writer's own.
        unsafe { slice::from_raw_parts(self.hashes().add(self.room()), self.len()) }
    }

    #[inline]
    pub(crate) fn set_name(&mut self, at: usize, name: u64) {
        assert!(at < self.len());
        // SAFETY: within the allocation; the writer's own, and borrowed mutably.
        unsafe { self.hashes().add(self.room() + at).write(name) };
    }

    /// True if blocks with these content hashes can be added to the run of blocks without moving its memory.
    #[inline]
    pub(crate) fn has_room_for(&self, contents: &[u64]) -> bool {
        self.len() + contents.len() <= self.room() && self.continues_with(contents)
    }

    /// True if blocks with these content hashes can be added to the run without overwriting a different hash, so that
    /// each offset always stands for the same block.
    #[inline]
    pub(crate) fn continues_with(&self, contents: &[u64]) -> bool {
        let written = (self.written - self.len) as usize;
        // SAFETY: `written` hashes have been written.
        let beyond = unsafe { slice::from_raw_parts(self.hashes().add(self.len()), written) };
        let n = written.min(contents.len());
        beyond[..n] == contents[..n]
    }

    /// Number of content hashes in the run's memory, including those of removed blocks.
    pub(crate) fn written(&self) -> usize {
        self.written as usize
    }

    /// Adds blocks at the end of the run; there must be space for them. Without `names`, their block hashes are
    /// [`NO_NAME`].
    #[inline]
    pub(crate) fn extend(&mut self, contents: &[u64], names: Option<&[u64]>) {
        assert!(self.has_room_for(contents));
        assert!(names.is_none_or(|names| names.len() >= contents.len()));
        let (at, n) = (self.len(), contents.len());
        let there = ((self.written - self.len) as usize).min(n);
        // SAFETY: within the allocation, which is not the callers'. No level published from this memory ever reached
        // beyond `written`, the largest `len` there was: no reader looks there (rule 3).
        unsafe { ptr::copy_nonoverlapping(contents.as_ptr().add(there), self.hashes().add(at + there), n - there) };
        let own = self.room() + at;
        match names {
            // SAFETY: within the allocation; the writer's own, and borrowed mutably.
            Some(names) => unsafe { ptr::copy_nonoverlapping(names.as_ptr(), self.hashes().add(own), n) },
            None => {
                // SAFETY: as above.
                (0..n).for_each(|i| unsafe { self.hashes().add(own + i).write(NO_NAME) });
            }
        }
        self.len += n as u32;
        self.written = self.written.max(self.len);
    }

    /// Shortens the run of blocks to its first `len` blocks.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }

    /// Copies the run of blocks, with its levels (numbers of first blocks with their holders), to new memory with space
    /// for `room` blocks.
    pub(crate) fn moved(&self, room: usize, spares: &mut Spares<(), Level>, writer: &WriterToken) -> Self {
        let len = self.len();
        assert!(len <= room);
        let mut new = Self::new(self.head().id, self.head().parent, self.head().fork, room);
        // SAFETY: both are large enough and distinct; the first `len` hashes of either kind are written.
        unsafe {
            ptr::copy_nonoverlapping(self.hashes(), new.hashes(), len);
            ptr::copy_nonoverlapping(self.hashes().add(self.room()), new.hashes().add(room), len);
        }
        new.len = self.len;
        new.written = self.len;
        new.head().take_over(self.head(), spares, writer);
        new
    }

    /// Address of the head of this run of blocks, as stored in the table of child runs.
    pub(super) fn address(&self) -> u64 {
        self.head.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.head().take_spilled());
        // SAFETY: allocated by `new` with the same layout; by rule 1 no reader has it any more.
        unsafe { dealloc(self.head.as_ptr().cast(), Self::layout(self.room())) };
    }
}

/// Reference to a run, a list of consecutive blocks, for a reader.
#[derive(Clone, Copy)]
pub(crate) struct RunRef<'p> {
    pub(super) head: NonNull<RunHead>,
    pub(super) guarded: PhantomData<&'p ()>,
}

impl<'p> RunRef<'p> {
    #[inline]
    pub(crate) fn head(self) -> &'p RunHead {
        // SAFETY: found in the table of children under a guard: not freed while that lives.
        unsafe { self.head.as_ref() }
    }

    /// Levels of the run of blocks (numbers of its first blocks with their holders) at one moment, and the content
    /// hashes up to the end of the last level.
    #[inline]
    pub(crate) fn read(self, guard: &'p Guard<'_>) -> (LevelsRef<'p>, &'p [u64]) {
        let levels = self.head().levels(guard);
        let end = levels.end() as usize;
        // SAFETY: all below the end of a published level is written (the version was read with Acquire), and stays
        // (rule 3).
        (levels, unsafe { slice::from_raw_parts(self.head.add(1).cast().as_ptr(), end) })
    }
}
