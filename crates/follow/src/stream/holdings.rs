//! Blocks held by a stream's ranks: batches are applied to the index, and counted in the stream's status.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use kvatlas_adopt::{RankPlace, Scheme};
use kvatlas_index::snapshot::Dictionary;
use kvatlas_index::{BlockHash, BlockIndex};
use kvatlas_wire::compact::{Change, Changes, FormatError, Recorder};
use kvatlas_wire::{BatchOf, Decoder, EventOf, Reader, Reason, Tally};

use super::batch_reports::{LoggedWarnings, PendingCounts};
use super::limits::{BlockLimits, ClaimedRanks};
use crate::context::StreamContext;
use crate::state::{Keyspace, Stream, tell_time, time_of};
use kvatlas_stream::machine::Verdict;

thread_local! {
    /// Decoder shared by all streams of a thread, so that its memory stays in the processor's cache.
    static DECODER: RefCell<Decoder> = RefCell::default();
}

/// Reasons for refusing an event that do not indicate an error.
const EXPECTED: [Reason; 3] = [Reason::OtherGroup, Reason::PartialBlock, Reason::HiddenSalt];

/// Blocks that a stream's ranks hold in the index, and the readers that apply the ranks' events.
pub(crate) struct Holdings {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) stream: Arc<Stream>,
    /// Index at the time when the stream's task began. If the index is replaced after a failed change, the task begins
    /// anew.
    pub(crate) index: Arc<BlockIndex>,
    /// Readers of events, by the rank under which blocks are stored.
    pub(super) readers: HashMap<u32, Reader>,
    /// Ranks under which the stream has ever stored blocks.
    pub(super) seen: HashSet<u32>,
    pub(super) claimed: ClaimedRanks,
    /// True if the engine's events have shown a field for cache salts.
    pub(super) shows_salts: bool,
    pub(super) limits: BlockLimits,
    /// Hashing schemes by which the engine may compute block hashes.
    pub(super) schemes: Arc<[Scheme]>,
    /// Record of the warnings that have been logged for the stream.
    pub(super) warned: LoggedWarnings,
    /// Number of blocks cleared since the last log line.
    pub(super) forgotten: u64,
    /// Number of times that the held blocks were cleared.
    pub(super) clears: u64,
    /// Number of the last batch included in the blocks restored from a snapshot, by the rank under which blocks are
    /// stored.
    pub(super) had: HashMap<u32, u64>,
    /// Dictionary (block hashes with their contents) of blocks restored from a snapshot, kept until they are proved to
    /// be still held, or dropped.
    pub(super) dictionary: Option<Arc<Dictionary>>,
    /// Counts not yet added to the stream's status.
    pub(super) pending: PendingCounts,
    /// True if the engine has sent anything since the last update of the status.
    pub(crate) heard: bool,
    /// Decoder of the changes that a relay (a service that publishes an engine's stream) sends. Its memory is reused.
    pub(super) changes: Changes,
}

impl Holdings {
    pub(crate) fn new(keyspace: Arc<Keyspace>, stream: Arc<Stream>, context: &StreamContext) -> Self {
        let (index, limits) =
            (keyspace.index().clone(), BlockLimits::new(context.config.limits, context.shared.clone()));
        // A former life of the task may have left groups.
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
            warned: LoggedWarnings::default(),
            forgotten: 0,
            clears: 0,
            had: HashMap::new(),
            dictionary: None,
            pending: PendingCounts::default(),
            heard: false,
            changes: Changes::default(),
        }
    }

    /// Applies a batch to the index. An invalid store event is refused alone and counted. A batch with any other
    /// invalid event is refused as a whole, unless the event's type is unknown.
    pub(crate) fn apply(&mut self, seq: u64, payload: &[u8], live: bool) -> Verdict {
        if !self.takes(payload.len()) {
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
            self.warn_of_unknown_events(&unknown.detail);
        }
        if batch.refused.iter().any(|refused| refused.may_remove && refused.reason != Reason::UnknownEvent) {
            for refused in &batch.refused {
                status.refuse(refused.reason as usize, refused.events);
            }
            return Verdict::Refused;
        }
        let Some(rank) = self.rank_of(batch.rank, seq) else { return Verdict::Whole };
        // Blocks that several ranks of an engine share prove nothing about any of them.
        let is_shared = self.claimed.is_shared(rank, stream.registration.rank);
        let keyspace = &*self.keyspace;
        let seen = &mut self.seen;
        let reader = self.readers.entry(rank).or_insert_with(|| {
            seen.insert(rank);
            let reader = Reader::new(keyspace.block_size)
                .calling(keyspace.identity().clone())
                .counting(stream.registration.count_copies)
                .chunking(stream.registration.host_chunk)
                .following_groups(true);
            if stream.outlet().is_some() { reader.recording() } else { reader }
        });
        let mut tally = Tally::default();
        let adopts = keyspace.prompt_queue().is_open();
        let apply = |index: &BlockIndex| {
            tell_time(index);
            if !adopts {
                return reader.apply(batch, index, &stream.worker, rank, &mut tally);
            }
            // No block is adopted between the batch and its proofs.
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
        if tally.offloaded_blocks != [0; 3] {
            status.set_chunks(reader.chunks());
        }
        if tally.named_blocks > 0 || status.undescribed.load(Relaxed) > 0 {
            let undescribed = self.readers.values().map(Reader::undescribed).sum::<usize>();
            status.undescribed.store(undescribed as u64, Relaxed);
        }
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
        self.enforce_limits(tally.stored_blocks + tally.group_blocks);
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

    /// Applies changes published by a relay (a service that follows the engine) to the blocks held by a rank. `seq` is
    /// the number of the message that contains the changes.
    ///
    /// # Errors
    /// If the changes cannot be decoded; some of them may have been applied then.
    pub(crate) fn apply_changes(&mut self, seq: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError> {
        if !self.takes(changes.len()) {
            return Ok(());
        }
        let Some(rank) = self.rank_of(Some(rank), seq) else { return Ok(()) };
        self.seen.insert(rank);
        let stream = self.stream.clone();
        let tally = &mut self.pending.tally;
        let before = tally.stored_blocks;
        let apply = |index: &BlockIndex| {
            let into = &mut index.changes();
            self.changes.read(changes, |change| {
                tally.note(&change);
                if let Change::Chunk { tier, blocks, .. } = change {
                    stream.status.set_chunk(tier, blocks);
                }
                if change.apply(into, &(&*stream.worker, rank)).is_err() {
                    tally.refuse(Reason::IndexFull, 1);
                }
                Ok::<(), FormatError>(())
            })
        };
        self.keyspace.try_change(&self.index, apply).unwrap_or_else(|panic| resume_unwind(panic))?;
        self.enforce_limits(self.pending.tally.stored_blocks - before);
        Ok(())
    }

    /// Counts a batch of `bytes` bytes. Returns false if the batch must be skipped because the stream has reached a
    /// limit on its blocks.
    fn takes(&mut self, bytes: usize) -> bool {
        self.pending.batches += 1;
        self.pending.bytes += bytes as u64;
        self.stream.status.limit().is_none()
    }

    /// Returns the rank under which a batch's blocks are stored; `None` if blocks restored from a snapshot already
    /// include the batch.
    fn rank_of(&mut self, announced: Option<u32>, seq: u64) -> Option<u32> {
        let rank = self.claimed.rank(&self.keyspace, &self.stream, announced);
        let is_included = !self.had.is_empty() && self.had.get(&rank).is_some_and(|last| seq <= *last);
        (!is_included).then_some(rank)
    }

    /// Clears the stream's held blocks if they exceed a limit, after `stored` further blocks were stored.
    fn enforce_limits(&mut self, stored: u64) {
        if let Some(limit) = self.limits.add(stored, &self.keyspace, &self.stream) {
            self.clear();
            self.stream.status.set_limit(Some(limit));
            self.keyspace.trust_changed(&self.stream);
        }
    }

    /// Records the engine's timestamp of a live batch, in seconds since 1970.
    pub(super) fn note_timestamp(&mut self, timestamp: f64) {
        if timestamp > 0.0 {
            self.pending.timestamps.push(timestamp);
        }
    }

    /// Adds the counts of the batches applied since the last call of this function to the stream's status.
    pub(crate) fn tell(&mut self) {
        let status = &self.stream.status;
        if std::mem::take(&mut self.heard) {
            status.hear();
        }
        self.pending.tell(status, self.limits.shared());
    }

    /// Records in the stream's status if the engine announces cache salts, as shown by one rank's events. If any rank
    /// announces them, the engine does.
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
        // What no prompt can be found by is not counted as missed: blocks that are not full, chunks of an unknown salt.
        let left_out = tally.refused_for(Reason::PartialBlock) + tally.refused_for(Reason::HiddenSalt);
        let missed = tally.refused_total() - left_out;
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

    /// Counts the store events whose parent has the block hash 0 and is not held by the rank. Some publishers write 0
    /// instead of no parent at the beginning of a prompt (LMCache/LMCache#2441). The stored blocks are kept, but no
    /// query finds them.
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

    /// True if `rank` is the only rank whose blocks the stream has supplied.
    fn is_only(&self, rank: u32) -> bool {
        let is_other =
            |other: u32| other != rank && (other != self.stream.registration.rank || self.seen.contains(&other));
        !self.stream.ranks().into_iter().any(is_other)
    }

    /// Removes all blocks of the stream from the index. The stream is no longer trusted.
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
        self.stream.status.undescribed.store(0, Relaxed);
        self.stream.status.upper_bound.store(false, Relaxed);
        self.stream.status.no_salts.store(false, Relaxed);
        self.shows_salts = false;
    }

    /// Returns the number of times that the held blocks were cleared.
    pub(super) fn clears(&self) -> u64 {
        self.clears
    }

    /// Returns the recorder of the changes that a rank's reader makes to the index; `None` if changes are not recorded.
    pub(super) fn recorder(&mut self, rank: u32) -> Option<&mut Recorder> {
        self.readers.get_mut(&rank)?.recorder()
    }

    /// True if storing `blocks` further blocks exceeds a limit on the stream's blocks.
    pub(super) fn is_over_limits(&mut self, blocks: u64) -> bool {
        self.limits.add(blocks, &self.keyspace, &self.stream).is_some()
    }

    /// Returns the maximum number of blocks that a rank may hold.
    pub(super) fn most_blocks(&self) -> u64 {
        self.limits.most_of_rank()
    }

    /// Returns the number of blocks cleared since the last call of this function.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Counts the blocks held by all ranks of the stream. The count is slow, and therefore made only before a clear.
    fn held(&self) -> u64 {
        if self.seen.is_empty() {
            return 0;
        }
        let ranks = self.index.ranks().into_iter();
        let own = ranks.filter(|held| held.worker == self.stream.worker && self.stream.feeds(held.rank));
        own.map(|held| held.device_blocks + held.offloaded_blocks).sum()
    }
}

/// Removes the record of hybrid models' cache groups for all ranks of a stream.
fn forget_groups(keyspace: &Keyspace, stream: &Stream) {
    if !keyspace.hybrids().load().is_empty() {
        stream.ranks().into_iter().for_each(|rank| keyspace.hybrids().set(&stream.worker, rank, None));
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        // No block is adopted for the stream any more.
        self.stream.proven_blocks().begin(None);
        self.tell();
    }
}
