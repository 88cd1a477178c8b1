//! Hash table of child runs: from the parent run, the fork (number of the parent's blocks before the child) and the
//! first content hash to the run that continues there. A run is a list of consecutive blocks.
//!
//! **Protocol.** The table contains addresses of runs, and no keys: a reader that finds an address compares the key in
//! the run. Readers do so under a guard, while the one writer links, moves and unlinks runs.
//!
//! **Invariants.** Every address in the table leads to a run that is alive, or was unlinked after the reader took its
//! guard; a run has its first content hash before it is linked, and `parent` and `fork` of its head never change. The
//! address in an empty slot is never passed to a reader (`table.rs`), as its run may be freed.
//!
//! **Checked by** the loom model and the test of `table.rs`, `tests/random_streams.rs`, and `tests/concurrency.rs`
//! under Valgrind and the address sanitizer (`make sanitize`).

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::boxes::WriterToken;
use super::head::RunHead;
use super::reclaim::{Guard, IndexId};
use super::run::{Run, RunRef};
use super::table::Table;
use crate::spread::Secret;

/// Hash table from parent run of blocks, fork (number of the parent's blocks before the child) and first content hash
/// to the child run.
pub(crate) struct Children {
    table: Table,
    secret: Secret,
    index: IndexId,
}

impl Children {
    pub(crate) fn with_room_for(runs: usize, writer: &WriterToken) -> Self {
        Self { table: Table::with_room_for(runs), secret: Secret::new(), index: writer.index() }
    }

    pub(crate) fn room(&self) -> usize {
        self.table.room()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Frees a part of the memory of this table of child runs; returns true if more is left. The table must not be
    /// searched afterwards.
    pub(crate) fn shed(&mut self) -> bool {
        self.table.shed()
    }

    #[inline]
    fn hash(&self, parent: u32, fork: u32, content: u64) -> u64 {
        self.secret.mix_hash(content, u64::from(parent) << 32 | u64::from(fork))
    }

    /// Run of blocks that continues the run `parent` after `fork` blocks with the content hash `content`; None if there
    /// is none.
    #[inline]
    pub(crate) fn find<'p>(&'p self, guard: &'p Guard<'_>, parent: u32, fork: u32, content: u64) -> Option<RunRef<'p>> {
        guard.assert_of(self.index);
        let head = self.find_head(parent, fork, content)?;
        Some(RunRef { head, guarded: PhantomData })
    }

    /// Number of the run of blocks that continues the run `parent` after `fork` blocks with the content hash `content`,
    /// for the writer.
    #[inline]
    pub(crate) fn find_id(&self, parent: u32, fork: u32, content: u64, writer: &WriterToken) -> Option<u32> {
        writer.assert_of(self.index);
        // SAFETY: what the writer finds linked is alive (rule 1).
        self.find_head(parent, fork, content).map(|head| unsafe { head.as_ref() }.id)
    }

    #[inline]
    fn find_head(&self, parent: u32, fork: u32, content: u64) -> Option<NonNull<RunHead>> {
        let found = self.table.find(self.hash(parent, fork, content), |word| {
            let head = ptr::with_exposed_provenance::<RunHead>(word as usize);
            // SAFETY: the table holds only runs that are alive, or retired since the caller came (under a guard, or the writer);
            // a linked run has written its first content hash.
            unsafe { (*head).parent == parent && (*head).fork == fork && head.add(1).cast::<u64>().read() == content }
        })?;
        NonNull::new(ptr::with_exposed_provenance_mut(found as usize))
    }

    /// Adds a run of blocks, whose first content hash is `content`, to this table of child runs, so that readers can
    /// find the run.
    pub(crate) fn insert(&self, run: &Run, content: u64, writer: &mut WriterToken) {
        writer.assert_of(self.index);
        let head = run.head();
        self.table.insert(self.hash(head.parent, head.fork, content), run.address(), writer);
    }

    /// Removes a run of blocks, whose first content hash is `content`, from this table of child runs. The caller must
    /// keep the run until no reader can use it.
    pub(crate) fn remove(&self, run: &Run, content: u64, writer: &mut WriterToken) {
        writer.assert_of(self.index);
        let head = run.head();
        let was_there = self.table.remove(self.hash(head.parent, head.fork, content), run.address(), writer);
        debug_assert!(was_there);
    }

    /// Replaces, in this table of child runs, a run of blocks that has moved to new memory; `content`: its first
    /// content hash. The caller must keep the old memory until no reader can use it.
    pub(crate) fn replace(&self, old: &Run, new: &Run, content: u64, writer: &mut WriterToken) {
        writer.assert_of(self.index);
        let head = new.head();
        let hash = self.hash(head.parent, head.fork, content);
        let was_there = self.table.replace(hash, old.address(), new.address(), writer);
        debug_assert!(was_there);
    }
}
