//! Lookups and their answers.

use std::collections::HashSet;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::position::ROOT;
use crate::prefix::common_prefix;
use crate::raw::{Children, Held, Members, Pin, Published, Readers, SetWord};
use crate::roster::{Member, Roster};
use crate::sets::{OwnedMembers, Seen};
use crate::types::View;

/// Holders of the first `depth` blocks of the query.
#[derive(Clone, Copy, Debug)]
struct Reach {
    depth: u32,
    set: SetWord,
}

type Reaches = SmallVec<[Reach; 12]>;

/// The answer to a lookup: for every holder how many leading blocks of the query it holds.
///
/// It is kept as found: a short list of depths, each with the set of holders that reach it. Who they are is worked
/// out only when asked.
pub struct Match<'i> {
    /// Depths rise, sets shrink.
    reaches: Reaches,
    /// As of the walk.
    roster: Held<Arc<Roster>>,
    pin: Pin<'i>,
}

/// A [`Match`] that depends on nothing: later changes of the index do not touch it.
pub struct OwnedMatch {
    reaches: SmallVec<[(u32, OwnedMembers); 3]>,
    roster: Arc<Roster>,
}

/// Walks the runs that the query goes through and collects their levels.
#[inline]
pub(crate) fn find<'i>(
    readers: &'i Readers,
    roster: &Published<Arc<Roster>>,
    children: &Children,
    query: &[u64],
) -> Match<'i> {
    let pin = readers.pin();
    let mut held = roster.hold(&pin);
    loop {
        let reaches = walk(&pin, children, query);
        // Who a holder is must be known as of the walk. It changes when a worker comes or goes, or first offloads.
        let now = roster.hold(&pin);
        if now == held {
            return Match { reaches, roster: held, pin };
        }
        held = now;
    }
}

#[inline]
fn walk(pin: &Pin<'_>, children: &Children, query: &[u64]) -> Reaches {
    let mut reaches = Reaches::new();
    let mut parent = ROOT;
    let mut fork = 0;
    let mut rest = query;
    let mut depth = 0;
    while let Some(&first) = rest.first()
        && let Some(run) = children.find(pin, parent, fork, first)
    {
        let (levels, contents) = run.read(pin);
        let alike = common_prefix(contents, rest) as u32;
        for level in &*levels {
            let reach = Reach { depth: depth + level.end.min(alike), set: level.set };
            match reaches.last_mut() {
                // Whoever held all of the run before goes on through this one.
                Some(last) if last.set == reach.set => *last = reach,
                _ => reaches.push(reach),
            }
            if level.end >= alike {
                break;
            }
        }
        if alike == 0 || !run.head().has_children() {
            break;
        }
        parent = run.head().id;
        fork = alike;
        depth += alike;
        rest = &rest[alike as usize..];
    }
    reaches
}

/// The accessors that both kinds of match have, over an inherent `reached` (deepest first).
macro_rules! accessors {
    ($type:ty) => {
        impl $type {
            /// The depth of the holder that holds most, in blocks; 0 if nobody holds anything of the query.
            #[must_use]
            pub fn depth(&self, view: View) -> u32 {
                if self.roster().is_plain() {
                    return self.deepest();
                }
                let mut deepest = 0;
                let _ = self.each(view, |depth, _| {
                    deepest = depth;
                    Break(())
                });
                deepest
            }

            /// Each worker that holds any of the query with the depth of its best rank, deepest first.
            #[must_use]
            pub fn scores(&self, view: View) -> Vec<(Arc<str>, u32)> {
                self.best(view, usize::MAX, None)
            }

            /// Each worker and rank that holds any of the query with its depth, deepest first.
            #[must_use]
            pub fn by_rank(&self, view: View) -> Vec<(Arc<str>, u32, u32)> {
                let mut out = Vec::new();
                self.for_each(view, |worker, rank, depth| out.push((worker.clone(), rank, depth)));
                out
            }

            /// Calls `f` with each worker and rank that holds any of the query and its depth, deepest first.
            pub fn for_each<'m>(&'m self, view: View, mut f: impl FnMut(&'m Arc<str>, u32, u32)) {
                let _ = self.each(view, |depth, member| {
                    f(&member.worker, member.rank, depth);
                    Continue(())
                });
            }

            /// Whether every view gives the same answer, because no rank has blocks on another tier than its device.
            #[must_use]
            pub fn is_plain(&self) -> bool {
                self.roster().is_plain()
            }

            /// The workers by the depth of their best rank, deepest first; each worker once.
            #[must_use]
            pub fn levels(&self, view: View) -> Vec<(u32, Vec<Arc<str>>)> {
                let mut out: Vec<(u32, Vec<Arc<str>>)> = Vec::new();
                for (worker, depth) in self.scores(view) {
                    match out.last_mut() {
                        Some((last, workers)) if *last == depth => workers.push(worker),
                        _ => out.push((depth, vec![worker])),
                    }
                }
                out
            }

            /// At most `k` workers that hold most, deepest first, `among` those named only if names are given.
            #[must_use]
            pub fn best(&self, view: View, k: usize, among: Option<&[&str]>) -> Vec<(Arc<str>, u32)> {
                let mut out = Vec::new();
                if k == 0 {
                    return out;
                }
                let among: Option<HashSet<&str>> = among.map(|names| names.iter().copied().collect());
                let mut seen = Seen::default();
                let _ = self.each(view, |depth, member| {
                    let wanted = among.as_ref().is_none_or(|names| names.contains(&*member.worker));
                    if wanted && seen.insert(member.worker_number) {
                        out.push((member.worker.clone(), depth));
                    }
                    if out.len() == k { Break(()) } else { Continue(()) }
                });
                out
            }

            /// Calls `f` with each holder of the view once, deepest first.
            fn each<'m>(&'m self, view: View, f: impl FnMut(u32, &'m Member) -> ControlFlow<()>) -> ControlFlow<()> {
                each(self.reached(), self.roster(), view, f)
            }
        }
    };
}

accessors!(Match<'_>);
accessors!(OwnedMatch);

impl Match<'_> {
    fn roster(&self) -> &Roster {
        self.roster.get(&self.pin)
    }

    fn deepest(&self) -> u32 {
        self.reaches.last().map_or(0, |reach| reach.depth)
    }

    fn reached(&self) -> impl Iterator<Item = (u32, Members<'_>)> {
        self.reaches.iter().rev().map(|reach| (reach.depth, reach.set.members(&self.pin)))
    }

    /// The same answer, for keeping. Costs a copy of the sets of holders.
    #[must_use]
    pub fn to_owned(&self) -> OwnedMatch {
        let own = |reach: &Reach| (reach.depth, OwnedMembers::of(reach.set, reach.set.members(&self.pin)));
        OwnedMatch { reaches: self.reaches.iter().map(own).collect(), roster: self.roster.get(&self.pin).clone() }
    }
}

impl OwnedMatch {
    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn deepest(&self) -> u32 {
        self.reaches.last().map_or(0, |(depth, _)| *depth)
    }

    fn reached(&self) -> impl Iterator<Item = (u32, Members<'_>)> {
        self.reaches.iter().rev().map(|(depth, members)| (*depth, members.members()))
    }
}

fn each<'m>(
    reached: impl Iterator<Item = (u32, Members<'m>)>,
    roster: &'m Roster,
    view: View,
    mut f: impl FnMut(u32, &'m Member) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut seen = Seen::default();
    for (depth, members) in reached {
        members.try_for_each_new(&mut seen, &mut |holder| {
            // A holder that is not in the roster came after the lookup, or is being made.
            let Some(member) = roster.get(holder) else { return Continue(()) };
            let counts = member.views & (1 << view as u8) != 0;
            if counts { f(depth, member) } else { Continue(()) }
        })?;
    }
    Continue(())
}
