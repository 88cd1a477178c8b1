//! Streams whose blocks may not be what the engine holds right now, or not all of it.

use std::sync::Arc;

use arc_swap::Guard;

use super::members::{Members, Set};
use super::stream::Stream;

/// The reservations about the streams of a keyspace, as of one moment.
pub struct Reservations {
    members: Guard<Arc<Members>>,
    untrusted: Set,
    partial: Set,
    unverified: Set,
    no_salts: Set,
    upper_bounds: Set,
}

impl Reservations {
    pub(super) fn among(members: Guard<Arc<Members>>) -> Self {
        let (untrusted, partial) = (members.untrusted.now(), members.partial.now());
        let unverified = members.unverified.now();
        let (no_salts, upper_bounds) = (members.no_salts.now(), members.upper_bounds.now());
        Self { untrusted, partial, unverified, no_salts, upper_bounds, members }
    }

    /// The streams that are not trusted, by worker and rank.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.untrusted.iter().map(|place| &self.members.all()[place])
    }

    /// The streams, trusted or not, of which something was lost, so that the engine may hold more.
    pub fn partial(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.partial.iter().map(|place| &self.members.all()[place])
    }

    /// The streams, trusted or not, of which only a number says that the engine is still the one whose blocks are
    /// known.
    pub fn unverified(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.unverified.iter().map(|place| &self.members.all()[place])
    }

    /// True if what is known of this rank comes from one of those.
    #[must_use]
    pub fn is_unverified(&self, worker: &str, rank: u32) -> bool {
        !self.unverified.is_empty() && self.is_in(&self.unverified, worker, rank)
    }

    /// The streams whose engine does not tell which blocks have a salt.
    pub fn no_salts(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.no_salts.iter().map(|place| &self.members.all()[place])
    }

    /// True if the depths of any rank, trusted or not, are upper bounds only.
    #[must_use]
    pub fn has_upper_bounds(&self) -> bool {
        !self.upper_bounds.is_empty()
    }

    /// True if the depths of this rank are upper bounds only.
    #[must_use]
    pub fn is_upper_bound(&self, worker: &str, rank: u32) -> bool {
        self.has_upper_bounds() && self.is_in(&self.upper_bounds, worker, rank)
    }

    /// True if all streams are trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.untrusted.is_empty()
    }

    /// True if what is known of this rank comes from one of the streams that are not trusted.
    #[must_use]
    pub fn contains(&self, worker: &str, rank: u32) -> bool {
        !self.is_empty() && self.is_in(&self.untrusted, worker, rank)
    }

    /// The stream that what is known of a rank comes from.
    #[must_use]
    pub fn stream_of(&self, worker: &str, rank: u32) -> Option<&Arc<Stream>> {
        Some(&self.members.all()[self.members.speaker(worker, rank)?])
    }

    fn is_in(&self, set: &Set, worker: &str, rank: u32) -> bool {
        self.members.speaker(worker, rank).is_some_and(|place| set.contains(place))
    }
}
