//! Holdings of a stream: a batch's bytes go to the index, and what it says about itself to the status.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use kvatlas_adopt::{RankPlace, Scheme};
use kvatlas_index::snapshot::Dictionary;
use kvatlas_index::{BlockHash, BlockIndex};
use kvatlas_wire::compact::{Changes, FormatError, Recorder};
use kvatlas_wire::{BatchOf, Decoder, EventOf, Reader, Reason, Tally};

use super::block_limits::BlockLimits;
use super::claimed_ranks::ClaimedRanks;
use super::pending_counts::PendingCounts;
use crate::context::StreamContext;
use crate::state::{Keyspace, Stream, time_of};
use kvatlas_stream::machine::Verdict;

thread_local! {
    /// Decoder of a thread and not of a stream: what it keeps is in the thread's cache, and thousands of streams keep
    /// nothing.
    static DECODER: RefCell<Decoder> = RefCell::default();
}

/// Reasons to leave an event out that are no fault of anybody's.
const EXPECTED: [Reason; 2] = [Reason::OtherGroup, Reason::PartialBlock];

/// Blocks that a stream has brought into the index, and the state of their readers.
pub(crate) struct Holdings {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) stream: Arc<Stream>,
    /// The keyspace's index when this began. Should that be replaced, this is too.
    pub(crate) index: Arc<BlockIndex>,
    /// Readers by the rank that blocks are stored under.
    pub(super) readers: HashMap<u32, Reader>,
    /// The ranks that anything was stored under, be it forgotten since or not.
    pub(super) seen: HashSet<u32>,
    pub(super) claimed: ClaimedRanks,
    /// True if the engine has shown that its events have a place for salts.
    pub(super) shows_salts: bool,
    pub(super) limits: BlockLimits,
    /// Schemes by which names may be computed.
    pub(super) schemes: Arc<[Scheme]>,
    /// True if the log was told of events of unknown types.
    pub(super) warned: bool,
    /// True if the log was told of parents that are no blocks.
    pub(super) warned_of_parents: bool,
    /// True if the log was told of topics that are not the stream's.
    pub(super) warned_of_topics: bool,
    /// True if the log was told of blocks of another size.
    pub(super) warned_of_sizes: bool,
    /// Blocks forgotten since the log was told.
    pub(super) forgotten: u64,
    /// Number of times that all was forgotten.
    pub(super) clears: u64,
    /// The last batch that a snapshot had, by the rank that blocks are stored under.
    pub(super) had: HashMap<u32, u64>,
    /// Meanings of the names of the snapshot, until it is known whether its blocks are kept.
    pub(super) dictionary: Option<Arc<Dictionary>>,
    /// Counts that the status is not told yet.
    pub(super) pending: PendingCounts,
    /// True if the engine was heard since the status was told.
    pub(crate) heard: bool,
    /// Reader of a relay's changes, kept for its memory.
    pub(super) changes: Changes,
}

impl Holdings {
    pub(crate) fn new(keyspace: Arc<Keyspace>, stream: Arc<Stream>, context: &StreamContext) -> Self {
        let (index, limits) =
            (keyspace.index().clone(), BlockLimits::new(context.config.limits, context.shared.clone()));
        // What somebody before has left there is of another time.
        forget_groups(&keyspace, &stream);
        stream.proven_blocks().begin(Some(index.clone()));
        if let Some(outlet) = stream.outlet() {
            outlet.forget_all();
        }
        Self {
            keyspace,
            stream,
            index,
            readers: HashMap::new(),
            seen: HashSet::new(),
            claimed: ClaimedRanks::default(),
            shows_salts: false,
            limits,
            schemes: context.schemes.clone(),
            warned: false,
            warned_of_parents: false,
            warned_of_topics: false,
            warned_of_sizes: false,
            forgotten: 0,
            clears: 0,
            had: HashMap::new(),
            dictionary: None,
            pending: PendingCounts::default(),
            heard: false,
            changes: Changes::default(),
        }
    }

    /// Applies a batch. Stores that are wrong cost themselves, and are counted; if anything else is, nothing is applied.
    pub(crate) fn apply(&mut self, seq: u64, payload: &[u8], live: bool) -> Verdict {
        self.pending.batches += 1;
        self.pending.bytes += payload.len() as u64;
        if self.stream.status.limit().is_some() {
            return Verdict::Whole;
        }
        DECODER.with_borrow_mut(|decoder| self.apply_decoded(seq, payload.len(), decoder.decode(payload), live))
    }

    fn apply_decoded(
        &mut self,
        seq: u64,
        bytes: usize,
        decoded: Result<&BatchOf<BlockHash>, kvatlas_wire::Error>,
        live: bool,
    ) -> Verdict {
        let stream = self.stream.clone();
        let (status, counters) = (&stream.status, &stream.status.counters);
        let batch = match decoded {
            Ok(batch) => batch,
            Err(error) => {
                counters.undecodable_batches.fetch_add(1, Relaxed);
                status.set_error(format!("a payload of {bytes} bytes: {error}"));
                return Verdict::Refused;
            }
        };
        if let Some(refused) = batch.refused.last() {
            status.set_error(format!("event {}: {}: {}", refused.at, refused.reason, refused.detail));
        }
        let unknown = batch.refused.iter().rfind(|refused| refused.reason == Reason::UnknownEvent);
        if let Some(unknown) = unknown {
            self.warn_of(&unknown.detail);
        }
        if batch.refused.iter().any(|refused| refused.may_remove && refused.reason != Reason::UnknownEvent) {
            for refused in &batch.refused {
                status.refuse(refused.reason as usize, refused.events);
            }
            return Verdict::Refused;
        }
        let rank = self.claimed.rank(&self.keyspace, &self.stream, batch.rank);
        if !self.had.is_empty() && self.had.get(&rank).is_some_and(|last| seq <= *last) {
            return Verdict::Whole;
        }
        // What several ranks of an engine hold as one proves nothing of any.
        let is_shared = self.claimed.is_shared(rank, stream.registration.rank);
        let keyspace = &*self.keyspace;
        let seen = &mut self.seen;
        let reader = self.readers.entry(rank).or_insert_with(|| {
            seen.insert(rank);
            let reader = Reader::new(keyspace.block_size)
                .calling(keyspace.identity().clone())
                .counting(stream.registration.count_copies)
                .following_groups(true);
            if stream.outlet().is_some() { reader.recording() } else { reader }
        });
        let mut tally = Tally::default();
        let adopts = keyspace.prompt_queue().is_open();
        let apply = |index: &BlockIndex| {
            if !adopts {
                return reader.apply(batch, index, &stream.worker, rank, &mut tally);
            }
            // Nobody adopts between the batch and what it proves.
            let mut proven_blocks = stream.proven_blocks();
            let late = proven_blocks.of(rank);
            let at = RankPlace { index, worker: &stream.worker, rank };
            late.note_batch(batch, reader, at);
            reader.apply(batch, index, &stream.worker, rank, &mut tally);
            if is_shared {
                return late.forget();
            }
            late.applied(batch, reader, at, status.partial.load(Relaxed), || time_of(Instant::now()), &self.schemes);
            if !late.frontier().is_empty() {
                keyspace.set_waiting(true);
            }
        };
        keyspace.try_change(&self.index, apply).unwrap_or_else(|panic| resume_unwind(panic));
        if let (Some(outlet), Some(recorder)) = (stream.outlet(), reader.recorder()) {
            let changes = recorder.take();
            if !changes.is_empty() {
                outlet.batch(rank, &changes, if live { batch.timestamp } else { 0.0 });
            }
        }
        if let Some(hybrid) = reader.hybrid() {
            keyspace.hybrids().set(&stream.worker, rank, Some(hybrid));
        }
        let is_other_size = tally.refused_for(Reason::BlockSize) > 0 || tally.refused_for(Reason::PartialBlock) > 0;
        let other_size = reader.other_size().filter(|_| is_other_size);
        let (is_upper_bound, shows_salts) = (reader.upper_bound(), reader.shows_salts());
        if is_upper_bound != status.upper_bound.load(Relaxed) {
            let any = is_upper_bound || self.readers.values().any(Reader::upper_bound);
            if any != status.upper_bound.swap(any, Relaxed) {
                self.keyspace.trust_changed(&self.stream);
            }
        }
        self.note_salts(shows_salts);
        self.pending.tally += tally;
        if let Some((size, blocks)) = other_size {
            self.note_other_size(size, blocks);
        }
        let left_out = Reason::ALL.iter().find(|reason| !EXPECTED.contains(*reason) && tally.refused_for(**reason) > 0);
        if let Some(reason) = left_out.filter(|_| batch.refused.is_empty() && status.last_error().is_none()) {
            status.set_error(format!("an event is left out: {reason}"));
        }
        if let Some(limit) = self.limits.add(tally.stored_blocks + tally.group_blocks, &self.keyspace, &stream) {
            self.clear();
            status.set_limit(Some(limit));
            self.keyspace.trust_changed(&self.stream);
        }
        if live {
            self.pending.timestamps.push(batch.timestamp);
        }
        let nameless = self.zero_parents(rank, batch);
        if nameless > 0 {
            counters.zero_parents.fetch_add(nameless, Relaxed);
            self.warn_of_parents();
        }
        match self.verdict(rank, batch, &tally) {
            _ if unknown.is_some() => Verdict::UnknownEvents,
            Verdict::Whole if nameless > 0 => Verdict::Partial,
            verdict => verdict,
        }
    }

    /// Applies what a batch has changed in what a rank holds, as a relay says it. `seq`: the message's number.
    ///
    /// # Errors
    /// If it cannot be read; a part of it may be applied.
    pub(crate) fn apply_changes(&mut self, seq: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError> {
        self.pending.batches += 1;
        self.pending.bytes += changes.len() as u64;
        if self.stream.status.limit().is_some() {
            return Ok(());
        }
        let rank = self.claimed.rank(&self.keyspace, &self.stream, Some(rank));
        if !self.had.is_empty() && self.had.get(&rank).is_some_and(|last| seq <= *last) {
            return Ok(());
        }
        self.seen.insert(rank);
        let stream = self.stream.clone();
        let tally = &mut self.pending.tally;
        let before = tally.stored_blocks;
        let apply = |index: &BlockIndex| {
            let into = &mut index.changes();
            self.changes.read(changes, |change| {
                tally.note(&change);
                if change.apply(into, &stream.worker, rank).is_err() {
                    tally.refuse(Reason::IndexFull, 1);
                }
                Ok::<(), FormatError>(())
            })
        };
        self.keyspace.try_change(&self.index, apply).unwrap_or_else(|panic| resume_unwind(panic))?;
        let stored = self.pending.tally.stored_blocks - before;
        if let Some(limit) = self.limits.add(stored, &self.keyspace, &stream) {
            self.clear();
            stream.status.set_limit(Some(limit));
            self.keyspace.trust_changed(&stream);
        }
        Ok(())
    }

    /// The engine's time of a live batch.
    pub(super) fn note_timestamp(&mut self, timestamp: f64) {
        if timestamp > 0.0 {
            self.pending.timestamps.push(timestamp);
        }
    }

    /// Notes that blocks of another size than the index's were refused: most of them have this one.
    fn note_other_size(&mut self, size: u32, blocks: u64) {
        let status = &self.stream.status;
        status.set_other_size(size, blocks);
        let stored = status.counters.stored_blocks.load(Relaxed) + self.pending.tally.stored_blocks;
        if self.warned_of_sizes || blocks <= stored {
            return;
        }
        self.warned_of_sizes = true;
        let (worker, rank, indexed) = (&*self.stream.worker, self.stream.registration.rank, self.keyspace.block_size);
        tracing::warn!(
            worker,
            rank,
            "the engine's events have blocks of {size} tokens, and the size that is set or announced is {indexed}: blocks of \
             another size than {indexed} are left out"
        );
    }

    /// Notes a batch of another topic, which is left out. That is as it should be where several engines publish behind
    /// one address; if nothing else has come, the topic that is set is likely to be wrong.
    pub(crate) fn note_other_topic(&mut self, its: &[u8]) {
        let (status, topic) = (&self.stream.status, &self.stream.registration.topic);
        if self.warned_of_topics || self.pending.batches > 0 || status.counters.batches.load(Relaxed) > 0 {
            return;
        }
        self.warned_of_topics = true;
        let its = String::from_utf8_lossy(its);
        status.set_error(format!(
            "batches of topic {its:?} are left out: the topic of this stream is {topic:?}, the whole of it"
        ));
        let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
        tracing::warn!(
            worker,
            rank,
            "batches of topic {its:?} are left out, and none has come of {topic:?}, the topic of this stream: set it to the \
             whole topic of the engine, or leave it out"
        );
    }

    /// Notes that a stream that takes any topic has brought a second one.
    pub(crate) fn note_several_topics(&mut self, first: &[u8], second: &[u8]) {
        let (first, second) = (String::from_utf8_lossy(first), String::from_utf8_lossy(second));
        let what = format!("batches of several topics come here, such as {first:?} and {second:?}");
        let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
        if !std::mem::replace(&mut self.warned_of_topics, true) {
            tracing::warn!(worker, rank, "{what}: set the topic of the engine whose stream this is");
        }
        self.stream.status.set_error(what);
    }

    /// Tells the status what the batches since the last call came to.
    pub(crate) fn tell(&mut self) {
        let status = &self.stream.status;
        if std::mem::take(&mut self.heard) {
            status.hear();
        }
        self.pending.tell(status, self.limits.shared());
    }

    /// Marks a stream whose engine does not tell salts. One rank that does speaks for all.
    pub(super) fn note_salts(&mut self, shows: Option<bool>) {
        let no_salts = &self.stream.status.no_salts;
        let changed = match shows {
            Some(true) if !self.shows_salts => {
                self.shows_salts = true;
                no_salts.swap(false, Relaxed)
            }
            Some(false) if !self.shows_salts => !no_salts.swap(true, Relaxed),
            _ => false,
        };
        if changed {
            self.keyspace.trust_changed(&self.stream);
        }
    }

    fn verdict<N>(&self, rank: u32, batch: &BatchOf<N>, tally: &Tally) -> Verdict {
        // A block that is not full is not missed.
        let missed = tally.refused_total() - tally.refused_for(Reason::PartialBlock);
        let is_blind = |reader: &Reader| reader.hybrid().is_some_and(|hybrid| hybrid.is_blind());
        let cleared = batch.events.iter().any(|event| matches!(event, EventOf::Cleared(_)));
        match (missed, cleared) {
            (1.., _) => Verdict::Partial,
            _ if self.readers.values().any(is_blind) => Verdict::Partial,
            // It has cleared what another rank of the engine still holds.
            (0, true) if self.claimed.is_shared(rank, self.stream.registration.rank) => Verdict::Partial,
            // It clears one rank.
            (0, true) if self.is_only(rank) => Verdict::Cleared,
            _ => Verdict::Whole,
        }
    }

    /// Number of stores that continue a block named 0, where the rank holds no such block. Some publishers write that
    /// where a prompt begins, instead of no parent at all (LMCache/LMCache#2441): what they store is kept, and does not
    /// count.
    fn zero_parents(&self, rank: u32, batch: &BatchOf<BlockHash>) -> u64 {
        static ZEROS: LazyLock<[BlockHash; 5]> =
            LazyLock::new(|| [8, 16, 20, 32, 64].map(|length| BlockHash::from_bytes(&vec![0; length])));
        let is_zero = |parent: &BlockHash| parent.0 == 0 || ZEROS.contains(parent);
        let parents = batch.events.iter().filter_map(|event| match event {
            EventOf::Stored(stored) => stored.parent.filter(is_zero),
            _ => None,
        });
        let is_held = |parent| self.index.held(&self.stream.worker, rank, &[parent]) == [true];
        parents.filter(|parent| !is_held(*parent)).count() as u64
    }

    fn warn_of_parents(&mut self) {
        let status = &self.stream.status;
        if status.last_error().is_none() {
            status.set_error("blocks continue a block named 0, which is not held: they do not count".to_owned());
        }
        if !std::mem::replace(&mut self.warned_of_parents, true) {
            let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
            tracing::warn!(
                worker,
                rank,
                "the engine names block 0 as the parent of blocks, and has no such block: blocks that begin a prompt should \
                 have no parent. They and what follows them do not count, and the stream is marked as partial; a newer \
                 version of what publishes the events (LMCache?) may have none"
            );
        }
    }

    /// True if the engine has no other rank that this feeds, as far as it has ever said.
    fn is_only(&self, rank: u32) -> bool {
        let is_other =
            |other: u32| other != rank && (other != self.stream.registration.rank || self.seen.contains(&other));
        !self.stream.ranks().into_iter().any(is_other)
    }

    /// Forgets all that was applied.
    pub(crate) fn clear(&mut self) {
        if self.stream.status.is_trusted() {
            self.stream.status.set_trusted(false);
            self.keyspace.trust_changed(&self.stream);
        }
        self.forgotten += self.held();
        self.clears += 1;
        self.had.clear();
        let stream = self.stream.clone();
        let mut proven_blocks = stream.proven_blocks();
        proven_blocks.forget();
        for rank in self.stream.ranks() {
            let clear = |index: &BlockIndex| index.clear(&self.stream.worker, Some(rank), None);
            self.keyspace.try_change(&self.index, clear).unwrap_or_else(|panic| resume_unwind(panic));
        }
        drop(proven_blocks);
        if let Some(outlet) = self.stream.outlet() {
            outlet.forget_all();
        }
        self.readers.clear();
        forget_groups(&self.keyspace, &self.stream);
        self.stream.status.set_limit(None);
        self.stream.status.upper_bound.store(false, Relaxed);
        self.stream.status.no_salts.store(false, Relaxed);
        self.shows_salts = false;
    }

    /// Number of times that all was forgotten.
    pub(super) fn clears(&self) -> u64 {
        self.clears
    }

    /// Recorder into which a rank's reader writes down what it changes.
    pub(super) fn recorder(&mut self, rank: u32) -> Option<&mut Recorder> {
        self.readers.get_mut(&rank)?.recorder()
    }

    /// True if so many blocks more are too many.
    pub(super) fn is_over_limits(&mut self, blocks: u64) -> bool {
        self.limits.add(blocks, &self.keyspace, &self.stream).is_some()
    }

    /// Blocks that a rank may hold.
    pub(super) fn most_blocks(&self) -> u64 {
        self.limits.most_of_rank()
    }

    /// Number of blocks forgotten since this was last asked.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Blocks held by all ranks that this feeds. It takes a while, as a loss does.
    fn held(&self) -> u64 {
        if self.seen.is_empty() {
            return 0;
        }
        let ranks = self.index.ranks().into_iter();
        let own = ranks.filter(|held| held.worker == self.stream.worker && self.stream.feeds(held.rank));
        own.map(|held| held.device_blocks + held.offloaded_blocks).sum()
    }

    /// Logs a warning of events of an unknown type, once, with the name of the type.
    fn warn_of(&mut self, what: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            let (worker, rank) = (&*self.stream.worker, self.stream.registration.rank);
            tracing::warn!(
                worker,
                rank,
                what,
                "the engine publishes events of a type that this version does not know and that may remove blocks: \
                 each time, the stream's blocks are dropped; if more such events follow, the stream is not trusted; \
                 a newer version of kvatlas may know the type"
            );
        }
    }
}

/// Forgets what is known of the cache groups of the stream's ranks.
fn forget_groups(keyspace: &Keyspace, stream: &Stream) {
    if !keyspace.hybrids().load().is_empty() {
        stream.ranks().into_iter().for_each(|rank| keyspace.hybrids().set(&stream.worker, rank, None));
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        // Nothing is adopted any more of what it held.
        self.stream.proven_blocks().begin(None);
        self.tell();
    }
}
