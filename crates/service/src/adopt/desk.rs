//! Where prompts are left for the worker: never waited for, never more than a few.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::state::{Keyspace, lock};

/// Prompts that may lie here.
const MOST_PROMPTS: usize = 1024;
/// Tokens of all of them: 16 MB.
const MOST_TOKENS: usize = 4 << 20;

/// The time, for what counts from the first time that anybody asked.
pub(crate) fn time_of(at: Instant) -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    // So that what was sent before the first question has a time too.
    let start =
        START.get_or_init(|| Instant::now().checked_sub(Duration::from_secs(3600)).unwrap_or_else(Instant::now));
    at.saturating_duration_since(*start)
}

/// What an engine said of a prompt.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) worker: Arc<str>,
    pub(crate) rank: u32,
    /// Leading blocks that it took from its cache.
    pub(crate) blocks: usize,
    /// When the prompt was sent there, or before.
    pub(crate) sent: Duration,
}

/// A prompt to look at.
pub(crate) struct Prompt {
    pub(crate) keyspace: Weak<Keyspace>,
    pub(crate) tokens: Box<[u32]>,
    pub(crate) salt: Option<Arc<str>>,
    /// None: somebody has asked for it.
    pub(crate) answered: Option<Answered>,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// What the worker has done.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $($(#[doc = $doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counts {
            /// Names, with what each counts and how often that was.
            pub(crate) fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((concat!("adopt_", stringify!($name)), concat!($($doc),*).trim_ascii(), self.$name.load(Relaxed))),*]
            }
        }
    };
}

counts! {
    /// Prompts whose block hashes were computed, to find blocks announced before the service started
    prompts,
    /// Prompts skipped because too many were waiting
    prompts_dropped,
    /// Prompts skipped because they are for a LoRA adapter, whose block hashes cannot be computed
    prompts_lora,
    /// Prompts queried by content hashes, from which nothing can be learnt, while tokens might have told something
    prompts_hashed,
    /// Block hashes computed, to find blocks announced before the service started
    named_blocks,
    /// Blocks learnt that were announced before the service started
    blocks,
    /// How often another block was already held under the hash of a block to be learnt; should be 0
    contrary,
    /// Reports of how much of a prompt an engine had cached
    answers,
    /// Reports of how much of a prompt an engine had cached, from which nothing could be learnt
    answers_unused,
}

#[derive(Default)]
struct Lying {
    prompts: VecDeque<Prompt>,
    tokens: usize,
    closed: bool,
}

/// Where prompts are left for the worker.
#[derive(Default)]
pub struct Desk {
    lying: Mutex<Lying>,
    news: Condvar,
    /// Whether there is a worker.
    open: std::sync::atomic::AtomicBool,
    pub(crate) counts: Counts,
    /// Processor time of learning blocks, in microseconds.
    pub(crate) busy_micros: AtomicU64,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Desk {
    /// Somebody will look at what is left here.
    pub(super) fn open(&self) {
        self.open.store(true, Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Leaves a prompt, if there is room.
    pub(crate) fn leave(&self, prompt: Prompt) {
        let mut lying = lock(&self.lying);
        let tokens = lying.tokens + prompt.tokens.len();
        if lying.prompts.len() >= MOST_PROMPTS || tokens > MOST_TOKENS {
            self.counts.prompts_dropped.fetch_add(1, Relaxed);
            return;
        }
        lying.tokens = tokens;
        lying.prompts.push_back(prompt);
        drop(lying);
        self.news.notify_one();
    }

    /// Waits for prompts, for a while. None: there will be none any more.
    pub(super) fn take(&self, patience: Duration) -> Option<VecDeque<Prompt>> {
        let lying = lock(&self.lying);
        let empty = |lying: &mut Lying| lying.prompts.is_empty() && !lying.closed;
        let (mut lying, _) =
            self.news.wait_timeout_while(lying, patience, empty).unwrap_or_else(PoisonError::into_inner);
        if lying.closed {
            return None;
        }
        lying.tokens = 0;
        Some(std::mem::take(&mut lying.prompts))
    }

    /// Waits, unless it is over.
    pub(super) fn rest(&self, pause: Duration) {
        let lying = lock(&self.lying);
        let _ = self.news.wait_timeout_while(lying, pause, |lying| !lying.closed);
    }

    /// There will be nothing any more.
    pub(crate) fn close(&self) {
        self.open.store(false, Relaxed);
        lock(&self.lying).closed = true;
        self.news.notify_all();
    }
}
