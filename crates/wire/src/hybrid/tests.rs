//! Tests with event streams of an engine that has several cache groups, compared block by block with a model of the
//! engine's cache.

use kvatlas_fake_engine::GroupCache;
use kvatlas_fake_engine::groups::BLOCK;
use kvatlas_index::hash::{content_hashes, prefix_hashes};
use kvatlas_index::{BlockIndex, Config, View};
use kvatlas_testing::seeds;

use crate::{Batch, Cleared, Event, Name, Reader, Removed, Stored, Tally, decode};

/// Index and reader that follow the events of one engine.
struct Bench {
    index: BlockIndex,
    reader: Reader,
}

impl Bench {
    fn new() -> Self {
        let index = BlockIndex::new(Config { block_size: BLOCK, count_copies: true }).expect("a block size");
        Self { index, reader: Reader::new(BLOCK).following_groups(true) }
    }

    fn apply(&mut self, event: Event) {
        self.hear(&Batch { events: vec![event], ..Batch::default() });
    }

    fn hear(&mut self, batch: &Batch) {
        let mut tally = Tally::default();
        self.reader.apply(batch, &self.index, "w", 0, &mut tally);
        assert_eq!((tally.refused_total(), batch.refused.len()), (0, 0));
    }

    /// Checks the depths found for a prompt against the engine's cache. Returns true if a cache group other than the
    /// indexed one reduced the depth, but not to 0.
    fn check(&self, cache: &mut GroupCache) -> bool {
        let contents = content_hashes(&cache.prompt(), BLOCK as usize, None, None);
        let prefixes = prefix_hashes(&contents);
        let found = View::ALL.map(|view| self.index.find(&contents).depth(view));
        let Some(hybrid) = self.reader.hybrid() else { return false };
        let depths = hybrid.depths(&prefixes, found);
        for (view, (&limit, &depth)) in found.iter().zip(&depths).enumerate() {
            assert_eq!(depth, cache.reach(&prefixes, view, limit), "view {view}, {cache:?}");
        }
        for limit in 0..=found[0] {
            assert_eq!(hybrid.reach(&prefixes, limit), cache.reach(&prefixes, 0, limit), "up to {limit}, {cache:?}");
        }
        assert!(!self.reader.upper_bound());
        hybrid.read().blocks.check();
        assert_eq!(hybrid.blocks(), cache.blocks());
        0 < depths[0] && depths[0] < found[0]
    }
}

#[test]
fn depths_are_what_all_groups_can_serve() {
    let mut cut = 0;
    for seed in 0..seeds(300) {
        let (mut bench, mut cache) = (Bench::new(), GroupCache::new(seed));
        // Until the others are heard of, it looks like an engine with one group.
        for _ in 0..seed % 8 {
            bench.hear(&decode(&cache.store(0)).expect("a batch"));
            bench.check(&mut cache);
        }
        for group in 0..cache.groups() {
            bench.hear(&decode(&cache.store(group)).expect("a batch"));
        }
        for _ in 0..150 {
            bench.hear(&decode(&cache.step()).expect("a batch"));
            cut += u64::from(bench.check(&mut cache));
        }
    }
    assert!(cut > seeds(300), "{cut}");
}

/// Makes a store event of a cache group.
fn stored(group: u32, kind: &'static str, window: Option<u64>, block_size: u32, names: &[u64]) -> Event {
    Event::from(Stored {
        block_hashes: names.iter().map(|&name| Name::from(name)).collect(),
        tokens: vec![1; 4],
        block_size,
        group: Some(group),
        kind: Some(kind.into()),
        window,
        ..Stored::default()
    })
}

fn engine() -> Bench {
    let mut engine = Bench::new();
    engine.apply(stored(0, "full_attention", None, BLOCK, &[1, 2]));
    engine
}

/// Returns the depth found for the prompt whose blocks [`stored`] stores.
fn depth(engine: &Bench) -> u32 {
    let contents = content_hashes(&[1; 4], BLOCK as usize, None, None);
    let found = View::ALL.map(|view| engine.index.find(&contents).depth(view));
    engine.reader.hybrid().map_or(found, |hybrid| hybrid.depths(&prefix_hashes(&contents), found))[0]
}

/// Checks that an event of a batch sees the changes that earlier events of the same batch made to the index.
#[test]
fn a_batch_may_tell_of_several_groups() {
    let (mut at_once, mut apart) = (engine(), engine());
    let events = [
        stored(0, "full_attention", None, BLOCK, &[1, 2]),
        stored(1, "mamba", None, BLOCK, &[1, 2]),
        Event::from(Removed { block_hashes: vec![Name::from(2_u64)], group: Some(1), ..Removed::default() }),
    ];
    events.iter().for_each(|event| apart.apply(event.clone()));
    let batch = Batch { events: events.to_vec(), ..Batch::default() };
    let mut tally = Tally::default();
    at_once.reader.apply(&batch, &at_once.index, "w", 0, &mut tally);
    assert_eq!((tally.events, depth(&at_once)), (3, depth(&apart)));
    assert_eq!((depth(&at_once), at_once.reader.upper_bound()), (1, false));
}

#[test]
fn groups_whose_events_do_not_tell_leave_an_upper_bound() {
    for (kind, window, block_size) in [
        ("chunked_local_attention", None, BLOCK),
        ("something_new", None, BLOCK),
        ("sliding_window", None, BLOCK),
        ("sliding_window", Some(8), 1),
        ("sliding_window", Some(8), 3),
    ] {
        let mut engine = engine();
        engine.apply(stored(1, kind, window, block_size, &[]));
        assert_eq!((depth(&engine), engine.reader.upper_bound()), (2, true), "{kind} {window:?} {block_size}");
    }
    let mut engine = engine();
    engine.apply(stored(1, "sliding_window", Some(8), BLOCK, &[]));
    assert_eq!((depth(&engine), engine.reader.upper_bound()), (0, false));
}

#[test]
fn a_placeholder_does_not_say_how_long_blocks_are() {
    let mut engine = engine();
    engine.apply(stored(1, "sliding_window", Some(3), 0, &[1]));
    assert!(engine.reader.upper_bound());
    engine.apply(stored(1, "sliding_window", Some(3), BLOCK, &[]));
    assert_eq!((depth(&engine), engine.reader.upper_bound()), (1, false));
}

#[test]
fn a_name_with_two_meanings_leaves_an_upper_bound() {
    let mut engine = engine();
    engine.apply(stored(1, "sliding_window", Some(8), BLOCK, &[]));
    engine.apply(stored(0, "full_attention", None, BLOCK, &[2, 1]));
    assert!(engine.reader.upper_bound());
    engine.apply(Event::Cleared(Cleared));
    assert!(!engine.reader.upper_bound());
}

/// Checks copies announced by offloading connectors, whose events lack the salt that belongs to the blocks.
#[test]
fn copies_elsewhere_do_not_say_what_a_name_of_the_device_means() {
    for group in [Some(0), None] {
        let mut engine = engine();
        engine.apply(stored(1, "sliding_window", Some(3), BLOCK, &[1, 2]));
        let copies = Stored {
            block_hashes: vec![Name::from(1_u64), Name::from(2_u64)],
            tokens: vec![7; 4],
            block_size: BLOCK,
            medium: Some("CPU".into()),
            group,
            kind: Some("full_attention".into()),
            ..Stored::default()
        };
        engine.apply(Event::from(copies));
        assert_eq!((depth(&engine), engine.reader.upper_bound()), (2, false), "{group:?}");
    }
}

#[test]
fn more_groups_than_can_be_told_apart_leave_an_upper_bound() {
    let mut engine = engine();
    for group in 1..=14 {
        engine.apply(stored(group, "sliding_window", Some(3), BLOCK, &[1, 2]));
        assert_eq!((depth(&engine), engine.reader.upper_bound()), (2, false), "{group}");
    }
    engine.apply(stored(15, "sliding_window", Some(3), BLOCK, &[1, 2]));
    assert!(engine.reader.upper_bound());
}

/// Checks removal events, which have only the number of a cache group, before the indexed group is known; it need not
/// be the first group.
#[test]
fn a_group_that_has_only_removed_may_be_the_indexed_one() {
    let mut engine = Bench::new();
    let removed = |group| Event::from(Removed { block_hashes: vec![Name::from(9_u64)], group, ..Removed::default() });
    engine.apply(removed(Some(5)));
    engine.apply(stored(5, "full_attention", None, BLOCK, &[1, 2]));
    assert_eq!((depth(&engine), engine.reader.upper_bound()), (2, false));
    assert!(engine.reader.hybrid().is_none());
}

#[test]
fn windows_alone() {
    let mut engine = Bench::new();
    let prefixes = prefix_hashes(&content_hashes(&[1; 4], BLOCK as usize, None, None));
    let alone = |engine: &Bench| engine.reader.hybrid().and_then(|hybrid| hybrid.depths_alone(&prefixes));
    engine.apply(stored(0, "sliding_window", Some(3), BLOCK, &[1, 2]));
    assert_eq!((alone(&engine), engine.reader.upper_bound()), (Some([2; 4]), false));
    let gone = vec![Name::from(1_u64)];
    engine.apply(Event::from(Removed { block_hashes: gone, group: Some(0), ..Removed::default() }));
    assert_eq!(alone(&engine), Some([2; 4]), "the window does not reach so far back");
    // Which of the blocks this is, is not said.
    engine.apply(stored(0, "sliding_window", Some(3), BLOCK, &[3]));
    assert_eq!(alone(&engine), None);
    assert!(engine.reader.hybrid().is_some_and(|hybrid| hybrid.is_blind()));
}
