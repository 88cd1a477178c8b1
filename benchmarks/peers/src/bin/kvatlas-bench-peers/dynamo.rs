//! Dynamo: an index behind its `ThreadPoolIndexer`, looked up inline, as its own router and its own benchmark do.
//!
//! The pool says how many events wait only to its own benchmark (a feature that changes its events). So its index is
//! wrapped: when the pool starts its event threads, the wrapper keeps a second end of each queue, and reads
//! only its length. Everything else goes straight through.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use dynamo_kv_router::indexer::{KvIndexerInterface, KvIndexerMetrics, SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, OverlapScores, RouterEvent,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, LocalBlockHash, PositionalIndexer, ThreadPoolIndexer};
use kvatlas_bench::{Counts, Subject};
use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;

use crate::wait::wait;

/// The positions that Dynamo's positional indexer jumps over in its own benchmark unless told otherwise.
pub const JUMP: usize = 8;

type Queues = Arc<Mutex<Vec<flume::Receiver<WorkerTask>>>>;

/// An index of Dynamo's, and the ends of its queues.
pub struct DrainableIndex<T> {
    index: T,
    queues: Queues,
}

impl<T: SyncIndexer> SyncIndexer for DrainableIndex<T> {
    fn configure_metrics(&mut self, metrics: Option<&KvIndexerMetrics>) {
        self.index.configure_metrics(metrics);
    }

    fn worker(&self, queue: flume::Receiver<WorkerTask>, metrics: Option<Arc<KvIndexerMetrics>>) -> anyhow::Result<()> {
        self.queues.lock().expect("nobody panics while counting").push(queue.clone());
        self.index.worker(queue, metrics)
    }

    fn find_matches(&self, sequence: &[LocalBlockHash], early_exit: bool) -> OverlapScores {
        self.index.find_matches(sequence, early_exit)
    }

    fn supports_event_dump(&self) -> bool {
        self.index.supports_event_dump()
    }

    fn supports_routing_decision_pruning(&self) -> bool {
        self.index.supports_routing_decision_pruning()
    }

    fn try_schedule_cleanup(&self) -> bool {
        self.index.try_schedule_cleanup()
    }

    fn cancel_scheduled_cleanup(&self) {
        self.index.cancel_scheduled_cleanup();
    }

    fn run_cleanup_task(&self) {
        self.index.run_cleanup_task();
    }

    fn dump_events(&self) -> Option<Vec<RouterEvent>> {
        self.index.dump_events()
    }

    fn node_count(&self) -> usize {
        self.index.node_count()
    }
}

/// A pool under test.
pub struct Pool<T: SyncIndexer> {
    pool: ThreadPoolIndexer<DrainableIndex<T>>,
    queues: OnceLock<Vec<flume::Receiver<WorkerTask>>>,
    starting: Queues,
    threads: usize,
    sent: AtomicU64,
    failed: AtomicU64,
}

pub fn crtc(threads: usize, block_size: u32) -> Pool<ConcurrentRadixTreeCompressed> {
    Pool::new(ConcurrentRadixTreeCompressed::new(), threads, block_size)
}

pub fn positional(threads: usize, block_size: u32, jump: usize) -> Pool<PositionalIndexer> {
    Pool::new(PositionalIndexer::new(jump), threads, block_size)
}

impl<T: SyncIndexer> Pool<T> {
    fn new(index: T, threads: usize, block_size: u32) -> Self {
        let starting = Queues::default();
        let watched = DrainableIndex { index, queues: Arc::clone(&starting) };
        let pool = ThreadPoolIndexer::new(watched, threads, block_size);
        let (sent, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let made = Self { pool, queues: OnceLock::new(), starting, threads, sent, failed };
        // Every thread has begun, and with it every queue been noted, once it has answered.
        made.flush();
        let noted = std::mem::take(&mut *made.starting.lock().expect("nobody panics while counting"));
        assert_eq!(noted.len(), made.threads, "every event thread has a queue of its own");
        made.queues.get_or_init(|| noted);
        made
    }

    fn waiting(&self) -> u64 {
        self.queues.get().into_iter().flatten().map(|queue| queue.len() as u64).sum()
    }

    fn dump(&self) -> Option<Vec<RouterEvent>> {
        wait(KvIndexerInterface::dump_events(&self.pool)).ok()
    }
}

impl<T: SyncIndexer> Subject for Pool<T> {
    type Message = RouterEvent;
    type Query = Vec<LocalBlockHash>;
    type Lane = ();

    fn message(&self, change: Change) -> RouterEvent {
        let names = |names: &[BlockHash]| names.iter().map(|name| ExternalSequenceBlockHash(name.0)).collect();
        let worker = change.worker();
        let data = match change {
            Change::Store { parent, block_hashes, content_hashes, .. } => {
                let block = |(name, &content): (&BlockHash, &u64)| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(name.0),
                    tokens_hash: LocalBlockHash(content),
                    mm_extra_info: None,
                };
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: parent.map(|parent| ExternalSequenceBlockHash(parent.0)),
                    start_position: None,
                    blocks: block_hashes.iter().zip(&content_hashes).map(block).collect(),
                })
            }
            Change::Remove { block_hashes, .. } => {
                KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: names(&block_hashes) })
            }
            // Plans drop no worker; to forget all blocks of a worker is the same to a lookup.
            Change::Clear { .. } | Change::Drop { .. } => KvCacheEventData::Cleared,
        };
        RouterEvent::new(u64::from(worker), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
    }

    fn query(&self, contents: &[u64]) -> Vec<LocalBlockHash> {
        contents.iter().map(|&content| LocalBlockHash(content)).collect()
    }

    fn lane(&self) {}

    fn send(&self, message: RouterEvent) {
        let taken = self.pool.enqueue_event(message);
        self.failed.fetch_add(u64::from(taken.is_err()), Ordering::Relaxed);
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    fn applied(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.waiting())
    }

    fn flush(&self) {
        let flushed = wait(self.pool.flush_and_wait());
        self.failed.fetch_add(u64::from(flushed.is_err()), Ordering::Relaxed);
    }

    fn lookup(&self, (): &mut (), query: &Vec<LocalBlockHash>) {
        black_box(self.pool.backend().find_matches(query, false));
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        let found = self.pool.backend().find_matches(&self.query(contents), false).scores;
        scores.clear();
        scores.extend(found.iter().map(|(worker, &depth)| (worker.worker_id as WorkerId, depth)));
        Ok(())
    }

    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>> {
        let mut held = Vec::new();
        for RouterEvent { worker_id, event, .. } in self.dump()? {
            if let KvCacheEventData::Stored(stored) = event.data {
                held.extend(stored.blocks.iter().map(|block| (worker_id as WorkerId, BlockHash(block.block_hash.0))));
            }
        }
        Some(held)
    }

    fn counts(&self) -> Counts {
        let failed = self.failed.load(Ordering::Relaxed);
        // The pool writes what it refused into a log and counts it nowhere; not every index counts its nodes.
        Counts {
            entries: Some(self.pool.backend().node_count() as u64).filter(|&nodes| nodes > 0),
            errors: failed,
            first_error: (failed > 0).then(|| "a queue was closed".to_owned()),
            ..Counts::default()
        }
    }
}
