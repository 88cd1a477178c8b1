//! Status of a stream, written only by the stream's task, and read by `/workers`, `/metrics` and readiness checks.
//!
//! Numbers are atomics that are written separately, so a reader may see one of them updated by a batch and another not
//! yet.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kvatlas_index::Tier;
use kvatlas_wire::Reason;
use parking_lot::{Mutex, MutexGuard};

use kvatlas_stream::limits::Limit;
use kvatlas_stream::{Outcome, State};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counters of one stream since it was registered. Each counter's description is the help text of its metric.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Names of the counters, each with the help text of its metric.
            pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),*];

            /// Returns the values of the counters, in the order of `NAMES`.
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name.load(Relaxed)),*]
            }
        }
    };
}

counters! {
    /// Batches of KV events applied to the index.
    batches,
    /// Bytes of the batches applied to the index.
    bytes,
    /// KV events applied to the index.
    events,
    /// Blocks stored, according to the events applied.
    stored_blocks,
    /// Blocks removed, according to the events applied.
    removed_blocks,
    /// Events applied of a hybrid model's cache groups besides the indexed one.
    group_events,
    /// Blocks stored in a hybrid model's cache groups besides the indexed one.
    group_blocks,
    /// Blocks stored with the content hash of other tokens seen shortly before: lookups by content hash cannot tell them apart.
    collisions,
    /// Blocks in stores that were hit, not written: the engine has no more copies of them than before.
    reused_blocks,
    /// Blocks in stores that were announced by their names alone, as vLLM's offloading does without `self_describing_kv_events`.
    named_blocks,
    /// Blocks stored in host memory.
    host_blocks,
    /// Blocks stored on local disks.
    disk_blocks,
    /// Blocks stored on other tiers than device, host memory and local disks, in pools too.
    external_blocks,
    /// Stores whose extra keys have a digest of their adapter.
    adapter_digests,
    /// Strings in stores' extra keys that may be a digest of the adapter or a cache salt; taken for a digest.
    unsure_keys,
    /// Stores that continue a block named 0 that the engine does not hold: their blocks do not count.
    zero_parents,
    /// Clears of an engine's cache that the engine has announced.
    clears,
    /// Gaps: how often batches were missing.
    gaps,
    /// Missing batches recovered by a replay or a late arrival.
    recovered_batches,
    /// Missing batches that could not be recovered, as far as their number is known.
    lost_batches,
    // check_words: the text is the help of a metric
    /// How often the stream's holdings were cleared because a gap could not be filled.
    resets,
    /// Batches received a second time.
    duplicate_batches,
    /// Live batches that did not fit into the buffer; a replay recovers them.
    overflowed_batches,
    /// Replays of past batches requested from the engine.
    replays,
    /// Replays in which the engine sent no batch in time.
    failed_replays,
    /// Replays that started at a later batch than the requested one.
    truncated_replays,
    /// Connections to the engine re-established after a loss.
    reconnects,
    /// Reconnections to an engine without a replay socket, which would verify that the engine has not restarted.
    unverified_reconnects,
    /// Connections of a publisher with a topic for which another publisher was connected already.
    rivals,
    // check_words: the text is the help of a metric
    /// How often batches of one connection contradicted each other, as if two engines published over the connection.
    contradictions,
    /// Batches left out because their topic is not the stream's.
    other_topic_batches,
    /// Messages that are not three frames with an eight-byte sequence number.
    malformed_messages,
    /// Batches whose bytes cannot be decoded.
    undecodable_batches,
    /// Batches for a rank that another stream feeds, or beyond the 1,024 ranks of a stream.
    rank_conflicts,
    // check_words: the text is the help of a metric
    /// How often the stream's task failed and was restarted.
    task_restarts,
    /// Messages left out because they come from another relay that publishes the same engine's stream.
    other_relays,
}

/// Outcome, for a stream, of restoring its held blocks from a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotOutcome {
    /// Kind of the snapshot's origin: `disk`, `peer` (another service) or `store` (the NATS object store).
    pub kind: &'static str,
    /// Time at which the snapshot was made, in seconds since 1970.
    pub created: f64,
    /// Number of blocks restored from the snapshot, over all ranks.
    pub blocks: u64,
    /// Outcome of the proof that the restored blocks are still held; `None` while the engine has not answered.
    pub outcome: Option<Outcome>,
}

/// Current error of a stream and the last one that has ended, with their times.
#[derive(Debug, Default)]
struct Errors {
    last: Option<(String, Instant)>,
    /// Last error that has ended, and the time at which it was last reported.
    previous: Option<(String, Instant)>,
}

const NEVER: u64 = u64::MAX;
const NO_LIMIT: u8 = u8::MAX;

/// Status of an event stream: its state, doubts such as lost batches, counters and errors.
#[derive(Debug)]
pub struct StreamStatus {
    started: Instant,
    state: AtomicU8,
    /// True if the blocks in the index are exactly those that the engine announced up to batch `last_seq`.
    trusted: AtomicBool,
    settled: AtomicBool,
    /// True if the engine may hold more blocks than are known, because early or lost batches were not replayed.
    pub partial: AtomicBool,
    /// True if the engine, after a reconnection, is taken to be the same as before only because of a sequence number.
    pub unverified: AtomicBool,
    /// True if matched depths (numbers of a prompt's leading blocks) are only upper bounds, as for some hybrid models.
    pub upper_bound: AtomicBool,
    /// True if the engine does not announce which blocks have a cache salt.
    pub no_salts: AtomicBool,
    /// Number of detected restarts of the engine.
    pub epoch: AtomicU64,
    /// Value of `epoch`, the number of restarts, at the last call of [`StreamStatus::has_new_epoch`].
    asked_epoch: AtomicU64,
    last_seq: AtomicU64,
    heard: AtomicU64,
    lag: AtomicU64,
    lag_max: AtomicU64,
    /// Number of batches that wait in the buffer because earlier batches are missing.
    pub buffered: AtomicU64,
    /// Number of blocks on tiers beyond the device that were announced by block hash alone and whose contents are
    /// unknown.
    pub undescribed: AtomicU64,
    /// Counters of the stream since it was registered.
    pub counters: Counters,
    refused: Vec<AtomicU64>,
    /// Number of blocks in a chunk (the unit of storage) of each tier beyond the device, as seen in store events; 0
    /// before the first.
    chunks: [AtomicU32; 3],
    /// Most frequent block size, in tokens, among blocks refused because their size differs from the index's.
    other_size: AtomicU32,
    /// Number of refused blocks of the size `other_size`.
    other_size_blocks: AtomicU64,
    errors: Mutex<Errors>,
    /// Outcome of restoring the held blocks from a snapshot; `None` if no snapshot had blocks of the stream.
    snapshot: Mutex<Option<SnapshotOutcome>>,
    /// True if the stream currently has an error.
    failing: AtomicBool,
    /// Number of the [`Limit`] that the stream has reached, or [`NO_LIMIT`].
    limit: AtomicU8,
    /// True if the relay (the service that published the stream to the log) no longer follows its engine.
    gone: AtomicBool,
}

impl Default for StreamStatus {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            state: AtomicU8::new(State::Connecting as u8),
            trusted: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            unverified: AtomicBool::new(false),
            upper_bound: AtomicBool::new(false),
            no_salts: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            asked_epoch: AtomicU64::new(0),
            last_seq: AtomicU64::new(NEVER),
            heard: AtomicU64::new(NEVER),
            lag: AtomicU64::new(NEVER),
            lag_max: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            undescribed: AtomicU64::new(0),
            counters: Counters::default(),
            refused: Reason::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            chunks: Default::default(),
            other_size: AtomicU32::new(0),
            other_size_blocks: AtomicU64::new(0),
            errors: Mutex::default(),
            snapshot: Mutex::default(),
            failing: AtomicBool::new(false),
            limit: AtomicU8::new(NO_LIMIT),
            gone: AtomicBool::new(false),
        }
    }
}

impl StreamStatus {
    /// Returns the current state of the stream.
    #[must_use]
    pub fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Relaxed))]
    }

    /// True if the stream's blocks in the index are exactly those that the engine announced.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.trusted.load(Relaxed)
    }

    /// True if the stream's first replay (past batches that the engine resends) has finished or was given up, so that
    /// the stream no longer keeps the service from being ready.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Relaxed)
    }

    /// Returns the number of blocks in a chunk (the unit of storage) of host memory, local disks and external stores,
    /// in this order, as seen in store events; 0 before the first.
    #[must_use]
    pub fn chunks(&self) -> [u32; 3] {
        [0, 1, 2].map(|slot| self.chunks[slot].load(Relaxed))
    }

    pub(crate) fn set_chunks(&self, chunks: [u32; 3]) {
        self.chunks.iter().zip(chunks).for_each(|(known, blocks)| known.store(blocks, Relaxed));
    }

    pub(crate) fn set_chunk(&self, tier: Tier, blocks: u32) {
        if let Some(slot) = (tier as usize).checked_sub(1) {
            self.chunks[slot].store(blocks, Relaxed);
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn set_trusted(&self, trusted: bool) {
        self.trusted.store(trusted, Relaxed);
    }

    /// True if the engine has been found to have restarted since the last call.
    pub(crate) fn has_new_epoch(&self) -> bool {
        let epoch = self.epoch.load(Relaxed);
        self.asked_epoch.swap(epoch, Relaxed) < epoch
    }

    pub(crate) fn settle(&self) {
        self.settled.store(true, Relaxed);
    }

    /// Returns the sequence number of the last batch applied since the engine's last restart; `None` if there was none.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        some(self.last_seq.load(Relaxed))
    }

    pub(crate) fn set_last_seq(&self, seq: Option<u64>) {
        self.last_seq.store(seq.unwrap_or(NEVER), Relaxed);
    }

    /// Returns the time since the engine's last batch or replay answer; `None` if there was none.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let heard = some(self.heard.load(Relaxed))?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(heard)))
    }

    pub(crate) fn hear(&self) {
        self.heard.store(self.started.elapsed().as_millis() as u64, Relaxed);
    }

    /// Returns the lag of the last live batch: the time from the engine's timestamp until queries saw the batch. `None`
    /// if there was no live batch, or the engine's timestamps are not wall-clock times.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        some(self.lag.load(Relaxed)).map(Duration::from_micros)
    }

    /// Returns the longest lag of a live batch so far. A lag is the time from the engine's timestamp until queries saw
    /// the batch.
    #[must_use]
    pub fn lag_max(&self) -> Duration {
        Duration::from_micros(self.lag_max.load(Relaxed))
    }

    pub(crate) fn set_lag(&self, lag: Duration) {
        let micros = lag.as_micros() as u64;
        self.lag.store(micros, Relaxed);
        if micros > self.lag_max.load(Relaxed) {
            self.lag_max.store(micros, Relaxed);
        }
    }

    pub(crate) fn refuse(&self, reason: usize, count: u64) {
        if let Some(counter) = self.refused.get(reason) {
            counter.fetch_add(count, Relaxed);
        }
    }

    /// Returns the number of refused events for each reason, in the order of [`Reason::ALL`].
    #[must_use]
    pub fn refused(&self) -> Vec<u64> {
        self.refused.iter().map(|counter| counter.load(Relaxed)).collect()
    }

    /// Returns the number of events refused because their block size differs from the index's.
    #[must_use]
    pub fn refused_for_their_size(&self) -> u64 {
        self.refused()[Reason::BlockSize as usize]
    }

    /// Returns the number of events refused because their block is not full or may have another size.
    #[must_use]
    pub fn refused_as_partial(&self) -> u64 {
        self.refused()[Reason::PartialBlock as usize]
    }

    /// Returns the most frequent size, in tokens, among blocks refused because their size differs from the index's, and
    /// the number of blocks of that size; `None` if no block was refused for that reason.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        let blocks = self.other_size_blocks.load(Relaxed);
        (blocks > 0).then(|| (self.other_size.load(Relaxed), blocks))
    }

    /// True if more blocks of one other size were refused than blocks of the index's size were stored.
    #[must_use]
    pub fn has_other_size(&self) -> bool {
        self.other_size_blocks.load(Relaxed) > self.counters.stored_blocks.load(Relaxed)
    }

    pub(crate) fn set_other_size(&self, size: u32, blocks: u64) {
        self.other_size.store(size, Relaxed);
        self.other_size_blocks.store(blocks, Relaxed);
    }

    /// Returns the limit that the stream has reached; `None` if it has reached none. A stream that has reached a limit
    /// holds no blocks until it is read anew.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        Limit::ALL.get(usize::from(self.limit.load(Relaxed))).copied()
    }

    pub(crate) fn set_limit(&self, limit: Option<Limit>) {
        self.limit.store(limit.map_or(NO_LIMIT, |limit| limit as u8), Relaxed);
    }

    /// Returns the description of the stream's current error; `None` if there is none.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        Some(self.errors().last.as_ref()?.0.clone())
    }

    /// Returns the description of the last error that has ended, and the time since that error was last reported; `None`
    /// if there was none.
    #[must_use]
    pub fn previous_error(&self) -> Option<(String, Duration)> {
        let errors = self.errors();
        let (error, at) = errors.previous.as_ref()?;
        Some((error.clone(), at.elapsed()))
    }

    pub(crate) fn set_error(&self, error: String) {
        self.errors().last = Some((error, Instant::now()));
        self.failing.store(true, Relaxed);
    }

    /// Ends the stream's current error, if there is one.
    pub(crate) fn recover(&self) {
        if self.failing.load(Relaxed) && self.failing.swap(false, Relaxed) {
            let mut errors = self.errors();
            errors.previous = errors.last.take();
        }
    }

    /// True if the stream has a current error, which [`recover`](Self::recover) would end.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// True if the relay (the service that published the stream to the log) no longer follows its engine.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    /// Returns the outcome of restoring the held blocks from a snapshot; `None` if no snapshot had blocks of the
    /// stream.
    #[must_use]
    pub fn from_snapshot(&self) -> Option<SnapshotOutcome> {
        *self.snapshot.lock()
    }

    pub(crate) fn set_from_snapshot(&self, it: SnapshotOutcome) {
        *self.snapshot.lock() = Some(it);
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock()
    }
}

fn some(number: u64) -> Option<u64> {
    (number != NEVER).then_some(number)
}
