//! Dynamo: `RadixTree` (one thread), and `ConcurrentRadixTreeCompressed` behind its thread pool.

use std::hint::black_box;

use dynamo_kv_router::indexer::SyncIndexer;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, OverlapScores, RouterEvent,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, LocalBlockHash, RadixTree, ThreadPoolIndexer};

use super::{Adapter, ConcurrentAdapter};
use crate::specs::Spec;
use crate::wait::wait;
use crate::workload::PlainEvent;

/// Event ids are only carried along; both indexes take events in any numbering.
fn event(spelled: &PlainEvent) -> RouterEvent {
    let names = spelled.names.iter().map(|&n| ExternalSequenceBlockHash(n));
    let data = if spelled.store {
        let block = |(block_hash, &c)| KvCacheStoredBlockData {
            block_hash,
            tokens_hash: LocalBlockHash(c),
            mm_extra_info: None,
        };
        KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: spelled.parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: names.zip(&spelled.contents).map(block).collect(),
        })
    } else {
        KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: names.collect() })
    };
    RouterEvent::new(u64::from(spelled.engine), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

fn query(contents: &[u64]) -> Vec<LocalBlockHash> {
    contents.iter().map(|&c| LocalBlockHash(c)).collect()
}

fn sorted(scores: &OverlapScores) -> Vec<(u32, u32)> {
    let mut all: Vec<_> = scores.scores.iter().map(|(w, &depth)| (w.worker_id as u32, depth)).collect();
    all.sort_unstable();
    all
}

pub struct Radix(RadixTree);

impl Adapter for Radix {
    const NAME: &'static str = "dynamo";
    const ABOUT: &'static str = "dynamo-kv-router RadixTree, find_matches(hashes, false)";
    /// Taken by value, and so freed on the clock: that is its interface.
    type Event = Option<RouterEvent>;
    type Query = Option<Vec<LocalBlockHash>>;

    fn build(_: &Spec) -> Result<Self, String> {
        Ok(Self(RadixTree::new()))
    }

    fn event(spelled: &PlainEvent) -> Self::Event {
        Some(event(spelled))
    }

    fn query(contents: &[u64]) -> Self::Query {
        Some(query(contents))
    }

    fn apply(&mut self, event: &mut Self::Event) -> bool {
        self.0.apply_event(event.take().expect("applied once")).is_ok()
    }

    fn find(&self, query: &mut Self::Query) {
        black_box(self.0.find_matches(query.take().expect("asked once"), false));
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        sorted(&self.0.find_matches(query(contents), false))
    }
}

type Pool = ThreadPoolIndexer<ConcurrentRadixTreeCompressed>;

pub struct Crtc {
    pool: Pool,
    nothing: (),
}

impl Adapter for Crtc {
    const NAME: &'static str = "crtc";
    const ABOUT: &'static str =
        "dynamo-kv-router ConcurrentRadixTreeCompressed in its thread pool (1 event thread), find inline";
    const INLINE: bool = false;
    type Event = Option<RouterEvent>;
    type Query = Vec<LocalBlockHash>;

    fn build(spec: &Spec) -> Result<Self, String> {
        let pool = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 512 / u32::from(spec.per_id));
        Ok(Self { pool, nothing: () })
    }

    fn event(spelled: &PlainEvent) -> Self::Event {
        Some(event(spelled))
    }

    fn query(contents: &[u64]) -> Self::Query {
        query(contents)
    }

    /// The pool says nothing of what it refused later.
    fn apply(&mut self, event: &mut Self::Event) -> bool {
        self.pool.enqueue_event(event.take().expect("applied once")).is_ok()
    }

    fn settle(&mut self) {
        wait(self.pool.flush_and_wait()).expect("the queue is open");
    }

    fn find(&self, query: &mut Self::Query) {
        Self::find_in(&self.pool, query);
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        sorted(&self.pool.backend().find_matches(&query(contents), false))
    }
}

impl ConcurrentAdapter for Crtc {
    const REUSABLE: bool = false;
    type Reader = Pool;
    type Writer = ();

    fn split(&mut self) -> (&Pool, &mut ()) {
        (&self.pool, &mut self.nothing)
    }

    fn find_in(pool: &Pool, query: &mut Self::Query) {
        black_box(pool.backend().find_matches(query, false));
    }

    fn apply_in(pool: &Pool, (): &mut (), events: &mut [Self::Event]) {
        for event in events {
            pool.enqueue_event(event.take().expect("applied once")).expect("the queue is open");
        }
        wait(pool.flush_and_wait()).expect("the queue is open");
    }
}
