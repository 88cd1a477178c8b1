//! SMG: `ChainIndex`, with one event thread, and with the `LanePool` that its authors made for it.
//!
//! Its interface wants the caller to keep a map for each worker; both ways keep it where the events are applied.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kv_index::{
    ChainBlockMap, ChainIndex, Claimed, ContentHash, Control, LanePool, LanePoolConfig, SequenceHash, StoredBlock,
};
use kvatlas_bench::{Counts, Error, EventThread, Subject};
use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;

/// A message that goes through a queue.
pub enum Message {
    Store {
        worker: u32,
        parent: Option<SequenceHash>,
        blocks: Vec<StoredBlock>,
    },
    Remove {
        worker: u32,
        names: Vec<SequenceHash>,
    },
    Clear {
        worker: u32,
    },
    /// The question what this worker holds. Asked after the run, behind everything else.
    Tell {
        worker: u32,
        to: Sender<Held>,
    },
}

type Held = Vec<(WorkerId, BlockHash)>;

impl Message {
    fn new(change: Change) -> Self {
        let worker = change.worker();
        match change {
            Change::Store { parent, block_hashes, content_hashes, .. } => {
                let block = |(name, &content): (&BlockHash, &u64)| StoredBlock {
                    seq_hash: SequenceHash(name.0),
                    content_hash: ContentHash(content),
                };
                let parent = parent.map(|parent| SequenceHash(parent.0));
                Self::Store { worker, parent, blocks: block_hashes.iter().zip(&content_hashes).map(block).collect() }
            }
            Change::Remove { block_hashes, .. } => {
                Self::Remove { worker, names: block_hashes.iter().map(|name| SequenceHash(name.0)).collect() }
            }
            // Plans drop no worker; to forget all blocks of a worker is the same to a lookup.
            Change::Clear { .. } | Change::Drop { .. } => Self::Clear { worker },
        }
    }

    fn worker(&self) -> u32 {
        match *self {
            Self::Store { worker, .. }
            | Self::Remove { worker, .. }
            | Self::Clear { worker }
            | Self::Tell { worker, .. } => worker,
        }
    }
}

/// The index with what both ways have in common.
struct Core {
    index: ChainIndex,
    refused: AtomicU64,
    given_up: AtomicBool,
}

impl Core {
    fn new(workers: u32) -> Result<Self, Error> {
        let index = ChainIndex::with_max_workers(workers.max(1) as usize);
        for worker in 0..workers {
            // Ids are dense and in order, so a worker's number is its id.
            if index.intern_worker(&format!("http://engine-{worker:05}.fleet:8000")).ok() != Some(worker) {
                return Err(Error::Index(format!(
                    "kv-index takes no more than {worker} workers, the plan has {workers}"
                )));
            }
        }
        Ok(Self { index, refused: AtomicU64::new(0), given_up: AtomicBool::new(false) })
    }

    fn apply(&self, map: &mut ChainBlockMap, message: Message) {
        match message {
            Message::Store { worker, parent, blocks } => {
                let stored = self.index.apply_stored(worker, &blocks, parent, map);
                self.refused.fetch_add(u64::from(stored.is_err()), Ordering::Relaxed);
            }
            Message::Remove { worker, names } => self.index.apply_removed(worker, &names, map),
            Message::Clear { worker } => self.index.apply_cleared(worker, map),
            Message::Tell { worker, to } => {
                let names = map.iter().map(|(name, _)| name).filter(|&name| self.index.is_held(map, name));
                // The receiver may have been dropped.
                let _ = to.send(names.map(|name| (worker, BlockHash(name.0))).collect());
            }
        }
    }

    /// The lookup its authors give to callers with a result shape of their own: nothing is allocated. The deepest
    /// worker is kept, which is cheaper than a map of all.
    fn lookup(&self, query: &[ContentHash]) {
        let mut best = (0, 0);
        self.index.score_into(query, |content| content.0, false, |worker, depth| best = best.max((depth, worker)));
        black_box(best);
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) {
        scores.clear();
        let found = self.index.find_matches(&query(contents), false).scores;
        scores.extend(found.iter().map(|(&worker, &depth)| (worker, depth)));
    }

    fn counts(&self) -> Counts {
        Counts {
            refused_stores: Some(self.refused.load(Ordering::Relaxed)),
            blocks: Some(self.index.current_size() as u64),
            entries: Some(self.index.entry_count() as u64),
            ..Counts::default()
        }
    }

    fn given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

fn query(contents: &[u64]) -> Vec<ContentHash> {
    contents.iter().map(|&content| ContentHash(content)).collect()
}

/// Returns the blocks that each worker holds, from whatever answers `Tell`.
fn holdings(workers: u32, send: impl Fn(Message)) -> Held {
    let (to, told) = channel();
    (0..workers).for_each(|worker| send(Message::Tell { worker, to: to.clone() }));
    drop(to);
    told.into_iter().flatten().collect()
}

/// `ChainIndex` behind a channel and one thread.
pub struct Chain {
    core: Arc<Core>,
    workers: u32,
    events: EventThread<Message>,
}

impl Chain {
    pub fn new(workers: u32) -> Result<Self, Error> {
        let core = Arc::new(Core::new(workers)?);
        let mut maps: Vec<ChainBlockMap> = (0..workers).map(|_| ChainBlockMap::new()).collect();
        let applying = Arc::clone(&core);
        let apply = move |message: Message| applying.apply(&mut maps[message.worker() as usize], message);
        Ok(Self { core, workers, events: EventThread::new("smg-events", apply)? })
    }
}

impl Subject for Chain {
    type Message = Message;
    type Query = Vec<ContentHash>;
    type Lane = ();

    fn message(&self, change: Change) -> Message {
        Message::new(change)
    }

    fn query(&self, contents: &[u64]) -> Vec<ContentHash> {
        query(contents)
    }

    fn lane(&self) {}

    fn send(&self, message: Message) {
        self.events.send(message);
    }

    fn applied(&self) -> u64 {
        self.events.applied()
    }

    fn flush(&self) {
        self.events.flush();
    }

    fn lookup(&self, (): &mut (), query: &Vec<ContentHash>) {
        self.core.lookup(query);
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        self.core.answer(contents, scores);
        Ok(())
    }

    fn holdings(&self) -> Option<Held> {
        Some(holdings(self.workers, |message| self.send(message)))
    }

    fn counts(&self) -> Counts {
        self.core.counts()
    }

    fn give_up(&self) {
        self.events.give_up();
    }
}

/// The batch size of the authors' own replay.
const BATCH: usize = 32;
/// Longest sleep of a lane, which is normally woken when it gets work.
const SAFETY: Duration = Duration::from_millis(100);

type Lane = LanePool<ChainBlockMap, Message>;

/// `ChainIndex` behind its pool of lanes. Events go into the pool where they come in, as its authors' gateway is to do.
pub struct Lanes {
    core: Arc<Core>,
    pool: Arc<Lane>,
    workers: u32,
    sent: AtomicU64,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Lanes {
    pub fn new(workers: u32, lanes: usize) -> Result<Self, Error> {
        let pool = Arc::new(Lane::new(LanePoolConfig {
            lanes,
            max_workers: workers.max(1) as usize,
            // Never refuse: a run has no way to slow down the engines.
            depth_cap: usize::MAX,
            batch: BATCH,
            steal_after: 0,
        }));
        let (core, stop) = (Arc::new(Core::new(workers)?), Arc::new(AtomicBool::new(false)));
        let mut made = Self { core, pool, workers, sent: AtomicU64::new(0), threads: Vec::new(), stop };
        for lane in 0..lanes {
            let (core, pool, stop) = (Arc::clone(&made.core), Arc::clone(&made.pool), Arc::clone(&made.stop));
            let serve = move || {
                let go_on = || if stop.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue };
                let apply = |claimed: Claimed<'_, ChainBlockMap>, message| {
                    if !core.given_up() {
                        core.apply(claimed.state.get_or_insert_with(ChainBlockMap::new), message);
                    }
                };
                let rest = || {
                    pool.park_lane(lane, SAFETY);
                    go_on()
                };
                pool.run_lane(lane, &mut (apply, go_on, rest));
            };
            let thread = std::thread::Builder::new().name(format!("smg-lane-{lane}")).spawn(serve);
            made.threads.push(thread.map_err(|error| Error::Index(format!("no thread: {error}")))?);
        }
        Ok(made)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Subject for Lanes {
    type Message = Message;
    type Query = Vec<ContentHash>;
    type Lane = ();

    fn message(&self, change: Change) -> Message {
        Message::new(change)
    }

    fn query(&self, contents: &[u64]) -> Vec<ContentHash> {
        query(contents)
    }

    fn lane(&self) {}

    fn send(&self, message: Message) {
        let worker = message.worker();
        // The cap is beyond any number of events, so nothing comes back.
        let _ = self.pool.enqueue(worker as usize % self.threads.len(), worker, message);
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn applied(&self) -> u64 {
        self.pool.metrics().applied
    }

    fn flush(&self) {
        while self.applied() < self.sent.load(Ordering::Relaxed) && !self.core.given_up() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn lookup(&self, (): &mut (), query: &Vec<ContentHash>) {
        self.core.lookup(query);
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        self.core.answer(contents, scores);
        Ok(())
    }

    fn holdings(&self) -> Option<Held> {
        Some(holdings(self.workers, |message| self.send(message)))
    }

    fn counts(&self) -> Counts {
        self.core.counts()
    }

    fn give_up(&self) {
        self.core.given_up.store(true, Ordering::Relaxed);
    }
}
