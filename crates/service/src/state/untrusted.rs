//! Streams whose blocks may not be what the engine holds right now, or not all of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::stream::Stream;

/// The streams of a keyspace that are not trusted, and the ranks whose depths are upper bounds.
#[derive(Default)]
pub struct Untrusted {
    /// Each once, by worker and rank.
    pub streams: Vec<Arc<Stream>>,
    /// Those, trusted or not, of which something was lost, so that the engine may hold more.
    pub partial: Vec<Arc<Stream>>,
    partial_ranks: HashSet<(Arc<str>, u32)>,
    ranks: HashSet<(Arc<str>, u32)>,
    upper_bounds: HashSet<(Arc<str>, u32)>,
    /// Goes up whenever there is more to be said against the answers.
    losses: u64,
}

impl Untrusted {
    /// Of all streams of a keyspace, in order.
    pub(super) fn among<'a>(streams: impl Iterator<Item = &'a Arc<Stream>>) -> Self {
        let mut found = Self::default();
        for stream in streams {
            let ranks = || stream.ranks().into_iter().map(|rank| (stream.worker.clone(), rank));
            if !stream.status.is_trusted() {
                found.ranks.extend(ranks());
                found.streams.push(stream.clone());
            }
            if stream.status.partial.load(Relaxed) {
                found.partial_ranks.extend(ranks());
                found.partial.push(stream.clone());
            }
            if stream.status.upper_bound.load(Relaxed) {
                found.upper_bounds.extend(ranks());
            }
        }
        found
    }

    #[cfg(test)]
    pub(super) fn of(ranks: HashSet<(Arc<str>, u32)>) -> Self {
        Self { ranks, ..Self::default() }
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

    /// Takes the place of another: counts on if there is more to be said against the answers now.
    pub(super) fn after(mut self, before: &Self) -> Self {
        let lost = !self.ranks.is_subset(&before.ranks)
            || !self.upper_bounds.is_subset(&before.upper_bounds)
            || !self.partial_ranks.is_subset(&before.partial_ranks);
        self.losses = before.losses + u64::from(lost);
        self
    }

    /// Whether nothing has been said against the answers since another.
    pub(super) fn is_as_good_as(&self, before: &Self) -> bool {
        self.losses == before.losses
    }
}
