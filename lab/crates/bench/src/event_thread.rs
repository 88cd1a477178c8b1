//! A thread that applies events in the order in which they were sent, for indexes without threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::Error;

/// A thread that applies events, its channel, and its progress. Dropping it applies the rest and ends the thread.
pub struct EventThread<M> {
    /// The channel to the thread, `None` only while dropping.
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
    /// Starts the thread. `apply` must not panic: later events would never be applied.
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
    /// Sends an event and returns at once.
    pub fn send(&self, message: M) {
        if let Some(queue) = &self.queue {
            // Only a panic ends the thread early; its events are then never applied, which is reported.
            let _ = queue.send(message);
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of events applied so far.
    pub fn applied(&self) -> u64 {
        self.progress.applied.load(Ordering::Acquire)
    }

    /// Returns once all earlier events have been applied, or the run was given up.
    pub fn flush(&self) {
        while self.applied() < self.sent.load(Ordering::Relaxed) && !self.progress.given_up.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Gives up the run: events that are still queued are never applied.
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
