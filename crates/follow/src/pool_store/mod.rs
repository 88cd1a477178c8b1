//! Mooncake's store, followed as a pool: lists of its keys, and its event stream where its master publishes one.
//!
//! The master lists all its keys over HTTP, without renewing the lease of any object: a list changes nothing in the order
//! of eviction. Engines' events have 64 bits of a digest only, so an object cannot be asked for by its key. The caller gets
//! the list, as this crate has no HTTP: [`PoolStore::begin_look`] before it asks, [`PoolStore::end_look`] with the answer.
//!
//! The stream has sequence numbers and no replay. After a connection or a gap, the pool is uncertain until a list of keys
//! has been read during which no event was missed. Events that come during a list are applied once more after it: for each
//! key the last one decides, whether the list has it or not.

mod objects;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_index::{BlockHash, NamedBlocks, SharedPool};
use kvatlas_wire::store::{Medium, StoreEvent, decode_store};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;

use self::objects::{BaseChoice, ChangedBlocks, Objects};
use crate::config::PoolConfig;
use crate::context::StreamContext;
use crate::fleet::Fleet;
use crate::state::{Keyspace, tell_time};
use crate::stream::{OutboundStream, TransportEvent};

/// Maximum number of events kept during one list of keys; of more, the list is not taken for complete.
const MOST_KEPT: usize = 1 << 20;

/// Counts of a pool's store.
#[derive(Debug, Default)]
pub(crate) struct StoreCounts {
    /// Lists of keys that were read.
    pub(crate) looks: AtomicU64,
    /// Lists of keys that could not be got.
    pub(crate) failed_looks: AtomicU64,
    /// Keys and events without a known form.
    pub(crate) unread: AtomicU64,
    /// Events that were applied.
    pub(crate) events: AtomicU64,
    /// Gaps in the sequence of batches, and restarts of the master.
    pub(crate) gaps: AtomicU64,
    /// Blocks named by the store, as many others waited for their contents.
    pub(crate) refused: AtomicU64,
    /// Blocks in the store, at the last list.
    pub(crate) blocks: AtomicU64,
    /// Blocks with missing objects, at the last list.
    pub(crate) broken: AtomicU64,
    /// 1 if the master publishes events, else 0.
    pub(crate) publishes: AtomicU64,
    /// 1 if no event was missed since the last list, else 0.
    pub(crate) whole: AtomicU64,
}

/// Result of a look at a store's keys.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LookReport {
    /// Blocks in the store, of all models.
    pub(crate) blocks: usize,
    /// Blocks whose objects are all there.
    pub(crate) whole: usize,
    /// Keys without a known form.
    pub(crate) unread: u64,
    /// Blocks that were counted and are gone.
    pub(crate) gone: usize,
    /// Blocks that count from now on.
    pub(crate) placed: usize,
    /// Blocks whose contents no engine has announced yet.
    pub(crate) waiting: usize,
    /// Models whose keys are not clear, which are not judged by the list.
    pub(crate) unclear: Vec<Box<str>>,
    /// Beginnings of the store's keys, if any model's keys are not clear.
    pub(crate) prefixes: Vec<Box<str>>,
    /// True if the store has SGLang's keys while the pool takes events of host memory for its own.
    pub(crate) is_host: bool,
}

/// Event kept until a list of keys has been read.
enum KeptEvent {
    Stored(Box<str>, Option<Medium>),
    Removed(Box<str>, Option<Medium>),
    Cleared,
}

impl KeptEvent {
    fn of(event: &StoreEvent<'_>) -> Self {
        match *event {
            StoreEvent::Stored { key, medium } => Self::Stored(key.into(), medium),
            StoreEvent::Removed { key, medium } => Self::Removed(key.into(), medium),
            StoreEvent::Cleared => Self::Cleared,
        }
    }

    fn event(&self) -> StoreEvent<'_> {
        match self {
            Self::Stored(key, medium) => StoreEvent::Stored { key, medium: *medium },
            Self::Removed(key, medium) => StoreEvent::Removed { key, medium: *medium },
            Self::Cleared => StoreEvent::Cleared,
        }
    }
}

/// List of keys that was asked for and has not been read yet.
struct Look {
    /// Keyspaces, with the time of each index when the list was asked for.
    times: Vec<(Arc<Keyspace>, f64)>,
    kept: Vec<KeptEvent>,
    /// True if events were missed since the list was asked for.
    is_cut: bool,
}

struct StoreState {
    objects: Objects,
    look: Option<Look>,
    /// Sequence number of the last batch of this connection.
    last: Option<u64>,
    is_connected: bool,
    /// True if the objects are those of the store, as no event was missed since the last list.
    is_whole: bool,
    wants_look: bool,
    /// True once the stream is followed, as the master publishes it.
    follows: bool,
}

/// Store of one pool.
pub(crate) struct PoolStore {
    pool: PoolConfig,
    fleet: Arc<Fleet>,
    state: Mutex<StoreState>,
    pub(crate) counts: StoreCounts,
}

impl PoolStore {
    pub(crate) fn new(pool: PoolConfig, fleet: Arc<Fleet>) -> Self {
        let state = StoreState {
            objects: Objects::new(pool.objects.map(Into::into)),
            look: None,
            last: None,
            is_connected: false,
            is_whole: false,
            wants_look: false,
            follows: false,
        };
        Self { pool, fleet, state: Mutex::new(state), counts: StoreCounts::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.pool.name
    }

    /// True if the next list of keys is needed at once, as events were missed.
    pub(crate) fn wants_look(&self) -> bool {
        self.state.lock().wants_look
    }

    /// Notes that a list of keys is being asked for.
    pub(crate) fn begin_look(&self) {
        let times = self.fleet.keyspaces().into_iter().map(|keyspace| {
            let index = keyspace.index().clone();
            tell_time(&index);
            (keyspace, index.time())
        });
        let (times, kept) = (times.collect(), Vec::new());
        let mut state = self.state.lock();
        state.wants_look = false;
        state.look = Some(Look { times, kept, is_cut: false });
    }

    /// Applies a list of keys, one in a line; `None` if it could not be got. `publishes`: true if the master says that it
    /// publishes events.
    pub(crate) fn end_look(&self, keys: Option<&[u8]>, publishes: bool) -> Option<LookReport> {
        self.counts.publishes.store(publishes.into(), Relaxed);
        let mut state = self.state.lock();
        let look = state.look.take()?;
        let Some(keys) = keys else {
            self.counts.failed_looks.fetch_add(1, Relaxed);
            state.wants_look |= state.follows && !state.is_whole;
            return None;
        };
        self.counts.looks.fetch_add(1, Relaxed);
        let mut report = LookReport { unread: state.objects.replace(keys), ..LookReport::default() };
        let kept: Vec<_> = look.kept.iter().map(KeptEvent::event).collect();
        state.objects.apply(&kept);
        state.is_whole = state.is_connected && !look.is_cut;
        state.wants_look |= state.is_connected && look.is_cut;
        let is_sole = look.times.len() == 1;
        for (keyspace, until) in &look.times {
            self.tell(keyspace, &state);
            let base = state.objects.base_of(&keyspace.model, self.pool.key_prefix.as_deref(), is_sole);
            let found = match base {
                BaseChoice::Base(base) => state.objects.whole_blocks(base),
                BaseChoice::Empty => Vec::new(),
                BaseChoice::Unclear(prefixes) => {
                    report.unclear.push(keyspace.model.clone());
                    report.prefixes = prefixes;
                    continue;
                }
            };
            self.reconcile(keyspace, &found, *until, &mut report);
        }
        (report.blocks, report.whole) = state.objects.counts();
        report.is_host = self.pool.tier == kvatlas_index::Tier::Cpu && state.objects.has_sglang();
        let counts = &self.counts;
        counts.unread.fetch_add(report.unread, Relaxed);
        counts.blocks.store(report.blocks as u64, Relaxed);
        counts.broken.store((report.blocks - report.whole) as u64, Relaxed);
        counts.whole.store(state.is_whole.into(), Relaxed);
        if self.pool.events.is_none() {
            // Nothing is applied to it before the next list.
            state.objects.forget_blocks();
        }
        Some(report)
    }

    /// Makes a keyspace's index count what a list of keys has.
    fn reconcile(&self, keyspace: &Arc<Keyspace>, found: &[BlockHash], until: f64, report: &mut LookReport) {
        let names = found.iter().map(|name| name.0).collect();
        let (mut gone, mut named) = (0, NamedBlocks::default());
        keyspace.change(|index| {
            tell_time(index);
            gone = index.keep_in_pool(&self.pool.name, &names, until);
            named = index.name_in_pool(&self.pool.name, found);
        });
        keyspace.gone_from_pools.fetch_add(gone as u64, Relaxed);
        self.counts.refused.fetch_add(named.refused as u64, Relaxed);
        if gone > 0 {
            let (model, pool) = (&*keyspace.model, &*self.pool.name);
            tracing::info!(model, pool, gone, found = found.len(), "blocks are not in the pool any more");
        }
        report.gone += gone;
        report.placed += named.placed;
        report.waiting += named.waiting;
    }

    /// Applies to a keyspace's index how much the pool's events are worth.
    fn tell(&self, keyspace: &Arc<Keyspace>, state: &StoreState) {
        let (follows, is_whole) = (state.follows, state.is_whole);
        keyspace.change(|index| {
            if follows {
                let pool = self.pool.shared(index.config().block_size);
                index.add_pool(SharedPool { follows_store: true, announces_removals: true, ..pool });
            }
            index.set_pool_whole(&self.pool.name, is_whole || !follows);
        });
    }

    fn tell_all(&self, state: &StoreState) {
        self.counts.whole.store(state.is_whole.into(), Relaxed);
        self.fleet.keyspaces().iter().for_each(|keyspace| self.tell(keyspace, state));
    }

    /// Starts to follow the master's events, once it is known that it publishes them.
    pub(crate) fn follow(self: &Arc<Self>, context: &StreamContext, runtime: &Handle) {
        let Some(events) = &self.pool.events else { return };
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.follows, true) {
            let _entered = runtime.enter(); // the stream has a timer, and this thread may be one of Python's
            let stream = OutboundStream::new(events, "", context);
            runtime.spawn(read_events(self.clone(), stream));
        }
    }

    /// Notes that events may have been missed: the connection was made or has ended.
    fn cut(&self, is_connected: bool) {
        let mut state = self.state.lock();
        state.last = None;
        self.lose_track(&mut state, is_connected);
    }

    fn lose_track(&self, state: &mut StoreState, is_connected: bool) {
        state.is_connected = is_connected;
        state.is_whole = false;
        state.wants_look |= is_connected;
        if let Some(look) = &mut state.look {
            look.is_cut = true;
        }
        self.tell_all(state);
    }

    /// Applies a batch of events.
    fn apply(&self, seq: u64, payload: &[u8]) {
        let mut state = self.state.lock();
        if state.last.replace(seq).is_some_and(|last| last.checked_add(1) != Some(seq)) {
            self.counts.gaps.fetch_add(1, Relaxed);
            tracing::warn!(pool = %self.pool.name, seq, "events of the pool's store were missed: it is looked at anew");
            self.lose_track(&mut state, true);
        }
        let batch = match decode_store(payload) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::warn!(pool = %self.pool.name, seq, %error, "a batch of the pool's store cannot be read");
                self.counts.unread.fetch_add(1, Relaxed);
                return self.lose_track(&mut state, true);
            }
        };
        self.counts.events.fetch_add(batch.events.len() as u64, Relaxed);
        self.counts.unread.fetch_add(batch.refused, Relaxed);
        if let Some(look) = &mut state.look {
            if look.kept.len() + batch.events.len() > MOST_KEPT {
                look.is_cut = true;
            } else {
                look.kept.extend(batch.events.iter().map(KeptEvent::of));
            }
        }
        let changed = state.objects.apply(&batch.events);
        self.counts.unread.fetch_add(changed.unread, Relaxed);
        let keyspaces = self.fleet.keyspaces();
        for keyspace in &keyspaces {
            let prefix = self.pool.key_prefix.as_deref();
            let base = match state.objects.base_of(&keyspace.model, prefix, keyspaces.len() == 1) {
                BaseChoice::Base(base) => Some(base),
                _ => None,
            };
            self.change(keyspace, base, &changed);
        }
    }

    /// Applies changes of the store's blocks to a keyspace's index. `base`: base of its keys, if it is known.
    fn change(&self, keyspace: &Arc<Keyspace>, base: Option<u32>, changed: &ChangedBlocks) {
        let of = |blocks: &[(u32, BlockHash)]| -> Vec<BlockHash> {
            blocks.iter().filter(|(its, _)| Some(*its) == base).map(|(_, block)| *block).collect()
        };
        let (whole, broken) = (of(&changed.whole), of(&changed.broken));
        if whole.is_empty() && broken.is_empty() && !changed.is_cleared {
            return;
        }
        let (mut gone, mut refused) = (0, 0);
        keyspace.change(|index| {
            tell_time(index);
            if changed.is_cleared {
                gone += index.keep_in_pool(&self.pool.name, &std::collections::HashSet::new(), f64::INFINITY);
            }
            gone += index.unname_in_pool(&self.pool.name, &broken);
            refused = index.name_in_pool(&self.pool.name, &whole).refused;
        });
        keyspace.gone_from_pools.fetch_add(gone as u64, Relaxed);
        self.counts.refused.fetch_add(refused as u64, Relaxed);
    }
}

/// Reads a master's events until the follower ends.
async fn read_events(store: Arc<PoolStore>, mut stream: OutboundStream) {
    let mut has_failed = false;
    loop {
        match poll_fn(|cx| stream.poll(cx)).await {
            TransportEvent::Connected => {
                has_failed = false;
                tracing::info!(pool = %store.pool.name, "the events of the pool's store are followed");
                store.cut(true);
            }
            TransportEvent::Disconnected(why) => {
                tracing::warn!(pool = %store.pool.name, why, "the events of the pool's store have ended");
                store.cut(false);
            }
            TransportEvent::Unreachable(why) if !std::mem::replace(&mut has_failed, true) => {
                tracing::warn!(pool = %store.pool.name, why, "the events of the pool's store cannot be followed");
            }
            TransportEvent::Live { seq, payload } => {
                // It may wait for a list of keys that is being applied.
                let store = store.clone();
                let _ = tokio::task::spawn_blocking(move || store.apply(seq, &payload)).await;
            }
            TransportEvent::BadFrames => {
                store.counts.unread.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }
}
