//! Bounded queue of prompts for the adoption thread, which computes prompts' block hashes to identify blocks that
//! engines announced before this service followed them. Adding a prompt never blocks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::counting::counts;

/// Maximum number of prompts in the queue for the adoption thread.
const MOST_PROMPTS: usize = 1024;
/// Maximum number of tokens, over all prompts in the queue for the adoption thread; they occupy 16 MB.
const MOST_TOKENS: usize = 4 << 20;

/// Converts a time to the duration since a fixed moment, which is one hour before the first call in the process.
pub(crate) fn time_of(at: Instant) -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    // So that a prompt sent before the first use has a time too.
    let start =
        START.get_or_init(|| Instant::now().checked_sub(Duration::from_secs(3600)).unwrap_or_else(Instant::now));
    at.saturating_duration_since(*start)
}

/// Report of an engine on one prompt: the number of the prompt's blocks that the engine had in its cache.
#[derive(Debug)]
pub(crate) struct CacheReport {
    pub(crate) worker: Arc<str>,
    pub(crate) rank: u32,
    /// Number of the prompt's leading blocks that the engine took from its cache.
    pub(crate) blocks: usize,
    /// Time before or at which the prompt was sent to the engine, as given by [`time_of`].
    pub(crate) sent: Duration,
}

/// Prompt from whose tokens blocks may be adopted (added to the index although no batch announced them).
pub(crate) struct Prompt<K> {
    pub(crate) keyspace: Weak<K>,
    pub(crate) tokens: Box<[u32]>,
    pub(crate) salt: Option<Arc<str>>,
    /// Report of the engine that served the prompt on the number of cached blocks; `None` if the prompt comes from a
    /// query.
    pub(crate) answered: Option<CacheReport>,
}

counts! {
    /// Counts of the adoption thread.
    "adopt_"

    /// Prompts whose block hashes were computed, to find blocks announced before the service started
    prompts,
    /// Prompts skipped because too many prompts waited for their block hashes to be computed
    prompts_dropped,
    /// Prompts skipped because they are for a LoRA adapter, whose block hashes cannot be computed
    prompts_lora,
    /// Prompts queried by content hashes, from which nothing can be learnt, while tokens might have shown blocks'
    /// contents
    prompts_hashed,
    /// Block hashes computed, to find blocks announced before the service started
    named_blocks,
    /// Blocks learnt that were announced before the service started
    blocks,
    // check_words: the text is the help of a metric
    /// How often another block was already held under the block hash of a block to be learnt; should be 0
    contrary,
    /// Engines' answers that reported how much of their prompt was cached
    answers,
    /// Engines' answers that reported how much of their prompt was cached, but from which nothing could be learnt
    answers_unused,
}

struct Contents<K> {
    prompts: VecDeque<Prompt<K>>,
    tokens: usize,
    closed: bool,
}

/// Queue of prompts for the adoption thread, which computes their block hashes. `K` is the type of the keyspace (index
/// of a model and routing group) to which a prompt belongs.
pub struct PromptQueue<K> {
    contents: Mutex<Contents<K>>,
    news: Condvar,
    /// True while a thread takes prompts from the queue; otherwise prompts are ignored.
    open: AtomicBool,
    pub(crate) counts: Counts,
    /// Processing time spent so far on computing prompts' block hashes and adding blocks to the index, in microseconds.
    pub(crate) busy_micros: AtomicU64,
}

impl<K> Default for PromptQueue<K> {
    fn default() -> Self {
        Self {
            contents: Mutex::new(Contents { prompts: VecDeque::new(), tokens: 0, closed: false }),
            news: Condvar::new(),
            open: AtomicBool::new(false),
            counts: Counts::default(),
            busy_micros: AtomicU64::new(0),
        }
    }
}

impl<K> std::fmt::Debug for PromptQueue<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptQueue").finish_non_exhaustive()
    }
}

impl<K> PromptQueue<K> {
    /// Opens the queue, because the adoption thread now takes prompts from it. Prompts added earlier are ignored.
    pub(crate) fn open(&self) {
        self.open.store(true, Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Adds a prompt to the queue, or counts the prompt as dropped if the queue is full.
    pub(crate) fn leave(&self, prompt: Prompt<K>) {
        let mut contents = self.contents.lock();
        let tokens = contents.tokens + prompt.tokens.len();
        if contents.prompts.len() >= MOST_PROMPTS || tokens > MOST_TOKENS {
            self.counts.prompts_dropped.fetch_add(1, Relaxed);
            return;
        }
        contents.tokens = tokens;
        contents.prompts.push_back(prompt);
        drop(contents);
        self.news.notify_one();
    }

    /// Waits up to `patience` for prompts, then removes and returns all of them. `None` once the queue is closed.
    pub(crate) fn take(&self, patience: Duration) -> Option<VecDeque<Prompt<K>>> {
        let mut contents = self.contents.lock();
        self.news.wait_while_for(&mut contents, |contents| contents.prompts.is_empty() && !contents.closed, patience);
        if contents.closed {
            return None;
        }
        contents.tokens = 0;
        Some(std::mem::take(&mut contents.prompts))
    }

    /// Makes the adoption thread pause for the duration `pause`, or until the queue is closed.
    pub(crate) fn rest(&self, pause: Duration) {
        self.news.wait_while_for(&mut self.contents.lock(), |contents| !contents.closed, pause);
    }

    /// Closes the queue permanently, and wakes the thread that takes prompts from it.
    pub(crate) fn close(&self) {
        self.open.store(false, Relaxed);
        self.contents.lock().closed = true;
        self.news.notify_all();
    }
}
