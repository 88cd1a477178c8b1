//! A holder gains blocks.

use super::Writer;
use super::names::shared_names;
use crate::runs::{MAX_RUN, NO_NAME, Place, Position, ROOT};

/// What became of a block that was announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    New,
    /// It was held already, the very same.
    Same,
    /// Another block of that name was held, and is no more.
    Replaced,
}

impl Writer {
    /// `holder` holds consecutive blocks from now on. `same` gets the names of those it held already; the result is
    /// the number of blocks that lost their name to one of these.
    pub(super) fn put(&mut self, holder: u32, parent: Option<u64>, names: &[u64], contents: &[u64], same: &mut Vec<u64>) -> u64 {
        let mut done = 0;
        let mut replaced = 0;
        while done < names.len() {
            let parent = if done == 0 { parent } else { Some(names[done - 1]) };
            let regular = self.regular_prefix(holder, &names[done..]);
            if regular > 0
                && let Some(place) = self.place_after(holder, parent)
            {
                let until = done + regular;
                let put = self.put_chain(holder, place, &names[done..until], &contents[done..until], same);
                done += put;
                if put > 0 {
                    continue;
                }
            }
            match self.put_one(holder, parent, names[done], contents[done]) {
                Put::New => {}
                Put::Same => same.push(names[done]),
                Put::Replaced => {
                    replaced += 1;
                    same.retain(|&name| name != names[done]);
                }
            }
            done += 1;
        }
        replaced
    }

    /// How many of these names concern no odd block of the holder.
    #[inline]
    pub(super) fn regular_prefix(&self, holder: u32, names: &[u64]) -> usize {
        match &self.holders[holder as usize].odd {
            None => names.len(),
            Some(odd) if !odd.at.is_empty() => 0,
            Some(odd) => names.iter().take_while(|&&name| odd.ignores(name)).count(),
        }
    }

    /// The place after a regular block, or the root for none.
    #[inline]
    pub(super) fn place_after(&self, holder: u32, name: Option<u64>) -> Option<Place> {
        match name {
            None => Some(Place::ROOT),
            Some(name) => self.find(holder, name).map(Position::after),
        }
    }

    /// Stores a chain from a place that the holder reaches, up to the first block that is not plain: a name that is
    /// taken, or a position that is named otherwise. Returns how many were stored.
    fn put_chain(&mut self, holder: u32, mut place: Place, names: &[u64], contents: &[u64], same: &mut Vec<u64>) -> usize {
        let mut done = 0;
        while done < names.len() {
            if place.run != ROOT {
                let (alike, agreed) = self.put_along(holder, place, &names[done..], &contents[done..], same);
                done += agreed;
                place.blocks += agreed as u32;
                if agreed < alike || done == names.len() {
                    return done;
                }
            }
            match self.runs.child(place, contents[done]) {
                Some(run) => place = Place { run, blocks: 0 },
                None => return done + self.put_new(holder, place, &names[done..], &contents[done..]),
            }
        }
        done
    }

    /// Stores what lies in the run itself. Returns how many blocks have the same content there, and how many of
    /// these were stored.
    #[inline]
    fn put_along(&mut self, holder: u32, place: Place, names: &[u64], contents: &[u64], same: &mut Vec<u64>) -> (usize, usize) {
        let from = place.blocks as usize;
        let run = self.runs.get(place.run);
        let alike = common_prefix(&run.contents()[from..], contents);
        if alike == 0 {
            return (0, 0);
        }
        let cutoff = self.cutoff(holder, place.run) as usize;
        let held = (cutoff - from).min(alike);
        let agreed = match &mut self.holders[holder as usize].private {
            None => common_prefix(&run.names()[from..from + alike], names),
            Some(private) => {
                let agreed = common_prefix(&private.of_run(place.run)[from..from + held], names);
                if agreed < held {
                    agreed
                } else {
                    private.reserve(alike - held, &self.runs);
                    let new = names[held..alike].iter().take_while(|&&name| {
                        let free = private.find(name, &self.runs).is_none();
                        if free {
                            private.push(place.run, name, alike - held, &self.runs);
                        }
                        free
                    });
                    held + new.count()
                }
            }
        };
        same.extend_from_slice(&names[..held.min(agreed)]);
        if from + agreed > cutoff {
            self.raise(holder, place.run, cutoff as u32, (from + agreed) as u32);
        }
        (alike, agreed)
    }

    /// Stores what nobody has: at the end of the run, or in a new one.
    fn put_new(&mut self, holder: u32, place: Place, names: &[u64], contents: &[u64]) -> usize {
        let shared = self.holders[holder as usize].private.is_none();
        match &mut self.holders[holder as usize].private {
            None => self.names.reserve(names.len(), || shared_names(&self.runs)),
            Some(private) => private.reserve(names.len(), &self.runs),
        }
        let (mut run, start) = if self.runs.can_append(place) { (place.run, place.blocks) } else { (ROOT, 0) };
        let mut end = start;
        for (i, (&name, &content)) in names.iter().zip(contents).enumerate() {
            let taken = match &self.holders[holder as usize].private {
                None => {
                    self.names.prefetch(names, i);
                    self.find_shared(name).is_some()
                }
                Some(private) => {
                    private.prefetch(names, i);
                    private.find(name, &self.runs).is_some()
                }
            };
            if taken || end as usize == MAX_RUN {
                break;
            }
            let more = names.len() - i;
            let public_name = if shared { name } else { NO_NAME };
            if run == ROOT {
                run = self.runs.create(place, content, public_name, more, &mut self.trash);
            } else {
                self.runs.append(run, content, public_name, more - 1, &mut self.trash);
            }
            match &mut self.holders[holder as usize].private {
                None => self.names.insert(name, self.runs.number(Position { run, offset: end })),
                Some(private) => private.push(run, name, more - 1, &self.runs),
            }
            end += 1;
        }
        if end > start {
            self.raise(holder, run, start, end);
        }
        (end - start) as usize
    }
}

/// How many leading items are equal.
#[inline]
pub(crate) fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut i = 0;
    while i + 8 <= n && a[i..i + 8] == b[i..i + 8] {
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}
