//! SMG: `kv_index::ChainIndex`, with the map of each worker that its interface wants the caller to keep; and
//! `ShardedChainIndex` for more workers than one of those takes.

use std::collections::HashMap;
use std::hint::black_box;

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};

use super::{Adapter, ConcurrentAdapter, engine_name};
use crate::specs::Spec;
use crate::workload::PlainEvent;

pub struct Smg {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
}

pub enum Event {
    Store { engine: u32, parent: Option<SequenceHash>, blocks: Vec<StoredBlock> },
    Remove { engine: u32, hashes: Vec<SequenceHash> },
}

fn apply(index: &ChainIndex, maps: &mut [ChainBlockMap], event: &Event) -> bool {
    match event {
        Event::Store { engine, parent, blocks } => {
            index.apply_stored(*engine, blocks, *parent, &mut maps[*engine as usize]).is_ok()
        }
        Event::Remove { engine, hashes } => {
            index.apply_removed(*engine, hashes, &mut maps[*engine as usize]);
            true
        }
    }
}

fn event(spelled: &PlainEvent) -> Event {
    let names = spelled.names.iter().map(|&n| SequenceHash(n));
    if spelled.store {
        let blocks =
            names.zip(&spelled.contents).map(|(seq_hash, &c)| StoredBlock { seq_hash, content_hash: ContentHash(c) });
        Event::Store { engine: spelled.engine, parent: spelled.parent.map(SequenceHash), blocks: blocks.collect() }
    } else {
        Event::Remove { engine: spelled.engine, hashes: names.collect() }
    }
}

/// The lookup its authors give to callers with a result shape of their own: nothing is allocated. The deepest
/// worker is kept, which is cheaper than `find_matches` with its map of all.
fn find(index: &ChainIndex, query: &[ContentHash]) {
    let mut best = (0, 0);
    index.score_into(query, |content| content.0, false, |worker, depth| best = best.max((depth, worker)));
    black_box(best);
}

impl Adapter for Smg {
    const NAME: &'static str = "smg";
    const ABOUT: &'static str = "kv-index ChainIndex, score_into keeping the deepest worker";
    type Event = Event;
    type Query = Vec<ContentHash>;

    fn build(spec: &Spec) -> Result<Self, String> {
        let index = ChainIndex::with_max_workers(spec.engines as usize);
        for engine in 0..spec.engines {
            match index.intern_worker(&engine_name(engine)) {
                // Ids are dense and in order, so an engine's number is its id.
                Ok(id) => assert_eq!(id, engine),
                Err(_) => return Err(format!("refuses: no more than {engine} workers")),
            }
        }
        Ok(Self { index, maps: (0..spec.engines).map(|_| ChainBlockMap::new()).collect() })
    }

    fn event(spelled: &PlainEvent) -> Event {
        event(spelled)
    }

    fn query(contents: &[u64]) -> Self::Query {
        contents.iter().map(|&c| ContentHash(c)).collect()
    }

    fn apply(&mut self, event: &mut Event) -> bool {
        apply(&self.index, &mut self.maps, event)
    }

    fn find(&self, query: &mut Self::Query) {
        find(&self.index, query);
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        let mut all: Vec<_> = self.index.find_matches(&Self::query(contents), false).scores.into_iter().collect();
        all.sort_unstable();
        all
    }

    fn accounting(&self) -> Option<String> {
        let stats = self.index.stats();
        let slots: usize = self.maps.iter().map(ChainBlockMap::capacity).sum();
        let used = stats.arena_bytes + stats.header_bytes + slots * 17;
        let held = stats.arena_chunk_bytes + stats.slab_bytes + slots * 17;
        Some(format!("{used} bytes in use of {held} in its chunks and maps"))
    }
}

impl ConcurrentAdapter for Smg {
    const REUSABLE: bool = true;
    type Reader = ChainIndex;
    type Writer = Vec<ChainBlockMap>;

    fn split(&mut self) -> (&ChainIndex, &mut Vec<ChainBlockMap>) {
        (&self.index, &mut self.maps)
    }

    fn find_in(index: &ChainIndex, query: &mut Self::Query) {
        find(index, query);
    }

    fn apply_in(index: &ChainIndex, maps: &mut Vec<ChainBlockMap>, events: &mut [Event]) {
        for event in events {
            apply(index, maps, event);
        }
    }
}

const A_SHARD: usize = 1_024;

/// As many shards as the fleet needs, each with as many workers as one takes. An index of its own kind in the
/// tables: its authors made it to keep a socket's writers apart, not for more workers, but it takes them.
pub struct Shards {
    index: ShardedChainIndex,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
}

impl Adapter for Shards {
    const NAME: &'static str = "smg-shards";
    const ABOUT: &'static str =
        "kv-index ShardedChainIndex, shards of 1,024 workers, score_into keeping the deepest worker";
    const MORE_ENGINES_THAN: u32 = A_SHARD as u32;
    type Event = Event;
    type Query = Vec<ContentHash>;

    fn build(spec: &Spec) -> Result<Self, String> {
        let index = ShardedChainIndex::new((spec.engines as usize).div_ceil(A_SHARD), A_SHARD);
        let ids = (0..spec.engines).map(|engine| index.intern_worker(&engine_name(engine)));
        let ids = ids.collect::<Result<Vec<u32>, _>>().map_err(|e| e.to_string())?;
        Ok(Self { index, ids, maps: (0..spec.engines).map(|_| ChainBlockMap::new()).collect() })
    }

    fn event(spelled: &PlainEvent) -> Event {
        event(spelled)
    }

    fn query(contents: &[u64]) -> Self::Query {
        Smg::query(contents)
    }

    fn apply(&mut self, event: &mut Event) -> bool {
        match event {
            Event::Store { engine, parent, blocks } => {
                let engine = *engine as usize;
                self.index.apply_stored(self.ids[engine], blocks, *parent, &mut self.maps[engine]).is_ok()
            }
            Event::Remove { engine, hashes } => {
                let engine = *engine as usize;
                self.index.apply_removed(self.ids[engine], hashes, &mut self.maps[engine]);
                true
            }
        }
    }

    fn find(&self, query: &mut Self::Query) {
        let mut best = (0, 0);
        self.index.score_into(query, |content| content.0, false, |worker, depth| best = best.max((depth, worker)));
        black_box(best);
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        let engines: HashMap<u32, u32> = self.ids.iter().copied().zip(0..).collect();
        let scores = self.index.find_matches(&Self::query(contents), false).scores;
        let mut all: Vec<_> = scores.into_iter().map(|(id, depth)| (engines[&id], depth)).collect();
        all.sort_unstable();
        all
    }
}
