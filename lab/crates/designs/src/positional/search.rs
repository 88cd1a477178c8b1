//! Search along a query in leaps over several blocks, with single probes only where a worker dropped out.
//!
//! The holders of the first block start together as the active set. At the far end of a leap the holders there are
//! compared with the active set: if they include all of it, nothing between is probed. Otherwise the positions between
//! are probed, one after the other ([`Search::Jump`]) or by bisection ([`Search::Bisect`]), until the position at which
//! each missing worker dropped out is found. Whole sets are compared, not their sizes, so two workers that exchange
//! places are noticed.

use super::member_set::MemberSet;
use super::table::{Entry, Table};
use super::worker_blocks::SparsePositions;
use super::{Options, Search};
use crate::interface::Scores;
use kvatlas_index::hash::prefix_hashes_into;

/// A query (content hashes of a prompt's blocks) with its prefix hashes as far as they were computed.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    contents: &'a [u64],
    prefixes: Vec<u64>,
}

impl<'a> Query<'a> {
    pub(crate) fn new(contents: &'a [u64]) -> Self {
        Self { contents, prefixes: Vec::new() }
    }

    fn knows(&self, position: usize) -> bool {
        position < self.prefixes.len()
    }

    /// Prefix hash of the query up to and including the block at `position`, computed on first use.
    pub(crate) fn prefix(&mut self, position: usize) -> u64 {
        if let Some(&known) = self.prefixes.get(position) {
            return known;
        }
        self.prefixes.reserve(position + 1 - self.prefixes.len());
        for &content in &self.contents[self.prefixes.len()..=position] {
            self.prefixes.push(match self.prefixes.last() {
                None => content,
                Some(&before) => next_prefix(before, content),
            });
        }
        self.prefixes[position]
    }
}

/// Prefix hash of a prefix that is one block longer. `before`: hash of the shorter prefix; `content`: content hash of
/// the added block.
pub(crate) fn next_prefix(before: u64, content: u64) -> u64 {
    let mut hashes = [0; 2];
    prefix_hashes_into(&[before, content], &mut hashes);
    hashes[1]
}

/// A search in progress: the table of holders, the query, and the options.
pub(crate) struct Walk<'t, 'q, 'a> {
    pub(crate) table: &'t Table,
    pub(crate) options: Options,
    pub(crate) query: &'q mut Query<'a>,
}

impl Walk<'_, '_, '_> {
    /// Appends to `scores` the depth (number of leading blocks held) of every worker or group that holds the query's
    /// first block.
    pub(crate) fn run(&mut self, scores: &mut Scores) {
        let blocks = self.query.contents.len();
        let mut active = self.holders();
        scores.reserve(active.len());
        let mut at = 0;
        while at + 1 < blocks && !active.is_empty() {
            let far = at.saturating_add(self.options.jump_size).min(blocks - 1);
            if !self.all_at(far, &active) {
                match self.options.search {
                    Search::Jump => self.scan(at, far, &mut active, scores),
                    Search::Bisect => self.bisect(at, far, &mut active, scores),
                }
            }
            at = far;
        }
        active.for_each(|worker| scores.push((worker, blocks as u32)));
    }

    /// Members (workers or groups) that hold the query's first block.
    pub(crate) fn holders(&mut self) -> MemberSet {
        if self.query.contents.is_empty() {
            return MemberSet::default();
        }
        self.probe(0, |set| set.cloned()).unwrap_or_default()
    }

    /// Appends to `scores`, for every group of workers that holds the query's first block, the first sparse position
    /// (one reported to the top-level table) at which the group does not hold the query's block. The table must be
    /// empty at other positions.
    pub(crate) fn run_sparse(&mut self, sparse: SparsePositions, scores: &mut Scores) {
        let blocks = self.query.contents.len();
        let mut active = self.holders();
        let mut at = sparse.after(0);
        while at < blocks && !active.is_empty() {
            self.drop_at(at, &mut active, scores);
            at = sparse.after(at);
        }
        active.for_each(|member| scores.push((member, blocks as u32)));
    }

    /// Finds, block by block, the depth of each member of `active` (workers or groups) that holds the block at `near`
    /// (all do) but not the one at `far`. Moves these members from `active` to `scores`.
    fn scan(&mut self, near: usize, far: usize, active: &mut MemberSet, scores: &mut Scores) {
        let mut leap = ShortLeap { arrive: self.common_at(far, active), far };
        for at in near + 1..=far {
            self.drop_at(at, active, scores);
            if leap.is_over(self, at, active) {
                return;
            }
        }
    }

    /// Finds, by bisection between the positions `near` and `far`, the first position whose block a member of `active`
    /// (workers or groups) does not hold, and so on for the remaining members. Moves the members found from `active` to
    /// `scores`.
    fn bisect(&mut self, near: usize, far: usize, active: &mut MemberSet, scores: &mut Scores) {
        let mut leap = ShortLeap { arrive: self.common_at(far, active), far };
        let mut near = near;
        while near < far {
            let mut missing = far;
            while missing - near > 1 {
                let middle = near + (missing - near) / 2;
                if self.all_at(middle, active) { near = middle } else { missing = middle }
            }
            self.drop_at(missing, active, scores);
            if leap.is_over(self, missing, active) {
                return;
            }
            near = missing;
        }
    }

    fn common_at(&mut self, at: usize, active: &MemberSet) -> usize {
        self.probe(at, |set| set.map_or(0, |set| active.common(set)))
    }

    fn all_at(&mut self, at: usize, active: &MemberSet) -> bool {
        self.probe(at, |set| set.is_some_and(|set| active.is_within(set)))
    }

    fn drop_at(&mut self, at: usize, active: &mut MemberSet, scores: &mut Scores) {
        let nobody = MemberSet::default();
        self.probe(at, |set| active.keep_within(set.unwrap_or(&nobody), |worker| scores.push((worker, at as u32))));
    }

    /// Calls `look` with the holders of the query's block at a position. Unless the option `strict` is set, the prefix
    /// hash of an entry with only one prefix is not compared with the query's.
    fn probe<R>(&mut self, at: usize, mut look: impl FnMut(Option<&MemberSet>) -> R) -> R {
        let (position, content) = (at as u32, self.query.contents[at]);
        let strict = self.options.strict;
        if !strict || !self.query.knows(at) {
            // The lazy hash: a single prefix is assumed to be the query's own. Even without this assumption, an empty
            // place needs no hash.
            let answer = self.table.read(position, content, |entry| match entry {
                None => Some(look(None)),
                Some(Entry::Single(_, set)) if !strict => Some(look(Some(set))),
                Some(_) => None,
            });
            if let Some(answer) = answer {
                return answer;
            }
        }
        // Hashed without a lock: it takes time proportional to the query's depth.
        let prefix = self.query.prefix(at);
        self.table.read(position, content, |entry| look(entry.and_then(|entry| entry.under(prefix))))
    }
}

/// A leap (a jump of the search over several blocks) at whose end some of the workers or groups searched for do not
/// hold the query's block.
struct ShortLeap {
    /// Number of workers or groups searched for that hold the block at the far end of the leap (a jump over several
    /// blocks).
    arrive: usize,
    far: usize,
}

impl ShortLeap {
    /// True once the depth of every worker or group that does not hold the end of the leap (a jump over several blocks)
    /// is known, so that the leap's remaining positions need not be searched.
    fn is_over(&mut self, walk: &mut Walk<'_, '_, '_>, at: usize, active: &MemberSet) -> bool {
        if active.is_empty() || at + 1 >= self.far || active.len() > self.arrive {
            return active.is_empty();
        }
        // Equal numbers are the same workers, unless there are holes.
        let over = walk.all_at(self.far, active);
        if !over {
            self.arrive = 0;
        }
        over
    }
}
