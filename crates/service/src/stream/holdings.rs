//! From a batch's bytes to the index, and what it says about itself to the status.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvatlas_adopt::{At, Kept, Late, Scheme};
use kvatlas_index::{BlockHash, BlockIndex, Tier};
use kvatlas_wire::compact::{Changes, Malformed, Recorder};
use kvatlas_wire::{BatchOf, Decoder, EventOf, Reader, ReaderState, Reason, SaltedBlock, Tally};

use super::block_limits::BlockLimits;
use super::machine::Verdict;
use super::restore::Store;
use crate::adopt::time_of;
use crate::config::StreamConfig;
use crate::snapshot::{Dictionary, Outcome, RankHead};
use crate::state::{Keyspace, Stream};

/// A clock further away than this is not the same clock.
const PLAUSIBLE: f64 = 86_400.0;

/// So many announced ranks are remembered with the rank that they are stored under.
const MOST_RANKS: usize = 4096;

thread_local! {
    /// Of a thread and not of a stream: what it keeps is in the thread's cache, and thousands of streams keep nothing.
    static DECODER: RefCell<Decoder> = RefCell::default();
}

/// What a stream has brought into the index.
pub(crate) struct Holdings {
    pub(crate) keyspace: Arc<Keyspace>,
    pub(crate) stream: Arc<Stream>,
    /// The keyspace's index when this began. Should that be replaced, this is too.
    pub(crate) index: Arc<BlockIndex>,
    /// By the rank that blocks are stored under.
    readers: HashMap<u32, Reader>,
    /// The ranks that anything was stored under, be it forgotten since or not.
    seen: HashSet<u32>,
    /// The ranks that are stored under, by those announced. It never changes, whoever else comes and goes: what was
    /// stored under a rank is removed under it.
    claimed: HashMap<u32, u32>,
    /// Whether a batch has named the registered rank, or none.
    plain: bool,
    /// The one used last.
    recent: Option<(u32, u32)>,
    /// Whether the engine has shown that its events have a place for salts.
    shows_salts: bool,
    limits: BlockLimits,
    /// How names may be computed.
    schemes: Arc<[Scheme]>,
    /// Whether the log was told of events of unknown types.
    warned: bool,
    /// Whether the log was told of parents that are no blocks.
    warned_of_parents: bool,
    /// Blocks forgotten since the log was told.
    forgotten: u64,
    /// How often all was forgotten.
    clears: u64,
    /// The last batch that a snapshot had, by the rank that blocks are stored under.
    had: HashMap<u32, u64>,
    /// What the names of the snapshot mean, until it is known whether its blocks are kept.
    dictionary: Option<Arc<Dictionary>>,
    /// What the status is not told yet.
    untold: Untold,
    /// Whether the engine was heard since the status was told.
    pub(crate) heard: bool,
    /// Kept for its memory.
    changes: Changes,
}

/// Counts of a stream's latest batches, kept where nobody else looks until all that was there to read is read.
#[derive(Default)]
struct Untold {
    batches: u64,
    bytes: u64,
    tally: Tally,
    /// The engine's time of each live batch.
    timestamps: Vec<f64>,
}

impl Holdings {
    pub(crate) fn new(keyspace: Arc<Keyspace>, stream: Arc<Stream>, config: &StreamConfig) -> Self {
        let (index, limits) = (keyspace.index().clone(), BlockLimits::new(config));
        // What somebody before has left there is of another time.
        forget_groups(&keyspace, &stream);
        stream.lates().begin(Some(index.clone()));
        if let Some(outlet) = stream.outlet() {
            outlet.forgotten();
        }
        Self {
            keyspace,
            stream,
            index,
            readers: HashMap::new(),
            seen: HashSet::new(),
            claimed: HashMap::new(),
            plain: false,
            recent: None,
            shows_salts: false,
            limits,
            schemes: config.schemes.clone(),
            warned: false,
            warned_of_parents: false,
            forgotten: 0,
            clears: 0,
            had: HashMap::new(),
            dictionary: None,
            untold: Untold::default(),
            heard: false,
            changes: Changes::default(),
        }
    }

    /// Applies a batch. Stores that are wrong cost themselves, and are counted; if anything else is, nothing is applied.
    pub(crate) fn apply(&mut self, seq: u64, payload: &[u8], live: bool) -> Verdict {
        self.untold.batches += 1;
        self.untold.bytes += payload.len() as u64;
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
        let strange = batch.refused.iter().rfind(|refused| refused.reason == Reason::UnknownEvent);
        if let Some(strange) = strange {
            self.warn_of(&strange.detail);
        }
        if batch.refused.iter().any(|refused| refused.may_remove && refused.reason != Reason::UnknownEvent) {
            for refused in &batch.refused {
                status.refuse(refused.reason as usize, refused.events);
            }
            return Verdict::Refused;
        }
        let rank = self.rank(batch.rank);
        if !self.had.is_empty() && self.had.get(&rank).is_some_and(|last| seq <= *last) {
            return Verdict::Whole;
        }
        // What several ranks of an engine hold as one proves nothing of any.
        let is_shared = !self.claimed.is_empty() && self.is_shared(rank);
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
        let adopts = keyspace.desk().is_open();
        let apply = |index: &BlockIndex| {
            if !adopts {
                return reader.apply(batch, index, &stream.worker, rank, &mut tally);
            }
            // Nobody adopts between the batch and what it proves.
            let mut lates = stream.lates();
            let late = lates.of(rank);
            let at = At { index, worker: &stream.worker, rank };
            late.applying(batch, reader, at);
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
        let (is_upper_bound, shows_salts) = (reader.upper_bound(), reader.shows_salts());
        if is_upper_bound != status.upper_bound.load(Relaxed) {
            let any = is_upper_bound || self.readers.values().any(Reader::upper_bound);
            if any != status.upper_bound.swap(any, Relaxed) {
                self.keyspace.trust_changed(&self.stream);
            }
        }
        self.note_salts(shows_salts);
        self.untold.tally += tally;
        let left_out =
            Reason::ALL.iter().find(|reason| **reason != Reason::OtherGroup && tally.refused_for(**reason) > 0);
        if let Some(reason) = left_out.filter(|_| batch.refused.is_empty() && status.last_error().is_none()) {
            status.set_error(format!("an event is left out: {reason}"));
        }
        if let Some(limit) = self.limits.stored(tally.stored_blocks + tally.group_blocks, &self.keyspace, &stream) {
            self.clear();
            status.set_limit(Some(limit));
            self.keyspace.trust_changed(&self.stream);
        }
        if live {
            self.untold.timestamps.push(batch.timestamp);
        }
        let nameless = self.zero_parents(rank, batch);
        if nameless > 0 {
            counters.zero_parents.fetch_add(nameless, Relaxed);
            self.warn_of_parents();
        }
        match self.verdict(rank, batch, &tally) {
            _ if strange.is_some() => Verdict::Strange,
            Verdict::Whole if nameless > 0 => Verdict::Partial,
            verdict => verdict,
        }
    }

    /// Applies what a batch has changed in what a rank holds, as a relay says it. `seq`: the message's number.
    ///
    /// # Errors
    /// If it cannot be read; a part of it may be applied.
    pub(crate) fn apply_changes(&mut self, seq: u64, rank: u32, changes: &[u8]) -> Result<(), Malformed> {
        self.untold.batches += 1;
        self.untold.bytes += changes.len() as u64;
        if self.stream.status.limit().is_some() {
            return Ok(());
        }
        let rank = self.rank(Some(rank));
        if !self.had.is_empty() && self.had.get(&rank).is_some_and(|last| seq <= *last) {
            return Ok(());
        }
        self.seen.insert(rank);
        let stream = self.stream.clone();
        let tally = &mut self.untold.tally;
        let before = tally.stored_blocks;
        let apply = |index: &BlockIndex| {
            let into = &mut index.changes();
            self.changes.read(changes, |change| {
                tally.note(&change);
                if change.apply(into, &stream.worker, rank).is_err() {
                    tally.refuse(Reason::IndexFull, 1);
                }
                Ok(())
            })
        };
        self.keyspace.try_change(&self.index, apply).unwrap_or_else(|panic| resume_unwind(panic))?;
        let stored = self.untold.tally.stored_blocks - before;
        if let Some(limit) = self.limits.stored(stored, &self.keyspace, &stream) {
            self.clear();
            stream.status.set_limit(Some(limit));
            self.keyspace.trust_changed(&stream);
        }
        Ok(())
    }

    /// The engine's time of a live batch.
    pub(super) fn note_timestamp(&mut self, timestamp: f64) {
        if timestamp > 0.0 {
            self.untold.timestamps.push(timestamp);
        }
    }

    /// Tells the status what the batches since the last call came to.
    pub(crate) fn tell(&mut self) {
        let status = &self.stream.status;
        if std::mem::take(&mut self.heard) {
            status.hear();
        }
        let Untold { batches, bytes, tally, timestamps } = &mut self.untold;
        if *batches == 0 {
            return;
        }
        let counters = &status.counters;
        add(&counters.batches, std::mem::take(batches));
        add(&counters.bytes, std::mem::take(bytes));
        add(&counters.events, tally.events);
        add(&counters.stored_blocks, tally.stored_blocks);
        add(&counters.removed_blocks, tally.removed_blocks);
        add(&counters.group_events, tally.group_events);
        add(&counters.group_blocks, tally.group_blocks);
        add(&counters.collisions, tally.collisions);
        add(&counters.clears, tally.clears);
        for (reason, count) in tally.refused.iter().enumerate().filter(|(_, count)| **count > 0) {
            status.refuse(reason, *count);
        }
        *tally = Tally::default();
        if !timestamps.is_empty() {
            // All of them are visible by now; none was later than this.
            let now = unix_now();
            let lags = timestamps.drain(..).filter_map(|timestamp| lag(now, timestamp));
            self.limits.shared().lagged(lags.inspect(|lag| status.set_lag(*lag)));
        }
    }

    /// Marks a stream whose engine does not tell salts. One rank that does speaks for all.
    fn note_salts(&mut self, shows: Option<bool>) {
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
        let missed = tally.refused_total();
        let is_blind = |reader: &Reader| reader.hybrid().is_some_and(|hybrid| hybrid.is_blind());
        let cleared = batch.events.iter().any(|event| matches!(event, EventOf::Cleared(_)));
        match (missed, cleared) {
            (1.., _) => Verdict::Partial,
            _ if self.readers.values().any(is_blind) => Verdict::Partial,
            // It has cleared what another rank of the engine still holds.
            (0, true) if self.is_shared(rank) => Verdict::Partial,
            // It clears one rank.
            (0, true) if self.is_only(rank) => Verdict::Cleared,
            _ => Verdict::Whole,
        }
    }

    /// How many stores continue a block named 0, where the rank holds no such block. Some publishers write that where a
    /// prompt begins, instead of no parent at all (LMCache/LMCache#2441): what they store is kept, and does not count.
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

    /// Whether several ranks of the engine are stored under this one.
    fn is_shared(&self, rank: u32) -> bool {
        let claimed = self.claimed.values().filter(|stored| **stored == rank).count();
        let is_registered = rank == self.stream.registration.rank;
        claimed + usize::from(is_registered && self.plain) > 1 || is_registered && self.claimed.len() >= MOST_RANKS
    }

    /// Whether the engine has no other rank that this feeds, as far as it has ever said.
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
        let mut lates = stream.lates();
        lates.forget();
        for rank in self.stream.ranks() {
            let clear = |index: &BlockIndex| index.clear(&self.stream.worker, Some(rank), None);
            self.keyspace.try_change(&self.index, clear).unwrap_or_else(|panic| resume_unwind(panic));
        }
        drop(lates);
        if let Some(outlet) = self.stream.outlet() {
            outlet.forgotten();
        }
        self.readers.clear();
        forget_groups(&self.keyspace, &self.stream);
        self.stream.status.set_limit(None);
        self.stream.status.upper_bound.store(false, Relaxed);
        self.stream.status.no_salts.store(false, Relaxed);
        self.shows_salts = false;
    }

    /// How often all was forgotten.
    pub(super) fn clears(&self) -> u64 {
        self.clears
    }

    /// Ranks that batches named with those that they are stored under, and whether any named the registered one or none.
    pub(super) fn claims(&self) -> (Vec<(u32, u32)>, bool) {
        let mut claimed: Vec<_> = self.claimed.iter().map(|(announced, stored)| (*announced, *stored)).collect();
        claimed.sort_unstable();
        (claimed, self.plain)
    }

    /// Claims the same ranks as a snapshot has them. False if they are to be had no more.
    pub(super) fn claim_again(&mut self, claimed: &[(u32, u32)], plain: bool) -> bool {
        self.plain = plain;
        claimed.iter().all(|(announced, stored)| self.claim(*announced) == *stored)
    }

    /// Whether anything was stored under a rank, and what its reader remembers; none of a hybrid model's.
    pub(super) fn reader_state(&mut self, rank: u32, late: &mut Late) -> Option<(bool, ReaderState)> {
        let seen = self.seen.contains(&rank);
        let Some(reader) = self.readers.get_mut(&rank) else { return Some((seen, ReaderState::default())) };
        late.tell_salts(reader);
        Some((seen, reader.state()?))
    }

    /// Stores what a snapshot has of a rank.
    ///
    /// # Errors
    /// If the index is full.
    pub(super) fn store_all(
        &mut self,
        rank: u32,
        stores: impl FnOnce(&mut Store<'_>) -> Result<(), kvatlas_index::Error>,
    ) -> Result<(), kvatlas_index::Error> {
        let worker = self.stream.worker.clone();
        let store = |index: &BlockIndex| {
            let changes = &mut index.changes();
            stores(&mut |tier, parent, names, contents| changes.store(&worker, rank, tier, parent, names, contents))
        };
        self.keyspace.try_change(&self.index, store).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Takes up what a rank's reader remembered.
    pub(super) fn restore_reader(&mut self, head: &RankHead, salts: Vec<SaltedBlock>) {
        if !head.seen {
            return;
        }
        let status = &self.stream.status;
        let reader = Reader::new(self.keyspace.block_size);
        let reader = reader.counting(self.stream.registration.count_copies).following_groups(true);
        let reader = reader.with_state(head.reader(salts)).calling(self.keyspace.identity().clone());
        let reader = if self.stream.outlet().is_some() { reader.recording() } else { reader };
        let shows_salts = reader.shows_salts();
        status.upper_bound.fetch_or(reader.upper_bound(), Relaxed);
        self.seen.insert(head.rank);
        self.had.insert(head.rank, head.seq);
        self.readers.insert(head.rank, reader);
        self.note_salts(shows_salts);
        self.keyspace.trust_changed(&self.stream);
    }

    /// A snapshot's blocks are held, and it is not known yet whether they may be.
    pub(super) fn restores(&mut self, dictionary: Arc<Dictionary>) {
        self.dictionary = Some(dictionary);
    }

    /// It is known. If they may not, what they mean may still be of use.
    pub(super) fn restored(&mut self, outcome: Outcome) {
        if let Some(dictionary) = self.dictionary.take().filter(|_| outcome != Outcome::Kept) {
            self.keyspace.teach(&dictionary);
        }
    }

    /// Takes up which of a rank's blocks are known from answers alone, and what it waits for.
    pub(super) fn restore_late(&mut self, rank: u32, answered: Vec<BlockHash>, kept: &Kept) {
        if self.keyspace.desk().is_open() {
            self.stream.lates().of(rank).resume(answered, kept);
            if !kept.proofs.is_empty() {
                self.keyspace.set_waiting(true);
            }
            return;
        }
        // Nobody would notice a store that comes twice.
        let remove = |index: &BlockIndex| index.remove(&self.stream.worker, rank, Tier::Gpu, &answered);
        self.keyspace.try_change(&self.index, remove).unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Where a rank's reader writes down what it changes.
    pub(super) fn recorder(&mut self, rank: u32) -> Option<&mut Recorder> {
        self.readers.get_mut(&rank)?.recorder()
    }

    /// Whether so many blocks more are too many.
    pub(super) fn is_over_limits(&mut self, blocks: u64) -> bool {
        self.limits.stored(blocks, &self.keyspace, &self.stream).is_some()
    }

    /// Blocks that a rank may hold.
    pub(super) fn most_blocks(&self) -> u64 {
        self.limits.most_of_rank()
    }

    /// How many blocks were forgotten since this was last asked.
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

    /// Once, with the name of the type.
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

    /// The rank to store under.
    fn rank(&mut self, announced: Option<u32>) -> u32 {
        let registered = self.stream.registration.rank;
        let Some(announced) = announced.filter(|rank| *rank != registered) else {
            self.plain = true;
            return registered;
        };
        let rank = match self.recent {
            Some((name, rank)) if name == announced => rank,
            _ => self.claim(announced),
        };
        self.recent = Some((announced, rank));
        if rank != announced {
            self.stream.status.counters.rank_conflicts.fetch_add(1, Relaxed);
        }
        rank
    }

    fn claim(&mut self, announced: u32) -> u32 {
        if let Some(rank) = self.claimed.get(&announced) {
            return *rank;
        }
        if self.claimed.len() >= MOST_RANKS {
            return self.stream.registration.rank;
        }
        let rank = self.keyspace.claim(&self.stream, announced);
        self.claimed.insert(announced, rank);
        rank
    }
}

/// Nothing is known of the cache groups of the stream's ranks.
fn forget_groups(keyspace: &Keyspace, stream: &Stream) {
    if !keyspace.hybrids().load().is_empty() {
        stream.ranks().into_iter().for_each(|rank| keyspace.hybrids().set(&stream.worker, rank, None));
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        // Nothing is adopted any more of what it held.
        self.stream.lates().begin(None);
        self.tell();
    }
}

/// Adds to a counter that this stream's task alone writes to: no lock of the memory bus.
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Relaxed) + count, Relaxed);
    }
}

/// Seconds since 1970.
fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::NAN, |now| now.as_secs_f64())
}

/// How long ago the engine's timestamp is, if its clock is ours.
fn lag(now: f64, timestamp: f64) -> Option<Duration> {
    let lag = now - timestamp;
    (lag.abs() < PLAUSIBLE).then(|| Duration::from_secs_f64(lag.max(0.0)))
}

#[cfg(test)]
mod tests {
    use kvatlas_wire::encode::{Dialect, encode};
    use kvatlas_wire::{Batch, Event, Name, Stored};

    use super::*;
    use crate::limits::{Limit, LimitsConfig};

    #[test]
    fn a_clear_of_one_of_two_ranks_that_are_stored_as_one_is_not_whole() {
        let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
        let streams = [Stream::for_test("w", 0), Stream::for_test("w", 1)];
        for stream in &streams {
            keyspace.add(stream).map_err(|_| ()).expect("it is the first");
        }
        let clear = |rank| {
            let events = vec![Event::Cleared(kvatlas_wire::Cleared)];
            encode(&Batch { rank, events, ..Batch::default() }, Dialect::Vllm)
        };
        let mut holdings = Holdings::new(keyspace, streams[0].clone(), &StreamConfig::default());
        // The other stream's rank, and nobody else is stored under ours yet.
        assert_eq!(holdings.apply(0, &clear(Some(1)), false), Verdict::Cleared);
        holdings.apply(0, &clear(None), false);
        assert_eq!(holdings.apply(0, &clear(Some(1)), false), Verdict::Partial);
    }

    #[test]
    fn a_parent_named_0_that_is_no_block_makes_the_stream_partial() {
        let stored = |name: Name, parent: Option<Name>| {
            let stored = Stored {
                block_hashes: vec![name],
                parent,
                tokens: (0..4).collect(),
                block_size: 4,
                ..Stored::default()
            };
            encode(&Batch { events: vec![Event::Stored(Box::new(stored))], ..Batch::default() }, Dialect::Vllm)
        };
        let zeros = [Name::from(0_u64), Name::from(&[0; 8][..]), Name::from(&[0; 32][..])];
        for zero in zeros {
            let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
            let stream = Stream::for_test("w", 0);
            keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
            let mut holdings = Holdings::new(keyspace, stream.clone(), &StreamConfig::default());
            let count = || stream.status.counters.zero_parents.load(Relaxed);
            assert_eq!(holdings.apply(0, &stored(Name::from(7_u64), None), true), Verdict::Whole);
            assert_eq!(holdings.apply(1, &stored(Name::from(8_u64), Some(Name::from(6_u64))), true), Verdict::Whole);
            assert_eq!(holdings.apply(2, &stored(Name::from(9_u64), Some(zero.clone())), true), Verdict::Partial);
            assert_eq!(count(), 1);
            assert!(stream.status.last_error().is_some());
            // A block may have that name.
            assert_eq!(holdings.apply(3, &stored(zero.clone(), None), true), Verdict::Whole);
            assert_eq!(holdings.apply(4, &stored(Name::from(10_u64), Some(zero)), true), Verdict::Whole);
            assert_eq!(count(), 1);
        }
    }

    #[test]
    fn blocks_that_the_index_does_not_know_count_for_the_worker_too() {
        let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
        let stream = Stream::for_test("w", 0);
        keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
        let limits = LimitsConfig { blocks_per_rank: 5000, blocks_per_worker: 6000, ..LimitsConfig::default() };
        let config = StreamConfig { limits, ..StreamConfig::default() };
        let mut holdings = Holdings::new(keyspace, stream.clone(), &config);
        for rank in 0..5 {
            let stored = Stored {
                block_hashes: (0..3000_u64).map(Name::from).collect(),
                tokens: (0..12_000).collect(),
                block_size: 4,
                group: Some(1),
                kind: Some("sliding_window".into()),
                window: Some(9),
                ..Stored::default()
            };
            let batch = Batch { rank: Some(rank), events: vec![Event::Stored(stored.into())], ..Batch::default() };
            holdings.apply(0, &encode(&batch, Dialect::Vllm), false);
        }
        assert_eq!(stream.status.limit(), Some(Limit::BlocksPerWorker));
    }

    #[test]
    fn other_clocks_have_no_lag() {
        let now = unix_now();
        assert!(lag(now, now - 3.0).is_some_and(|lag| (2.9..3.1).contains(&lag.as_secs_f64())));
        assert_eq!(lag(now, now + 100.0), Some(Duration::ZERO));
        for other in [0.0, 5000.0, now * 1000.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(lag(now, other), None, "{other}");
        }
    }
}
