//! Tests of the pool of event threads: a worker's changes are applied in order on one thread, and no call blocks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use kvatlas_designs::block_index::BlockIndexRung;
use kvatlas_designs::nested::NestedMap;
use kvatlas_designs::pool::EventPool;
use kvatlas_designs::{Change, ConcurrentDesign, Feed, LadderStats, Refusal, RwLocked, Scores, WorkerId};
use kvatlas_index::BlockHash;

use crate::check::{EXACT, check_feed, check_under_load, store};
use crate::streams::{Family, Names, Random, stream, streams};

/// A test design that records its calls, with their workers and threads. A store of block 13 panics, a store of block
/// 99 waits.
#[derive(Default)]
struct Recorder {
    seen: Mutex<HashMap<WorkerId, Vec<(ThreadId, u64)>>>,
    open: AtomicBool,
}

impl ConcurrentDesign for Recorder {
    fn store(&self, worker: WorkerId, _: Option<BlockHash>, names: &[BlockHash], _: &[u64]) -> Result<(), Refusal> {
        assert_ne!(names[0].0, 13, "thirteen");
        while names[0].0 == 99 && !self.open.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        self.seen.lock().unwrap().entry(worker).or_default().push((thread::current().id(), names[0].0));
        Ok(())
    }
    fn remove(&self, _: WorkerId, _: &[BlockHash]) {}
    fn clear(&self, _: WorkerId) {}
    fn drop_worker(&self, _: WorkerId) {}
    fn find(&self, _: &[u64], scores: &mut Scores) {
        scores.clear();
    }
    fn stats(&self) -> LadderStats {
        LadderStats::default()
    }
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .flat_map(|(&w, all)| all.iter().map(move |&(_, n)| (w, BlockHash(n))))
            .collect()
    }
}

#[test]
fn keeps_each_worker_in_order_on_one_thread() {
    const WORKERS: u32 = 40;
    const SENDERS: u32 = 4;
    for threads in [1, 3] {
        let pool = EventPool::new(Recorder::default(), threads);
        thread::scope(|scope| {
            for sender in 0..SENDERS {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = Random(sender.into());
                    let mut next = [1000; WORKERS as usize];
                    for _ in 0..10_000 {
                        let worker = random.index((WORKERS / SENDERS) as usize) as u32 * SENDERS + sender;
                        pool.send(store(worker, None, &[(next[worker as usize], 1)]));
                        next[worker as usize] += 1;
                    }
                });
            }
        });
        pool.flush();
        assert_eq!(pool.applied(), 40_000);
        let seen = pool.index().seen.lock().unwrap();
        assert_eq!(seen.len(), WORKERS as usize);
        let mut by_thread = HashMap::<_, usize>::new();
        for (worker, all) in &*seen {
            assert!(all.iter().map(|&(_, number)| number).eq(1000..1000 + all.len() as u64), "worker {worker}");
            assert!(all.iter().all(|&(thread, _)| thread == all[0].0), "worker {worker} is on two threads");
            *by_thread.entry(all[0].0).or_default() += 1;
        }
        let dealt: Vec<_> = by_thread.into_values().collect();
        assert_eq!(dealt.len(), threads);
        assert!(dealt.iter().all(|&workers| workers.abs_diff(WORKERS as usize / threads) <= 1), "{dealt:?}");
    }
}

#[test]
fn sending_waits_for_nobody() {
    let pool = EventPool::new(Recorder::default(), 1);
    pool.send(store(0, None, &[(99, 1)]));
    for number in 0..100_000 {
        pool.send(store(0, None, &[(1000 + number, 1)]));
    }
    assert_eq!(pool.applied(), 0);
    pool.index().open.store(true, Ordering::Relaxed);
    pool.flush();
    assert_eq!(pool.applied(), 100_001);
}

#[test]
fn a_panic_is_told_and_stops_nothing() {
    let pool = EventPool::new(Recorder::default(), 2);
    assert_eq!(pool.broken(), None);
    for change in [(3, 12), (3, 13), (3, 14), (4, 15)] {
        pool.send(store(change.0, None, &[(change.1, 1)]));
    }
    pool.flush();
    assert_eq!(pool.applied(), 4);
    let said = pool.broken().unwrap();
    assert!(said.contains("worker 3") && said.contains("thirteen"), "{said}");
    let mut holdings = pool.holdings();
    holdings.sort();
    assert_eq!(holdings, [(3, BlockHash(12)), (3, BlockHash(14)), (4, BlockHash(15))]);
}

#[test]
fn dropping_it_leaves_the_backlog() {
    let pool = EventPool::new(Recorder::default(), 2);
    for worker in 0..2 {
        pool.send(store(worker, None, &[(99, 1)]));
        for number in 0..1000 {
            pool.send(store(worker, None, &[(number + 1000, 1)]));
        }
    }
    pool.index().open.store(true, Ordering::Relaxed);
    drop(pool);
}

#[test]
fn a_flush_ends_while_others_go_on_sending() {
    let pool = EventPool::new(RwLocked::new(NestedMap::new(false)), 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.send(Change::Clear { worker: 1 });
                thread::yield_now();
            }
        });
        for name in 0..200 {
            pool.send(store(0, None, &[(name, name)]));
            pool.flush();
            let mut scores = Scores::new();
            pool.find(&[name], &mut scores);
            assert_eq!(scores, [(0, 1)]);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn refusals_are_counted() {
    let pool = EventPool::new(BlockIndexRung::new(), 1);
    pool.send(Change::Store { worker: 1, parent: None, block_hashes: Box::new([]), content_hashes: Box::new([1]) });
    assert_eq!((pool.stats().refused, pool.applied()), (1, 1));
}

#[test]
fn feeds_every_concurrent_rung() {
    check_feed(
        || Box::new(EventPool::new(RwLocked::new(NestedMap::new(true)), 2)),
        EXACT,
        streams(Family::ANYTHING, 0..20),
    );
    check_feed(|| Box::new(EventPool::new(BlockIndexRung::new(), 3)), EXACT, streams(Family::ANYTHING, 0..20));
}

#[test]
fn ends_where_one_thread_alone_would() {
    for seed in 0..6 {
        let threads = 1 + seed as usize % 3;
        let tame = stream(Family::WELL_BEHAVED, Names::Alike, seed, 150);
        check_under_load(&EventPool::new(BlockIndexRung::new(), threads), &tame, 3, true);
        check_under_load(&EventPool::new(RwLocked::new(NestedMap::new(false)), threads), &tame, 3, true);
        let wild = stream(Family::ANYTHING, Names::Own, seed, 150);
        check_under_load(&EventPool::new(BlockIndexRung::new(), threads), &wild, 3, true);
        check_under_load(&EventPool::new(RwLocked::new(NestedMap::new(true)), threads), &wild, 3, true);
    }
}
