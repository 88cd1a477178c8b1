//! Lookups of prompts in the index, and their results.

use std::collections::HashSet;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::position::{ROOT, common_prefix};
use crate::raw::{Children, Guard, Members, Reaches, Readers, SwapCell, WalkResult};
use crate::roster::{Chunk, Members as Holders, Roster, RosterMembers};
use crate::sets::{Bits, NumberSet, OwnedMembers};
use crate::types::View;

/// Result of a lookup: the number of the prompt's leading blocks that each holder has. A holder is a rank's device, or
/// a rank's device with other tiers.
///
/// The result is kept in the form in which it was found: a short list of depths, each with the set of holders that
/// reach it. Names of workers are resolved only on request.
pub struct Match<'i>(WalkResult<'i, Roster>);

/// Owned copy of a [`Match`], which later changes of the index do not affect.
pub struct OwnedMatch {
    reaches: SmallVec<[(u32, OwnedMembers); 3]>,
    roster: Arc<RosterMembers>,
}

/// Walks down the runs (stored lists of consecutive blocks) that match the query, and collects their levels: depths
/// (numbers of leading blocks), each with the set of holders (ranks' caches) that reach the depth.
#[inline]
pub(crate) fn find<'i>(
    readers: &'i Readers,
    roster: &SwapCell<Roster>,
    children: &SwapCell<Children>,
    query: &[u64],
) -> Match<'i> {
    Match(WalkResult::by(readers, roster, |guard, reaches| walk(guard, children.load(guard), query, reaches)))
}

#[inline]
fn walk<'p>(guard: &'p Guard<'_>, children: &'p Children, query: &[u64], mut reaches: Reaches<'_, 'p>) {
    let mut parent = ROOT;
    let mut fork = 0;
    let mut rest = query;
    let mut depth = 0;
    while let Some(&first) = rest.first()
        && let Some(run) = children.find(guard, parent, fork, first)
    {
        let (levels, contents) = run.read(guard);
        let alike = common_prefix(contents, rest) as u32;
        for (end, set) in levels.iter() {
            reaches.push(depth + end.min(alike), set);
            if end >= alike {
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
}

/// Implements the methods that [`Match`] and [`OwnedMatch`] share, based on their method `reached`, which returns the
/// depths in descending order.
macro_rules! accessors {
    ($type:ty) => {
        impl $type {
            /// Greatest depth of any holder (a rank's cache), in blocks; 0 if no holder has the query's first block.
            #[must_use]
            pub fn depth(&self, view: View) -> u32 {
                if self.holders().is_plain() {
                    return self.deepest();
                }
                let mut deepest = 0;
                let _ = self.each(view, |depth, _, _| {
                    deepest = depth;
                    Break(())
                });
                deepest
            }

            /// Workers that hold any of the query's leading blocks, each with the depth of its best rank in blocks,
            /// deepest first.
            ///
            /// The names are borrowed: clone those that must outlive the match.
            #[must_use]
            pub fn scores(&self, view: View) -> Vec<(&Arc<str>, u32)> {
                let mut out = Vec::with_capacity(self.widest());
                let _ = self.each_worker(view, |depth, chunk, who| {
                    out.extend(Bits::of(who).map(|at| (chunk.worker(at), depth)));
                    Continue(())
                });
                out
            }

            /// Writes each worker's number and depth, in blocks, to `out`, whose previous contents are removed;
            /// otherwise like [`scores`](Self::scores).
            ///
            /// A worker keeps its number from its first store until it is dropped; then another worker may get the
            /// number. [`worker`](Self::worker) returns the name.
            pub fn scores_into(&self, view: View, out: &mut Vec<(u32, u32)>) {
                out.clear();
                out.reserve(self.widest());
                let _ = self.each_worker(view, |depth, chunk, who| {
                    out.extend(Bits::of(who).map(|at| (chunk.worker_number(at), depth)));
                    Continue(())
                });
            }

            /// Name that the worker with this number had at the time of the lookup; `None` if no worker had the number.
            #[must_use]
            pub fn worker(&self, number: u32) -> Option<&Arc<str>> {
                self.holders().worker(number)
            }

            /// Triples of worker, rank and depth in blocks, for each rank that holds any of the query's leading blocks;
            /// deepest first.
            #[must_use]
            pub fn by_rank(&self, view: View) -> Vec<(&Arc<str>, u32, u32)> {
                let mut out = Vec::new();
                self.for_each(view, |worker, rank, depth| out.push((worker, rank, depth)));
                out
            }

            /// Calls `f` with the worker, rank and depth in blocks of each rank that holds any of the query's leading
            /// blocks, deepest first.
            pub fn for_each<'m>(&'m self, view: View, mut f: impl FnMut(&'m Arc<str>, u32, u32)) {
                let _ = self.each(view, |depth, chunk, who| {
                    Bits::of(who).for_each(|at| f(chunk.worker(at), chunk.rank(at), depth));
                    Continue(())
                });
            }

            /// True if every view (selection of tiers) gives the same answer, because no rank has blocks beyond its
            /// device.
            #[must_use]
            pub fn is_plain(&self) -> bool {
                self.holders().is_plain()
            }

            /// Workers grouped by the depth of their best rank in blocks, deepest first; each worker occurs once.
            #[must_use]
            pub fn levels(&self, view: View) -> Vec<(u32, Vec<&Arc<str>>)> {
                let mut out: Vec<(u32, Vec<&Arc<str>>)> = Vec::new();
                let _ = self.each_worker(view, |depth, chunk, who| {
                    if out.last().is_none_or(|(last, _)| *last != depth) {
                        out.push((depth, Vec::new()));
                    }
                    let (_, workers) = out.last_mut().expect("there is a level now");
                    workers.extend(Bits::of(who).map(|at| chunk.worker(at)));
                    Continue(())
                });
                out
            }

            /// The `k` workers with the greatest depths, deepest first, each with its depth in blocks. With `among`,
            /// only the workers named there are considered.
            #[must_use]
            pub fn best(&self, view: View, k: usize, among: Option<&[&str]>) -> Vec<(&Arc<str>, u32)> {
                let mut out = Vec::new();
                if k == 0 {
                    return out;
                }
                let among: Option<HashSet<&str>> = among.map(|names| names.iter().copied().collect());
                let _ = self.each_worker(view, |depth, chunk, who| {
                    let workers = Bits::of(who).map(|at| chunk.worker(at));
                    let wanted = workers.filter(|name| among.as_ref().is_none_or(|names| names.contains(&***name)));
                    out.extend(wanted.take(k - out.len()).map(|worker| (worker, depth)));
                    if out.len() == k { Break(()) } else { Continue(()) }
                });
                out
            }

            /// Number of holders (ranks' caches) of the query's first block, an upper bound for all levels unless the
            /// index changed during the lookup.
            #[inline]
            fn widest(&self) -> usize {
                self.reached().next_back().map_or(0, |(_, members)| members.len())
            }

            /// Calls `f`, deepest first, with a depth, a group of 64 holders (ranks' caches), and a mask of those among
            /// them that reach the depth, count in the view (set of tiers) and were not in an earlier call.
            #[inline]
            fn each<'m>(
                &'m self,
                view: View,
                f: impl FnMut(u32, &'m Chunk, u64) -> ControlFlow<()>,
            ) -> ControlFlow<()> {
                each(self.reached(), self.holders(), view, f)
            }

            /// Calls `f` like the method `each`, but with each worker only once, at the depth of its best rank.
            #[inline]
            fn each_worker<'m>(
                &'m self,
                view: View,
                mut f: impl FnMut(u32, &'m Chunk, u64) -> ControlFlow<()>,
            ) -> ControlFlow<()> {
                let mut workers: Option<NumberSet> = None;
                self.each(view, |depth, chunk, mut who| {
                    let of_many_ranks = who & chunk.of_many_ranks();
                    if of_many_ranks != 0 {
                        let seen = workers.get_or_insert_with(|| NumberSet::none_of(self.holders().words()));
                        for at in Bits::of(of_many_ranks) {
                            if !seen.insert(chunk.worker_number(at)) {
                                who &= !(1 << at);
                            }
                        }
                    }
                    if who == 0 { Continue(()) } else { f(depth, chunk, who) }
                })
            }
        }
    };
}

accessors!(Match<'_>);
accessors!(OwnedMatch);

impl Match<'_> {
    #[inline]
    fn holders(&self) -> &Holders {
        self.0.who().members()
    }

    #[inline]
    fn deepest(&self) -> u32 {
        self.0.deepest()
    }

    #[inline]
    fn reached(&self) -> impl DoubleEndedIterator<Item = (u32, Members<'_>)> {
        self.0.reached()
    }

    /// Copies the match and its sets of holders (ranks' caches), so that it can be kept while the index changes.
    #[must_use]
    pub fn to_owned(&self) -> OwnedMatch {
        let reaches = self.0.reached().rev().map(|(depth, members)| (depth, OwnedMembers::of(members))).collect();
        OwnedMatch { reaches, roster: self.0.who().keep() }
    }
}

impl OwnedMatch {
    #[inline]
    fn holders(&self) -> &Holders {
        &self.roster
    }

    #[inline]
    fn deepest(&self) -> u32 {
        self.reaches.last().map_or(0, |(depth, _)| *depth)
    }

    #[inline]
    fn reached(&self) -> impl DoubleEndedIterator<Item = (u32, Members<'_>)> {
        self.reaches.iter().rev().map(|(depth, members)| (*depth, members.members()))
    }
}

/// Calls `f`, deepest first, with a depth, a group of 64 holders (ranks' caches), and a mask of those among them that
/// reach this depth but no greater one and count in the view (set of tiers). Holders already passed to `f` are skipped
/// 64 at a time, so that many levels of one large set are cheap.
#[inline]
fn each<'m>(
    reached: impl Iterator<Item = (u32, Members<'m>)>,
    holders: &'m Holders,
    view: View,
    mut f: impl FnMut(u32, &'m Chunk, u64) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut seen = NumberSet::none_of(holders.words());
    for (depth, members) in reached {
        members.try_for_each_word(|word, bits| {
            // A holder that is not in the roster came after the lookup, or is being made.
            let Some(chunk) = holders.chunk(word) else { return Continue(()) };
            let who = seen.insert_word(word, bits) & chunk.in_view(view);
            if who == 0 { Continue(()) } else { f(depth, chunk, who) }
        })?;
    }
    Continue(())
}
