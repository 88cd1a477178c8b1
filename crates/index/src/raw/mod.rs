//! The memory that readers look at while the writer changes it, and all `unsafe` of this crate.
//!
//! The rules, which everything below relies on:
//!
//! 1. **One writer.** Only the holder of the index's writer lock creates, changes, unlinks or frees; it never frees a
//!    thing before [`crate::reclaim::Retired`] has handed it back.
//! 2. **Readers hold a [`Pin`] of the same index** from before they follow the first pointer until after the last use.
//! 3. **What readers may see of a run is written once.** The content hashes below the end of a published level never
//!    change in place: a run that must change one of them moves to new memory, and the old is retired.
//! 4. **The rest of a run that readers see** (its levels) is read under a sequence number and read again if it changed.
//!
//! Why unsafe at all: a lookup costs about as much as its cache misses. With reference-counted runs instead, every
//! lookup of every thread would write to the line of the first run they all share; with indices into growing arrays
//! it would take one more dependent miss a run. `docs/design/` has the measurement. Loom checks the reclamation; the tests run under Valgrind and the address sanitizer by `make sanitize`.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use smallvec::SmallVec;

use crate::reclaim::Pin;
use crate::runs::NO_NAME;
use crate::sets::{Set, SetWord, Sets};
use crate::table::{Table, mix};

/// Asks for a cache line; has no other effect.
#[inline]
pub(crate) fn prefetch<T>(it: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing architecturally, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(ptr::from_ref(it).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = it;
}

/// Bit 2 i for each i with `lanes[i] == wanted`. Three instructions instead of some thirty: the table of names asks this
/// for every block stored or removed.
#[inline]
pub(crate) fn equal_lanes(lanes: [u16; 8], wanted: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    let bytes = unsafe {
        use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set1_epi16};
        _mm_movemask_epi8(_mm_cmpeq_epi16(bytemuck::cast(lanes), _mm_set1_epi16(wanted.cast_signed()))).cast_unsigned()
    };
    #[cfg(not(target_arch = "x86_64"))]
    let bytes = lanes.iter().rev().fold(0, |bytes, &lane| bytes << 2 | u32::from(lane == wanted));
    bytes & 0x5555
}

/// A box whose address may be known to readers.
///
/// Unlike `Box` it may be moved while others point to its content.
pub(crate) struct Owned<T>(NonNull<T>);

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

/// The holders of positions up to `end` (exclusive, in blocks from the run's start).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) end: u32,
    pub(crate) set: SetWord,
}

/// A copy of a run's levels, shortest first: ends rise, sets shrink.
pub(crate) type Levels = SmallVec<[Level; 8]>;

/// Levels that do not fit into the head of a run; immutable.
pub(crate) type Spilled = SmallVec<[Level; 8]>;

/// A run's levels as a reader finds them.
pub(crate) enum LevelsRef<'p> {
    Inline([Level; INLINE], usize),
    Spilled(&'p [Level]),
}

impl Deref for LevelsRef<'_> {
    type Target = [Level];

    #[inline]
    fn deref(&self) -> &[Level] {
        match self {
            Self::Inline(levels, count) => &levels[..*count],
            Self::Spilled(levels) => levels,
        }
    }
}

/// Levels that live in the head of a run.
pub(crate) const INLINE: usize = 3;
/// In [`RunHead::info`]: the number of levels, `SPILLED` if they do not fit into the head.
const COUNT: u32 = 0xff;
const SPILLED: u32 = 0xff;
/// In [`RunHead::info`]: some run hangs off this one.
const HAS_CHILDREN: u32 = 0x100;

/// The first cache line of a run; its content hashes follow.
#[repr(C, align(64))]
pub(crate) struct RunHead {
    pub(crate) id: u32,
    /// The run this one continues, 0 for none,
    pub(crate) parent: u32,
    /// after so many of its blocks.
    pub(crate) fork: u32,
    /// Odd while the levels are being written.
    version: AtomicU32,
    info: AtomicU32,
    ends: [AtomicU32; INLINE],
    sets: [AtomicU64; INLINE],
    spilled: AtomicPtr<Spilled>,
}

const _: () = assert!(size_of::<RunHead>() == 64);

impl RunHead {
    /// Whether any run hangs off this one.
    #[inline]
    pub(crate) fn has_children(&self) -> bool {
        self.info.load(Ordering::Acquire) & HAS_CHILDREN != 0
    }

    pub(crate) fn set_has_children(&self, has: bool, _writer: &mut WriterToken) {
        let info = self.info.load(Ordering::Relaxed) & !HAS_CHILDREN;
        self.info.store(if has { info | HAS_CHILDREN } else { info }, Ordering::Release);
    }

    /// The levels as of one moment.
    #[inline]
    pub(crate) fn levels<'p>(&self, _: &'p Pin<'_>) -> LevelsRef<'p> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version & 1 == 0 {
                // SAFETY: pinned: a spilled list that was linked is not freed.
                let levels = unsafe { self.read_levels() };
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return levels;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// The levels, for the writer.
    #[inline]
    pub(crate) fn levels_now(&self, _writer: &WriterToken) -> Levels {
        // SAFETY: rule 1: the writer alone unlinks spilled lists, and copies this one first.
        Levels::from_slice(&unsafe { self.read_levels() })
    }

    /// # Safety
    /// No spilled list that is or was linked since the caller began may be freed for as long as the result lives.
    #[inline]
    unsafe fn read_levels<'p>(&self) -> LevelsRef<'p> {
        const NONE: Level = Level { end: 0, set: SetWord::EMPTY };
        let count = self.info.load(Ordering::Relaxed) & COUNT;
        if count == SPILLED {
            let spilled = self.spilled.load(Ordering::Acquire);
            // The word and the count may be of different versions here; the caller will see that and come again.
            // SAFETY: by contract.
            return LevelsRef::Spilled(if spilled.is_null() { &[] } else { unsafe { &*spilled } });
        }
        let mut levels = [NONE; INLINE];
        for (i, level) in levels.iter_mut().enumerate() {
            level.end = self.ends[i].load(Ordering::Relaxed);
            level.set = SetWord::from_raw(self.sets[i].load(Ordering::Relaxed));
        }
        LevelsRef::Inline(levels, (count as usize).min(INLINE))
    }

    /// Makes `levels` the levels. A list that was spilled before is the result, to be retired.
    pub(crate) fn publish(&self, levels: &[Level], _writer: &mut WriterToken) -> Option<Owned<Spilled>> {
        // Made first: readers spin while the version is odd.
        let spilled = match levels.len() {
            0..=INLINE => ptr::null_mut(),
            _ => Box::into_raw(Box::new(Spilled::from_slice(levels))),
        };
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (i, level) in levels.iter().take(INLINE).enumerate() {
            self.ends[i].store(level.end, Ordering::Relaxed);
            self.sets[i].store(level.set.raw(), Ordering::Relaxed);
        }
        let old = self.spilled.swap(spilled, Ordering::Release);
        let count = if levels.len() <= INLINE { levels.len() as u32 } else { SPILLED };
        self.info.store(self.info.load(Ordering::Relaxed) & !COUNT | count, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
        NonNull::new(old).map(Owned)
    }
}

/// A run: head, then room for content hashes, then room for block hashes, in one piece of memory.
///
/// Readers see the head and, up to the end of its last level, the content hashes. The block hashes are the writer's.
pub(crate) struct Run {
    head: NonNull<RunHead>,
    room: u32,
    /// Blocks there are.
    len: u32,
    /// Content hashes ever written to this memory: readers may still look at those beyond `len`.
    written: u32,
}

// SAFETY: it owns its memory; what readers see of it is atomic or, by rule 3, written before it is published.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    /// A run of no blocks yet.
    pub(crate) fn new(id: u32, parent: u32, fork: u32, room: usize) -> Self {
        let layout = Self::layout(room);
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) }.cast::<RunHead>();
        let Some(head) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let fresh = RunHead {
            id,
            parent,
            fork,
            version: AtomicU32::new(0),
            info: AtomicU32::new(0),
            ends: Default::default(),
            sets: Default::default(),
            spilled: AtomicPtr::new(ptr::null_mut()),
        };
        // SAFETY: just allocated, large and aligned enough. The hashes stay uninitialised until there are blocks.
        unsafe { head.write(fresh) };
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

    /// Whether blocks of these contents can be added without moving the run.
    #[inline]
    pub(crate) fn has_room_for(&self, contents: &[u64]) -> bool {
        self.len() + contents.len() <= self.room() && self.continues_with(contents)
    }

    /// Whether adding these contents would leave every block that ever was at its offset the same.
    #[inline]
    pub(crate) fn continues_with(&self, contents: &[u64]) -> bool {
        let written = (self.written - self.len) as usize;
        // SAFETY: `written` hashes have been written.
        let beyond = unsafe { slice::from_raw_parts(self.hashes().add(self.len()), written) };
        let n = written.min(contents.len());
        beyond[..n] == contents[..n]
    }

    /// Content hashes in this memory, those beyond the last block included.
    pub(crate) fn written(&self) -> usize {
        self.written as usize
    }

    /// Adds blocks at the end, for which there is room. Without names they are called [`NO_NAME`].
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

    /// Forgets the blocks from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }

    /// The same run in new memory, with a copy of its levels.
    pub(crate) fn moved(&self, room: usize, writer: &mut WriterToken) -> Self {
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
        new.head().publish(&self.head().levels_now(writer), writer);
        new.head().set_has_children(self.head().has_children(), writer);
        new
    }

    /// The address, for the table of children.
    fn address(&self) -> u64 {
        self.head.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let spilled = self.head().spilled.swap(ptr::null_mut(), Ordering::Relaxed);
        drop(NonNull::new(spilled).map(Owned));
        // SAFETY: allocated by `new` with the same layout; by rule 1 no reader has it any more.
        unsafe { dealloc(self.head.as_ptr().cast(), Self::layout(self.room())) };
    }
}

/// A run as a reader sees it.
#[derive(Clone, Copy)]
pub(crate) struct RunRef<'p> {
    head: NonNull<RunHead>,
    pinned: PhantomData<&'p ()>,
}

impl<'p> RunRef<'p> {
    #[inline]
    pub(crate) fn head(self) -> &'p RunHead {
        // SAFETY: found in the table of children under a pin: not freed while that lives.
        unsafe { self.head.as_ref() }
    }

    /// The levels as of one moment, and the content hashes they reach over.
    #[inline]
    pub(crate) fn read(self, pin: &'p Pin<'_>) -> (LevelsRef<'p>, &'p [u64]) {
        let levels = self.head().levels(pin);
        let end = levels.last().map_or(0, |level| level.end as usize);
        // SAFETY: all below the end of a published level is written (the version was read with Acquire), and stays
        // (rule 3).
        (levels, unsafe { slice::from_raw_parts(self.head.add(1).cast().as_ptr(), end) })
    }
}

/// (parent run, fork, first content hash) → run.
pub(crate) struct Children {
    table: Table,
    secret: u64,
}

impl Children {
    pub(crate) fn with_room_for(runs: usize, secret: u64) -> Self {
        Self { table: Table::with_room_for(runs), secret }
    }

    pub(crate) fn room(&self) -> usize {
        self.table.room()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    #[inline]
    fn hash(&self, parent: u32, fork: u32, content: u64) -> u64 {
        mix(content, u64::from(parent) << 32 | u64::from(fork), self.secret)
    }

    /// The run that continues `parent` after `fork` blocks with `content`.
    #[inline]
    pub(crate) fn find<'p>(&self, _: &'p Pin<'_>, parent: u32, fork: u32, content: u64) -> Option<RunRef<'p>> {
        let head = self.find_head(parent, fork, content)?;
        Some(RunRef { head, pinned: PhantomData })
    }

    /// The same for the writer: the run's id.
    #[inline]
    pub(crate) fn find_id(&self, parent: u32, fork: u32, content: u64) -> Option<u32> {
        // SAFETY: what the writer finds linked is alive (rule 1).
        self.find_head(parent, fork, content).map(|head| unsafe { head.as_ref() }.id)
    }

    #[inline]
    fn find_head(&self, parent: u32, fork: u32, content: u64) -> Option<NonNull<RunHead>> {
        let found = self.table.find(self.hash(parent, fork, content), |word| {
            let head = ptr::with_exposed_provenance::<RunHead>(word as usize);
            // SAFETY: the table holds only runs that are alive, or retired since the caller came (pinned or writer);
            // a linked run has written its first content hash.
            unsafe { (*head).parent == parent && (*head).fork == fork && head.add(1).cast::<u64>().read() == content }
        })?;
        NonNull::new(ptr::with_exposed_provenance_mut(found as usize))
    }

    /// Links a run whose first content hash is `content`.
    pub(crate) fn insert(&self, run: &Run, content: u64) {
        let head = run.head();
        self.table.insert(self.hash(head.parent, head.fork, content), run.address());
    }

    /// Unlinks a run; it is for the caller to retire.
    pub(crate) fn remove(&self, run: &Run, content: u64) {
        let head = run.head();
        let was_there = self.table.remove(self.hash(head.parent, head.fork, content), run.address());
        debug_assert!(was_there);
    }

    /// Links a run that has moved in place of its old memory, which is for the caller to retire.
    pub(crate) fn replace(&self, old: &Run, new: &Run, content: u64) {
        let head = new.head();
        let was_there = self.table.replace(self.hash(head.parent, head.fork, content), old.address(), new.address());
        debug_assert!(was_there);
    }
}

/// The set that a word found under this pin names.
#[inline]
pub(crate) fn pinned_set<'p>(address: u64, _: &'p Pin<'_>) -> &'p Set {
    // SAFETY: rule 2.
    unsafe { &*ptr::with_exposed_provenance::<Set>(address as usize) }
}

/// The set that a word of the writer's names.
#[inline]
pub(crate) fn counted_set(address: u64, _: &Sets) -> &Set {
    // SAFETY: the table of sets frees none that is counted, and the writer has no others.
    unsafe { &*ptr::with_exposed_provenance::<Set>(address as usize) }
}
