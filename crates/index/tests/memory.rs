//! Memory goes back when blocks go, and churn does not gather any. Measured by counting what is allocated.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier};

struct CountingAllocator;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// A chain of its own for each number; those of one family share their first 10 blocks.
fn chain(number: u64, length: u64) -> (Vec<BlockHash>, Vec<u64>) {
    let block = |i: u64| if i < 10 { (number % 8) << 32 | i } else { (number + 100) << 32 | i };
    ((0..length).map(|i| BlockHash(block(i) + 1)).collect(), (0..length).map(|i| block(i) ^ 0xabcd).collect())
}

fn store(index: &BlockIndex, worker: u64, number: u64, own_names: bool) {
    let (mut names, contents) = chain(number, 40);
    if own_names {
        names.iter_mut().for_each(|name| name.0 ^= worker << 56);
    }
    index.store(&format!("w{worker}"), 0, Tier::Gpu, None, &names, &contents).unwrap();
}

fn remove(index: &BlockIndex, worker: u64, number: u64, own_names: bool) {
    let (mut names, _) = chain(number, 40);
    if own_names {
        names.iter_mut().for_each(|name| name.0 ^= worker << 56);
    }
    names.reverse();
    index.remove(&format!("w{worker}"), 0, Tier::Gpu, &names);
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn memory_goes_back_when_blocks_go() {
    for own_names in [false, true] {
        for workers in [3, 100] {
            let index = BlockIndex::new(Config::default()).unwrap();
            let empty = live();
            for worker in 0..workers {
                (0..600).for_each(|number| store(&index, worker, number, own_names));
            }
            let full = live() - empty;
            let said = index.stats().bytes as isize;
            assert!((said - full).abs() < full / 10 + 20_000, "says {said}, has {full}");

            // Removed block by block, the workers stay known.
            for worker in 0..workers {
                (0..600).for_each(|number| remove(&index, worker, number, own_names));
            }
            assert_eq!(index.stats().blocks, 0);
            let left = live() - empty;
            assert!(left < 20_000 + workers as isize * 730, "{left} left of {full} with {workers} workers");

            // As small as new without the workers, however they went.
            for worker in 0..workers {
                (0..600).for_each(|number| store(&index, worker, number, own_names));
                if worker % 2 == 0 {
                    index.clear(&format!("w{worker}"), None, None);
                }
            }
            (0..workers).for_each(|worker| index.drop_worker(&format!("w{worker}")));
            index.settle();
            let left = live() - empty;
            assert!(index.stats().blocks == 0 && left < 20_000, "{left} left of {full}");
        }
    }

    // A window of 600 chains slides over 30,000.
    let index = BlockIndex::new(Config::default()).unwrap();
    let empty = live();
    let mut peak_of_first = 0;
    for number in 0..30_000 {
        store(&index, number % 5, number, false);
        if number >= 600 {
            remove(&index, (number - 600) % 5, number - 600, false);
        }
        if number < 3_000 {
            peak_of_first = peak_of_first.max(live() - empty);
        } else {
            assert!(live() - empty < peak_of_first * 11 / 10, "grows under churn at {number}");
        }
    }
}
