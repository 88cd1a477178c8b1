//! Tests of actors, the indexes owned by one thread: answers between changes, and shards that together equal one actor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use kvatlas_designs::actor::{Actor, ShardedActors};
use kvatlas_designs::inverted::InvertedIndex;
use kvatlas_designs::nested::NestedMap;
use kvatlas_designs::{Feed, LadderStats, LocalDesign, Refusal, Scores, WorkerId};
use kvatlas_index::BlockHash;

use crate::check::{EXACT, check_feed, check_under_load, remove, store};
use crate::streams::{Family, Names, stream, streams};

/// A test design in which each store waits for a permit. Removals panic, and lookups of block 13 do, too.
struct Gate(Mutex<mpsc::Receiver<()>>, u64);

impl LocalDesign for Gate {
    fn store(&mut self, _: WorkerId, _: Option<BlockHash>, _: &[BlockHash], _: &[u64]) -> Result<(), Refusal> {
        let _ = self.0.lock().unwrap().recv();
        self.1 += 1;
        Ok(())
    }
    fn remove(&mut self, _: WorkerId, _: &[BlockHash]) {
        panic!("no removals here");
    }
    fn clear(&mut self, _: WorkerId) {}
    fn drop_worker(&mut self, _: WorkerId) {}
    fn find(&self, query: &[u64], scores: &mut Scores) {
        assert_ne!(query, [13], "no thirteen here");
        *scores = vec![(0, self.1 as u32)];
    }
    fn stats(&self) -> LadderStats {
        LadderStats::default()
    }
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        Vec::new()
    }
}

fn gate() -> (mpsc::Sender<()>, Actor<Gate>) {
    let (tokens, gate) = mpsc::channel();
    (tokens, Actor::new(Gate(Mutex::new(gate), 0)))
}

#[test]
fn answers_while_it_is_being_fed() {
    const CHANGES: u64 = 5000;
    let (tokens, actor) = gate();
    for _ in 0..CHANGES {
        actor.send(store(0, None, &[]));
    }
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut scores = Scores::new();
            actor.find(&[1], &mut scores);
            scores
        });
        // One change after another, until the answer is there: it does not wait for all of them.
        for _ in 0..CHANGES {
            if asking.is_finished() {
                break;
            }
            tokens.send(()).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let [(0, applied)] = asking.join().unwrap()[..] else { panic!("not the answer") };
        assert!(u64::from(applied) < CHANGES);
    });
    drop(tokens);
    actor.flush();
    assert_eq!(actor.applied(), CHANGES);
}

#[test]
fn a_panic_is_told_and_stops_nothing() {
    let (tokens, actor) = gate();
    tokens.send(()).unwrap();
    actor.send(remove(7, &[1]));
    actor.send(store(7, None, &[]));
    actor.flush();
    let said = actor.broken().unwrap();
    assert!(said.contains("worker 7") && said.contains("no removals here"), "{said}");
    let mut scores = Scores::new();
    // A lookup's panic reaches its caller.
    assert!(catch_unwind(AssertUnwindSafe(|| actor.find(&[13], &mut scores))).is_err());
    actor.find(&[1], &mut scores);
    assert_eq!(scores, [(0, 1)]);
}

#[test]
fn one_or_several_equal_the_design_alone() {
    for (family, strict) in [(Family::WELL_BEHAVED, false), (Family::ANYTHING, true)] {
        check_feed(|| Box::new(Actor::new(NestedMap::new(strict))), EXACT, streams(family, 0..8));
        check_feed(|| Box::new(Actor::new(InvertedIndex::new(strict))), EXACT, streams(family, 0..8));
        check_feed(|| Box::new(ShardedActors::new(3, || InvertedIndex::new(strict))), EXACT, streams(family, 0..8));
    }
}

#[test]
fn end_where_one_thread_alone_would() {
    for seed in 0..4 {
        let wild = stream(Family::ANYTHING, Names::Alike, seed, 150);
        check_under_load(&Actor::new(NestedMap::new(true)), &wild, 3, true);
        check_under_load(&ShardedActors::new(3, || InvertedIndex::new(true)), &wild, 2, true);
    }
}

#[test]
fn shards_deal_the_workers_and_count_their_messages() {
    let actors = ShardedActors::new(3, || NestedMap::new(false));
    for worker in [10, 20, 30, 40, 50] {
        actors.send(store(worker, None, &[(71, 1)]));
    }
    actors.flush();
    let mut scores = vec![(9, 9)];
    for _ in 0..2 {
        actors.find(&[1, 2], &mut scores);
    }
    scores.sort_unstable();
    assert_eq!(scores, [(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]);
    let stats = actors.stats();
    assert_eq!((stats.workers, stats.blocks), (5, 5));
    // Five changes; two queries to three actors, each answered.
    assert_eq!(stats.messages, 5 + 2 * 3 * 2);
    assert_eq!(actors.applied(), 5);
}
