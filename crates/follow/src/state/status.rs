//! Status of a stream: written by the stream's task alone, read by `/workers`, `/metrics` and readiness.
//!
//! Numbers are atomics without an order among them: a reader may see one of them a batch ahead of another.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kvatlas_index::Tier;
use kvatlas_wire::Reason;
use parking_lot::{Mutex, MutexGuard};

use kvatlas_stream::limits::Limit;
use kvatlas_stream::{Outcome, State};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counts of one stream since it was registered.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Names of the counters, each with its help text.
            pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),*];

            /// Values of the counters, in the order of `NAMES`.
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$name.load(Relaxed)),*]
            }
        }
    };
}

counters! {
    /// Batches applied.
    batches,
    /// Bytes of the batches applied.
    bytes,
    /// Events applied.
    events,
    /// Blocks stored.
    stored_blocks,
    /// Blocks removed.
    removed_blocks,
    /// Events applied of a hybrid model's cache groups besides the indexed one.
    group_events,
    /// Blocks stored in a hybrid model's cache groups besides the indexed one.
    group_blocks,
    /// Blocks stored with the content hash of other tokens seen shortly before: lookups by content hash cannot tell them apart.
    collisions,
    /// Blocks in stores that were hit, not written: they have no more copies than before.
    reused_blocks,
    /// Blocks in stores that were announced by their names alone, as vLLM's offloading does without `self_describing_kv_events`.
    named_blocks,
    /// Blocks stored in host memory.
    host_blocks,
    /// Blocks stored on local disks.
    disk_blocks,
    /// Blocks stored elsewhere, in pools too.
    external_blocks,
    /// Stores whose extra keys have a digest of their adapter.
    adapter_digests,
    /// Strings in stores' extra keys that may be a digest of the adapter or a cache salt; taken for a digest.
    unsure_keys,
    /// Stores that continue a block named 0 that the engine does not hold: their blocks do not count.
    zero_parents,
    /// Clears announced by the engine.
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
    /// Batches received twice.
    duplicate_batches,
    /// Live batches that did not fit into the buffer; a replay recovers them.
    overflowed_batches,
    /// Replays requested.
    replays,
    /// Replays that delivered nothing in time.
    failed_replays,
    /// Replays that started at a later batch than requested.
    truncated_replays,
    /// Connections re-established after a loss.
    reconnects,
    /// Reconnections without a replay socket to verify that the engine has not restarted.
    unverified_reconnects,
    /// Connections of a publisher with the topic of one that was connected already.
    rivals,
    // check_words: the text is the help of a metric
    /// How often batches of one connection contradicted each other, as if two engines published there.
    contradictions,
    /// Batches left out because their topic is not the stream's.
    other_topic_batches,
    /// Messages that are not three frames with an eight-byte sequence number.
    malformed_messages,
    /// Payloads that are not a valid batch.
    undecodable_batches,
    /// Batches for a rank that another stream feeds, or beyond the 1,024 ranks of a stream.
    rank_conflicts,
    // check_words: the text is the help of a metric
    /// How often the stream's task failed and was restarted.
    task_restarts,
    /// Messages of another relay that publishes the same engine, left out.
    other_relays,
}

/// Outcome of a stream's restored holdings.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotOutcome {
    /// Kind of the snapshot's origin: `disk`, `peer` or `store`.
    pub kind: &'static str,
    /// Time of the snapshot, in seconds since 1970.
    pub created: f64,
    /// Number of restored blocks, over all ranks.
    pub blocks: u64,
    /// Outcome of the restored holdings; `None` while the engine has not answered.
    pub outcome: Option<Outcome>,
}

/// The present error, and the last one that has ended, with their times.
#[derive(Debug, Default)]
struct Errors {
    last: Option<(String, Instant)>,
    /// Last error that has ended, and the time at which it was noticed.
    previous: Option<(String, Instant)>,
}

const NEVER: u64 = u64::MAX;
const NO_LIMIT: u8 = u8::MAX;

/// Status of a stream.
#[derive(Debug)]
pub struct StreamStatus {
    started: Instant,
    state: AtomicU8,
    /// True if the known holdings are exactly what the engine announced up to batch `last_seq`.
    trusted: AtomicBool,
    settled: AtomicBool,
    /// True if the engine may hold more than is known, because early or lost batches were not replayed.
    pub partial: AtomicBool,
    /// True if only a sequence number shows that the reconnected engine is the same engine whose blocks are held.
    pub unverified: AtomicBool,
    /// True if depths are only upper bounds, as for hybrid models.
    pub upper_bound: AtomicBool,
    /// True if the engine does not announce which blocks have a cache salt.
    pub no_salts: AtomicBool,
    /// Number of restarts of the engine that were noticed.
    pub epoch: AtomicU64,
    /// Value of `epoch`, the number of restarts, at the last call of [`StreamStatus::has_new_epoch`].
    asked_epoch: AtomicU64,
    last_seq: AtomicU64,
    heard: AtomicU64,
    lag: AtomicU64,
    lag_max: AtomicU64,
    /// Number of batches that wait in the buffer for earlier ones.
    pub buffered: AtomicU64,
    /// Blocks announced by name alone on tiers beyond the device that the engine has not described yet.
    pub undescribed: AtomicU64,
    /// Counts of events on the stream since it was registered.
    pub counters: Counters,
    refused: Vec<AtomicU64>,
    /// Number of blocks in a chunk, for each tier beyond the device, as seen in store events; 0 before the first.
    chunks: [AtomicU32; 3],
    /// Most frequent block size, in tokens, among blocks left out because their size differs from the index's.
    other_size: AtomicU32,
    /// Number of blocks of the most frequent other size that were left out.
    other_size_blocks: AtomicU64,
    errors: Mutex<Errors>,
    /// Outcome of the stream's restored holdings; `None` if no snapshot had any.
    snapshot: Mutex<Option<SnapshotOutcome>>,
    /// True if the stream has an error at present.
    failing: AtomicBool,
    /// Number of the limit that the stream has reached, or [`NO_LIMIT`].
    limit: AtomicU8,
    /// True if the relay that published the stream has left.
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
    /// Present state of the stream.
    #[must_use]
    pub fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Relaxed))]
    }

    /// True if the known holdings are exactly what the engine announced.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.trusted.load(Relaxed)
    }

    /// True if the stream's first replay has ended or was given up, so that readiness does not wait for the stream.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Relaxed)
    }

    /// Number of blocks in a chunk of host memory, local disks and external stores, as seen in store events; 0 before
    /// the first.
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

    /// True if the engine has restarted since the last call.
    pub(crate) fn has_new_epoch(&self) -> bool {
        let epoch = self.epoch.load(Relaxed);
        self.asked_epoch.swap(epoch, Relaxed) < epoch
    }

    pub(crate) fn settle(&self) {
        self.settled.store(true, Relaxed);
    }

    /// Number of the last batch applied since the engine's last restart; `None` if there was none.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        some(self.last_seq.load(Relaxed))
    }

    pub(crate) fn set_last_seq(&self, seq: Option<u64>) {
        self.last_seq.store(seq.unwrap_or(NEVER), Relaxed);
    }

    /// Time since the engine's last batch or answer; `None` if there was none.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let heard = some(self.heard.load(Relaxed))?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(heard)))
    }

    pub(crate) fn hear(&self) {
        self.heard.store(self.started.elapsed().as_millis() as u64, Relaxed);
    }

    /// Lag of the last live batch: from the engine's timestamp until queries saw the batch. `None` without a live
    /// batch, or if the engine's clock is not a wall clock.
    #[must_use]
    pub fn lag(&self) -> Option<Duration> {
        some(self.lag.load(Relaxed)).map(Duration::from_micros)
    }

    /// Longest lag of a live batch so far.
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

    /// Numbers of events left out, by reason, in the order of [`Reason::ALL`].
    #[must_use]
    pub fn refused(&self) -> Vec<u64> {
        self.refused.iter().map(|counter| counter.load(Relaxed)).collect()
    }

    /// Number of events left out because the block size differs from the index's.
    #[must_use]
    pub fn refused_for_their_size(&self) -> u64 {
        self.refused()[Reason::BlockSize as usize]
    }

    /// Number of events left out because their block is not full, or may be of another size.
    #[must_use]
    pub fn refused_as_partial(&self) -> u64 {
        self.refused()[Reason::PartialBlock as usize]
    }

    /// Most frequent size, in tokens, of blocks left out because it differs from the index's, and the number of blocks
    /// of that size; `None` if none were left out.
    #[must_use]
    pub fn other_size(&self) -> Option<(u32, u64)> {
        let blocks = self.other_size_blocks.load(Relaxed);
        (blocks > 0).then(|| (self.other_size.load(Relaxed), blocks))
    }

    /// True if more blocks of one other size were left out than blocks of the index's size were stored.
    #[must_use]
    pub fn has_other_size(&self) -> bool {
        self.other_size_blocks.load(Relaxed) > self.counters.stored_blocks.load(Relaxed)
    }

    pub(crate) fn set_other_size(&self, size: u32, blocks: u64) {
        self.other_size.store(size, Relaxed);
        self.other_size_blocks.store(blocks, Relaxed);
    }

    /// Limit that the stream has reached; none of its blocks are held until it begins anew. `None` if no limit is
    /// reached.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        Limit::ALL.get(usize::from(self.limit.load(Relaxed))).copied()
    }

    pub(crate) fn set_limit(&self, limit: Option<Limit>) {
        self.limit.store(limit.map_or(NO_LIMIT, |limit| limit as u8), Relaxed);
    }

    /// Description of the present error; `None` if there is none.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        Some(self.errors().last.as_ref()?.0.clone())
    }

    /// Last error that has ended, and the time since it was noticed.
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

    /// Ends the present error.
    pub(crate) fn recover(&self) {
        if self.failing.load(Relaxed) && self.failing.swap(false, Relaxed) {
            let mut errors = self.errors();
            errors.previous = errors.last.take();
        }
    }

    /// True if there is a present error, which [`recover`](Self::recover) would end.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// True if the relay that published the stream has left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    pub(crate) fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Relaxed);
    }

    /// Outcome of the stream's restored holdings; `None` if no snapshot had any.
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
