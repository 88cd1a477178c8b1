//! The table of children: (parent run, fork, first content hash) to the run that continues there.
//!
//! **Protocol.** The table holds addresses of runs, and no keys: whoever finds an address looks at the run itself to
//! see whether it is the one. Readers do so under a pin, beside the one writer that links, moves and unlinks.
//!
//! **Invariants.** Every address in the table is that of a run that is alive, or was retired since the caller came; a
//! run has its first content hash before it is linked, and the head's `parent` and `fork` never change. An empty slot
//! is never offered (`table.rs`), as what it last held may be freed.
//!
//! **Checked by** the loom models and the tests of `table.rs` and `directory.rs`, `tests/random_streams.rs`, and
//! `tests/concurrency.rs` under Valgrind and the address sanitizer (`make sanitize`).

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::boxes::{Published, WriterToken};
use super::directory::{Directory, Segments, Unlinked};
use super::head::RunHead;
use super::reclaim::Pin;
use super::run::{Run, RunRef};
use crate::spread::mix;

/// (Parent run, fork, first content hash) → run, as readers see it.
pub(crate) struct Children {
    directory: Published<Directory>,
    secret: u64,
}

/// The same, the writer's.
pub(crate) struct Links {
    published: Arc<Children>,
    segments: Segments,
}

fn hash(parent: u32, fork: u32, content: u64, secret: u64) -> u64 {
    mix(content, u64::from(parent) << 32 | u64::from(fork), secret)
}

/// Whether the run at this address is the one.
///
/// # Safety
/// It is alive, or was retired since the caller came; and it is or was linked.
#[inline]
unsafe fn is_at(address: u64, parent: u32, fork: u32, content: u64) -> bool {
    let head = ptr::with_exposed_provenance::<RunHead>(address as usize);
    // SAFETY: by contract; a linked run has written its first content hash.
    unsafe { (*head).parent == parent && (*head).fork == fork && head.add(1).cast::<u64>().read() == content }
}

impl Children {
    /// The run that continues `parent` after `fork` blocks with `content`.
    #[inline]
    pub(crate) fn find<'p>(&self, pin: &'p Pin<'_>, parent: u32, fork: u32, content: u64) -> Option<RunRef<'p>> {
        let hash = hash(parent, fork, content, self.secret);
        // SAFETY: the table holds only runs that are alive, or retired since the reader came.
        let found = self.directory.load(pin).find(pin, hash, |it| unsafe { is_at(it, parent, fork, content) })?;
        let head = NonNull::new(ptr::with_exposed_provenance_mut(found as usize))?;
        Some(RunRef { head, pinned: PhantomData })
    }
}

impl Links {
    pub(crate) fn new(secret: u64) -> Self {
        let (segments, directory) = Segments::new();
        Self { published: Arc::new(Children { directory: Published::new(directory), secret }), segments }
    }

    /// Where readers come in.
    pub(crate) fn published(&self) -> &Arc<Children> {
        &self.published
    }

    pub(crate) fn bytes(&self, writer: &WriterToken) -> usize {
        size_of::<Children>() + self.segments.bytes(self.published.directory.get(writer))
    }

    /// Whether what it counts is right.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_counted(&self) -> bool {
        self.segments.is_counted()
    }

    /// The number of the run that continues `parent` after `fork` blocks with `content`.
    #[inline]
    pub(crate) fn find(&self, parent: u32, fork: u32, content: u64) -> Option<u32> {
        let hash = hash(parent, fork, content, self.published.secret);
        // SAFETY: what the writer finds linked is alive (rule 1).
        let found = self.segments.find(hash, |it| unsafe { is_at(it, parent, fork, content) })?;
        // SAFETY: as above.
        Some(unsafe { (*ptr::with_exposed_provenance::<RunHead>(found as usize)).id })
    }

    /// Links a run. `retire` is given what the table does not need any more.
    pub(crate) fn insert(&mut self, run: &Run, retire: impl FnMut(Unlinked), writer: &mut WriterToken) {
        let secret = self.published.secret;
        let of = |address| hash_of(address, secret);
        let directory = &self.published.directory;
        self.segments.insert(directory, of(run.address()), run.address(), of, retire, writer);
    }

    /// Unlinks a run; it is for the caller to retire. `retire` is given what the table does not need any more.
    pub(crate) fn remove(&mut self, run: &Run, retire: impl FnMut(Unlinked), writer: &mut WriterToken) {
        let secret = self.published.secret;
        let of = |address| hash_of(address, secret);
        let directory = &self.published.directory;
        let was_there = self.segments.remove(directory, of(run.address()), run.address(), of, retire, writer);
        debug_assert!(was_there);
    }

    /// Links a run that has moved in place of its old memory, which is for the caller to retire.
    pub(crate) fn replace(&self, old: &Run, new: &Run) {
        let hash = hash_of(new.address(), self.published.secret);
        let was_there = self.segments.replace(hash, old.address(), new.address());
        debug_assert!(was_there);
    }
}

/// The hash of a run of the writer's that is linked or about to be.
fn hash_of(address: u64, secret: u64) -> u64 {
    let head = ptr::with_exposed_provenance::<RunHead>(address as usize);
    // SAFETY: the writer's own: alive, with a first content hash.
    unsafe { hash((*head).parent, (*head).fork, head.add(1).cast::<u64>().read(), secret) }
}
