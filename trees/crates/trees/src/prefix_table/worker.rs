//! The background thread that evicts expired prefixes.
//!
//! It has only a weak reference to the table and waits on a signal of its own, so it keeps nothing alive and ends at
//! once when it is stopped or the table is dropped.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::error::Error;

#[derive(Debug)]
pub(super) struct Worker {
    signal: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<(JoinHandle<()>, u32)>>,
}

impl Worker {
    /// Calls a function on `target` at intervals, until the target is dropped or [`Self::stop`] is called.
    pub(super) fn start<T: Send + Sync + 'static>(
        target: Weak<T>,
        interval: Duration,
        work: impl Fn(&T) + Send + 'static,
    ) -> Result<Self, Error> {
        let signal = Arc::new((Mutex::new(false), Condvar::new()));
        let told = signal.clone();
        let thread = Builder::new().name("kvatlas-evict".to_owned()).spawn(move || {
            let (stop, condition) = &*told;
            loop {
                let stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = condition.wait_timeout_while(stopped, interval, |stopped| !*stopped);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
                let Some(target) = target.upgrade() else { return };
                work(&target);
            }
        });
        let thread = thread.map_err(|why| Error::Thread { why: why.to_string() })?;
        Ok(Self { signal, thread: Mutex::new(Some((thread, std::process::id()))) })
    }

    /// Stops the thread and waits for its end. Stopping again has no effect.
    pub(super) fn stop(&self) {
        *self.signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.1.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, process)) = thread {
            // After a fork the thread exists only in the parent: there is nothing to wait for.
            if process == std::process::id() {
                // A panic of the thread is not reported here: the table's own locks report it.
                _ = thread.join();
            }
        }
    }

    /// True if the thread was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        *self.signal.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}
