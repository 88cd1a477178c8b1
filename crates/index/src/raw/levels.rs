//! Levels of a run (a list of consecutive blocks) as words that are written one by one, and the record of the levels
//! that are being changed. A level is a number of a run's blocks with the set of holders (ranks' caches) that have
//! them.
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

/// Level of a run of blocks: the set of holders (ranks' caches) that have the run's blocks up to `end` (exclusive, as
/// an offset in the run).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Level {
    pub(crate) end: u32,
    pub(crate) set: SetWord,
}

/// List of levels (numbers of first blocks with their holders) that do not fit into the head of a run of blocks;
/// immutable.
pub(crate) type SpilledLevels = ThinBox<(), Level>;
pub(super) type SpilledMemory = Memory<(), Level>;

/// Levels of a run of blocks: numbers of its first blocks, each with the set of holders (ranks' caches) that have them;
/// as read under a guard that lives for `'p`.
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

    /// Pairs of the end of each level, as a number of blocks, and the set of the holders (ranks' caches) that have all
    /// blocks up to this end.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, SetRef<'p>)> {
        // SAFETY: read from a head, whose sets are linked, under the guard of `'p`.
        self.as_slice().iter().map(|level| (level.end, unsafe { SetRef::new(level.set) }))
    }

    /// Number of blocks that any holder (a rank's cache) has of the run, which is the end of the last level; 0 without
    /// levels.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.as_slice().last().map_or(0, |level| level.end)
    }
}

/// Largest number of levels (numbers of first blocks with their holders) in the head of a run of blocks: only one under
/// the model checker, which takes a day for three.
pub(super) const INLINE: usize = if cfg!(loom) { 1 } else { 3 };
/// Bit mask of the number of a run's levels (numbers of first blocks with their holders) in [`Words::info`]; the value
/// `SPILLED` means that the levels are in separate memory.
pub(super) const COUNT: u32 = 0xff;
pub(super) const SPILLED: u32 = 0xff;

/// Levels (numbers of first blocks with their holders) and flags of a run of blocks, as words that are written one by
/// one.
#[derive(Default)]
#[repr(C)]
pub(super) struct Words {
    pub(super) info: AtomicU32,
    pub(super) ends: [AtomicU32; INLINE],
    pub(super) sets: [AtomicU64; INLINE],
    pub(super) spilled: AtomicPtr<SpilledMemory>,
}

/// Copy of the levels of a run's head (numbers of first blocks with their holders) before the change that the writer is
/// making; each index has one record of this kind.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct ChangeRecord {
    /// Version of this record of a head's levels, odd while the writer is changing the record.
    version: AtomicU32,
    /// Version, an odd number, that the run's head has during the change that the writer is making. `head`: memory
    /// address of this head.
    change: AtomicU32,
    head: AtomicUsize,
    words: Words,
}

impl Words {
    /// Levels (numbers of first blocks with their holders) as read from the words, for a caller that checks the version
    /// afterwards.
    ///
    /// # Safety
    /// No list of levels that was linked to this head since the caller began may be freed for as long as the result
    /// lives.
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

    /// Writes the levels of a run: depths in blocks, each with the workers that hold the run up to there. They must fit
    /// into the space that each run has for levels. A reader that sees one of the written words also sees all earlier
    /// changes.
    #[inline]
    pub(super) fn write(&self, levels: &[Level]) {
        for ((end, set), level) in self.ends.iter().zip(&self.sets).zip(levels) {
            end.store(level.end, Ordering::Release);
            set.store(level.set.raw(), Ordering::Release);
        }
    }

    /// Number of words (stored integers) in which the current levels (numbers of first blocks with their holders)
    /// differ from `levels`.
    #[inline]
    pub(super) fn differences(&self, levels: &[Level]) -> usize {
        let differs = |((end, set), level): ((&AtomicU32, &AtomicU64), &Level)| {
            usize::from(end.load(Ordering::Relaxed) != level.end)
                + usize::from(set.load(Ordering::Relaxed) != level.set.raw())
        };
        self.ends.iter().zip(&self.sets).zip(levels).map(differs).sum()
    }

    /// Copies all words of the levels and flags of a run of blocks from another head of the run.
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
    /// Copies the words of a run's head, which contain its levels, to this record before the writer starts to change
    /// them. `head`: address of the head; `change`: version of the head during the change.
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

    /// Levels (numbers of first blocks with their holders) of the run's head at the address `head`, before the change
    /// with version `change`, which the caller has seen started; None if the change is complete.
    ///
    /// # Safety
    ///
    /// The conditions of [`Words::read`] hold since before the caller saw the change.
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
