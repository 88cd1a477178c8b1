//! Branches: large groups of a holder's blocks after a missing block (a hole), which stay in their runs under another
//! holder's number. A holder is a rank's cache; a run is a list of consecutive blocks.
//!
//! Removing a block makes the blocks that continue it unreachable. If they are few, they are kept one by one
//! (`irregular.rs`). If they are many, another holder takes them over, run by run: a *branch*. It has no entry in the
//! roster, so readers ignore it. A branch also covers the path from the beginning of the prompt to the missing block,
//! so that no run is freed before the runs that continue it. The branch's own blocks are those after the missing block.
//!
//! When the missing block is stored again at its place, the branch's runs return to the holder. Adding blocks to a
//! branch or removing them works as for any holder. In special cases (a second block hash, another place for the
//! missing block, a private table of block hashes), the branch is converted to irregular blocks.
//!
//! As long as a holder has branches, it has no private table of block hashes, all its irregular blocks are unreachable,
//! and none of them continues a block of a branch.

use smallvec::SmallVec;

use crate::position::{Place, Position};
use crate::retire::Garbage;
use crate::stats::step;
use crate::writer::holders::irregular::IrregularBlock;
use crate::writer::holders::{Branch, Holder};
use crate::writer::state::Writer;

/// Largest number of branches of a holder (a rank's cache); blocks after further missing blocks are kept one by one.
const MOST: usize = 8;

impl Writer {
    pub(in crate::writer) fn branches(&self, holder: u32) -> &[Branch] {
        self.holders[holder as usize].branches.as_ref().map_or(&[], |it| &it.all)
    }

    /// Number of blocks before a position (run of blocks and offset), from the beginning of the prompt.
    fn depth(&self, at: Position) -> u32 {
        self.runs.start(at.run) + at.offset
    }

    /// Finds a block by its block hash in the branches (blocks after missing blocks) of a holder (a rank's cache): the
    /// branch and the block's position (run and offset); None if no branch has it.
    pub(in crate::writer) fn find_in_branches(&self, holder: u32, name: u64) -> Option<(Branch, Position)> {
        let branches = self.branches(holder);
        if branches.is_empty() {
            return None;
        }
        let at = self.find_shared(name)?;
        let has = |it: &&Branch| self.depth(at) > self.depth(it.at) && self.covers(it.number, at);
        branches.iter().find(has).map(|it| (*it, at))
    }

    /// True if a branch of the holder (a rank's cache) has a block with this block hash, or begins after the missing
    /// block with this block hash.
    pub(in crate::writer) fn concerns_branches(&self, holder: u32, name: u64) -> bool {
        self.branches(holder).iter().any(|it| it.awaits == name) || self.find_in_branches(holder, name).is_some()
    }

    /// Number of a run's leading blocks that belong to the path to the missing block, rather than to the branch (blocks
    /// after a missing block) itself.
    pub(in crate::writer) fn branch_start(&self, branch: &Branch, run: u32) -> u32 {
        (self.depth(branch.at) + 1).saturating_sub(self.runs.start(run))
    }

    /// Runs of blocks in which a branch (blocks after a missing block) has blocks of its own, in the order of the
    /// distance from the beginning of the prompt: number, first offset and end offset of each.
    pub(in crate::writer) fn runs_of_branch(&mut self, branch: &Branch) -> Vec<(u32, u32, u32)> {
        let runs = self.runs_of(branch.number).into_iter();
        runs.map(|(run, to)| (run, self.branch_start(branch, run), to)).filter(|(_, from, to)| from < to).collect()
    }

    /// True if any holder (a rank's cache) that readers can see has a block at a position (run of blocks and offset).
    pub(in crate::writer) fn is_linked(&self, at: Position) -> bool {
        let levels = self.runs.levels(at.run);
        let Some(level) = levels.iter().find(|level| level.end > at.offset) else { return false };
        let mut is_linked = false;
        self.sets.members(level.set).for_each(|it| is_linked |= !self.is_leaving(it) && !self.is_hidden(it));
        is_linked
    }

    pub(in crate::writer) fn is_hidden(&self, holder: u32) -> bool {
        self.holders[holder as usize].is_hidden
    }

    /// Block hashes of all blocks in the branches (blocks after missing blocks) of a holder (a rank's cache), in any
    /// order.
    pub(in crate::writer) fn names_in_branches(&mut self, holder: u32) -> Vec<u64> {
        let mut names = Vec::new();
        for branch in self.branches(holder).to_vec() {
            for (run, from, to) in self.runs_of_branch(&branch) {
                names.extend_from_slice(&self.runs.get(run).names()[from as usize..to as usize]);
            }
        }
        names
    }

    /// Removes a regular block (stored in a run) and moves the blocks that continue it to a new branch (blocks after a
    /// missing block). Returns false, without a change, if few blocks continue the removed one, or if a special case
    /// cannot be represented by a branch.
    pub(in crate::writer) fn branch_off(&mut self, holder: u32, at: Position, name: u64) -> bool {
        let it = &self.holders[holder as usize];
        // A small number of blocks is recognized without a search below the hole.
        let has_shared_names = it.private.is_none() && it.coming.is_none();
        let is_plain = has_shared_names && it.irregular.as_ref().is_none_or(|it| it.unlinked() == it.len());
        if !is_plain || it.blocks <= self.least_branch {
            return false;
        }
        let below = self.runs_at_and_below(holder, at);
        let blocks: u64 = below.iter().map(|(from, to)| u64::from(to - from.offset)).sum();
        if blocks <= self.least_branch {
            return false;
        }
        self.take_over(holder, holder, at, name, below);
        true
    }

    /// Moves the blocks that continue a removed block to a new branch (blocks after a missing block). `from`: the
    /// number of the holder (a rank's cache) that had them, which is `holder` or a branch of it.
    fn take_over(&mut self, holder: u32, from: u32, at: Position, name: u64, mut below: Vec<(Position, u32)>) {
        if !self.watches.is_empty() {
            let names = |(from, to): &(Position, u32)| {
                self.runs.get(from.run).names()[from.offset as usize..*to as usize].to_vec()
            };
            let names: Vec<u64> = below.iter().flat_map(names).collect();
            self.touch(holder, names);
        }
        let number = self.new_holder();
        self.holders[number as usize].is_hidden = true;
        self.roster.one_leaves();
        // The roster is published before any reader finds the new holder.
        self.publish_roster();
        let mut before = self.runs.origin(at.run);
        while before.before().is_some() {
            step();
            self.raise(number, before.run, 0, before.blocks);
            before = self.runs.origin(before.run);
        }
        // Those farthest from the root first: readers see a prefix at any time.
        below.sort_unstable_by_key(|(from, _)| std::cmp::Reverse(self.runs.start(from.run)));
        for (Position { run, offset }, cutoff) in below {
            step();
            self.raise(number, run, 0, cutoff);
            self.lower(from, run, cutoff, offset);
        }
        let branches = self.holders[holder as usize].branches.get_or_insert_default();
        branches.all.push(Branch { number, awaits: name, at });
        self.count_branches(holder);
        self.limit_branches(holder);
    }

    /// Converts branches (blocks after missing blocks) of a holder to irregular blocks (kept outside runs of blocks) if
    /// they are small, or if there are too many.
    fn limit_branches(&mut self, holder: u32) {
        loop {
            let branches = self.branches(holder);
            let Some(smallest) = branches.iter().min_by_key(|it| self.blocks_of_branch(it)).copied() else { return };
            if branches.len() <= MOST && self.blocks_of_branch(&smallest) >= self.least_branch {
                return;
            }
            self.dissolve(holder, smallest);
        }
    }

    fn blocks_of_branch(&self, branch: &Branch) -> u64 {
        self.holders[branch.number as usize].blocks - u64::from(self.depth(branch.at)) - 1
    }

    /// Removes a block of a branch (blocks after a missing block).
    pub(in crate::writer) fn lose_in(&mut self, holder: u32, branch: Branch, at: Position, name: u64) {
        let Branch { number, .. } = branch;
        let cutoff = self.cutoff(number, at.run, at.offset);
        if at.offset + 1 == cutoff && !self.holds_child_beyond(number, at.run, at.offset) {
            self.lower(number, at.run, cutoff, at.offset);
        } else if self.is_first_and_only(&branch, at) {
            // All the others are below it.
            let branches = self.holders[holder as usize].branches.iter_mut().flat_map(|it| &mut it.all);
            branches.filter(|it| it.number == number).for_each(|it| (it.awaits, it.at) = (name, at));
        } else {
            let below = self.runs_at_and_below(number, at);
            self.take_over(holder, number, at, name, below);
        }
        self.count_branches(holder);
        self.tidy_irregular(holder);
    }

    /// True if the block at a position (run of blocks and offset) is the only block of a branch (blocks after a missing
    /// block) that directly continues the missing block.
    fn is_first_and_only(&self, branch: &Branch, at: Position) -> bool {
        let Branch { number, at: missing, .. } = *branch;
        let first = Place { run: missing.run, blocks: missing.offset + 1 };
        let hangs = |child: u32| self.covers(number, Position { run: child, offset: 0 });
        at == Position { run: first.run, offset: first.blocks }
            && !self.runs.any_child_beyond(first.run, missing.offset, first.blocks, hangs)
            && !self.holders[number as usize].hanging.may_be_beyond(first)
    }

    /// Stores a block that continues a branch's block, and returns its position. In special cases that a branch (blocks
    /// after a missing block) cannot represent, converts all branches to irregular blocks (kept outside runs of blocks)
    /// and returns None.
    pub(in crate::writer) fn gain_in(
        &mut self,
        holder: u32,
        branch: Branch,
        place: Place,
        name: u64,
        content: u64,
    ) -> Option<Position> {
        let existing = self.runs.next(place, content);
        let is_free = existing.is_none_or(|at| !self.covers(branch.number, at));
        let is_awaited = self.holders[holder as usize].irregular.as_ref().is_some_and(|it| it.awaits(name));
        if is_free && !is_awaited && self.make_shared(name, existing) {
            let at = self.cover(branch.number, place, content, Some(name));
            self.count_branches(holder);
            return Some(at);
        }
        self.dissolve_all(holder);
        None
    }

    /// Returns the blocks of a branch (blocks after a missing block) to a holder (a rank's cache) after the missing
    /// block `name` was stored at `at`. `into`: the number of the holder, or of a branch of it, that has the block at
    /// `at`.
    pub(in crate::writer) fn rejoin(&mut self, holder: u32, into: u32, name: u64, at: Position) {
        let Some(branch) = self.branches(holder).iter().find(|it| it.awaits == name).copied() else { return };
        if branch.at != at {
            return self.dissolve(holder, branch);
        }
        let runs = self.runs_of_branch(&branch);
        if !self.watches.is_empty() {
            let names =
                |&(run, from, to): &(u32, u32, u32)| self.runs.get(run).names()[from as usize..to as usize].to_vec();
            let names: Vec<u64> = runs.iter().flat_map(names).collect();
            self.touch(holder, names);
        }
        for (run, _, to) in runs {
            step();
            let from = self.cutoff(into, run, 0);
            if from < to {
                self.raise(into, run, from, to);
            }
        }
        self.end_branch(holder, branch.number);
    }

    /// Converts a branch (blocks after a missing block) to irregular blocks (kept outside runs of blocks).
    fn dissolve(&mut self, holder: u32, branch: Branch) {
        let mut blocks = Vec::new();
        for (run, from, to) in self.runs_of_branch(&branch) {
            for at in (from..to).map(|offset| Position { run, offset }) {
                step();
                blocks.push((self.runs.name(at), self.block_at(branch.number, at)));
            }
        }
        self.touch(holder, blocks.iter().map(|(name, _)| *name));
        self.end_branch(holder, branch.number);
        let irregular = self.holders[holder as usize].irregular.get_or_insert_default();
        for (name, (parent, content)) in blocks {
            irregular.add(name, IrregularBlock::new(parent, content, None));
        }
        self.count_waiting(holder);
    }

    /// Converts all branches (blocks after missing blocks) of a holder to irregular blocks (kept outside runs of
    /// blocks).
    pub(in crate::writer) fn dissolve_all(&mut self, holder: u32) {
        while let Some(&branch) = self.branches(holder).last() {
            self.dissolve(holder, branch);
        }
    }

    /// Removes a branch (blocks after a missing block) with all its blocks.
    fn end_branch(&mut self, holder: u32, number: u32) {
        self.clear_holder(number);
        let it = &mut self.holders[holder as usize];
        if let Some(branches) = &mut it.branches {
            branches.all.retain(|it| it.number != number);
            if branches.all.is_empty() {
                it.branches = None;
            }
        }
        self.holders[number as usize] = Holder::default();
        self.roster.one_has_left();
        self.publish_roster();
        self.trash.push(Garbage::HolderId(number));
        self.count_branches(holder);
    }

    /// Removes all branches (blocks after missing blocks) of a holder (a rank's cache).
    pub(in crate::writer) fn end_branches(&mut self, holder: u32) {
        while let Some(branch) = self.branches(holder).last() {
            self.end_branch(holder, branch.number);
        }
    }

    /// Updates the number of blocks in the branches (blocks after missing blocks) of a holder (a rank's cache), and
    /// removes an empty branch.
    fn count_branches(&mut self, holder: u32) {
        let branches = self.branches(holder).iter();
        let counts: SmallVec<[(u32, u64); MOST + 1]> =
            branches.map(|it| (it.number, self.blocks_of_branch(it))).collect();
        if let Some(branches) = &mut self.holders[holder as usize].branches {
            branches.blocks = counts.iter().map(|(_, blocks)| blocks).sum();
        }
        self.count_waiting(holder);
        if let Some(&(empty, _)) = counts.iter().find(|(_, blocks)| *blocks == 0) {
            self.end_branch(holder, empty);
        }
    }
}
