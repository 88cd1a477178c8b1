//! kvatlas as the service drives it: `wire::Reader`, one for each rank, applies batches that were decoded.
//!
//! A store here includes hashing its tokens; the bare indexes are given the hashes. Each batch has one event, as the
//! harness times each event by itself.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kvatlas_index::hash::content_hashes;
use kvatlas_index::{BlockHash, BlockIndex, Config, View};
use kvatlas_wire::{BatchOf, EventOf, Reader, RemovedOf, StoredOf, Tally};

use super::{Adapter, engine_name, engine_number};
use crate::rng::mix;
use crate::specs::Spec;
use crate::workload::PlainEvent;

/// Tokens in a block of the workload that is measured.
static BLOCK_SIZE: AtomicUsize = AtomicUsize::new(0);

pub struct Event {
    engine: u32,
    batch: BatchOf<BlockHash>,
}

/// Index with a reader for each engine.
pub struct OursReader {
    index: BlockIndex,
    readers: Vec<(String, Reader)>,
}

/// Tokens of blocks: each block's follow from its content alone.
fn tokens(contents: &[u64]) -> Vec<u32> {
    let size = BLOCK_SIZE.load(Relaxed);
    let mut tokens = Vec::with_capacity(contents.len() * size);
    for &content in contents {
        let (first, step) = (mix(content), mix(!content) | 1);
        tokens.extend((0..size as u64).map(|at| (first.wrapping_add(step.wrapping_mul(at)) >> 32) as u32));
    }
    tokens
}

impl Adapter for OursReader {
    const NAME: &'static str = "ours+reader";
    const ABOUT: &'static str =
        "kvatlas wire::Reader, decoded batches of tokens applied as the service does; find as in ours";
    type Event = Event;
    type Query = Vec<u64>;

    fn build(spec: &Spec) -> Result<Self, String> {
        let block_size = 512 / u32::from(spec.per_id);
        BLOCK_SIZE.store(block_size as usize, Relaxed);
        let index = BlockIndex::new(Config { block_size, count_copies: true }).map_err(|e| e.to_string())?;
        let readers = (0..spec.engines).map(|engine| (engine_name(engine), Reader::new(block_size))).collect();
        Ok(Self { index, readers })
    }

    fn event(spelled: &PlainEvent) -> Event {
        let block_hashes = spelled.names.iter().map(|&name| BlockHash(name)).collect();
        let event: EventOf<BlockHash> = if spelled.store {
            let stored = StoredOf {
                block_hashes,
                parent: spelled.parent.map(BlockHash),
                tokens: tokens(&spelled.contents),
                block_size: BLOCK_SIZE.load(Relaxed) as u32,
                ..StoredOf::default()
            };
            stored.into()
        } else {
            RemovedOf { block_hashes, ..RemovedOf::default() }.into()
        };
        Event { engine: spelled.engine, batch: BatchOf { events: vec![event], ..BatchOf::default() } }
    }

    fn query(contents: &[u64]) -> Vec<u64> {
        content_hashes(&tokens(contents), BLOCK_SIZE.load(Relaxed), None, None)
    }

    fn apply(&mut self, event: &mut Event) -> bool {
        let (name, reader) = &mut self.readers[event.engine as usize];
        let mut tally = Tally::default();
        reader.apply(&event.batch, &self.index, name, 0, &mut tally);
        tally.refused_total() == 0
    }

    fn find(&self, query: &mut Vec<u64>) {
        let found = self.index.find(query);
        black_box(found.depth(View::Device));
        black_box(found);
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        let found = self.index.find(&Self::query(contents));
        let mut all: Vec<_> =
            found.scores(View::Device).iter().map(|(name, depth)| (engine_number(name), *depth)).collect();
        all.sort_unstable();
        all
    }

    fn accounting(&self) -> Option<String> {
        Some(format!("{:?}", self.index.stats()))
    }
}
