//! A holder gains one block, whatever the circumstances, and with it those that have waited for it.

use super::irregular::IrregularBlock;
use super::state::Writer;
use crate::position::{Place, Position};

/// Effect of the announcement of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gain {
    New,
    /// The block was held already, the very same.
    Same,
    /// Another block of that name was held, and is no more.
    Replaced,
}

impl Writer {
    /// Stores one block, whatever the circumstances.
    pub(super) fn gain_one(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64) -> Gain {
        let result = if self.has_block(holder, parent, name, content) {
            return Gain::Same;
        } else if self.lose_one(holder, name) {
            Gain::Replaced
        } else {
            Gain::New
        };
        // The block, and then those that waited for it, and so on.
        let mut todo = Vec::new();
        self.touch(holder, [name]);
        self.link(holder, parent, name, content, &mut todo);
        while let Some((parent, name, content)) = todo.pop() {
            self.link_waiting(holder, parent, name, content, &mut todo);
        }
        self.tidy_irregular(holder);
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
        let place = regular_parent.or_else(|| self.irregular_place_after(holder, parent));
        let Some(place) = place else {
            if let Some((branch, before)) = parent.and_then(|parent| self.find_in_branches(holder, parent))
                && let Some(at) = self.gain_in(holder, branch, before.after(), name, content)
            {
                return self.rejoin(holder, branch.number, name, at);
            }
            return self.add_irregular(holder, parent, name, content, None);
        };
        let there = self.runs.next(place, content);
        let existing = there.filter(|&at| self.covers(holder, at));
        if regular_parent.is_some() && existing.is_none() && self.may_name(holder, name, there) {
            let at = self.cover(holder, place, content, Some(name));
            self.rejoin(holder, holder, name, at);
        } else {
            self.dissolve_all(holder);
            let at = existing.unwrap_or_else(|| self.cover(holder, place, content, None));
            let irregular = self.holders[holder as usize].irregular.get_or_insert_default();
            irregular.cover(at, existing.is_some());
            self.add_irregular(holder, parent, name, content, Some(at));
        }
        self.take_waiting(holder, name, todo);
    }

    /// Stores a block that has waited, and with it, as a chain, those that wait for it and have no siblings.
    fn link_waiting(
        &mut self,
        holder: u32,
        parent: Option<u64>,
        name: u64,
        content: u64,
        todo: &mut Vec<(Option<u64>, u64, u64)>,
    ) {
        let (mut names, mut contents) = (vec![name], vec![content]);
        if let Some(irregular) = &mut self.holders[holder as usize].irregular {
            while let Some(&last) = names.last()
                && let Some((name, block)) = irregular.take_only_child(last)
            {
                names.push(name);
                contents.push(block.content);
            }
        }
        self.touch(holder, names.iter().copied());
        // Several may wait for the last; for the others nobody does any more.
        let last = names.len() - 1;
        self.gain(holder, parent, &names[..last], &contents[..last], &mut Vec::new());
        let parent = last.checked_sub(1).map_or(parent, |before| Some(names[before]));
        self.link(holder, parent, names[last], contents[last], todo);
    }

    /// The place after an irregular block that is reachable.
    fn irregular_place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        let irregular = self.holders[holder as usize].irregular.as_ref()?;
        irregular.block(name?)?.at.map(Position::after)
    }

    fn add_irregular(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64, at: Option<Position>) {
        let irregular = self.holders[holder as usize].irregular.get_or_insert_default();
        irregular.add(name, IrregularBlock::new(parent, content, at));
    }

    /// Takes the blocks that wait for `name` out, to be stored again.
    fn take_waiting(&mut self, holder: u32, name: u64, todo: &mut Vec<(Option<u64>, u64, u64)>) {
        let Some(irregular) = &mut self.holders[holder as usize].irregular else { return };
        todo.extend(irregular.take_children(name).into_iter().map(|(child, block)| (Some(name), child, block.content)));
    }
}
