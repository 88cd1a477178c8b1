//! A pool of event threads with a fixed thread for each worker, which feeds any [`ConcurrentDesign`].
//!
//! Each worker belongs to one thread for life, so its changes are applied in order without a lock of its own, and
//! changes of different workers in parallel. Senders never wait: queues are unbounded. Lookups run on the caller's
//! thread, in parallel with changes.
//!
//! A change that panics does not end its thread. It counts as applied, [`Feed::broken`] returns its message from then
//! on, and later changes are applied as far as the design allows: stopping would make every later answer wrong instead
//! of perhaps one, and would block a flush for ever.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::interface::{Change, ConcurrentDesign, Feed, LadderStats, Scores, WorkerId};
use crate::mailbox::{Mailbox, PanicMessage, StickyThreads};
use kvatlas_index::BlockHash;

/// A concurrent index with threads that apply its events. Dropping the pool ends the threads; unapplied changes are
/// lost.
pub struct EventPool<I: ConcurrentDesign> {
    shared: Arc<PoolState<I>>,
    threads: Vec<JoinHandle<()>>,
}

struct PoolState<I> {
    index: I,
    sticky: StickyThreads,
    boxes: Box<[Mailbox<()>]>,
    broken: PanicMessage,
}

impl<I: ConcurrentDesign> EventPool<I> {
    /// Starts `threads` event threads, at least one.
    ///
    /// # Panics
    /// If the system starts no more threads, as [`std::thread::spawn`] does.
    #[must_use]
    pub fn new(index: I, threads: usize) -> Self {
        Self::try_new(index, threads).expect("the system starts threads")
    }

    /// Starts event threads like [`new`](Self::new), but returns the system's error instead of panicking.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn try_new(index: I, threads: usize) -> io::Result<Self> {
        let count = threads.max(1);
        let boxes = (0..count).map(|_| Mailbox::new()).collect();
        let shared =
            Arc::new(PoolState { index, sticky: StickyThreads::new(count), boxes, broken: PanicMessage::default() });
        // If a thread cannot be started, the pool is dropped with those that it has.
        let mut pool = Self { shared, threads: Vec::with_capacity(count) };
        for number in 0..count {
            let shared = pool.shared.clone();
            let thread = Builder::new().name(format!("kv-events-{number}"));
            pool.threads.push(thread.spawn(move || shared.work(number))?);
        }
        Ok(pool)
    }

    /// The index to which the pool's threads apply events.
    #[must_use]
    pub fn index(&self) -> &I {
        &self.shared.index
    }
}

impl<I: ConcurrentDesign> PoolState<I> {
    fn work(&self, number: usize) {
        self.boxes[number].serve(&mut (), |(), change| {
            self.broken.catch(change, || {
                // The design counts its refusals.
                let _ = self.index.apply(change);
            });
        });
    }
}

impl<I: ConcurrentDesign> Feed for EventPool<I> {
    fn send(&self, change: Change) {
        self.shared.boxes[self.shared.sticky.of(change.worker())].send(change);
    }

    fn applied(&self) -> u64 {
        self.shared.boxes.iter().map(Mailbox::applied).sum()
    }

    fn flush(&self) {
        self.shared.boxes.iter().for_each(Mailbox::flush);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        self.shared.index.find(content_hashes, scores);
    }

    fn answer(&self, content_hashes: &[u64], scores: &mut Scores) -> u32 {
        self.shared.index.answer(content_hashes, scores)
    }

    fn broken(&self) -> Option<String> {
        self.shared.broken.message()
    }

    fn stats(&self) -> LadderStats {
        self.flush();
        self.shared.index.stats()
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.flush();
        self.shared.index.holdings()
    }
}

impl<I: ConcurrentDesign> Drop for EventPool<I> {
    fn drop(&mut self) {
        self.shared.boxes.iter().for_each(Mailbox::close);
        for thread in self.threads.drain(..) {
            // A thread catches the panics of the design; its own would have been reported before.
            let _ = thread.join();
        }
    }
}
