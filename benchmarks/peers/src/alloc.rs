//! A counting allocator: bytes asked for and not yet given back, and their peak.
//!
//! Counting is off while anything is timed: then it costs one read and a branch for each call, the same for
//! everyone. What is counted is what was asked for, on every thread; what the system allocator adds to it is not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

pub struct CountingAllocator;

static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// Gives free memory back to the system. An index that begins in memory that the one before it has left pays nothing for
/// writing to it for the first time, which is a quarter of some stores; one whose turn comes after an index that freed its
/// memory on other threads does.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it asks for nothing, and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[inline]
fn count(change: i64) {
    if ON.load(Relaxed) {
        let live = LIVE.fetch_add(change, Relaxed) + change;
        if change > 0 {
            PEAK.fetch_max(live, Relaxed);
        }
    }
}

// SAFETY: every call is passed on unchanged to the system allocator; the counters are beside it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Starts counting from zero.
pub fn start() {
    LIVE.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ON.store(true, Relaxed);
}

/// Bytes allocated since [`start`] and not freed.
pub fn live() -> i64 {
    LIVE.load(Relaxed)
}

/// The most [`live`] has been.
pub fn peak() -> i64 {
    PEAK.load(Relaxed)
}

pub fn stop() {
    ON.store(false, Relaxed);
}
