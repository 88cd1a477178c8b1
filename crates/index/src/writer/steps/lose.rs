//! Removal of blocks from a holder (a rank's cache): blocks at the ends of chains, or blocks that other blocks of the
//! holder continue, which are unreachable from then on.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::position::{NO_NAME, Place, Position};
use crate::stats::step;
use crate::writer::holders::irregular::IrregularBlock;
use crate::writer::state::Writer;

/// Range `low..=high` of offsets in one run of blocks, whose blocks are to be removed.
#[derive(Clone, Copy)]
struct Stretch {
    run: u32,
    low: u32,
    high: u32,
    /// Number of the run's first blocks that the holder (a rank's cache) has.
    cutoff: u32,
    /// Index in the list of removed block hashes at which the block hashes of this range begin.
    first: usize,
}

impl Stretch {
    /// True if a position (run of blocks and offset) is directly before or after this range of positions.
    fn is_beside(&self, at: Position) -> bool {
        at.run == self.run && (at.offset + 1 == self.low || at.offset == self.high + 1)
    }
}

/// Number of ranges of positions in runs that are collected, and searched for duplicate block hashes, before the blocks
/// there are removed.
const MOST_STRETCHES: usize = 32;

impl Writer {
    /// Removes blocks from a holder (a rank's cache). Block hashes that it does not have change nothing; all others are
    /// appended to `gone`.
    ///
    /// The order of the block hashes does not matter, and engines differ in it: blocks at the ends of chains are
    /// removed first, so that removing a whole chain leaves no holes meanwhile.
    pub(in crate::writer) fn lose(&mut self, holder: u32, names: &[u64], gone: &mut Vec<u64>) {
        let mut stretches: SmallVec<[Stretch; 4]> = SmallVec::new();
        if let Some(private) = &self.holders[holder as usize].private {
            private.prefetch_first(names);
        }
        for (i, &name) in names.iter().enumerate() {
            if let Some(private) = &self.holders[holder as usize].private {
                private.prefetch(names, i);
            }
            let regular = self.regular_prefix(holder, &[name]) == 1;
            if !regular {
                // Whatever came before it in the list must be done first: it may be the same name.
                self.cut(holder, &mut stretches, gone);
                if self.lose_one(holder, name) {
                    gone.push(name);
                }
                continue;
            }
            let own = self.holders[holder as usize].private.as_ref().map(|private| private.find(name, &self.runs));
            let next = stretches.last().and_then(|last| match own {
                Some(at) => at.filter(|at| last.is_beside(*at)),
                None => self.neighbour(last, name),
            });
            let found = match (next, stretches.last(), own) {
                (Some(at), Some(last), _) => Some((at, last.cutoff)),
                (_, _, Some(at)) => at.map(|at| (at, self.cutoff(holder, at.run, at.offset))),
                (_, last, None) => self.guessed(holder, last, name).or_else(|| self.find_cut(holder, name)),
            };
            let Some((at, cutoff)) = found else { continue };
            if next.is_none() && self.is_irregular_in(holder, at.run) {
                self.cut(holder, &mut stretches, gone);
                if self.lose_one(holder, name) {
                    gone.push(name);
                }
                continue;
            }
            let within = |s: &Stretch| s.run == at.run && (s.low..=s.high).contains(&at.offset);
            // A neighbour of the only stretch is not within it.
            if (next.is_none() || stretches.len() > 1) && stretches.iter().any(within) {
                continue; // the name comes twice
            }
            if let (Some(at), Some(last)) = (next, stretches.last_mut()) {
                gone.push(name);
                last.low = last.low.min(at.offset);
                last.high = last.high.max(at.offset);
                continue;
            }
            stretches.push(Stretch { run: at.run, low: at.offset, high: at.offset, cutoff, first: gone.len() });
            gone.push(name);
            if stretches.len() > MOST_STRETCHES {
                self.cut(holder, &mut stretches, gone);
            }
        }
        self.cut(holder, &mut stretches, gone);
    }

    /// Position of the block directly before or after the range `stretch`, if that block has the block hash `name` and
    /// the holder (a rank's cache) has no private table of block hashes; None otherwise. Most removals are one chain in
    /// order, in either direction, so this saves look-ups in the table of block hashes.
    #[inline]
    fn neighbour(&self, stretch: &Stretch, name: u64) -> Option<Position> {
        let run = stretch.run;
        let names = self.runs.get(run).names();
        if stretch.low > 0 && names[stretch.low as usize - 1] == name {
            return Some(Position { run, offset: stretch.low - 1 });
        }
        let next = stretch.high + 1;
        (next < stretch.cutoff && names[next as usize] == name).then_some(Position { run, offset: next })
    }

    /// Guess of the position (run of blocks and offset) of the next block to remove, with the number of the run's first
    /// blocks that the holder (a rank's cache) has; None if the block there does not have the block hash `name`. The
    /// guess is the block before the range `last` in the parent run, or, without a range, the block where the last
    /// removal stopped, as evictions go up a chain and continue where they stopped.
    #[inline]
    fn guessed(&self, holder: u32, last: Option<&Stretch>, name: u64) -> Option<(Position, u32)> {
        let it = &self.holders[holder as usize];
        let at = match last {
            None => it.resume?,
            Some(Stretch { run, low: 0, .. }) => self.runs.origin(*run).before()?,
            Some(_) => return None,
        };
        let is_named = self.runs.is_live(at.run)
            && it.private.is_none()
            && self.runs.get(at.run).names().get(at.offset as usize) == Some(&name)
            && name != NO_NAME;
        if is_named { self.covered(holder, at) } else { None }
    }

    /// Removes the blocks at these ranges of positions in runs of blocks. Runs farthest from the beginning of the
    /// prompt come first, so that a block is removed after the blocks that continue it.
    fn cut(&mut self, holder: u32, stretches: &mut SmallVec<[Stretch; 4]>, gone: &[u64]) {
        if stretches.len() > 1 {
            stretches.sort_unstable_by_key(|s| std::cmp::Reverse((self.runs.start(s.run), s.high)));
        }
        // The runs may be removed below, but not the parents that they continue.
        let up = stretches.last().and_then(|last| match last.low.checked_sub(1) {
            Some(offset) => Some(Position { run: last.run, offset }),
            None => self.runs.origin(last.run).before(),
        });
        // What is known of how far it covers a run is so until something there is lost.
        let mut changed = false;
        for &Stretch { run, low, high, cutoff, first } in stretches.iter() {
            let cutoff = if changed { self.cutoff(holder, run, high) } else { cutoff };
            changed = stretches.len() > 1;
            if high + 1 == cutoff && !self.holds_child_beyond(holder, run, low) {
                self.forget_own(holder, &gone[first..=first + (high - low) as usize]);
                self.lower(holder, run, cutoff, low);
                continue;
            }
            for offset in (low..=high).rev() {
                let at = Position { run, offset };
                self.lose_regular(holder, at, self.name_of(holder, at));
            }
        }
        if !stretches.is_empty() {
            self.holders[holder as usize].resume = up;
        }
        stretches.clear();
    }

    /// True if a holder (a rank's cache) has a child of the run of blocks that branches off after more than `blocks`
    /// blocks.
    ///
    /// A common beginning has thousands of children, and is often evicted block by block. Therefore a negative result
    /// is remembered until the holder gets blocks in another run.
    pub(in crate::writer) fn holds_child_beyond(&mut self, holder: u32, run: u32, blocks: u32) -> bool {
        let most = match self.holders[holder as usize].childless {
            Some((seen, beyond)) if seen == run => beyond,
            _ => u32::MAX,
        };
        let holds = self.runs.any_child_beyond(run, blocks, most, |child| {
            self.runs.levels(child).first().is_some_and(|level| self.sets.contains(level.set, holder))
        }) || self.holds_unlisted_beyond(holder, Place { run, blocks: blocks + 1 });
        if !holds {
            self.holders[holder as usize].childless = Some((run, blocks.min(most)));
        }
        holds
    }

    /// True if a holder (a rank's cache) has a child run that branches off at `place` or farther along the run there,
    /// and that the run's list of children does not contain. Searches all runs of the holder, unless it is known to
    /// have no such child.
    fn holds_unlisted_beyond(&mut self, holder: u32, place: Place) -> bool {
        let it = &self.holders[holder as usize];
        if !self.runs.has_unlisted(place.run) || !it.hanging.may_be_beyond(place) {
            return false;
        }
        let is_beyond = |origin: Place| origin.run == place.run && origin.blocks >= place.blocks;
        let holds = it.runs.iter().inspect(|_| step()).any(|&run| {
            self.runs.is_unlisted(run)
                && is_beyond(self.runs.origin(run))
                && self.covers(holder, Position { run, offset: 0 })
        });
        if !holds {
            self.holders[holder as usize].hanging.none_beyond(place);
        }
        holds
    }

    /// Removes one block of any kind; returns true if the holder (a rank's cache) had the block.
    pub(in crate::writer) fn lose_one(&mut self, holder: u32, name: u64) -> bool {
        if self.holders[holder as usize].irregular_block(name).is_some() {
            self.detach_irregular(holder, name);
            return true;
        }
        if let Some(at) = self.find(holder, name) {
            self.lose_regular(holder, at, name);
            return true;
        }
        let Some((branch, at)) = self.find_in_branches(holder, name) else { return false };
        self.lose_in(holder, branch, at, name);
        true
    }

    fn forget_own(&mut self, holder: u32, names: &[u64]) {
        if let Some(private) = &mut self.holders[holder as usize].private {
            private.forget(names);
        }
    }

    /// Removes a regular block (stored in a run). The holder's blocks that continue it become irregular.
    fn lose_regular(&mut self, holder: u32, at: Position, name: u64) {
        let cutoff = self.cutoff(holder, at.run, at.offset);
        let is_leaf = at.offset + 1 == cutoff && !self.holds_child_beyond(holder, at.run, at.offset);
        let is_plain = match &self.holders[holder as usize].irregular {
            None => true,
            Some(irregular) => !irregular.is_in(at.run) && !irregular.awaits(name),
        };
        if is_leaf && is_plain {
            self.forget_own(holder, &[name]);
            self.lower(holder, at.run, cutoff, at.offset);
        } else {
            self.detach(holder, at);
        }
    }
}

impl Writer {
    /// Removes an irregular block (kept outside runs of blocks). The blocks that continue this block stay, but their
    /// chain to the beginning of the prompt is incomplete from then on.
    pub(in crate::writer) fn detach_irregular(&mut self, holder: u32, name: u64) {
        let Some(irregular) = &mut self.holders[holder as usize].irregular else { return };
        let Some(block) = irregular.remove(name) else { return };
        if let Some(at) = block.at {
            let (mut left, mut bare) = (vec![at], Vec::new());
            irregular.unreach_below(name, &mut left);
            irregular.leave(&left, &mut bare);
            self.lower_all(holder, &bare);
        }
        self.tidy_irregular(holder);
    }

    /// Removes a regular block (stored in a run) that other blocks of the holder (a rank's cache) continue, or that has
    /// irregular blocks (kept outside runs) after it or at its position.
    pub(in crate::writer) fn detach(&mut self, holder: u32, at: Position) {
        let name = self.name_of(holder, at);
        if self.branch_off(holder, at, name) {
            return;
        }
        let positions = self.regular_at_and_below(holder, at);
        let names: Vec<u64> = positions.iter().map(|&at| self.name_of(holder, at)).collect();
        let blocks: Vec<_> =
            positions.iter().zip(&names).skip(1).map(|(&at, &name)| (name, self.block_at(holder, at))).collect();
        self.touch(holder, names[1..].iter().copied());
        let it = &mut self.holders[holder as usize];
        if let Some(private) = &mut it.private {
            positions.iter().zip(&names).for_each(|(&at, &name)| private.unname(at, name));
        }
        if let Some(coming) = &mut it.coming {
            coming.forget(&names);
        }
        let irregular = it.irregular.get_or_insert_default();
        for (name, (parent, content)) in blocks {
            step();
            irregular.add(name, IrregularBlock::new(parent, content, None));
        }
        let (mut left, mut bare) = (Vec::new(), Vec::new());
        irregular.unreach_below(name, &mut left);
        for &at in &positions {
            // What is covered by irregular blocks besides stays covered, by them alone.
            irregular.lose_regular(at);
        }
        irregular.leave(&left, &mut bare);
        bare.extend(positions.iter().copied().filter(|at| !irregular.covers(*at)));
        self.lower_all(holder, &bare);
        self.tidy_irregular(holder);
    }

    /// Positions (runs and offsets) of the regular blocks (stored in runs) of a holder (a rank's cache) at and after
    /// the position `at`, in all continuations.
    fn regular_at_and_below(&self, holder: u32, at: Position) -> Vec<Position> {
        let it = &self.holders[holder as usize];
        let runs = self.runs_at_and_below(holder, at).into_iter();
        let all = runs.flat_map(|(from, to)| (from.offset..to).map(move |offset| Position { run: from.run, offset }));
        all.filter(|&at| !it.covers_irregularly(at)).collect()
    }

    /// Parts of runs of blocks that the holder (a rank's cache) has at and after a position, in all continuations:
    /// first position, and end offset in the run.
    pub(in crate::writer) fn runs_at_and_below(&self, holder: u32, at: Position) -> Vec<(Position, u32)> {
        let mut found = Vec::new();
        let it = &self.holders[holder as usize];
        let mut todo = vec![at];
        // Unlisted children are found among the runs that the holder has entered, by their parents.
        let mut unlisted: Option<HashMap<u32, Vec<u32>>> = None;
        while let Some(from) = todo.pop() {
            step();
            found.push((from, self.cutoff(holder, from.run, from.offset)));
            self.runs.any_child_beyond(from.run, from.offset, u32::MAX, |child| {
                if self.covers(holder, Position { run: child, offset: 0 }) {
                    todo.push(Position { run: child, offset: 0 });
                }
                false
            });
            if it.hanging.may_be_beyond(from.after()) {
                let unlisted = unlisted.get_or_insert_with(|| self.unlisted_runs(holder));
                let children = unlisted.get(&from.run).into_iter().flatten();
                let beyond = children.filter(|&&child| self.runs.origin(child).blocks > from.offset);
                todo.extend(beyond.map(|&run| Position { run, offset: 0 }));
            }
        }
        found
    }

    /// Runs of a holder (a rank's cache) that are not in their parents' lists of children, by the number of the parent.
    fn unlisted_runs(&self, holder: u32) -> HashMap<u32, Vec<u32>> {
        let mut runs = self.holders[holder as usize].runs.clone();
        runs.sort_unstable();
        runs.dedup();
        let is_in = |&run: &u32| self.runs.is_unlisted(run) && self.covers(holder, Position { run, offset: 0 });
        let mut unlisted: HashMap<u32, Vec<u32>> = HashMap::new();
        for run in runs.into_iter().filter(is_in) {
            unlisted.entry(self.runs.origin(run).run).or_default().push(run);
        }
        unlisted
    }

    /// Reduces the numbers of first blocks that the holder (a rank's cache) has of each run of blocks, so that it has
    /// none of these positions, nor any after them in their runs. Runs farthest from the beginning of the prompt come
    /// first.
    fn lower_all(&mut self, holder: u32, positions: &[Position]) {
        let mut lowest: HashMap<u32, u32> = HashMap::new();
        for at in positions {
            let offset = lowest.entry(at.run).or_insert(at.offset);
            *offset = at.offset.min(*offset);
        }
        let mut runs: Vec<_> = lowest.into_iter().collect();
        runs.sort_unstable_by_key(|&(run, _)| std::cmp::Reverse(self.runs.start(run)));
        for (run, to) in runs {
            let cutoff = self.cutoff(holder, run, to);
            if to < cutoff {
                self.lower(holder, run, cutoff, to);
            }
        }
    }

    pub(in crate::writer) fn tidy_irregular(&mut self, holder: u32) {
        self.count_waiting(holder);
        let it = &mut self.holders[holder as usize];
        if it.irregular.as_ref().is_some_and(|irregular| irregular.len() == 0) {
            it.irregular = None;
        }
    }
}
