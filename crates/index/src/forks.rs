//! Where the children of a run hang.

use std::mem;

use smallvec::SmallVec;

/// The places of one run where children hang, deepest first, each with its first child. Most runs with children have
/// one such place.
#[derive(Default)]
pub(crate) struct Forks(SmallVec<[(u32, u32); 2]>);

impl Forks {
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + if self.0.spilled() { self.0.capacity() * size_of::<(u32, u32)>() } else { 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes `child` the first that hangs after so many blocks; returns the one that was.
    pub(crate) fn add(&mut self, blocks: u32, child: u32) -> Option<u32> {
        match self.0.binary_search_by(|(fork, _)| blocks.cmp(fork)) {
            Ok(at) => Some(mem::replace(&mut self.0[at].1, child)),
            Err(at) => {
                self.0.insert(at, (blocks, child));
                None
            }
        }
    }

    /// Makes `child` the first that hangs after so many blocks, where another was; none hang there if it is none.
    pub(crate) fn replace(&mut self, blocks: u32, child: Option<u32>) {
        let at = self.0.binary_search_by(|(fork, _)| blocks.cmp(fork)).expect("a child's parent lists it");
        match child {
            Some(child) => self.0[at].1 = child,
            None => drop(self.0.remove(at)),
        }
    }

    /// The first children that hang after more than `blocks` and at most `most` blocks, deepest first.
    pub(crate) fn between(&self, blocks: u32, most: u32) -> impl Iterator<Item = u32> {
        let from = self.0.partition_point(|&(fork, _)| fork > most);
        self.0[from..].iter().take_while(move |&&(fork, _)| fork > blocks).map(|&(_, first)| first)
    }
}
