//! Readers beside a writer: every depth lies between the smallest and the largest that was true during the call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier, View};

mod streams;
use kvatlas_testing::Random;

fn index() -> BlockIndex {
    BlockIndex::new(Config { block_size: 1, count_copies: true }).unwrap()
}

fn names(chain: u64, range: std::ops::Range<u64>) -> Vec<BlockHash> {
    range.map(|i| BlockHash(chain << 32 | (i + 1))).collect()
}

/// Prompts share their first blocks, so that runs fork, grow, shrink and move all the time.
fn prompt(chain: u64, length: u64) -> Vec<u64> {
    (0..length).map(|i| if i < chain % 7 { i + 1 } else { (chain + 1) << 32 | i }).collect()
}

const LENGTH: u64 = 96;

/// Bounds of what a worker holds of one chain while a change is on its way.
#[derive(Default)]
struct Bounds {
    /// Counts changes begun, in steps of two; odd while one is on its way.
    version: AtomicU64,
    before: AtomicU64,
    after: AtomicU64,
}

#[test]
fn depths_lie_between_the_smallest_and_the_largest_true_ones() {
    const WORKERS: u64 = 70; // more than fit into a word
    const CHAINS: u64 = 12;
    let index = &index();
    let bounds: &Vec<Bounds> = &(0..WORKERS * CHAINS).map(|_| Bounds::default()).collect();
    let stop = &AtomicBool::new(false);
    let seconds = std::env::var("KVATLAS_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    thread::scope(|scope| {
        scope.spawn(move || {
            let random = &mut Random(1);
            while Instant::now() < end {
                change(index, bounds, random, WORKERS, CHAINS);
            }
            stop.store(true, Ordering::SeqCst);
        });
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                scope.spawn(move || {
                    let random = &mut Random(100 + reader);
                    let mut answers = 0u64;
                    while !stop.load(Ordering::SeqCst) {
                        answers += check(index, bounds, random, WORKERS, CHAINS);
                    }
                    answers
                })
            })
            .collect();
        let answers: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(answers > 0, "no answer was checked");
    });
    for worker in 0..WORKERS {
        index.drop_worker(&format!("w{worker}"));
    }
    let stats = index.stats();
    assert_eq!((stats.positions, stats.runs, stats.sets), (0, 0, 0));
}

/// A worker's part of a chain grows or shrinks at its end, or its head goes (all of it is hidden then) and returns.
fn change(index: &BlockIndex, bounds: &[Bounds], random: &mut Random, workers: u64, chains: u64) {
    let (worker, chain) = (random.below(workers), random.below(chains));
    let it = &bounds[(worker * chains + chain) as usize];
    let held = it.after.load(Ordering::SeqCst);
    let to = if random.chance(15) { 0 } else { random.below(LENGTH + 1) };
    it.before.store(held, Ordering::SeqCst);
    it.version.fetch_add(1, Ordering::SeqCst);
    it.after.store(to, Ordering::SeqCst);
    let name = format!("w{worker}");
    let contents = prompt(chain, LENGTH);
    if to > held {
        let all = names(chain, 0..LENGTH);
        let parent = held.checked_sub(1).map(|last| all[last as usize]);
        let range = held as usize..to as usize;
        index.store(&name, 0, Tier::Gpu, parent, &all[range.clone()], &contents[range]).unwrap();
    } else if to == 0 && held > 1 && random.chance(50) {
        // From the root on: what is left is unreachable until it goes too.
        index.remove(&name, 0, Tier::Gpu, &names(chain, 0..1));
        index.remove(&name, 0, Tier::Gpu, &names(chain, 1..held));
    } else {
        let mut gone = names(chain, to..held);
        gone.reverse();
        index.remove(&name, 0, Tier::Gpu, &gone);
    }
    it.version.fetch_add(1, Ordering::SeqCst);
}

fn check(index: &BlockIndex, bounds: &[Bounds], random: &mut Random, workers: u64, chains: u64) -> u64 {
    let chain = random.below(chains);
    let query = prompt(chain, LENGTH);
    // Chains share their first blocks: for those, others of the worker's chains count too.
    let shared = chain % 7;
    let start: Vec<u64> =
        (0..workers).map(|w| bounds[(w * chains + chain) as usize].version.load(Ordering::SeqCst)).collect();
    let low: Vec<_> = (0..workers).map(|w| range(&bounds[(w * chains + chain) as usize])).collect();
    let found = index.find(&query);
    let found = found.by_rank(View::Device);
    let mut checked = 0;
    for (worker, (first, version)) in low.into_iter().zip(start).enumerate() {
        let it = &bounds[worker * chains as usize + chain as usize];
        let last = range(it);
        if it.version.load(Ordering::SeqCst) > (version | 1) + 1 {
            continue; // too much has happened to know the bounds
        }
        let (least, most) = (first.0.min(last.0), first.1.max(last.1));
        let name = format!("w{worker}");
        let depth = found.iter().find(|(w, ..)| ***w == *name).map_or(0, |(_, _, depth)| u64::from(*depth));
        assert!(
            depth >= least && (depth <= most || depth <= shared),
            "{name} chain {chain}: {depth} not in {least}..={most}"
        );
        checked += 1;
    }
    checked
}

fn range(it: &Bounds) -> (u64, u64) {
    let (before, after) = (it.before.load(Ordering::SeqCst), it.after.load(Ordering::SeqCst));
    (before.min(after), before.max(after))
}

/// Checks that what is true of a holder at every moment is true of every answer. `change` is repeated by the writer
/// while two readers look; a holder with nothing of a query but what `change` gives it has one of the depths
/// `true_depths`.
fn always(index: &BlockIndex, query: &[u64], view: View, true_depths: &[u32], change: impl Fn() + Sync) {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let depth = index.find(query).depth(view);
                    if !true_depths.contains(&depth) {
                        stop.store(true, Ordering::SeqCst);
                        panic!("depth {depth} was never true");
                    }
                }
            });
        }
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end && !stop.load(Ordering::SeqCst) {
            change();
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// A run whose end is cut off and continued otherwise must not lead a reader into what hangs off the new end.
#[test]
fn a_reader_does_not_cross_into_another_chain() {
    const LONG: u64 = 4_000;
    let index = &index();
    let contents: Vec<u64> = (1..=LONG).collect();
    let all = names(1, 0..LONG);
    index.store("w", 0, Tier::Gpu, None, &all, &contents).unwrap();
    index.store("w", 0, Tier::Gpu, Some(all[0]), &[BlockHash(7)], &[7_777]).unwrap();
    let mut query = contents.clone();
    query.push(99);
    let (kept, cut) = (LONG as usize - 3, LONG as u32 - 3);
    let tail: Vec<_> = all[kept..].iter().rev().copied().collect();
    let other: Vec<_> = (1..=4).map(|i| BlockHash(500 + i)).collect();
    let gone: Vec<_> = other.iter().rev().copied().collect();
    let depths: Vec<u32> = (cut..=LONG as u32).collect();
    always(index, &query, View::Device, &depths, || {
        index.remove("w", 0, Tier::Gpu, &tail);
        // As long as what was there, and then what the query goes on with.
        index.store("w", 0, Tier::Gpu, Some(all[kept - 1]), &other, &[8_001, 8_002, 8_003, 99]).unwrap();
        index.remove("w", 0, Tier::Gpu, &gone);
        index.store("w", 0, Tier::Gpu, Some(all[kept - 1]), &all[kept..], &contents[kept..]).unwrap();
    });
}

/// The first offload gives a rank a second holder: no answer may take it for the device.
#[test]
fn offloading_for_the_first_time_adds_nothing_to_the_device() {
    const LONG: u64 = 300;
    let index = &index();
    let (all, contents) = (names(1, 0..LONG), prompt(8, LONG));
    let device = 200;
    let keep = |to: usize| index.store("w", 0, Tier::Gpu, None, &all[..to], &contents[..to]).unwrap();
    for (view, most) in [(View::Device, 200), (View::AnyTier, 300)] {
        let depths: Vec<u32> = (0..=most).collect();
        always(index, &contents, view, &depths, || {
            keep(device);
            let parent = Some(all[device - 1]);
            index.store("w", 0, Tier::Cpu, parent, &all[device..], &contents[device..]).unwrap();
            index.drop_worker("w");
        });
    }
}

/// Owned matches outlive everything they speak of.
#[test]
fn kept_matches_do_not_change() {
    let index = index();
    for worker in 0..200 {
        index.store(&format!("w{worker}"), 0, Tier::Gpu, None, &names(1, 0..9), &prompt(9, 9)).unwrap();
    }
    let kept = index.find(&prompt(9, 9)).to_owned();
    let before = kept.scores(View::Device);
    for worker in 0..200 {
        index.drop_worker(&format!("w{worker}"));
    }
    for worker in 0..300 {
        index.store(&format!("x{worker}"), 0, Tier::Gpu, None, &names(2, 0..9), &prompt(8, 9)).unwrap();
    }
    assert_eq!(kept.scores(View::Device), before);
    assert_eq!(before.len(), 200);
}
