//! The thread that evicts what is too old.
//!
//! It knows the table only weakly and waits on a signal of its own, so it keeps nothing alive and ends at once when
//! it is told to or when the table goes.

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
    /// Does something to `target` again and again until the target is gone or [`Self::stop`] is called.
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

    /// Ends the thread and waits for its end. Stopping again does nothing.
    pub(super) fn stop(&self) {
        *self.signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.1.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, process)) = thread {
            // After a fork the thread is only in the parent: there would be nothing to wait for.
            if process == std::process::id() {
                // It says nothing when it ends, not even that it panicked: what it works on must do that.
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
