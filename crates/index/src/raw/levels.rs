//! Levels of a run as words that are written one by one, and the record of levels that are being changed.
//!
//! Both belong to the protocol of `head.rs`, which defines the order in which the words are written and read. The
//! record is in this file, as a reader's guard and the writer's token both lead to it.
//!
//! **Invariants.** All fields are atomics, so a torn copy is a wrong value and never undefined behaviour; a reader
//! compares versions before it uses a copy.
//!
//! **Checked by** the tests and the loom models of `head.rs`.

use std::ptr::NonNull;

use super::set::{SetRef, SetWord};
use super::thin::{Memory, ThinBox, ThinRef};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Level: the holders of a run's positions up to `end` (exclusive, in blocks from the run's start).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) end: u32,
    pub(crate) set: SetWord,
}

/// Levels that do not fit into the head of a run; immutable.
pub(crate) type SpilledLevels = ThinBox<(), Level>;
pub(super) type SpilledMemory = Memory<(), Level>;

/// Levels of a run as read under a guard that lives for `'p`.
pub(crate) enum LevelsRef<'p> {
    Inline([Level; INLINE], usize),
    Spilled(&'p [Level]),
}

impl<'p> LevelsRef<'p> {
    #[inline]
    pub(super) fn as_slice(&self) -> &[Level] {
        match self {
            Self::Inline(levels, count) => &levels[..*count],
            Self::Spilled(levels) => levels,
        }
    }

    /// End of each level in blocks, and the set of the holders of all blocks up to there.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, SetRef<'p>)> {
        // SAFETY: read from a head, whose sets are linked, under the guard of `'p`.
        self.as_slice().iter().map(|level| (level.end, unsafe { SetRef::new(level.set) }))
    }

    /// End of the last level in blocks; 0 without levels.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.as_slice().last().map_or(0, |level| level.end)
    }
}

/// Largest number of levels kept in the head of a run: few under the model checker, which takes a day for three.
pub(super) const INLINE: usize = if cfg!(loom) { 1 } else { 3 };
/// Mask of the number of levels in [`Words::info`]; `SPILLED` there if they do not fit into the head.
pub(super) const COUNT: u32 = 0xff;
pub(super) const SPILLED: u32 = 0xff;

/// Levels, and what else is known of a run, as words that are written one by one.
#[derive(Default)]
#[repr(C)]
pub(super) struct Words {
    pub(super) info: AtomicU32,
    pub(super) ends: [AtomicU32; INLINE],
    pub(super) sets: [AtomicU64; INLINE],
    pub(super) spilled: AtomicPtr<SpilledMemory>,
}

/// Record of a head's levels from before the change that the writer is making; there is one for each index.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct ChangeRecord {
    /// Version of the record, odd while the record is being written.
    version: AtomicU32,
    /// Odd version that the head under change has during the change; `head` is this head's address.
    change: AtomicU32,
    head: AtomicUsize,
    words: Words,
}

impl Words {
    /// # Safety
    /// No spilled list that is or was linked since the caller began may be freed for as long as the result lives.
    #[inline]
    pub(super) unsafe fn read<'p>(&self) -> LevelsRef<'p> {
        const NONE: Level = Level { end: 0, set: SetWord::EMPTY };
        // A level that this count is the first to have is written.
        let count = self.info.load(Ordering::Acquire) & COUNT;
        if count == SPILLED {
            let spilled = self.spilled.load(Ordering::Acquire);
            // The word and the count may be of different versions here; the caller will see that and come again.
            // SAFETY: by contract.
            let list = NonNull::new(spilled).map(|memory| unsafe { ThinRef::of(memory) }.items());
            return LevelsRef::Spilled(list.unwrap_or_default());
        }
        let mut levels = [NONE; INLINE];
        for (i, level) in levels.iter_mut().enumerate() {
            level.end = self.ends[i].load(Ordering::Relaxed);
            level.set = SetWord::from_raw(self.sets[i].load(Ordering::Relaxed));
        }
        LevelsRef::Inline(levels, (count as usize).min(INLINE))
    }

    /// Writes levels that fit into the head. A reader that sees one of the words sees that earlier changes are done.
    #[inline]
    pub(super) fn write(&self, levels: &[Level]) {
        for ((end, set), level) in self.ends.iter().zip(&self.sets).zip(levels) {
            end.store(level.end, Ordering::Release);
            set.store(level.set.raw(), Ordering::Release);
        }
    }

    /// Number of words in which the current levels differ from `levels`.
    #[inline]
    pub(super) fn differences(&self, levels: &[Level]) -> usize {
        let differs = |((end, set), level): ((&AtomicU32, &AtomicU64), &Level)| {
            usize::from(end.load(Ordering::Relaxed) != level.end)
                + usize::from(set.load(Ordering::Relaxed) != level.set.raw())
        };
        self.ends.iter().zip(&self.sets).zip(levels).map(differs).sum()
    }

    /// Copies the words of another head.
    #[inline]
    pub(super) fn copy(&self, from: &Self) {
        self.info.store(from.info.load(Ordering::Relaxed), Ordering::Relaxed);
        for i in 0..INLINE {
            self.ends[i].store(from.ends[i].load(Ordering::Relaxed), Ordering::Relaxed);
            self.sets[i].store(from.sets[i].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // A reader may come to the list by this word alone.
        self.spilled.store(from.spilled.load(Ordering::Relaxed), Ordering::Release);
    }
}

impl ChangeRecord {
    /// Records the words of a head before the writer starts a change of this head.
    #[inline]
    pub(super) fn begin(&self, head: usize, words: &Words, change: u32) {
        let version = self.version.load(Ordering::Relaxed);
        // A reader that sees this sees that the change before is done.
        self.version.store(version.wrapping_add(1), Ordering::Release);
        fence(Ordering::Release);
        self.change.store(change, Ordering::Relaxed);
        self.head.store(head, Ordering::Relaxed);
        self.words.copy(words);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Levels of the head at address `head` before the change `change`, which the caller has seen started; None if it
    /// is done.
    ///
    /// # Safety
    /// Those of [`Words::read`], from before the caller saw the change.
    #[inline(never)]
    pub(super) unsafe fn before<'p>(&self, head: usize, change: u32) -> Option<LevelsRef<'p>> {
        let version = self.version.load(Ordering::Acquire);
        let of = (self.head.load(Ordering::Relaxed), self.change.load(Ordering::Relaxed));
        if version & 1 == 1 || of != (head, change) {
            // So that the caller, who comes again, sees what the writer did before it came to another change.
            fence(Ordering::Acquire);
            return None;
        }
        // SAFETY: whatever is mixed up here, it was copied for this change or a later one. What this change or a later
        // one unlinks is retired after that is done, and so after the caller came.
        let levels = unsafe { self.words.read() };
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(levels)
    }
}
