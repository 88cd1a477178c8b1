//! Who is behind a holder's number: what a match needs to name its holders.
//!
//! Readers see a roster as a whole; the writer publishes a new one when a holder comes or goes. Rosters share all
//! chunks but those that changed.

use std::sync::Arc;

const CHUNK: usize = 64;

/// Views of a holder that is the only one of its rank. Bit n is for the view whose number is n.
pub(crate) const ALL_VIEWS: u8 = 0b1111;

/// A holder.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) worker: Arc<str>,
    /// The same number for all holders of a worker: that of one of them.
    pub(crate) worker_number: u32,
    pub(crate) rank: u32,
    /// The views of the rank that it answers for.
    pub(crate) views: u8,
}

type Chunk = [Option<Member>; CHUNK];

/// Holder number → holder.
#[derive(Clone, Default)]
pub(crate) struct Roster {
    chunks: Vec<Arc<Chunk>>,
    /// Holders that do not answer for every view.
    offloading: usize,
    /// Holders that are nobody's and still in sets.
    leaving: usize,
}

impl Roster {
    /// None if the number is not (or not yet, or no longer) anyone's.
    #[inline]
    pub(crate) fn get(&self, holder: u32) -> Option<&Member> {
        self.chunks.get(holder as usize / CHUNK)?[holder as usize % CHUNK].as_ref()
    }

    /// Whether every holder that is in any set counts in every view.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.offloading == 0 && self.leaving == 0
    }

    /// The roster when a holder that is nobody's any more is still in sets.
    pub(crate) fn one_leaves(&mut self) {
        self.leaving += 1;
    }

    /// The roster when such a holder is in no set any more.
    pub(crate) fn one_has_left(&mut self) {
        self.leaving -= 1;
    }

    /// The roster with one entry changed.
    pub(crate) fn set(&mut self, holder: u32, member: Option<Member>) {
        let chunk = holder as usize / CHUNK;
        while self.chunks.len() <= chunk {
            self.chunks.push(Arc::new([const { None }; CHUNK]));
        }
        let counts = |member: &Option<Member>| usize::from(member.as_ref().is_some_and(|m| m.views != ALL_VIEWS));
        self.offloading += counts(&member);
        let entry = &mut Arc::make_mut(&mut self.chunks[chunk])[holder as usize % CHUNK];
        self.offloading -= counts(entry);
        *entry = member;
        while self.chunks.last().is_some_and(|c| c.iter().all(Option::is_none)) {
            self.chunks.pop();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * (size_of::<Chunk>() + size_of::<Arc<Chunk>>())
    }
}
