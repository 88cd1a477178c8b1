//! kvatlas: `BlockIndex`. A match as it comes (levels, sets unexpanded), and with every worker's score expanded, by
//! number into memory that is kept and by name into a list of its own.

use std::cell::RefCell;
use std::hint::black_box;

use kvatlas_index::{BlockHash, BlockIndex, Config, RankHandle, Tier, View};

use super::{Adapter, ConcurrentAdapter, engine_name, engine_number};
use crate::specs::Spec;
use crate::workload::PlainEvent;

pub struct Event {
    engine: u32,
    store: bool,
    parent: Option<BlockHash>,
    names: Vec<BlockHash>,
    contents: Vec<u64>,
}

pub struct Fleet {
    index: BlockIndex,
    ranks: Vec<RankHandle>,
}

/// The ends of a lookup: with a match as it is found, or with the score of every worker, as the peers' do.
const LEVELS: u8 = 0;
const SCORES: u8 = 1;
const NAMES: u8 = 2;

/// `END`: one of the above.
pub struct Kvatlas<const END: u8> {
    fleet: Fleet,
    nothing: (),
}

pub type Ours = Kvatlas<LEVELS>;
pub type OursScores = Kvatlas<SCORES>;
pub type OursNames = Kvatlas<NAMES>;

thread_local!(static BUFFER: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) });

impl Fleet {
    fn apply(&self, event: &Event) -> bool {
        let rank = &self.ranks[event.engine as usize];
        let mut changes = self.index.changes();
        if event.store {
            changes.store(rank, Tier::Gpu, event.parent, &event.names, &event.contents).is_ok()
        } else {
            changes.remove(rank, Tier::Gpu, &event.names);
            true
        }
    }

    fn find<const END: u8>(&self, query: &[u64]) {
        let found = self.index.find(query);
        match END {
            SCORES => BUFFER.with_borrow_mut(|scores| {
                found.scores_into(View::Device, scores);
                black_box(scores);
            }),
            NAMES => drop(black_box(found.scores(View::Device))),
            _ => _ = black_box(found.depth(View::Device)),
        }
        black_box(found);
    }
}

impl<const END: u8> Adapter for Kvatlas<END> {
    const NAME: &'static str = ["ours", "ours+scores", "ours+names"][END as usize];
    const ABOUT: &'static str = [
        "kvatlas BlockIndex, find (levels)",
        "kvatlas BlockIndex, find and scores_into: every worker's number and score",
        "kvatlas BlockIndex, find and scores: every worker's name, borrowed, and score",
    ][END as usize];
    type Event = Event;
    type Query = Vec<u64>;

    fn build(spec: &Spec) -> Result<Self, String> {
        let config = Config { block_size: 512 / u32::from(spec.per_id), count_copies: true };
        let index = BlockIndex::new(config).map_err(|e| e.to_string())?;
        Ok(Self {
            fleet: Fleet {
                index,
                ranks: (0..spec.engines).map(|engine| RankHandle::new(&engine_name(engine), 0)).collect(),
            },
            nothing: (),
        })
    }

    fn event(spelled: &PlainEvent) -> Event {
        Event {
            engine: spelled.engine,
            store: spelled.store,
            parent: spelled.parent.map(BlockHash),
            names: spelled.names.iter().map(|&n| BlockHash(n)).collect(),
            contents: spelled.contents.clone(),
        }
    }

    fn query(contents: &[u64]) -> Vec<u64> {
        contents.to_vec()
    }

    fn apply(&mut self, event: &mut Event) -> bool {
        self.fleet.apply(event)
    }

    fn find(&self, query: &mut Vec<u64>) {
        self.fleet.find::<END>(query);
    }

    fn depths(&self, contents: &[u64]) -> Vec<(u32, u32)> {
        let found = self.fleet.index.find(contents);
        let mut all: Vec<_> =
            found.scores(View::Device).iter().map(|(name, depth)| (engine_number(name), *depth)).collect();
        all.sort_unstable();
        all
    }

    fn accounting(&self) -> Option<String> {
        Some(format!("{:?}", self.fleet.index.stats()))
    }
}

impl<const END: u8> ConcurrentAdapter for Kvatlas<END> {
    const REUSABLE: bool = true;
    type Reader = Fleet;
    type Writer = ();

    fn split(&mut self) -> (&Fleet, &mut ()) {
        (&self.fleet, &mut self.nothing)
    }

    fn find_in(fleet: &Fleet, query: &mut Vec<u64>) {
        fleet.find::<END>(query);
    }

    fn apply_in(fleet: &Fleet, (): &mut (), events: &mut [Event]) {
        for event in events {
            fleet.apply(event);
        }
    }
}
