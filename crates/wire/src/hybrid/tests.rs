//! Streams of a random engine, against what its groups hold, block by block.

use std::collections::HashMap;

use kvatlas_index::hash::{content_hashes, prefix_hashes};
use kvatlas_index::{BlockIndex, Config, View};
use kvatlas_testing::{Random, mix, seeds};

use crate::{Batch, Cleared, Event, Name, Reader, Removed, Stored, Tally};

const BLOCK: u32 = 2;
/// Blocks in a prompt.
const LONG: usize = 12;

/// The group that is indexed. It need not be the first.
const FULL: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct Group {
    number: Option<u32>,
    kind: &'static str,
    window: Option<u64>,
    /// Blocks of the index in one of the group.
    step: usize,
}

impl Group {
    /// True if the group can serve this depth, said as the engine's rule says it.
    fn serves(&self, depth: usize, held: impl Fn(usize) -> bool) -> bool {
        let blocks = (1..=depth).filter(|end| end.is_multiple_of(self.step)).collect::<Vec<_>>();
        let tokens = depth as u64 * u64::from(BLOCK);
        match self.kind {
            "mamba" => depth == 0 || held(depth),
            "full_attention" => depth.is_multiple_of(self.step) && blocks.iter().all(|&end| held(end)),
            _ => {
                // All blocks with a token that the next one sees; at least the last.
                let first_seen = (tokens + 1).saturating_sub(self.window.unwrap_or(0));
                let seen = |end: usize| end as u64 * u64::from(BLOCK) > first_seen || end == depth;
                depth.is_multiple_of(self.step) && blocks.iter().filter(|&&end| seen(end)).all(|&end| held(end))
            }
        }
    }
}

/// Blocks that there are: copies by group, tier and prefix.
type Held = HashMap<(Option<u32>, usize, u64), u32>;

struct Engine {
    random: Random,
    groups: Vec<Group>,
    held: Held,
    index: BlockIndex,
    reader: Reader,
}

impl Engine {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut groups = vec![Group { number: Some(FULL), kind: "full_attention", window: None, step: 1 }];
        for number in 0..=random.below(2) {
            let step = 1 + random.index(2);
            let (kind, window) = match random.below(4) {
                0 => ("mamba", None),
                1 => ("full_attention", None),
                _ => ("sliding_window", Some(1 + random.below(14))),
            };
            groups.push(Group { number: Some(number as u32), kind, window, step });
        }
        let index = BlockIndex::new(Config { block_size: BLOCK, count_copies: true }).expect("a block size");
        Self { random, groups, held: Held::new(), index, reader: Reader::new(BLOCK).following_groups(true) }
    }

    fn apply(&mut self, event: Event) {
        let mut tally = Tally::default();
        let batch = Batch { events: vec![event], ..Batch::default() };
        self.reader.apply(&batch, &self.index, "w", 0, &mut tally);
        assert_eq!(tally.refused_total(), 0);
    }

    fn prompt(&mut self) -> Vec<u32> {
        (0..LONG * BLOCK as usize).map(|at| if at % 6 == 0 { self.random.below(2) as u32 } else { 7 }).collect()
    }

    fn store(&mut self, group: Group) {
        let prompt = self.prompt();
        let prefixes = prefixes(&prompt);
        let blocks = LONG / group.step;
        let first = if self.random.chance(60) { 0 } else { self.random.index(blocks) };
        let end = first + 1 + self.random.index(blocks - first);
        let tier = if group.number.is_none() { 1 } else { usize::from(self.random.chance(15)) };
        let is_indexed = group.number.is_none_or(|number| number == FULL);
        let mut names = Vec::new();
        for block in first..end {
            let prefix = prefixes[(block + 1) * group.step - 1];
            // Only the indexed group says what its blocks contain.
            if is_indexed || self.random.chance(80) {
                names.push(name(prefix));
                *self.held.entry((group.number, tier, prefix)).or_default() += 1;
                if group.number.is_none() {
                    *self.held.entry((Some(FULL), tier, prefix)).or_default() += 1;
                }
            }
        }
        let size = group.step * BLOCK as usize;
        self.apply(Event::from(Stored {
            block_hashes: names,
            parent: first.checked_sub(1).map(|before| name(prefixes[(before + 1) * group.step - 1])),
            tokens: prompt[first * size..end * size].to_vec(),
            block_size: size as u32,
            medium: Some(["GPU", "CPU"][tier].into()),
            group: group.number,
            kind: Some(group.kind.into()),
            window: group.window,
            ..Stored::default()
        }));
    }

    fn remove(&mut self) {
        let mut held: Vec<_> = self.held.keys().copied().collect();
        held.sort_unstable();
        if held.is_empty() {
            return;
        }
        let (group, tier, prefix) = *self.random.pick(&held);
        let mut take = |group| {
            let copies = self.held.get_mut(&(group, tier, prefix)).expect("it is held");
            *copies -= 1;
            if *copies == 0 {
                self.held.remove(&(group, tier, prefix));
            }
        };
        take(group);
        if group.is_none() {
            take(Some(FULL));
        } else if group == Some(FULL) && self.held.get(&(None, tier, prefix)) > self.held.get(&(group, tier, prefix)) {
            // It was the connector's copy; there is nothing left of that.
            *self.held.entry((group, tier, prefix)).or_default() += 1;
            return;
        }
        let medium = Some(["GPU", "CPU"][tier].into());
        self.apply(Event::from(Removed { block_hashes: vec![name(prefix)], medium, group, ..Removed::default() }));
    }

    /// Checks the depths of a prompt; true if a group other than the indexed one made one shorter, but not nothing.
    fn check(&mut self) -> bool {
        let prompt = self.prompt();
        let contents = content_hashes(&prompt, BLOCK as usize, None, None);
        let prefixes = prefix_hashes(&contents);
        let found = View::ALL.map(|view| self.index.find(&contents).depth(view));
        let hybrid = self.reader.hybrid();
        let depths = hybrid.map_or(found, |hybrid| hybrid.depths(&prefixes, found));
        let stored: Vec<&Group> = self.groups[1..].iter().filter(|_| hybrid.is_some()).collect();
        for (view, (&limit, &depth)) in found.iter().zip(&depths).enumerate() {
            let held = |group: &Group, end: usize| {
                (0..=view).any(|tier| {
                    [group.number, None].iter().any(|&group| self.held.contains_key(&(group, tier, prefixes[end - 1])))
                })
            };
            let all = |depth: usize| stored.iter().all(|group| group.serves(depth, |end| held(group, end)));
            let expected = (0..=limit as usize).rev().find(|&depth| all(depth));
            assert_eq!(Some(depth as usize), expected, "view {view}, {:?}", self.groups);
            if let Some(hybrid) = hybrid.filter(|_| view == 0) {
                for limit in 0..=limit {
                    let expected = (0..=limit as usize).rev().find(|&depth| all(depth));
                    assert_eq!(Some(hybrid.reach(&prefixes, limit) as usize), expected, "up to {limit}");
                }
            }
        }
        if let Some(hybrid) = hybrid {
            assert!(!self.reader.upper_bound());
            hybrid.read().blocks.check();
            let mut different: Vec<u64> = self.held.keys().map(|&(_, _, prefix)| prefix).collect();
            different.sort_unstable();
            different.dedup();
            assert_eq!(hybrid.blocks(), different.len());
        }
        0 < depths[0] && depths[0] < found[0]
    }
}

fn name(prefix: u64) -> Name {
    Name::from(mix(prefix))
}

fn prefixes(prompt: &[u32]) -> Vec<u64> {
    prefix_hashes(&content_hashes(prompt, BLOCK as usize, None, None))
}

#[test]
fn depths_are_what_all_groups_can_serve() {
    let mut cut = 0;
    for seed in 0..seeds(300) {
        let mut engine = Engine::new(seed);
        // Until the others are heard of, it looks like an engine with one group.
        for _ in 0..engine.random.below(8) {
            engine.store(engine.groups[0]);
            engine.check();
        }
        for group in engine.groups.clone() {
            engine.store(group);
        }
        for _ in 0..150 {
            match engine.random.below(100) {
                0 => {
                    engine.held.clear();
                    engine.apply(Event::Cleared(Cleared));
                }
                1..5 => engine.store(Group { number: None, ..engine.groups[0] }),
                5..40 => engine.store(engine.groups[0]),
                40..65 => {
                    let group = *engine.random.pick(&engine.groups.clone());
                    engine.store(group);
                }
                _ => engine.remove(),
            }
            cut += u64::from(engine.check());
        }
    }
    assert!(cut > seeds(300), "{cut}");
}

/// One store of a group.
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

fn engine() -> Engine {
    let mut engine = Engine::new(0);
    engine.apply(stored(0, "full_attention", None, BLOCK, &[1, 2]));
    engine
}

/// Depth that is found for the prompt that `stored` stores.
fn depth(engine: &Engine) -> u32 {
    let contents = content_hashes(&[1; 4], BLOCK as usize, None, None);
    let found = View::ALL.map(|view| engine.index.find(&contents).depth(view));
    engine.reader.hybrid().map_or(found, |hybrid| hybrid.depths(&prefix_hashes(&contents), found))[0]
}

/// The reader sees what the index was told just before, in the same batch.
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

/// Removals name the group alone; the one that is indexed need not be the first.
#[test]
fn a_group_that_has_only_removed_may_be_the_indexed_one() {
    let mut engine = Engine::new(0);
    let removed = |group| Event::from(Removed { block_hashes: vec![Name::from(9_u64)], group, ..Removed::default() });
    engine.apply(removed(Some(5)));
    engine.apply(stored(5, "full_attention", None, BLOCK, &[1, 2]));
    assert_eq!((depth(&engine), engine.reader.upper_bound()), (2, false));
    assert!(engine.reader.hybrid().is_none());
}

#[test]
fn windows_alone() {
    let mut engine = Engine::new(0);
    let prefixes = prefixes(&[1; 4]);
    let alone = |engine: &Engine| engine.reader.hybrid().and_then(|hybrid| hybrid.depths_alone(&prefixes));
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
