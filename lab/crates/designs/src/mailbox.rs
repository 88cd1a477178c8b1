//! A queue of changes for the thread that applies them, and the assignment of workers to threads, in turn on first use
//! and never changed.
//!
//! The queue is a vector under a mutex: senders push, the thread removes all changes at once and leaves an empty
//! vector. A change costs its sender one short lock, and the thread one lock for all changes that have arrived
//! meanwhile. A backlog is kept in vectors of [`PAGE`] changes, so that no sender ever waits for a large one to be
//! moved. The queue is unbounded.
//!
//! Waking a thread costs the waker some microseconds, twenty times a change. An idle thread therefore polls for a
//! moment, yielding to others, before it sleeps; only a sleeping thread is woken.
//!
//! An actor's queries come the same way in a separate list ([`Job`]). They run between two changes, so that a reader
//! waits for one change and not for the whole queue.
//!
//! Senders look up a worker's thread for each change, from several threads at once, so the assignment is a lock-free
//! array of atomics by worker number, in pages that double.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_utils::{Backoff, CachePadded};

use crate::interface::{Change, WorkerId};

/// Number of changes in each full vector of the queue.
const PAGE: usize = 1024;

/// A query, as a function that the thread that owns the index runs between two changes.
pub(super) type Job<T> = Box<dyn FnOnce(&T) + Send>;

/// Queue of changes and queries for the thread that owns a `T`.
pub(super) struct Mailbox<T> {
    queue: Mutex<Queue<T>>,
    /// Condition variable that wakes the thread that owns the index when changes or queries arrive.
    filled: Condvar,
    /// Condition variable that wakes callers of `flush` when the thread has applied the changes that it removed from
    /// the queue.
    emptied: Condvar,
    /// Number of changes applied so far, written only by the thread that owns the index.
    applied: CachePadded<AtomicU64>,
    jobs: CachePadded<AtomicUsize>,
    closed: AtomicBool,
    /// True if changes or queries are queued, so that the index's thread can check without the lock.
    any: AtomicBool,
}

struct Queue<T> {
    /// Full vectors of queued changes, oldest first.
    pages: Vec<Vec<Change>>,
    /// Newest queued changes, which follow those in the full vectors.
    changes: Vec<Change>,
    jobs: Vec<Job<T>>,
    sent: u64,
    sleeping: bool,
    flushing: usize,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                pages: Vec::new(),
                changes: Vec::new(),
                jobs: Vec::new(),
                sent: 0,
                sleeping: false,
                flushing: 0,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            applied: CachePadded::new(AtomicU64::new(0)),
            jobs: CachePadded::new(AtomicUsize::new(0)),
            closed: AtomicBool::new(false),
            any: AtomicBool::new(false),
        }
    }

    // No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a change to the thread that owns the index.
    pub(super) fn send(&self, change: Change) {
        let mut queue = self.lock();
        if queue.changes.len() == PAGE {
            let page = std::mem::replace(&mut queue.changes, Vec::with_capacity(PAGE));
            queue.pages.push(page);
        }
        queue.changes.push(change);
        queue.sent += 1;
        self.wake(queue);
    }

    /// Sends a query to the thread that owns the index. The query is dropped if the thread was told to end, that is,
    /// its queue is closed.
    pub(super) fn ask(&self, job: Job<T>) {
        let mut queue = self.lock();
        queue.jobs.push(job);
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.wake(queue);
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue<T>>) {
        let sleeps = std::mem::take(&mut queue.sleeping);
        self.any.store(true, Ordering::Relaxed);
        drop(queue);
        if sleeps {
            self.filled.notify_one();
        }
    }

    /// Number of changes that the thread that owns the index has applied so far.
    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Waits until all changes sent before are applied.
    pub(super) fn flush(&self) {
        let mut queue = self.lock();
        let sent = queue.sent;
        while self.applied() < sent {
            queue.flushing += 1;
            queue = self.emptied.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.flushing -= 1;
        }
    }

    /// Tells the thread that owns the index to end after its current change; later changes and queries are discarded.
    pub(super) fn close(&self) {
        let queue = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        self.wake(queue);
    }

    /// Main loop of the thread that owns the index `design`: applies changes with `apply` and runs queries, until the
    /// queue is closed.
    pub(super) fn serve(&self, design: &mut T, mut apply: impl FnMut(&mut T, &Change)) {
        let mut pages = Vec::new();
        let mut changes = Vec::new();
        let mut jobs = Vec::new();
        let mut applied = 0;
        while self.take(&mut pages, &mut changes, &mut jobs) {
            self.work_off(&mut jobs, design);
            for page in pages.iter_mut().chain([&mut changes]) {
                for change in page.drain(..) {
                    apply(design, &change);
                    applied += 1;
                    self.applied.store(applied, Ordering::Release);
                    // The change is freed here, on the thread that has time for it.
                    drop(change);
                    if self.jobs.load(Ordering::Relaxed) > 0 {
                        jobs.append(&mut self.lock().jobs);
                        self.work_off(&mut jobs, design);
                    }
                    if self.closed.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
            pages.clear();
        }
    }

    fn work_off(&self, jobs: &mut Vec<Job<T>>, design: &T) {
        for job in jobs.drain(..) {
            self.jobs.fetch_sub(1, Ordering::Relaxed);
            job(design);
        }
    }

    /// Waits for changes or queries, and moves them from the queue into the given empty vectors. Returns false once the
    /// queue is closed.
    fn take(&self, pages: &mut Vec<Vec<Change>>, changes: &mut Vec<Change>, jobs: &mut Vec<Job<T>>) -> bool {
        let mut queue = self.lock();
        if queue.flushing > 0 {
            self.emptied.notify_all();
        }
        if queue.is_empty() {
            drop(queue);
            let moment = Backoff::new();
            while !self.any.load(Ordering::Relaxed) && !moment.is_completed() {
                moment.snooze();
            }
            queue = self.lock();
        }
        while queue.is_empty() {
            if self.closed.load(Ordering::Relaxed) {
                return false;
            }
            queue.sleeping = true;
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.sleeping = false;
        self.any.store(false, Ordering::Relaxed);
        std::mem::swap(&mut queue.pages, pages);
        std::mem::swap(&mut queue.changes, changes);
        jobs.append(&mut queue.jobs);
        !self.closed.load(Ordering::Relaxed)
    }
}

impl<T> Queue<T> {
    fn is_empty(&self) -> bool {
        // A full page is closed by the next change.
        self.changes.is_empty() && self.jobs.is_empty()
    }
}

/// Message of the first panic that occurred while a change was applied.
#[derive(Debug, Default)]
pub(super) struct PanicMessage(OnceLock<String>);

impl PanicMessage {
    /// Runs `work`, which applies `change`. A panic is caught, and the message of the first panic is stored.
    pub(super) fn catch(&self, change: &Change, work: impl FnOnce()) {
        // The design may be left half changed, which `broken` reports.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.0.get_or_init(|| format!("a change of worker {} panicked: {}", change.worker(), words(&*panic)));
        }
    }

    pub(super) fn message(&self) -> Option<String> {
        self.0.get().cloned()
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Worker number from which on a worker's thread is computed from the number instead of stored, so that a single very
/// large number does not cost gigabytes.
const DEALT: u32 = 1 << 22;
const PAGES: usize = DEALT.ilog2() as usize;

#[derive(Debug)]
pub(super) struct StickyThreads {
    count: usize,
    dealt: AtomicUsize,
    /// Thread of each worker: page p has workers 2^p - 1 to 2^(p+1) - 2; each entry is the thread's number plus 1, or 0
    /// if unassigned.
    pages: [OnceLock<Box<[AtomicU32]>>; PAGES],
}

impl StickyThreads {
    /// Creates an empty assignment of workers to `count` threads.
    pub(super) fn new(count: usize) -> Self {
        Self { count, dealt: AtomicUsize::new(0), pages: [const { OnceLock::new() }; PAGES] }
    }

    #[inline]
    pub(super) fn of(&self, worker: WorkerId) -> usize {
        if self.count == 1 {
            return 0;
        }
        if worker >= DEALT - 1 {
            return worker as usize % self.count;
        }
        let page = (worker + 1).ilog2();
        let entries = self.pages[page as usize].get_or_init(|| (0..1 << page).map(|_| AtomicU32::new(0)).collect());
        let entry = &entries[(worker + 1 - (1 << page)) as usize];
        match entry.load(Ordering::Relaxed) {
            0 => self.deal(entry),
            home => home as usize - 1,
        }
    }

    #[cold]
    fn deal(&self, entry: &AtomicU32) -> usize {
        let next = self.dealt.fetch_add(1, Ordering::Relaxed) % self.count;
        match entry.compare_exchange(0, next as u32 + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            // Another sender was first.
            Err(home) => home as usize - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_dealt_in_turn_and_kept() {
        let sticky = StickyThreads::new(3);
        let workers = [0, 5, 1, 2, 1_000_000, DEALT - 2];
        let first: Vec<_> = workers.iter().map(|&worker| sticky.of(worker)).collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2]);
        let again: Vec<_> = workers.iter().rev().map(|&worker| sticky.of(worker)).collect();
        assert!(again.iter().rev().eq(&first));
        assert_eq!(sticky.of(u32::MAX), u32::MAX as usize % 3);
        assert_eq!(StickyThreads::new(1).of(77), 0);
    }
}
