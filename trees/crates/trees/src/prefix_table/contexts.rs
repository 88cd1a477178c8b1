//! Contexts of a prefix table (one for each model and LoRA adapter), their locks, and the background thread that evicts
//! expired prefixes from them.
//!
//! The thread has only a weak reference to the contexts and waits on a separate signal, so it keeps nothing alive and
//! ends at once when stopped or when the table is dropped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use hashbrown::{Equivalent, HashMap};

use super::config::{Config, Error};
use super::context::Context;
use super::context_change::Rules;

/// Unit of the times stored in the prefix table: a tenth of a second. Stored times suffice for 13 years from the
/// table's creation.
const TICK: Duration = Duration::from_millis(100);

/// Key of a context, the part of the table for one model and LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelContext {
    /// Name of the model.
    pub model: Box<str>,
    /// Number of the LoRA adapter, -1 for none.
    pub lora_id: i64,
}

/// Key of a context, a [`ModelContext`] (model and LoRA adapter) with a borrowed name.
#[derive(Hash)]
pub(super) struct Key<'a> {
    pub(super) model: &'a str,
    pub(super) lora_id: i64,
}

impl Equivalent<ModelContext> for Key<'_> {
    fn equivalent(&self, key: &ModelContext) -> bool {
        self.lora_id == key.lora_id && *self.model == *key.model
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) unknown_parents: AtomicU64,
    pub(super) unknown_removals: AtomicU64,
    pub(super) evicted_by_age: AtomicU64,
    pub(super) evicted_by_limit: AtomicU64,
    pub(super) evicted_contexts: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: usize) {
    if by > 0 {
        counter.fetch_add(by as u64, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct SharedContext {
    used: AtomicU32,
    context: RwLock<Context>,
}

impl SharedContext {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Context> {
        self.context.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Context> {
        self.context.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the context (prefixes of one model and adapter) is used at the time `now`. Writes only a changed
    /// time, since every lookup of the model calls this.
    pub(super) fn use_now(&self, now: u32) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }
}

pub(super) type Contexts = HashMap<ModelContext, SharedContext>;

/// A prefix table without its background thread.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) start: Instant,
    /// Time by which a test has advanced the clock, in tenths of a second.
    #[cfg(test)]
    pub(super) later: AtomicU32,
    /// Contexts (the prefixes of one model and adapter each) by model and adapter. Every use of a context holds the
    /// read lock, so that no context is removed while it is changed.
    pub(super) contexts: RwLock<Contexts>,
    pub(super) counters: Counters,
}

impl Inner {
    /// Creates a prefix table without contexts (which are added for each model and adapter).
    pub(super) fn new(config: Config, seed: u64) -> Self {
        Self {
            seed,
            config,
            start: Instant::now(),
            #[cfg(test)]
            later: AtomicU32::new(0),
            contexts: RwLock::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn now(&self) -> u32 {
        let ticks = self.start.elapsed().as_millis() / TICK.as_millis();
        #[cfg(test)]
        let ticks = ticks + u128::from(self.later.load(Ordering::Relaxed));
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Contexts> {
        self.contexts.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Contexts> {
        self.contexts.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the context of a model and adapter by a function, and returns the function's result. A missing context
    /// is created if `create`; else the result is `None`.
    pub(super) fn write<T>(
        &self,
        model: &str,
        lora_id: i64,
        create: bool,
        change: impl FnOnce(&mut Context, u32, Rules) -> T,
    ) -> Option<T> {
        let key = Key { model, lora_id };
        let Config { block_size, max_prefixes_per_context: max_prefixes, .. } = self.config;
        loop {
            let now = self.now();
            let contexts = self.read();
            if let Some(shared) = contexts.get(&key) {
                shared.use_now(now);
                let rules = Rules { seed: self.seed, block_size, max_prefixes };
                return Some(change(&mut shared.write(), now, rules));
            }
            drop(contexts);
            if !create {
                return None;
            }
            // Found on the next turn, unless other new contexts evict it before.
            drop(self.create(&key, now));
        }
    }

    /// Creates a context (for one model and adapter), and evicts the least recently used context if there are too many;
    /// returns the evicted one. O(contexts).
    fn create(&self, key: &Key<'_>, now: u32) -> Option<(ModelContext, SharedContext)> {
        let mut contexts = self.exclusive();
        if contexts.contains_key(key) {
            return None;
        }
        let mut gone = None;
        if contexts.len() >= self.config.max_contexts {
            let oldest = contexts.iter().min_by_key(|(_, shared)| shared.used.load(Ordering::Relaxed));
            let oldest = oldest.map(|(key, _)| key.clone());
            gone = oldest.and_then(|oldest| contexts.remove_entry(&oldest));
            count(&self.counters.evicted_contexts, 1);
        }
        let shared = SharedContext { used: AtomicU32::new(now), context: RwLock::new(Context::new()) };
        contexts.insert(ModelContext { model: key.model.into(), lora_id: key.lora_id }, shared);
        gone
    }

    /// Removes the contexts (of a model and adapter) that have no prefixes.
    pub(super) fn drop_empty(&self) {
        let mut contexts = self.exclusive();
        contexts.retain(|_, shared| shared.context.get_mut().unwrap_or_else(PoisonError::into_inner).len() > 0);
        let few = contexts.len() * 2;
        if few == 0 {
            *contexts = HashMap::new();
        } else if contexts.capacity() / 4 > few {
            contexts.shrink_to(few);
        }
    }

    pub(super) fn evict_expired(&self) -> usize {
        let ticks = self.config.eviction_duration.as_millis() / TICK.as_millis();
        let since = u128::from(self.now()).saturating_sub(ticks) as u32;
        let (mut evicted, mut empty) = (0, false);
        let keys: Vec<ModelContext> = self.read().keys().cloned().collect();
        for key in keys {
            // The scan does not block readers, and a new context waits for one context only.
            let contexts = self.read();
            let Some(shared) = contexts.get(&key) else { continue };
            let old = shared.read().older(since);
            for some in old.chunks(4096) {
                evicted += shared.write().evict(some, since);
            }
            empty |= shared.read().len() == 0;
        }
        if empty {
            self.drop_empty();
        }
        count(&self.counters.evicted_by_age, evicted);
        evicted
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    signal: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<(JoinHandle<()>, u32)>>,
}

impl Worker {
    /// Starts a thread that calls a function on `target` at intervals, until the target is dropped or [`Self::stop`] is
    /// called.
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

    /// Stops the background thread and waits for its end. Further calls do nothing.
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

    /// True if the background thread was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        *self.signal.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}
