//! Results of a lookup, kept together with the guard that prevents their memory from being freed.
//!
//! **Protocol.** A lookup takes a guard, walks the runs (lists of consecutive blocks), and keeps the sets of holders
//! that it found as words. The result keeps them together with the guard, so that their members can be read for as long
//! as the result lives. The workers behind the holders' numbers must be those at the time of the walk. Therefore the
//! roster, which maps holders to workers, is loaded before the walk and compared afterwards, and the walk is repeated
//! if the roster was replaced meanwhile (a worker was added or removed, or first offloaded).
//!
//! **Invariants.** The words in a [`WalkResult`] were linked while its guard lived, and so was the roster. The types
//! ensure this: a walk can keep only a [`SetRef`] of its own `'p`, whatever other guards there are.
//!
//! **Checked by** the loom model below (`make loom`), and by `tests/concurrency.rs` under Valgrind and the address
//! sanitizer (`make sanitize`).

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::boxes::{GuardedPointer, SwapCell};
use super::reclaim::{Guard, Readers};
use super::set::{Members, SetRef, SetWord};

/// Set of the holders (ranks' caches) that have the query's first `depth` blocks.
#[derive(Clone, Copy, Debug)]
struct Reach {
    depth: u32,
    set: SetWord,
}

/// Collector of the results of a walk along a prompt's blocks: sets of holders (ranks' caches) at rising depths
/// (numbers of leading blocks), each a subset of the set before. `'p`: lifetime of the reader's guard.
pub(crate) struct Reaches<'r, 'p>(&'r mut SmallVec<[Reach; 12]>, PhantomData<fn(&'p ()) -> &'p ()>);

impl<'p> Reaches<'_, 'p> {
    /// Adds the set of the holders (ranks' caches) that have the first `depth` blocks of the query to the results.
    #[inline]
    pub(crate) fn push(&mut self, depth: u32, set: SetRef<'p>) {
        let reach = Reach { depth, set: set.word() };
        match self.0.last_mut() {
            // Holders of all of the run before continue through this one.
            Some(last) if last.set == reach.set => *last = reach,
            _ => self.0.push(reach),
        }
    }
}

/// Result of a walk along a prompt's blocks. `W`: map from holders (ranks' caches) to ranks.
pub(crate) struct WalkResult<'i, W> {
    reaches: SmallVec<[Reach; 12]>,
    /// Map from holders (ranks' caches) to ranks at the time of the walk.
    who: GuardedPointer<W>,
    guard: Guard<'i>,
}

impl<'i, W: Send + Sync> WalkResult<'i, W> {
    /// Runs `walk` until the map from holders (ranks' caches) to ranks is the same before and after, and keeps the
    /// results with this map.
    #[inline]
    pub(crate) fn by(
        readers: &'i Readers,
        who: &SwapCell<W>,
        mut walk: impl for<'p> FnMut(&'p Guard<'i>, Reaches<'_, 'p>),
    ) -> Self {
        let guard = readers.enter();
        // Where it will be returned: the list of what is found is long, and is not to be copied.
        let mut found = Self { reaches: SmallVec::new(), who: who.hold(&guard), guard };
        loop {
            walk(&found.guard, Reaches(&mut found.reaches, PhantomData));
            let now = who.hold(&found.guard);
            if now == found.who {
                return found;
            }
            found.reaches.clear();
            found.who = now;
        }
    }

    /// Map from holders (ranks' caches) to ranks at the time of the walk.
    #[inline]
    pub(crate) fn who(&self) -> &W {
        // SAFETY: held under this guard.
        unsafe { self.who.get(&self.guard) }
    }

    /// Greatest depth (number of leading blocks) that any holder (a rank's cache) reaches; 0 if no holder was found.
    #[inline]
    pub(crate) fn deepest(&self) -> u32 {
        self.reaches.last().map_or(0, |reach| reach.depth)
    }

    /// Depths in blocks, deepest first, each with the set of the holders (ranks' caches) that reach this depth.
    #[inline]
    pub(crate) fn reached(&self) -> impl DoubleEndedIterator<Item = (u32, Members<'_>)> {
        // SAFETY: found under this guard, which lives as long as the borrow.
        self.reaches.iter().rev().map(|reach| (reach.depth, unsafe { reach.set.members() }))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::raw::boxes::{SharedBox, WriterToken};
    use crate::raw::reclaim::RetiredList;

    enum Garbage {
        /// Map that says to which workers the holders (ranks' caches) 0 and 1 belong.
        Who(#[allow(dead_code, reason = "kept until the model ends")] SharedBox<[u32; 2]>),
        Number(usize),
    }

    const NOBODY: u32 = 0;
    const FIRST: u32 = 1;
    const SECOND: u32 = 2;

    /// Checks that no reader attributes blocks to the wrong worker when a worker is dropped and another one gets its
    /// number.
    ///
    /// In place of runs, the walk reads one word that says which worker's blocks holder 0 really has.
    #[test]
    fn a_number_is_who_it_was_when_it_was_found() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(|| {
            let readers = Arc::new(Readers::new(1));
            let mut writer = WriterToken::of(&readers);
            let who = Arc::new(SwapCell::new([FIRST, NOBODY], &writer));
            let truth = Arc::new(SwapCell::new(FIRST, &writer));
            let reader = {
                let (readers, who, truth) = (readers.clone(), who.clone(), truth.clone());
                loom::thread::spawn(move || {
                    let mut seen = NOBODY;
                    let found = WalkResult::by(&readers, &who, |guard, _| seen = *truth.load(guard));
                    let named = found.who()[0];
                    assert!(seen == NOBODY || named == NOBODY || seen == named, "{seen} is taken for {named}");
                })
            };
            let (mut retired, mut kept) = (RetiredList::new(), Vec::new());
            // The first loses its blocks, then its name, then, when no reader can mean it, its number.
            let mut truths = vec![truth.replace(NOBODY, &mut writer)];
            retired.push(Garbage::Who(who.replace([NOBODY, NOBODY], &mut writer)));
            retired.push(Garbage::Number(0));
            let mut free = false;
            for _ in 0..2 {
                retired.advance(&readers, usize::MAX, |garbage| match garbage {
                    Garbage::Who(_) => kept.push(garbage),
                    Garbage::Number(number) => free = number == 0,
                });
            }
            if free {
                kept.push(Garbage::Who(who.replace([SECOND, NOBODY], &mut writer)));
                truths.push(truth.replace(SECOND, &mut writer));
            }
            reader.join().unwrap();
            // Not freed by the model's protocol, which is tested elsewhere: kept until no thread looks.
            drop((truths, kept));
        });
    }
}
