//! What may share blocks: a model under a routing group, with one block size and one index.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use kvatlas_index::{BlockIndex, Config};

use crate::error::Error;
use crate::fleet::Stream;

/// One index and who is not to be trusted in it.
pub struct Keyspace {
    /// The model's name.
    pub model: Box<str>,
    /// The routing group.
    pub group: Box<str>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Who holds what.
    pub index: BlockIndex,
    untrusted: ArcSwap<UntrustedStreams>,
}

/// How often a question is put again because streams came to be untrusted under it. Once in a while one does; if one
/// did each time, the last answer would have to do.
const TRIES: usize = 8;

/// Streams whose holdings may not be what the engine holds right now.
#[derive(Default)]
pub struct UntrustedStreams {
    /// Each once, by worker and rank.
    pub streams: Vec<Arc<Stream>>,
    ranks: HashSet<(Arc<str>, u32)>,
    upper_bounds: HashSet<(Arc<str>, u32)>,
    /// Goes up whenever there is more to be said against the answers.
    losses: u64,
}

impl UntrustedStreams {
    pub(crate) fn new<'a>(streams: Vec<Arc<Stream>>, upper_bounds: impl Iterator<Item = &'a Arc<Stream>>) -> Self {
        let ranks = |s: &Arc<Stream>| s.ranks().into_iter().map(|rank| (s.worker.clone(), rank)).collect::<Vec<_>>();
        let upper_bounds = upper_bounds.flat_map(ranks).collect();
        Self { ranks: streams.iter().flat_map(ranks).collect(), streams, upper_bounds, losses: 0 }
    }

    /// Whether the depths of any rank, trusted or not, are upper bounds only.
    #[must_use]
    pub fn has_upper_bounds(&self) -> bool {
        !self.upper_bounds.is_empty()
    }

    /// Whether the depths of this rank are.
    #[must_use]
    pub fn is_upper_bound(&self, worker: &Arc<str>, rank: u32) -> bool {
        self.upper_bounds.contains(&(worker.clone(), rank))
    }

    /// Whether everybody is trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether what is known of this rank comes from one of the streams.
    #[must_use]
    pub fn contains(&self, worker: &Arc<str>, rank: u32) -> bool {
        !self.ranks.is_empty() && self.ranks.contains(&(worker.clone(), rank))
    }
}

impl Keyspace {
    pub(crate) fn new(model: &str, group: &str, block_size: u32) -> Result<Self, Error> {
        let config = Config { block_size, count_copies: true };
        let index = BlockIndex::new(config).map_err(|error| Error::invalid(error.code(), error.to_string()))?;
        Ok(Self { model: model.into(), group: group.into(), block_size, index, untrusted: ArcSwap::default() })
    }

    /// Looks into the index, and tells `look` whom not to trust in what it finds.
    ///
    /// A stream is untrusted before what it holds is cleared. So what `look` found is put down to the right streams if
    /// none came to be untrusted meanwhile; else it is called again.
    pub fn steady<T>(&self, mut look: impl FnMut(&UntrustedStreams) -> T) -> T {
        let mut tries = 0;
        loop {
            let untrusted = self.untrusted.load();
            let found = look(&untrusted);
            tries += 1;
            if tries == TRIES || self.untrusted.load().losses == untrusted.losses {
                return found;
            }
        }
    }

    /// Calls for one keyspace come one after the other.
    pub(crate) fn set_untrusted(&self, mut streams: UntrustedStreams) {
        let before = self.untrusted.load();
        let lost = !streams.ranks.is_subset(&before.ranks) || !streams.upper_bounds.is_subset(&before.upper_bounds);
        streams.losses = before.losses + u64::from(lost);
        self.untrusted.store(Arc::new(streams));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(keyspace: &Keyspace, ranks: &[u32]) {
        let ranks = ranks.iter().map(|rank| ("w".into(), *rank)).collect();
        keyspace.set_untrusted(UntrustedStreams { ranks, ..UntrustedStreams::default() });
    }

    /// What `steady` was told at each call, if this becomes untrusted during the first.
    fn told(before: &[u32], meanwhile: &[&[u32]]) -> Vec<Vec<u32>> {
        let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
        set(&keyspace, before);
        let mut told = Vec::new();
        keyspace.steady(|untrusted| {
            told.push((0..9).filter(|rank| untrusted.contains(&"w".into(), *rank)).collect());
            if told.len() == 1 {
                meanwhile.iter().for_each(|ranks| set(&keyspace, ranks));
            }
        });
        told
    }

    #[test]
    fn who_loses_trust_while_somebody_looks_is_not_trusted_in_the_answer() {
        assert_eq!(told(&[1], &[]), [[1]]);
        assert_eq!(told(&[1], &[&[1, 2]]), [vec![1], vec![1, 2]]);
        // Cleared, read anew, trusted again: what was found may be of the time between.
        assert_eq!(told(&[], &[&[2], &[]]), vec![Vec::<u32>::new(); 2]);
        // Who gains it is left out of this answer still.
        assert_eq!(told(&[1, 2], &[&[2]]), [[1, 2]]);
    }

    #[test]
    fn an_answer_comes_in_the_end() {
        let keyspace = Keyspace::new("m", "g", 4).expect("a block size");
        let mut calls = 0;
        keyspace.steady(|_| {
            calls += 1;
            set(&keyspace, &[calls]);
        });
        assert_eq!(calls as usize, TRIES);
    }
}
