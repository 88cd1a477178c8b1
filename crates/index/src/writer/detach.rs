//! A holder loses a block that has others below it, or one that is irregular: what was below waits from then on.

use hashbrown::HashMap;

use super::irregular::IrregularBlock;
use super::state::Writer;
use crate::position::Position;
use crate::steps::step;

impl Writer {
    /// Takes an irregular block out; those below it stay, unreachable.
    pub(super) fn detach_irregular(&mut self, holder: u32, name: u64) {
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

    /// Takes a regular block out that has blocks of its holder below it, or around which irregular ones are reachable.
    pub(super) fn detach(&mut self, holder: u32, at: Position) {
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

    /// The regular position `at`, and all regular ones of the holder below it.
    fn regular_at_and_below(&self, holder: u32, at: Position) -> Vec<Position> {
        let it = &self.holders[holder as usize];
        let runs = self.runs_at_and_below(holder, at).into_iter();
        let all = runs.flat_map(|(from, to)| (from.offset..to).map(move |offset| Position { run: from.run, offset }));
        all.filter(|&at| !it.covers_irregularly(at)).collect()
    }

    /// Returns what the holder covers of the position's run from there on, and of all runs below it: from where, and
    /// how far.
    pub(super) fn runs_at_and_below(&self, holder: u32, at: Position) -> Vec<(Position, u32)> {
        let mut found = Vec::new();
        let it = &self.holders[holder as usize];
        let mut todo = vec![at];
        // Children that are not listed are found among what the holder is in, by their parents.
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

    /// The runs of a holder that are not listed with their siblings, by the run they continue.
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

    /// Lowers the holder's cutoffs so that none of these positions is covered, nor anything after them in their runs;
    /// runs farthest from the root first.
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

    pub(super) fn tidy_irregular(&mut self, holder: u32) {
        self.count_waiting(holder);
        let it = &mut self.holders[holder as usize];
        if it.irregular.as_ref().is_some_and(|irregular| irregular.len() == 0) {
            it.irregular = None;
        }
    }
}
