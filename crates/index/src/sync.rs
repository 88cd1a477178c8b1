//! Atomic types of this crate: the standard library's, or loom's when its model checker runs the tests (`--cfg loom`).
//! The tests depend on the library as well, which has the standard library's in any case.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Small number of the current thread, assigned on first use, by which threads are spread over several counters.
#[cfg(not(all(test, loom)))]
#[inline]
pub(crate) fn stripe_of_thread() -> usize {
    use std::cell::Cell;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) });
    STRIPE
        .try_with(|stripe| match stripe.get() {
            usize::MAX => {
                let mine = NEXT.fetch_add(1, Ordering::Relaxed);
                stripe.set(mine);
                mine
            }
            mine => mine,
        })
        // A thread that is ending has lost its number; any stripe is right, if not its own.
        .unwrap_or(0)
}

/// Number of the current thread, by which threads are spread over several counters. Under the model checker it is
/// always 0, so that all threads share a counter, which is the harder case.
#[cfg(all(test, loom))]
pub(crate) fn stripe_of_thread() -> usize {
    0
}
