//! Measurement of the longest time for which a reader of an index's sizes or contents blocks its writers, at 10 million
//! blocks.
//!
//! `cargo run --release -p kvatlas-bench --example longest_hold [BLOCKS]`. Each line shows the largest processor time
//! of one call, which holds the writer's lock for nearly all of the time. Processor time is measured, because under
//! other load the longest wall time belongs to a thread that waited for a core.
#![allow(clippy::print_stdout, reason = "a program")]

use std::time::Duration;

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier};
use rustix::time::{ClockId, clock_gettime};

/// Processor time used by the calling thread so far.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = clock();
    let result = work();
    (clock() - start, result)
}

/// Creates an index with chains of 16 blocks, distributed over workers. Each chain shares its first four blocks with 15
/// others.
fn fill(blocks: u64, workers: u64) -> BlockIndex {
    let index = BlockIndex::new(Config::default()).expect("a good size");
    for chain in 0..blocks / 16 {
        let block = |at: u64| if at < 4 { (chain / 16 + 1) << 8 | at } else { (chain + 1) << 8 | at | 1 << 48 };
        let names: Vec<_> = (0..16).map(|at| BlockHash(block(at))).collect();
        let contents: Vec<_> = (0..16).map(|at| block(at) ^ 0x5555).collect();
        let worker = format!("w{}", chain / 16 % workers);
        index.store(&worker, 0, Tier::Gpu, None, &names, &contents).expect("equal lengths");
    }
    index
}

fn longest<T>(calls: usize, mut work: impl FnMut() -> T) -> Duration {
    (0..calls).map(|_| timed(&mut work).0).max().unwrap_or_default()
}

fn main() {
    let blocks = std::env::args().nth(1).map_or(10_000_000, |text| text.parse().expect("a number of blocks"));
    for workers in [1_000, 1] {
        let index = fill(blocks, workers);
        let stats = index.stats();
        println!("{workers} workers, {} blocks in {} runs", stats.blocks, stats.runs);
        println!("  stats()                {:>12.3?}", longest(20, || index.stats()));
        println!("  ranks()                {:>12.3?}", longest(20, || index.ranks()));
        let mut dump = index.dump_in_slices(BlockIndex::SLICE);
        let (mut most, mut slices, mut last) = (Duration::ZERO, 0, Duration::ZERO);
        loop {
            let (took, events) = timed(|| dump.next());
            let Some(events) = events else { break };
            slices += 1;
            // The beginning of a large rank sorts a list, and its end converts it to events, both without the lock.
            if workers == 1 && (slices == 1 || !events.is_empty()) { last += took } else { most = most.max(took) }
        }
        println!("  dump_in_slices()       {most:>12.3?}  the longest of {slices} slices");
        if !last.is_zero() {
            println!("    its beginning and end{last:>12.3?}  nearly all of it without the lock");
        }
        // Last, because its frees slow down later allocations.
        println!("  dump(), at once        {:>12.3?}", longest(1, || index.dump()));
    }
}
