//! Streams of a keyspace, with one bit per stream for each kind of doubt: untrusted, partial, unverified, without
//! salts, upper bound.
//!
//! Adding or removing a stream is rare, and creates a new list of members. Doubts change often, at worst for all
//! streams at once; this sets a few bits per stream.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use arc_swap::Guard;
use hashbrown::HashMap;

use super::stream::Stream;

/// Streams that fill one index, and one set of streams for each kind of doubt (untrusted, partial, unverified, without
/// salts, upper bound).
#[derive(Default)]
pub(super) struct Members {
    /// Streams that fill the index, sorted by worker and registered rank.
    streams: Vec<Arc<Stream>>,
    /// Positions of each worker's streams in the list of streams.
    workers: HashMap<Arc<str>, Range<usize>>,
    /// Streams that are not trusted: their blocks in the index may differ from those that the engine announced.
    pub(super) untrusted: Bits,
    /// Streams that have lost batches, so that their engines may hold more blocks than are known; they may be trusted.
    pub(super) partial: Bits,
    /// Streams whose engine, after a reconnection, is taken to be the same as before only because of a sequence number.
    pub(super) unverified: Bits,
    /// Streams whose engine does not announce which blocks have a cache salt.
    pub(super) no_salts: Bits,
    /// Streams for which matched depths (numbers of a prompt's leading blocks) are only upper bounds.
    pub(super) upper_bounds: Bits,
}

impl Members {
    /// Creates the list of streams from streams that are sorted by worker and registered rank.
    fn of(streams: Vec<Arc<Stream>>) -> Self {
        let mut workers = HashMap::with_capacity(streams.len());
        let mut start = 0;
        for of_worker in streams.chunk_by(|a, b| a.worker == b.worker) {
            workers.insert(of_worker[0].worker.clone(), start..start + of_worker.len());
            start += of_worker.len();
        }
        let bits = || Bits::new(streams.len());
        let members = Self {
            workers,
            untrusted: bits(),
            partial: bits(),
            unverified: bits(),
            no_salts: bits(),
            upper_bounds: bits(),
            streams,
        };
        for (place, stream) in members.streams.iter().enumerate() {
            members.tell(place, stream);
        }
        members
    }

    /// Copies the list of streams, with one more stream.
    pub(super) fn with(&self, stream: &Arc<Stream>) -> Self {
        let key = |stream: &Stream| (stream.worker.clone(), stream.registration.rank);
        let place = self.streams.partition_point(|other| key(other) < key(stream));
        let mut streams = self.streams.clone();
        streams.insert(place, stream.clone());
        Self::of(streams)
    }

    /// Copies the list of streams, without those of a worker that are registered for these ranks.
    pub(super) fn without(&self, worker: &str, ranks: &[u32]) -> Self {
        let goes = |stream: &Stream| *stream.worker == *worker && ranks.contains(&stream.registration.rank);
        Self::of(self.streams.iter().filter(|stream| !goes(stream)).cloned().collect())
    }

    pub(super) fn all(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    /// Returns the streams of a worker.
    pub(super) fn of_worker(&self, worker: &str) -> &[Arc<Stream>] {
        self.workers.get(worker).map_or(&[], |places| &self.streams[places.clone()])
    }

    /// Returns the stream that supplies the blocks of a worker's rank; `None` if there is none.
    pub(super) fn feeder(&self, worker: &str, rank: u32) -> Option<&Arc<Stream>> {
        Some(&self.streams[self.feeder_among(self.workers.get(worker)?, rank)?])
    }

    /// Returns the position of the stream whose trust applies to a worker's rank: the worker's only stream, or else the
    /// stream that supplies the rank's blocks.
    pub(super) fn speaker(&self, worker: &str, rank: u32) -> Option<usize> {
        let places = self.workers.get(worker)?;
        if places.len() == 1 { Some(places.start) } else { self.feeder_among(places, rank) }
    }

    fn feeder_among(&self, places: &Range<usize>, rank: u32) -> Option<usize> {
        let streams = &self.streams[places.clone()];
        let at = match streams.binary_search_by_key(&rank, |stream| stream.registration.rank) {
            Ok(at) => at,
            Err(_) => streams.iter().position(|stream| stream.feeds(rank))?,
        };
        Some(places.start + at)
    }

    /// Updates the bits of a stream in the sets of doubts from the stream's status. Returns true if there is a new
    /// doubt about the stream, such as a loss of trust.
    pub(super) fn update(&self, stream: &Stream) -> bool {
        let Some(places) = self.workers.get(&stream.worker) else { return false };
        let of_worker = &self.streams[places.clone()];
        let rank = stream.registration.rank;
        match of_worker.binary_search_by_key(&rank, |other| other.registration.rank) {
            // A stream that was replaced by another of its name does not count.
            Ok(at) if std::ptr::eq(&raw const *of_worker[at], stream) => self.tell(places.start + at, stream),
            _ => false,
        }
    }

    fn tell(&self, place: usize, stream: &Stream) -> bool {
        let status = &stream.status;
        let untrusted = self.untrusted.set(place, !status.is_trusted());
        let partial = self.partial.set(place, status.partial.load(Relaxed));
        let unverified = self.unverified.set(place, status.unverified.load(Relaxed));
        // Blocks that seem to have no salt may have one.
        let (has_no_salts, is_upper_bound) = (status.no_salts.load(Relaxed), status.upper_bound.load(Relaxed));
        let no_salts = self.no_salts.set(place, has_no_salts);
        let upper_bound = self.upper_bounds.set(place, has_no_salts || is_upper_bound);
        untrusted || partial || unverified || no_salts || upper_bound
    }
}

/// Set of streams that can change, with one bit for each stream. Only one thread at a time may write.
#[derive(Default)]
pub(super) struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(members: usize) -> Self {
        Self((0..members.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets or clears the bit of a stream. Returns true if the bit was newly set.
    fn set(&self, place: usize, to: bool) -> bool {
        let (word, bit) = (&self.0[place / 64], 1 << (place % 64));
        let before = if to { word.fetch_or(bit, Release) } else { word.fetch_and(!bit, Release) };
        to && before & bit == 0
    }

    /// Copies the set of streams as it is at present.
    pub(super) fn now(&self) -> Set {
        // A reader that sees a stream as trusted also sees the blocks that it held by then.
        let is_any = self.0.iter().any(|word| word.load(Acquire) != 0);
        // Usually no bit is set, and that takes no memory.
        Set(if is_any { self.0.iter().map(|word| word.load(Acquire)).collect() } else { Vec::new() })
    }
}

/// Set of streams at one moment, as one bit for each.
#[derive(Default)]
pub(super) struct Set(Vec<u64>);

impl Set {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word & 1 << (place % 64) != 0)
    }

    /// Iterates over the positions of the streams in the set, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let rest = std::iter::successors(Some(*word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|word| *word != 0).map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }
}

/// Sets of the streams of a keyspace that are in doubt at one moment: their engines may hold other blocks than are
/// known.
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

    /// Iterates over the streams that are not trusted (whose blocks in the index may differ from those that the engine
    /// announced), by worker and rank.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.untrusted.iter().map(|place| &self.members.all()[place])
    }

    /// Iterates over the streams that have lost batches, so that their engines may hold more blocks than are known;
    /// they may be trusted.
    pub fn partial(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.partial.iter().map(|place| &self.members.all()[place])
    }

    /// Iterates over the streams whose engine, after a reconnection, is taken to be the same as before only because of
    /// a sequence number; they may be trusted.
    pub fn unverified(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.unverified.iter().map(|place| &self.members.all()[place])
    }

    /// True if the blocks of a rank come from an unverified stream: after a reconnection, its engine is taken to be the
    /// same as before only because of a sequence number.
    #[must_use]
    pub fn is_unverified(&self, worker: &str, rank: u32) -> bool {
        !self.unverified.is_empty() && self.is_in(&self.unverified, worker, rank)
    }

    /// Iterates over the streams whose engine does not announce which blocks have a cache salt.
    pub fn no_salts(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.no_salts.iter().map(|place| &self.members.all()[place])
    }

    /// True if matched depths (numbers of a prompt's leading blocks) of any rank, trusted or not, are only upper
    /// bounds.
    #[must_use]
    pub fn has_upper_bounds(&self) -> bool {
        !self.upper_bounds.is_empty()
    }

    /// True if matched depths (numbers of a prompt's leading blocks) of a rank are only upper bounds.
    #[must_use]
    pub fn is_upper_bound(&self, worker: &str, rank: u32) -> bool {
        self.has_upper_bounds() && self.is_in(&self.upper_bounds, worker, rank)
    }

    /// True if all streams are trusted: their blocks in the index are those that the engines announced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.untrusted.is_empty()
    }

    /// True if the blocks of a rank come from a stream that is not trusted.
    #[must_use]
    pub fn contains(&self, worker: &str, rank: u32) -> bool {
        !self.is_empty() && self.is_in(&self.untrusted, worker, rank)
    }

    /// Returns the stream that supplies the blocks of a rank; `None` if unknown.
    #[must_use]
    pub fn stream_of(&self, worker: &str, rank: u32) -> Option<&Arc<Stream>> {
        Some(&self.members.all()[self.members.speaker(worker, rank)?])
    }

    fn is_in(&self, set: &Set, worker: &str, rank: u32) -> bool {
        self.members.speaker(worker, rank).is_some_and(|place| set.contains(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(worker: &str, rank: u32) -> Arc<Stream> {
        Stream::for_test(worker, rank)
    }

    #[test]
    fn a_set_knows_its_places() {
        let bits = Bits::new(200);
        assert!(bits.now().is_empty());
        let places = [0, 1, 63, 64, 130, 199];
        for place in places {
            assert!(bits.set(place, true), "{place} is new");
            assert!(!bits.set(place, true), "{place} is not new any more");
        }
        let set = bits.now();
        assert_eq!(set.iter().collect::<Vec<_>>(), places);
        assert!((0..256).all(|place| set.contains(place) == places.contains(&place)));
        for place in places {
            assert!(!bits.set(place, false));
        }
        assert!(bits.now().is_empty());
        assert_eq!(set.iter().count(), places.len(), "as they were");
    }

    #[test]
    fn every_rank_has_the_stream_that_feeds_it() {
        let streams = [stream("b", 2), stream("a", 0), stream("b", 0), stream("c", 1)];
        assert!(streams[2].feed(7));
        let members = streams.iter().fold(Members::default(), |members, stream| members.with(stream));
        let names: Vec<_> = members.all().iter().map(|one| (&*one.worker, one.registration.rank)).collect();
        assert_eq!(names, [("a", 0), ("b", 0), ("b", 2), ("c", 1)]);
        let speakers = [("a", 0), ("a", 9), ("b", 0), ("b", 2), ("b", 7), ("b", 9), ("c", 1), ("d", 0)];
        let found = speakers.map(|(worker, rank)| members.speaker(worker, rank));
        assert_eq!(found, [Some(0), Some(0), Some(1), Some(2), Some(1), None, Some(3), None]);
        let feeders = speakers.map(|(worker, rank)| members.feeder(worker, rank).is_some());
        assert_eq!(feeders, [true, false, true, true, true, false, true, false]);
        let fewer = members.without("b", &[0]);
        assert_eq!(fewer.all().len(), 3);
        assert_eq!(fewer.speaker("b", 0), Some(1), "nobody else speaks for the worker");
        assert_eq!(fewer.of_worker("b").len(), 1);
        assert_eq!(fewer.without("b", &[2]).of_worker("b").len(), 0);
    }

    #[test]
    fn only_what_is_new_is_a_loss() {
        let (one, two) = (stream("a", 0), stream("b", 0));
        let members = Members::default().with(&one).with(&two);
        assert_eq!(members.untrusted.now().iter().collect::<Vec<_>>(), [0, 1], "nobody is trusted at first");
        assert!(!members.update(&one));
        one.status.set_trusted(true);
        assert!(!members.update(&one));
        assert_eq!(members.untrusted.now().iter().collect::<Vec<_>>(), [1]);
        one.status.partial.store(true, Relaxed);
        assert!(members.update(&one));
        assert!(!members.update(&one));
        one.status.unverified.store(true, Relaxed);
        assert!(members.update(&one));
        assert_eq!(members.unverified.now().iter().collect::<Vec<_>>(), [0]);
        one.status.upper_bound.store(true, Relaxed);
        assert!(members.update(&one));
        one.status.set_trusted(false);
        assert!(members.update(&one));
        assert!(!members.update(&stream("a", 0)), "another of the same name");
        assert!(!members.update(&stream("z", 0)));
    }
}
