//! Stores of blocks for a holder (a rank's cache): whole chains, or single blocks of any kind, together with blocks
//! that waited for them.

use crate::fingerprint::word;
use crate::position::{NO_NAME, Place, Position, ROOT, common_prefix};
use crate::types::Tier;
use crate::writer::holders::irregular::IrregularBlock;
use crate::writer::state::Writer;

impl Writer {
    /// Stores consecutive blocks for a holder (a rank's cache). Appends the block hashes of blocks that the holder had
    /// already to `same`. Returns the number of block hashes that belonged to other blocks before.
    pub(in crate::writer) fn gain(
        &mut self,
        holder: u32,
        parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
        same: &mut Vec<u64>,
    ) -> u64 {
        let mut done = 0;
        let mut replaced = 0;
        if let Some(private) = &self.holders[holder as usize].private {
            private.prefetch_first(names);
        }
        while done < names.len() {
            let parent = if done == 0 { parent } else { Some(names[done - 1]) };
            // This order avoids a search of all block hashes for each block of a chain without a known parent.
            let after =
                self.holders[holder as usize].tails.of(parent).and_then(|at| self.after_tail(holder, at, parent));
            if let Some(place) = after.or_else(|| self.place_after(holder, parent))
                && let regular = self.regular_prefix(holder, &names[done..])
                && regular > 0
            {
                let until = done + regular;
                let gained = self.gain_chain(holder, place, &names[done..until], &contents[done..until], same);
                done += gained;
                if gained > 0 {
                    continue;
                }
            }
            match self.gain_one(holder, parent, names[done], contents[done]) {
                Gain::New => {}
                Gain::Same => same.push(names[done]),
                Gain::Replaced => {
                    replaced += 1;
                    let before = same.len();
                    same.retain(|&name| name != names[done]);
                    let times = (before - same.len()) as u64 + 1;
                    let words = word(Tier::Gpu, names[done]).wrapping_mul(times);
                    self.replaced_words = self.replaced_words.wrapping_add(words);
                }
            }
            done += 1;
        }
        replaced
    }

    /// Place after the end of a chain that the holder (a rank's cache) stored recently; None if the position (run of
    /// blocks and offset) has another block by now.
    #[inline]
    fn after_tail(&self, holder: u32, at: Position, name: Option<u64>) -> Option<Place> {
        let is_named = self.runs.is_live(at.run)
            && self.holders[holder as usize].private.is_none()
            && self.runs.get(at.run).names().get(at.offset as usize).copied() == name;
        (is_named && self.covered(holder, at).is_some()).then(|| at.after())
    }

    /// Stores a chain for a holder (a rank's cache), from a place after a block that the holder has, up to the first
    /// block that needs special treatment, because its block hash belongs to another position (run of blocks and
    /// offset) or its position has another block hash. Returns the number of blocks stored.
    fn gain_chain(
        &mut self,
        holder: u32,
        mut place: Place,
        names: &[u64],
        contents: &[u64],
        same: &mut Vec<u64>,
    ) -> usize {
        let mut done = 0;
        while done < names.len() {
            if place.run != ROOT {
                if self.is_irregular_in(holder, place.run) {
                    return done;
                }
                let (alike, agreed) = self.gain_along(holder, place, &names[done..], &contents[done..], same);
                done += agreed;
                place.blocks += agreed as u32;
                if agreed < alike || done == names.len() {
                    return done;
                }
            }
            match self.runs.child(place, contents[done]) {
                Some(run) => place = Place { run, blocks: 0 },
                None => return done + self.gain_new(holder, place, &names[done..], &contents[done..]),
            }
        }
        done
    }

    /// Stores those blocks of a chain for a holder that the run at this place (a list of consecutive blocks) already
    /// contains for other holders. Returns the number of blocks with equal contents there, and the number of these that
    /// were stored.
    #[inline]
    fn gain_along(
        &mut self,
        holder: u32,
        place: Place,
        names: &[u64],
        contents: &[u64],
        same: &mut Vec<u64>,
    ) -> (usize, usize) {
        let from = place.blocks as usize;
        let run = self.runs.get(place.run);
        let alike = common_prefix(&run.contents()[from..], contents);
        if alike == 0 {
            return (0, 0);
        }
        let cutoff = self.cutoff(holder, place.run, place.blocks) as usize;
        let held = (cutoff - from).min(alike);
        let agreed = match &mut self.holders[holder as usize].private {
            None => {
                let agreed = common_prefix(&run.names()[from..from + alike], names);
                if agreed < alike && from + agreed >= cutoff {
                    agreed + self.name_nameless(place.run, from + agreed, &names[agreed..alike])
                } else {
                    agreed
                }
            }
            Some(private) => {
                let agreed = private.agree(place.run, place.blocks, &names[..held], &self.runs);
                if agreed < held {
                    agreed
                } else {
                    held + private.push_new(place.run, cutoff as u32, &names[held..alike], &self.runs)
                }
            }
        };
        same.extend_from_slice(&names[..held.min(agreed)]);
        if from + agreed > cutoff {
            self.raise(holder, place.run, cutoff as u32, (from + agreed) as u32);
            let last = Position { run: place.run, offset: (from + agreed) as u32 - 1 };
            self.holders[holder as usize].tails.add(names[agreed - 1], last);
        }
        (alike, agreed)
    }

    /// Sets the shared block hashes of the positions in a run of blocks from `start` on, up to the first position that
    /// already has one, or the first block hash that belongs to another position. Returns the number of positions done.
    fn name_nameless(&mut self, run: u32, start: usize, names: &[u64]) -> usize {
        let now = &self.runs.get(run).names()[start..start + names.len()];
        let names = &names[..now.iter().take_while(|&&name| name == NO_NAME).count()];
        if names.is_empty() {
            return 0;
        }
        let numbers: Vec<u32> = self.runs.numbers_from(run, start as u32).take(names.len()).collect();
        for (i, (&name, number)) in names.iter().zip(numbers).enumerate() {
            if name == NO_NAME || self.find_shared(name).is_some() {
                return i;
            }
            self.names.make_ready(1, 0, &self.runs);
            self.runs.set_name(Position { run, offset: (start + i) as u32 }, name);
            self.names.insert(name, number);
        }
        names.len()
    }

    /// Stores blocks that no holder (a rank's cache) has, at the end of a run of blocks or in a new run. Returns the
    /// number of blocks stored.
    fn gain_new(&mut self, holder: u32, place: Place, names: &[u64], contents: &[u64]) -> usize {
        let private = self.holders[holder as usize].private.is_some();
        if private {
            self.gain_new_privately(holder, place, names, contents)
        } else {
            self.names.make_ready(names.len(), 0, &self.runs);
            let (run, start, end) = self.add_blocks(place, contents, Some(names));
            let names = &names[..(end - start) as usize];
            let taken = start + self.names.insert_new(names, run, start, &self.runs) as u32;
            let gained = self.keep_blocks(holder, run, start, taken);
            if let Some(&last) = names[..gained].last() {
                self.holders[holder as usize].tails.add(last, Position { run, offset: taken - 1 });
            }
            gained
        }
    }

    fn gain_new_privately(&mut self, holder: u32, place: Place, names: &[u64], contents: &[u64]) -> usize {
        let (run, start, end) = self.add_blocks(place, contents, None);
        let Some(private) = &mut self.holders[holder as usize].private else { return 0 };
        let names = &names[..(end - start) as usize];
        let gained = private.push_new(run, start, names, &self.runs);
        self.keep_blocks(holder, run, start, start + gained as u32)
    }

    /// Adds blocks to the index after a place (a run of blocks and a number of its blocks); returns the run with the
    /// new blocks, the offset of the first of them and the end offset.
    fn add_blocks(&mut self, place: Place, contents: &[u64], names: Option<&[u64]>) -> (u32, u32, u32) {
        let more = std::mem::take(&mut self.coming);
        if self.runs.can_append(place, contents) {
            let n = self.runs.append(place.run, contents, names, more, &mut self.trash);
            (place.run, place.blocks, place.blocks + n as u32)
        } else {
            let run = self.runs.create(place, contents, names, more, &mut self.trash);
            (run, 0, self.runs.get(run).len() as u32)
        }
    }

    /// Adds the new blocks of a run (a list of consecutive blocks) up to the offset `end` to the holder (a rank's
    /// cache), and removes those beyond. Returns the number of blocks added.
    fn keep_blocks(&mut self, holder: u32, run: u32, start: u32, end: u32) -> usize {
        if end == 0 {
            // An empty run is removed like a run that its last holder has left.
            self.runs.publish(run, &[], &mut self.trash);
            return 0;
        }
        self.runs.take_back(run, end as usize);
        if end > start {
            self.raise(holder, run, start, end);
        }
        (end - start) as usize
    }
}

/// Result of storing one block for a holder (a rank's cache).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::writer) enum Gain {
    New,
    /// No change, as the holder (a rank's cache) had the same block already.
    Same,
    /// Replacement of another block that the holder (a rank's cache) had under this block hash.
    Replaced,
}

impl Writer {
    /// Stores one block of any kind for a holder (a rank's cache), and then the blocks that waited for the block as
    /// their missing parent.
    pub(in crate::writer) fn gain_one(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64) -> Gain {
        let result = if self.has_block(holder, parent, name, content) {
            return Gain::Same;
        } else if self.lose_one(holder, name) {
            Gain::Replaced
        } else {
            Gain::New
        };
        // The block, then the blocks that waited for it, and so on.
        let mut todo = Vec::new();
        self.touch(holder, [name]);
        self.link(holder, parent, name, content, &mut todo);
        while let Some((parent, name, content)) = todo.pop() {
            self.link_waiting(holder, parent, name, content, &mut todo);
        }
        self.tidy_irregular(holder);
        result
    }

    /// Stores a block that the holder (a rank's cache) does not have, and appends the blocks that waited for this block
    /// to `todo`.
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

    /// Stores a block that waited for its parent, and with it the chain of blocks that continue it without siblings.
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
        // Several may wait for the last; for the others no block does any more.
        let last = names.len() - 1;
        self.gain(holder, parent, &names[..last], &contents[..last], &mut Vec::new());
        let parent = last.checked_sub(1).map_or(parent, |before| Some(names[before]));
        self.link(holder, parent, names[last], contents[last], todo);
    }

    /// Place after an irregular block (kept outside runs) whose chain to the beginning of the prompt is complete; None
    /// if there is none with this block hash.
    fn irregular_place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        let irregular = self.holders[holder as usize].irregular.as_ref()?;
        irregular.block(name?)?.at.map(Position::after)
    }

    fn add_irregular(&mut self, holder: u32, parent: Option<u64>, name: u64, content: u64, at: Option<Position>) {
        let irregular = self.holders[holder as usize].irregular.get_or_insert_default();
        irregular.add(name, IrregularBlock::new(parent, content, at));
    }

    /// Removes the blocks that wait for the block `name`, and appends them to `todo`, to be stored again.
    fn take_waiting(&mut self, holder: u32, name: u64, todo: &mut Vec<(Option<u64>, u64, u64)>) {
        let Some(irregular) = &mut self.holders[holder as usize].irregular else { return };
        todo.extend(irregular.take_children(name).into_iter().map(|(child, block)| (Some(name), child, block.content)));
    }
}
