//! Forks: the places where the children of a run hang.

use std::mem;

use smallvec::SmallVec;

/// Greatest number of a run's children that are listed. Of any more each holder counts those that it is in: a busy run has
/// as many children as there are conversations, and what one holder does must not cost a look at everybody's.
const LISTED: u32 = 16;

/// The places of one run where children hang, deepest first, each with its first child. Most runs with children have
/// one place.
#[derive(Default)]
pub(crate) struct Forks {
    places: SmallVec<[(u32, u32); 2]>,
    listed: u32,
    /// Children that are not listed.
    unlisted: u32,
}

impl Forks {
    pub(crate) fn bytes(&self) -> usize {
        let places = if self.places.spilled() { self.places.capacity() * size_of::<(u32, u32)>() } else { 0 };
        size_of::<Self>() + places
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.listed == 0 && self.unlisted == 0
    }

    /// True if the next child is to be listed; else it is counted.
    pub(crate) fn lists_next(&self) -> bool {
        self.listed < LISTED
    }

    /// Makes `child` the first that hangs after `blocks` blocks; returns the former first.
    pub(crate) fn add(&mut self, blocks: u32, child: u32) -> Option<u32> {
        self.listed += 1;
        match self.places.binary_search_by(|(fork, _)| blocks.cmp(fork)) {
            Ok(at) => Some(mem::replace(&mut self.places[at].1, child)),
            Err(at) => {
                self.places.insert(at, (blocks, child));
                None
            }
        }
    }

    /// Counts a listed child that is gone; it was not the first of its place.
    pub(crate) fn remove(&mut self) {
        self.listed -= 1;
    }

    /// Removes the first child that hangs after `blocks` blocks; the next there, if any, becomes the first.
    pub(crate) fn remove_first(&mut self, blocks: u32, next: Option<u32>) {
        self.listed -= 1;
        let at = self.places.binary_search_by(|(fork, _)| blocks.cmp(fork)).expect("a child's parent lists it");
        match next {
            Some(child) => self.places[at].1 = child,
            None => drop(self.places.remove(at)),
        }
    }

    pub(crate) fn has_unlisted(&self) -> bool {
        self.unlisted > 0
    }

    pub(crate) fn add_unlisted(&mut self) {
        self.unlisted += 1;
    }

    pub(crate) fn remove_unlisted(&mut self) {
        self.unlisted -= 1;
    }

    /// The first listed children that hang after more than `blocks` and at most `most` blocks, deepest first.
    pub(crate) fn between(&self, blocks: u32, most: u32) -> impl Iterator<Item = u32> {
        let from = self.places.partition_point(|&(fork, _)| fork > most);
        self.places[from..].iter().take_while(move |&&(fork, _)| fork > blocks).map(|&(_, first)| first)
    }
}
