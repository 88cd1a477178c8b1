//! Costs of ways to protect readers: this index's counters beside two simpler ways, on one hot root.
//!
//! Every lookup begins with the same system prompt, so all threads want the same first run. And what the scores of all
//! workers cost, on one thread and on two: they share no count. `docs/design/` quotes it.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier, View};

const CHAINS: u64 = 2_000;
const WORKERS: u64 = 32;

fn chain(number: u64) -> (Vec<BlockHash>, Vec<u64>) {
    let block = |i: u64| if i < 8 { i + 1 } else { (number + 1) << 32 | i };
    ((0..24).map(|i| BlockHash(block(i))).collect(), (0..24).map(|i| block(i) ^ 0x5555).collect())
}

fn store(index: &BlockIndex, number: u64) {
    let (names, contents) = chain(number % CHAINS);
    index.store(&format!("w{}", number % WORKERS), 0, Tier::Gpu, None, &names, &contents).expect("equal lengths");
}

fn remove(index: &BlockIndex, number: u64) {
    let (mut names, _) = chain(number % CHAINS);
    names.reverse();
    index.remove(&format!("w{}", number % WORKERS), 0, Tier::Gpu, &names);
}

/// Lookups and events a second, in millions and thousands, with `readers` readers.
fn run(
    readers: usize,
    writing: bool,
    guarded: &(impl Fn(&dyn Fn()) + Sync),
    exclusive: &(impl Fn(&dyn Fn()) + Sync),
) -> (f64, f64) {
    let index = &BlockIndex::new(Config::default()).expect("a good size");
    (0..CHAINS).for_each(|number| store(index, number));
    let queries: &Vec<_> = &(0..CHAINS).map(|number| chain(number).1).collect();
    let (stop, events) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let start = Instant::now();
    let lookups: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..readers)
            .map(|reader| {
                scope.spawn(move || {
                    let mut n = reader as u64 * 7;
                    while !stop.load(Ordering::Relaxed) {
                        guarded(&|| {
                            black_box(index.find(&queries[(n % CHAINS) as usize]).depth(View::Device));
                        });
                        n += 13;
                    }
                    (n - reader as u64 * 7) / 13
                })
            })
            .collect();
        if writing {
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    exclusive(&|| remove(index, n));
                    exclusive(&|| store(index, n));
                    n += 1;
                    events.store(2 * n, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(Duration::from_millis(700));
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("does not panic")).sum()
    });
    let seconds = start.elapsed().as_secs_f64();
    (lookups as f64 / seconds / 1e6, events.load(Ordering::Relaxed) as f64 / seconds / 1e3)
}

/// Millions of calls a second of `threads` threads, best of 5.
fn rate(threads: usize, call: &(impl Fn() + Sync)) -> f64 {
    let once = || {
        let (stop, start) = (&AtomicBool::new(false), Instant::now());
        let calls: u64 = thread::scope(|scope| {
            let count = || {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    (0..64).for_each(|_| call());
                    calls += 64;
                }
                calls
            };
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
            thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            running.into_iter().map(|thread| thread.join().expect("does not panic")).sum()
        });
        calls as f64 / start.elapsed().as_secs_f64() / 1e6
    };
    (0..5).map(|_| once()).fold(0.0, f64::max)
}

/// Measures the cost of the scores of `workers` workers that all hold one system prompt, and every tenth two blocks more.
fn scores(workers: u64) {
    let index = BlockIndex::new(Config::default()).expect("a good size");
    let (names, contents) = chain(1);
    for number in 0..workers {
        let blocks = if number.is_multiple_of(10) { 10 } else { 8 };
        let (names, contents) = (&names[..blocks], &contents[..blocks]);
        index.store(&format!("w{number}"), 0, Tier::Gpu, None, names, contents).expect("equal lengths");
    }
    let into = || {
        thread_local!(static BUFFER: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            index.find(&contents).scores_into(View::Device, buffer);
            black_box(buffer);
        });
    };
    let borrowed = || drop(black_box(index.find(&contents).scores(View::Device)));
    let kept = || drop(black_box(index.find(&contents).to_owned()));
    let line = |what: &str, one: f64, two: f64| {
        eprintln!("{workers} workers, {what}: {:.0} ns, two threads {:.2} times one", 1e3 / one, two / one);
    };
    line("scores_into", rate(1, &into), rate(2, &into));
    line("scores", rate(1, &borrowed), rate(2, &borrowed));
    line("to_owned", rate(1, &kept), rate(2, &kept));
}

fn main() {
    scores(32);
    scores(1_000);
    let lock = &RwLock::new(());
    let counted = &Arc::new(());
    let plain = |f: &dyn Fn()| f();
    let shared = |f: &dyn Fn()| {
        let _guard = lock.read().expect("not poisoned");
        f();
    };
    let exclusive = |f: &dyn Fn()| {
        let _guard = lock.write().expect("not poisoned");
        f();
    };
    let reference = |f: &dyn Fn()| {
        let _held = black_box(Arc::clone(counted));
        f();
    };
    eprintln!("million lookups a second (thousand events a second), best of 3");
    for (readers, writing) in [(1, false), (2, false), (4, false), (1, true), (2, true)] {
        let best = |run: &dyn Fn() -> (f64, f64)| {
            (0..3).map(|_| run()).fold((0.0, 0.0), |best: (f64, f64), now| (best.0.max(now.0), best.1.max(now.1)))
        };
        let ours = best(&|| run(readers, writing, &plain, &plain));
        let locked = best(&|| run(readers, writing, &shared, &exclusive));
        let arc = best(&|| run(readers, writing, &reference, &plain));
        eprintln!(
            "{readers} readers, writer {}: counters {:.1} ({:.0}), one read-write lock {:.1} ({:.0}), one reference count more {:.1} ({:.0})",
            if writing { "flat out" } else { "idle" },
            ours.0,
            ours.1,
            locked.0,
            locked.1,
            arc.0,
            arc.1
        );
    }
}
