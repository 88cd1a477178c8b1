//! Interface of an index under test, and a thread that applies events in the order in which they were sent, for indexes
//! without their own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use parking_lot::Mutex;
use serde::Serialize;

use crate::error::Error;

/// Counts reported by an index after a load test; `None` for what the index does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of refused stores, mostly because of an unknown parent.
    pub refused_stores: Option<u64>,
    /// Number of removals of blocks that were not held.
    pub unknown_removals: Option<u64>,
    /// Number of messages between the parts of a design with several parts.
    pub messages: Option<u64>,
    /// Number of known workers.
    pub workers: Option<u64>,
    /// Number of pairs of a worker and a held block.
    pub blocks: Option<u64>,
    /// Number of entries of the design's own kind: nodes, keys or positions.
    pub entries: Option<u64>,
    /// Number of calls of the index that failed and should not fail (exceptions of an index written in Python).
    pub errors: u64,
    /// Error message of the first call of the index that failed; `None` if none did.
    pub first_error: Option<String>,
}

/// An index under test.
///
/// Messages and queries are created before the clock starts, each in separate memory, like those of a decoder. The
/// index's own work is timed: moving a message into its queue, freeing it, finding, and freeing the answer.
pub trait Subject: Send + Sync + 'static {
    /// Form in which the index accepts an event.
    type Message: Send + 'static;
    /// Form in which the index accepts a query.
    type Query: Send + Sync + 'static;
    /// State that a query thread keeps between lookups, such as a buffer for answers.
    type Lane: Send + 'static;

    /// Converts an event to the form in which the index accepts it; not timed.
    fn message(&self, change: Change) -> Self::Message;
    /// Converts a query to the form in which the index accepts it; not timed.
    fn query(&self, contents: &[u64]) -> Self::Query;
    /// Creates the state that a new query thread keeps between its lookups.
    fn lane(&self) -> Self::Lane;
    /// Sends an event to the index, without waiting for it to be applied.
    fn send(&self, message: Self::Message);
    /// Number of events applied so far, including refused ones. The number may lag behind, but not run ahead by more
    /// than the events being applied at the moment.
    fn applied(&self) -> u64;
    /// Waits until all earlier events have been applied. Called after [`applied`](Self::applied) has reached the number
    /// of events sent.
    fn flush(&self);
    /// Runs a query once, which is timed. The answer is created, and freed or kept for the next lookup to overwrite.
    fn lookup(&self, lane: &mut Self::Lane, query: &Self::Query);
    /// Replaces `scores` by the index's answer to a query; not timed, after a flush.
    ///
    /// # Errors
    /// The index's error message, if it gave no answer.
    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String>;
    /// All pairs of a worker and a held block, in any order, after a flush; `None` if the index cannot list them.
    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>>;
    /// Counts reported by the index, such as refused stores, after a flush.
    fn counts(&self) -> Counts;
    /// Gives up the load test: queued events need not be applied. Lookups may still be running.
    fn give_up(&self) {}
}

/// A thread that applies events, its channel, and its progress. Dropping it applies the queued events and ends the
/// thread.
pub struct EventThread<M> {
    /// Channel that takes events to the thread; `None` only while dropping.
    queue: Option<Sender<M>>,
    sent: AtomicU64,
    progress: Arc<Progress>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Progress {
    applied: AtomicU64,
    given_up: AtomicBool,
}

impl<M: Send + 'static> EventThread<M> {
    /// Starts the thread. `apply`: applies an event and must not panic, since later events would never be applied.
    ///
    /// # Errors
    /// [`Error::Index`] if the system cannot start a thread.
    pub fn new(name: &str, mut apply: impl FnMut(M) + Send + 'static) -> Result<Self, Error> {
        let (queue, received) = channel();
        let progress = Arc::new(Progress::default());
        let work = {
            let progress = Arc::clone(&progress);
            move || {
                for message in received {
                    if progress.given_up.load(Ordering::Relaxed) {
                        return;
                    }
                    apply(message);
                    // The only writer.
                    progress.applied.store(progress.applied.load(Ordering::Relaxed) + 1, Ordering::Release);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::Index(format!("no event thread: {error}")))?;
        Ok(Self { queue: Some(queue), sent: AtomicU64::new(0), progress, thread: Mutex::new(Some(thread)) })
    }
}

impl<M> EventThread<M> {
    /// Sends an event to the thread and returns at once.
    pub fn send(&self, message: M) {
        if let Some(queue) = &self.queue {
            // Only a panic ends the thread early; its events are then never applied, which is reported.
            let _ = queue.send(message);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of events that the thread has applied so far.
    pub fn applied(&self) -> u64 {
        self.progress.applied.load(Ordering::Acquire)
    }

    /// Waits until all events sent before have been applied, or the load test was given up.
    pub fn flush(&self) {
        while self.applied() < self.sent.load(Ordering::Relaxed) && !self.progress.given_up.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Gives up the load test: events that are still queued are never applied.
    pub fn give_up(&self) {
        self.progress.given_up.store(true, Ordering::Relaxed);
    }
}

impl<M> Drop for EventThread<M> {
    fn drop(&mut self) {
        self.queue = None;
        let thread = self.thread.get_mut().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_applied_in_order_and_counted() {
        let (told, applied) = channel();
        let thread = EventThread::new("events", move |number: u32| told.send(number).unwrap()).unwrap();
        (0..100).for_each(|number| thread.send(number));
        thread.flush();
        assert_eq!(thread.applied(), 100);
        drop(thread);
        assert_eq!(applied.into_iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn given_up_it_applies_no_more_and_keeps_nobody_waiting() {
        let (go, wait) = channel::<()>();
        let thread = EventThread::new("events", move |()| wait.recv().unwrap()).unwrap();
        (0..3).for_each(|_| thread.send(()));
        thread.give_up();
        go.send(()).unwrap();
        thread.flush();
        drop(thread);
    }
}
