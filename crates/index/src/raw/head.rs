//! Head of a run (a list of consecutive blocks): its levels, read under a sequence number. A level is a number of
//! blocks with the set of holders (ranks' caches) that have them.
//!
//! **Protocol** (a sequence lock, Boehm 2012, without waiting). A reader copies the levels between two reads of the
//! version, and tries again if the version has changed. Up to [`INLINE`] levels are in the head itself; a longer list
//! is in separate memory and replaced as a whole. The writer changes levels in one of two ways:
//!
//! - *By one word*, in most cases: the end or set of one level, the number of levels, or another list. Data that only
//!   the new word makes visible is written before it, and the next version after it. A reader that finds the new word
//!   under the old version has the levels after the change, otherwise those before.
//! - *By several words*. The old levels are copied to the index's one record ([`super::levels::ChangeRecord`]). Then
//!   the version becomes odd, the words are written, and the version becomes even. A reader that finds an odd version
//!   takes the levels from the record, as the change is not complete.
//!
//! So a reader tries again only if the writer has completed a change of this head in the meantime; it never waits for a
//! writer whose thread is suspended.
//!
//! **Invariants.** All fields are atomics, so a torn copy is a wrong value and never undefined behaviour. A list in
//! separate memory is immutable; when it is replaced, it is retired (freed once no reader can use it) after the change
//! is complete. A reader that sees a word of a change sees the versions of all changes before. As there is one writer,
//! one head at a time has an odd version, and a reader that sees an odd version finds the record at that change or a
//! later one.
//!
//! **Checked by** the test and the loom models below (`make loom`), by Miri (`make miri`), and by
//! `tests/concurrency.rs` under Valgrind and the address sanitizer (`make sanitize`).

use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::boxes::WriterToken;
use super::levels::{COUNT, INLINE, Level, LevelsRef, SPILLED, SpilledLevels, SpilledMemory, Words};
use super::reclaim::Guard;
use super::thin::{Spares, ThinBox};
use crate::sync::{AtomicU32, Ordering, fence};

/// Levels of a run of blocks: numbers of its first blocks, each with the set of holders (ranks' caches) that have them;
/// for the writer. The sets are words whose references the writer's table of sets counts.
pub(crate) struct LevelsNow<'w>(LevelsRef<'w>);

impl Deref for LevelsNow<'_> {
    type Target = [Level];

    #[inline]
    fn deref(&self) -> &[Level] {
        self.0.as_slice()
    }
}

/// Bit in [`Words::info`], set if other runs of blocks continue this run.
const HAS_CHILDREN: u32 = 0x100;

/// Head of a run of blocks, which fills the first cache line of the run's memory; the content hashes follow.
#[repr(C, align(64))]
pub(crate) struct RunHead {
    pub(crate) id: u32,
    /// Number of the run of blocks that this run continues, 0 for none.
    pub(crate) parent: u32,
    /// Number of the parent run's blocks after which this run of blocks continues the parent.
    pub(crate) fork: u32,
    /// Version of the run's levels (numbers of first blocks with their holders), odd while the writer is changing
    /// several words of them.
    version: AtomicU32,
    words: Words,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RunHead>() == 64);

impl RunHead {
    pub(super) fn new(id: u32, parent: u32, fork: u32) -> Self {
        Self { id, parent, fork, version: AtomicU32::new(0), words: Words::default() }
    }

    /// Memory address of this head of a run, which identifies the head in the copy of its levels that the writer makes
    /// before a change (`ChangeRecord` in `levels.rs`).
    #[inline]
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Removes and returns the list of levels (numbers of first blocks with their holders) in separate memory, if there
    /// is one, of a head that no reader uses.
    pub(super) fn take_spilled(&self) -> Option<SpilledLevels> {
        Self::owned(self.words.spilled.swap(ptr::null_mut(), Ordering::Relaxed))
    }

    fn owned(unlinked: *mut SpilledMemory) -> Option<SpilledLevels> {
        // SAFETY: what a head links is made by `publish`, and was unlinked by the caller.
        NonNull::new(unlinked).map(|memory| unsafe { ThinBox::from_raw(memory) })
    }

    /// True if other runs of blocks continue this run.
    #[inline]
    pub(crate) fn has_children(&self) -> bool {
        self.words.info.load(Ordering::Acquire) & HAS_CHILDREN != 0
    }

    pub(crate) fn set_has_children(&self, has: bool, _writer: &mut WriterToken) {
        let info = self.words.info.load(Ordering::Relaxed) & !HAS_CHILDREN;
        self.words.info.store(if has { info | HAS_CHILDREN } else { info }, Ordering::Release);
    }

    /// Levels of the run of blocks: numbers of its first blocks, each with the set of holders (ranks' caches) that have
    /// them; at one moment, for a reader.
    #[inline]
    pub(super) fn levels<'p>(&self, guard: &'p Guard<'_>) -> LevelsRef<'p> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version & 1 == 0 {
                // SAFETY: under a guard: a spilled list that was linked is not freed.
                let levels = unsafe { self.words.read() };
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return levels;
                }
            // SAFETY: as above.
            } else if let Some(levels) = unsafe { guard.under_change().before(self.address(), version) } {
                return levels;
            }
        }
    }

    /// Levels of the run of blocks: numbers of its first blocks, each with the set of holders (ranks' caches) that have
    /// them; for the writer.
    #[inline]
    pub(crate) fn levels_now<'w>(&'w self, _writer: &'w WriterToken) -> LevelsNow<'w> {
        // SAFETY: rule 1: the writer alone unlinks spilled lists, and only with its token borrowed mutably.
        LevelsNow(unsafe { self.words.read() })
    }

    /// Copies the levels (numbers of first blocks with their holders), and the flag for children, from another head of
    /// the same run of blocks. No reader uses this head yet.
    pub(super) fn take_over(&self, from: &Self, spares: &mut Spares<(), Level>, writer: &WriterToken) {
        self.words.copy(&from.words);
        if let LevelsNow(LevelsRef::Spilled(levels)) = from.levels_now(writer) {
            self.words.spilled.store(spares.make((), levels).into_raw(), Ordering::Relaxed);
        }
    }

    /// Publishes `levels` (numbers of first blocks with their holders) as the levels of the run of blocks. If the
    /// previous levels were in separate memory, returns that list, which must be freed once no reader can use it.
    pub(crate) fn publish(
        &self,
        levels: &[Level],
        spares: &mut Spares<(), Level>,
        writer: &mut WriterToken,
    ) -> Option<SpilledLevels> {
        let info = self.words.info.load(Ordering::Relaxed);
        let (was, count) = (info & COUNT, if levels.len() <= INLINE { levels.len() as u32 } else { SPILLED });
        let info = info & !COUNT | count;
        if count == SPILLED {
            let old = self.words.spilled.swap(spares.make((), levels).into_raw(), Ordering::Release);
            if was != SPILLED {
                self.words.info.store(info, Ordering::Release);
            }
            self.next_version();
            return Self::owned(old);
        }
        if was == SPILLED {
            self.words.write(levels);
            self.words.info.store(info, Ordering::Release);
            self.next_version();
            return Self::owned(self.words.spilled.swap(ptr::null_mut(), Ordering::Release));
        }
        let changes = self.words.differences(&levels[..was.min(count) as usize]) + usize::from(was != count);
        if changes <= 1 {
            self.words.write(levels);
            self.words.info.store(info, Ordering::Release);
            self.next_version();
            return None;
        }
        let change = self.version.load(Ordering::Relaxed).wrapping_add(1);
        writer.under_change.begin(self.address(), &self.words, change);
        // A reader that sees this sees the record.
        self.version.store(change, Ordering::Release);
        fence(Ordering::Release);
        self.words.write(levels);
        self.words.info.store(info, Ordering::Release);
        self.version.store(change.wrapping_add(1), Ordering::Release);
        None
    }

    /// Increments the version of the run's levels, after a change that readers saw as a single store.
    #[inline]
    fn next_version(&self) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::raw::reclaim::{Readers, RetiredList};
    use crate::raw::set::SetWord;

    const CHANGES: u32 = if cfg!(miri) { 200 } else { 100_000 };

    /// Levels (numbers of first blocks with their holders) whose values all contain the version number `n`, and whose
    /// count depends on it.
    fn version(n: u32) -> Vec<Level> {
        let count = 1 + n % 6;
        (0..count).map(|i| Level { end: n * 8 + i, set: SetWord::from_raw(u64::from(n * 8 + i) << 2 | 1) }).collect()
    }

    #[test]
    fn readers_see_the_levels_of_one_version() {
        let (readers, head, done) = (Readers::new(2), RunHead::new(1, 0, 0), AtomicBool::new(false));
        let (mut writer, mut spares) = (WriterToken::of(&readers), Spares::new());
        head.publish(&version(0), &mut spares, &mut writer);
        // Outlives the readers: what is left in it when the writer is done may still be read.
        let mut retired = RetiredList::new();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let guard = readers.enter();
                        let levels = head.levels(&guard);
                        let n = levels.as_slice()[0].end / 8;
                        assert_eq!(levels.as_slice(), &*version(n));
                        assert!(n >= last, "versions rise");
                        last = n;
                    }
                });
            }
            for n in 1..CHANGES {
                if let Some(old) = head.publish(&version(n), &mut spares, &mut writer) {
                    retired.push(old);
                }
                retired.advance(&readers, usize::MAX, |old| spares.keep(old));
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(head.take_spilled());
    }

    #[test]
    fn nobody_waits_for_a_writer_that_stopped_in_the_middle() {
        let (readers, head) = (Readers::new(1), RunHead::new(1, 0, 0));
        let (mut writer, mut spares) = (WriterToken::of(&readers), Spares::new());
        for n in 0..12 {
            let old = head.publish(&version(n), &mut spares, &mut writer);
            // As the writer leaves it when its processor is taken away: begun, and half written.
            let change = head.version.load(Ordering::Relaxed) + 1;
            writer.under_change.begin(head.address(), &head.words, change);
            head.version.store(change, Ordering::Release);
            let (sets, ends) = (&head.words.sets[0], &head.words.ends[0]);
            let was = (sets.swap(u64::MAX, Ordering::Relaxed), ends.swap(u32::MAX, Ordering::Relaxed));
            assert_eq!(head.levels(&readers.enter()).as_slice(), &*version(n));
            sets.store(was.0, Ordering::Relaxed);
            ends.store(was.1, Ordering::Relaxed);
            head.version.store(change + 1, Ordering::Release);
            drop(old);
        }
        drop(head.take_spilled());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::raw::reclaim::Readers;
    use crate::raw::set::SetWord;

    /// Levels (numbers of first blocks with their holders) whose values all contain the version number `n`: one level,
    /// or a list in separate memory.
    fn version(n: u32, count: u32) -> Vec<Level> {
        (0..count).map(|i| Level { end: n * 8 + i, set: SetWord::from_raw(u64::from(n * 8 + i) << 2 | 1) }).collect()
    }

    /// Model of a reader that reads a run's head `looks` times, beside a writer that changes it from `counts[0]` to
    /// `counts[1]` levels (numbers of first blocks with their holders), and then, if `goes_on`, writes the record of a
    /// change of another head.
    fn model(counts: [u32; 2], looks: usize, goes_on: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(2));
        model.check(move || {
            let readers = Arc::new(Readers::new(1));
            let (mut writer, mut spares) = (WriterToken::of(&readers), Spares::new());
            let head = Arc::new(RunHead::new(1, 0, 0));
            let mut old = vec![head.publish(&version(0, counts[0]), &mut spares, &mut writer)];
            let reader = {
                let (readers, head) = (readers.clone(), head.clone());
                loom::thread::spawn(move || {
                    let guard = readers.enter();
                    let mut last = 0;
                    for _ in 0..looks {
                        let levels = head.levels(&guard);
                        let n = levels.as_slice()[0].end / 8;
                        assert_eq!(levels.as_slice(), &*version(n, counts[n as usize]));
                        assert!(n >= last, "versions rise");
                        last = n;
                    }
                })
            };
            old.push(head.publish(&version(1, counts[1]), &mut spares, &mut writer));
            if goes_on {
                let other = RunHead::new(2, 0, 0);
                writer.under_change.begin(other.address(), &other.words, 1);
            }
            reader.join().unwrap();
            // Not retired: what readers may have is kept until here.
            drop(old);
            drop(head.take_spilled());
        });
    }

    #[test]
    fn levels_in_the_head_are_of_one_version() {
        model([1, 1], 1, false);
    }

    #[test]
    fn levels_in_a_list_are_of_one_version() {
        model([2, 1], 1, false);
        model([1, 2], 1, false);
    }

    #[test]
    fn versions_rise() {
        model([1, 1], 2, false);
    }

    #[test]
    fn the_record_of_another_head_is_told_apart() {
        model([1, 1], 1, true);
    }

    /// Model of a reader that reads a run's head `looks` times while the writer publishes the levels (numbers of first
    /// blocks with their holders) of `history` one after the other. Checks that each result was published at some
    /// moment, and that the results never go back.
    fn history(history: Vec<Vec<Level>>, looks: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(2));
        let history = Arc::new(history);
        model.check(move || {
            let readers = Arc::new(Readers::new(1));
            let (mut writer, mut spares) = (WriterToken::of(&readers), Spares::new());
            let head = Arc::new(RunHead::new(1, 0, 0));
            let mut old = vec![head.publish(&history[0], &mut spares, &mut writer)];
            let reader = {
                let (readers, head, history) = (readers.clone(), head.clone(), history.clone());
                loom::thread::spawn(move || {
                    let guard = readers.enter();
                    let mut from = 0;
                    for _ in 0..looks {
                        let levels = head.levels(&guard);
                        let seen = history[from..].iter().position(|then| then == levels.as_slice());
                        from += seen.expect("what was there then or later");
                    }
                })
            };
            for levels in &history[1..] {
                old.push(head.publish(levels, &mut spares, &mut writer));
            }
            reader.join().unwrap();
            // Not retired: what readers may have is kept until here.
            drop(old);
            drop(head.take_spilled());
        });
    }

    fn level(end: u32, set: u64) -> Vec<Level> {
        vec![Level { end, set: SetWord::from_raw(set << 2 | 1) }]
    }

    fn list(end: u32) -> Vec<Level> {
        [level(end, 7), level(end + 1, 8)].concat()
    }

    #[test]
    fn a_first_level_and_its_end_take_one_word_each() {
        history(vec![vec![], level(1, 1), level(2, 1)], 2);
    }

    #[test]
    fn changes_of_one_word_are_not_mixed() {
        history(vec![level(1, 1), level(2, 1), level(2, 2)], 1);
        history(vec![level(1, 1), level(1, 2), level(2, 2)], 1);
    }

    #[test]
    fn changes_of_one_word_and_of_several_are_not_mixed() {
        history(vec![level(1, 1), level(2, 1), level(3, 2)], 1);
        history(vec![level(1, 1), level(2, 2), level(3, 2)], 1);
    }

    #[test]
    fn a_level_that_was_gone_is_not_mixed_with_the_next() {
        history(vec![level(1, 1), vec![], level(2, 2)], 1);
    }

    #[test]
    fn levels_and_lists_are_not_mixed() {
        history(vec![level(1, 1), list(2), level(4, 2)], 1);
        history(vec![list(1), level(3, 2), list(4)], 1);
        history(vec![list(1), list(3)], 2);
    }
}
