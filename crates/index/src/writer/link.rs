//! Blocks that are not regular.
//!
//! An odd block is kept literally, by name: under its parent's name, with its content. It is *reachable* when its
//! parent is (regular, or odd and reachable, or the root); then it has a position, which its holder covers. It is odd
//! because its chain to the root is broken (a hole, an orphan), or because its position already has a block of the
//! same holder under another name. Chains are linked by name, as the engine announced them: that is the reference
//! model to the letter.
//!
//! Parents of regular blocks are regular; an odd block whose chain becomes complete turns regular if its position is
//! free.

use hashbrown::HashMap;

use super::Writer;
use super::holder::{Odd, OddBlock, OddCover};
use super::put::Put;
use crate::runs::{Place, Position};

impl Writer {
    /// Stores one block, whatever the circumstances.
    pub(super) fn put_one(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64) -> Put {
        let result = match self.block(holder, name) {
            Some(block) if block == (parent, content) => return Put::Same,
            Some(_) => {
                self.del_one(holder, name);
                Put::Replaced
            }
            None => Put::New,
        };
        // The block, and then those that waited for it, and so on.
        let mut todo = vec![(parent, name, content)];
        while let Some((parent, name, content)) = todo.pop() {
            self.link(holder, parent, name, content, &mut todo);
        }
        self.tidy_odd(holder);
        result
    }

    /// Stores a block that the holder does not hold; those that wait for it go to `todo`.
    fn link(
        &mut self,
        holder: u32,
        parent: Option<u64>,
        name: u64,
        content: u64,
        todo: &mut Vec<(Option<u64>, u64, u64)>,
    ) {
        let regular_parent = self.place_after(holder, parent);
        let place = regular_parent.or_else(|| self.odd_place_after(holder, parent));
        let Some(place) = place else {
            return self.add_odd(holder, parent, name, content, None);
        };
        let existing = self.runs.next(place, content).filter(|&at| self.covers(holder, at));
        if regular_parent.is_some() && existing.is_none() {
            self.cover(holder, place, content, Some(name));
        } else {
            let at = existing.unwrap_or_else(|| self.cover(holder, place, content, None));
            let odd = self.holders[holder as usize].odd.get_or_insert_default();
            let cover = odd.at.entry(at).or_insert(OddCover { blocks: 0, regular: existing.is_some() });
            cover.blocks += 1;
            self.add_odd(holder, parent, name, content, Some(at));
        }
        self.take_waiting(holder, name, todo);
    }

    /// The place after an odd block that is reachable.
    fn odd_place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        let odd = self.holders[holder as usize].odd.as_ref()?;
        odd.blocks.get(&name?)?.at.map(Position::after)
    }

    fn add_odd(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64, at: Option<Position>) {
        let odd = self.holders[holder as usize].odd.get_or_insert_default();
        odd.blocks.insert(name, OddBlock { parent, content, at });
        if let Some(parent) = parent {
            odd.add_child(parent, name);
        }
    }

    /// Takes the blocks that wait for `name` out, to be stored again.
    fn take_waiting(&mut self, holder: u32, name: u64, todo: &mut Vec<(Option<u64>, u64, u64)>) {
        let Some(odd) = &mut self.holders[holder as usize].odd else { return };
        for child in odd.children.remove(&name).unwrap_or_default() {
            if let Some(block) = odd.blocks.remove(&child) {
                todo.push((Some(name), child, block.content));
            }
        }
    }

    /// Takes an odd block out; those below it stay, unreachable.
    pub(super) fn del_odd(&mut self, holder: u32, name: u64) {
        let Some(odd) = &mut self.holders[holder as usize].odd else { return };
        let Some(block) = odd.blocks.remove(&name) else { return };
        if let Some(parent) = block.parent {
            odd.remove_child(parent, name);
        }
        if let Some(at) = block.at {
            let (mut left, mut bare) = (vec![at], Vec::new());
            odd.unreach_below(name, &mut left);
            odd.leave(&left, &mut bare);
            self.lower_all(holder, &bare);
        }
        self.tidy_odd(holder);
    }

    /// Takes a regular block out that has blocks of its holder below it, or around which odd ones are reachable.
    pub(super) fn detach(&mut self, holder: u32, at: Position) {
        let name = self.name_of(holder, at);
        let positions = self.regular_at_and_below(holder, at);
        let blocks: Vec<_> =
            positions.iter().skip(1).map(|&at| (self.name_of(holder, at), self.block_at(holder, at))).collect();
        let it = &mut self.holders[holder as usize];
        if let Some(private) = &mut it.private {
            positions.iter().for_each(|&at| private.unname(at, &self.runs));
        }
        let odd = it.odd.get_or_insert_default();
        for (name, (parent, content)) in blocks {
            odd.blocks.insert(name, OddBlock { parent, content, at: None });
            if let Some(parent) = parent {
                odd.add_child(parent, name);
            }
        }
        let (mut left, mut bare) = (Vec::new(), Vec::new());
        odd.unreach_below(name, &mut left);
        for &at in &positions {
            // What is covered by odd blocks besides stays covered, by them alone.
            if let Some(cover) = odd.at.get_mut(&at) {
                cover.regular = false;
            }
        }
        odd.leave(&left, &mut bare);
        bare.extend(positions.iter().copied().filter(|at| !odd.at.contains_key(at)));
        self.lower_all(holder, &bare);
        self.tidy_odd(holder);
    }

    /// The regular position `at`, and all regular ones of the holder below it.
    fn regular_at_and_below(&self, holder: u32, at: Position) -> Vec<Position> {
        let mut found = Vec::new();
        let it = &self.holders[holder as usize];
        let mut todo = vec![at];
        while let Some(from) = todo.pop() {
            let cutoff = self.cutoff(holder, from.run, from.offset);
            let offsets = (from.offset..cutoff).map(|offset| Position { run: from.run, offset });
            found.extend(offsets.filter(|&at| !it.covers_oddly(at)));
            self.runs.any_child_beyond(from.run, from.offset, u32::MAX, |child| {
                if self.covers(holder, Position { run: child, offset: 0 }) {
                    todo.push(Position { run: child, offset: 0 });
                }
                false
            });
        }
        found
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

    fn tidy_odd(&mut self, holder: u32) {
        let it = &mut self.holders[holder as usize];
        let Some(odd) = &mut it.odd else { return };
        if odd.blocks.is_empty() {
            it.odd = None;
        } else if odd.blocks.capacity() > 64 && odd.blocks.len() * 8 < odd.blocks.capacity() {
            odd.blocks.shrink_to_fit();
            odd.children.shrink_to_fit();
            odd.at.shrink_to_fit();
        }
    }
}

impl Odd {
    /// No odd block below `name` is reachable any more; `left` gets the positions they leave.
    fn unreach_below(&mut self, name: u64, left: &mut Vec<Position>) {
        let mut todo = vec![name];
        while let Some(name) = todo.pop() {
            let Some(children) = self.children.get(&name) else { continue };
            for child in children {
                if let Some(block) = self.blocks.get_mut(child) {
                    left.extend(block.at.take());
                    todo.push(*child);
                }
            }
        }
    }

    /// An odd block has left each of these positions (they may repeat); `bare` gets those that nothing covers now.
    fn leave(&mut self, left: &[Position], bare: &mut Vec<Position>) {
        for at in left {
            let Some(cover) = self.at.get_mut(at) else { continue };
            cover.blocks -= 1;
            if cover.blocks == 0 {
                if !cover.regular {
                    bare.push(*at);
                }
                self.at.remove(at);
            }
        }
    }
}
