//! The head of a run: its levels, read under a sequence number.
//!
//! **Protocol** (a sequence lock, Boehm 2012). The writer makes the version odd, writes, and makes it even again. A
//! reader copies the levels between two looks at the version, and comes again if they differ or are odd. Up to
//! [`INLINE`] levels are in the head itself; a longer list is a box of its own, replaced as a whole.
//!
//! **Invariants.** All fields are atomics, so a torn copy is a wrong value and never undefined behaviour; a spilled list
//! is immutable, and is retired, not freed, when it is replaced. There is one writer.
//!
//! **Checked by** the test below (readers beside a writer never see levels of two versions), and by
//! `tests/concurrency.rs` under Valgrind and the address sanitizer (`make sanitize`).

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use super::boxes::WriterToken;
use super::reclaim::Pin;
use super::set::SetWord;
use super::thin::{Memory, Spares, Thin, ThinBox};

/// The holders of positions up to `end` (exclusive, in blocks from the run's start).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) end: u32,
    pub(crate) set: SetWord,
}

/// Levels that do not fit into the head of a run; immutable.
pub(crate) type Spilled = ThinBox<(), Level>;
type SpilledMemory = Memory<(), Level>;

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
    spilled: AtomicPtr<SpilledMemory>,
}

const _: () = assert!(size_of::<RunHead>() == 64);

impl RunHead {
    pub(super) fn new(id: u32, parent: u32, fork: u32) -> Self {
        Self {
            id,
            parent,
            fork,
            version: AtomicU32::new(0),
            info: AtomicU32::new(0),
            ends: Default::default(),
            sets: Default::default(),
            spilled: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Takes the spilled list, if there is one, from a head that no reader has.
    pub(super) fn take_spilled(&self) -> Option<Spilled> {
        Self::owned(self.spilled.swap(ptr::null_mut(), Ordering::Relaxed))
    }

    fn owned(unlinked: *mut SpilledMemory) -> Option<Spilled> {
        // SAFETY: what a head links is made by `publish`, and was unlinked by the caller.
        NonNull::new(unlinked).map(|memory| unsafe { ThinBox::from_raw(memory) })
    }

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
    pub(crate) fn levels_now<'w>(&'w self, _writer: &'w WriterToken) -> LevelsRef<'w> {
        // SAFETY: rule 1: the writer alone unlinks spilled lists, and only with its token borrowed mutably.
        unsafe { self.read_levels() }
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
            let list = NonNull::new(spilled).map(|memory| unsafe { Thin::of(memory) }.items());
            return LevelsRef::Spilled(list.unwrap_or_default());
        }
        let mut levels = [NONE; INLINE];
        for (i, level) in levels.iter_mut().enumerate() {
            level.end = self.ends[i].load(Ordering::Relaxed);
            level.set = SetWord::from_raw(self.sets[i].load(Ordering::Relaxed));
        }
        LevelsRef::Inline(levels, (count as usize).min(INLINE))
    }

    /// Makes `levels` the levels. A list that was spilled before is the result, to be retired.
    pub(crate) fn publish(
        &self,
        levels: &[Level],
        spares: &mut Spares<(), Level>,
        _writer: &mut WriterToken,
    ) -> Option<Spilled> {
        // Made first: readers spin while the version is odd.
        let spilled = match levels.len() {
            0..=INLINE => ptr::null_mut(),
            _ => spares.make((), levels).into_raw(),
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
        Self::owned(old)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::raw::reclaim::{Readers, Retired};

    /// `count` levels that say which version they are of, each in its own way.
    fn version(n: u32) -> Vec<Level> {
        let count = 1 + n % 6;
        (0..count).map(|i| Level { end: n * 8 + i, set: SetWord::from_raw(u64::from(n * 8 + i) << 2 | 1) }).collect()
    }

    #[test]
    fn readers_see_the_levels_of_one_version() {
        let (readers, head, done) = (Readers::new(2), RunHead::new(1, 0, 0), AtomicBool::new(false));
        head.publish(&version(0), &mut Spares::new(), &mut WriterToken::new());
        // Outlives the readers: what is left in it when the writer is done may still be read.
        let mut retired = Retired::new();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let pin = readers.pin();
                        let levels = head.levels(&pin);
                        let n = levels[0].end / 8;
                        assert_eq!(*levels, *version(n));
                        assert!(n >= last, "versions rise");
                        last = n;
                    }
                });
            }
            let (mut writer, mut spares) = (WriterToken::new(), Spares::new());
            for n in 1..100_000 {
                if let Some(old) = head.publish(&version(n), &mut spares, &mut writer) {
                    retired.push(old);
                }
                retired.advance(&readers, usize::MAX, |old| spares.keep(old));
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(head.take_spilled());
    }
}
