//! Adoption: adding blocks to the index that engines announced before this service followed them. The crate
//! `kvatlas-adopt` explains the method and why it is exact.
//!
//! Each stream records the block hashes that its engine is proved to hold (`stream/holdings.rs`). If any stream has
//! proved hashes with unknown contents, each queried prompt goes to the [`PromptQueue`], as does each prompt with an
//! engine's report of cached tokens. A separate thread, limited to a share of a CPU core, computes the block hashes of
//! these prompts and adopts those that are proved (this file and `work.rs`).

mod meanings;
mod work;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::work::Work;
use crate::context::StreamContext;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::state::{CacheReport, Keyspace, Prompt, PromptQueue, time_of};

impl Keyspace {
    /// Records a query for a prompt. Its tokens may reveal the contents of blocks that an engine holds but announced
    /// before this service followed it. If no stream has blocks with unknown contents, the cost is a read of one word.
    pub fn note_query(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>) {
        if self.is_waiting() && self.prompt_queue().is_open() {
            self.was_asked(false);
            self.leave(tokens, lora, salt, None);
        }
    }

    /// Records a query by content hashes, which cannot reveal the contents of blocks announced before this service
    /// followed the engine, because engines' block hashes depend on the tokens. Returns true if a query with tokens
    /// might have done so.
    pub fn note_hash_query(&self) -> bool {
        if !self.is_nameable() || !self.prompt_queue().is_open() {
            return false;
        }
        self.was_asked(true);
        self.prompt_queue().counts.prompts_hashed.fetch_add(1, Relaxed);
        true
    }

    /// True if queries, or engines' reports of cached tokens, may currently reveal blocks that were announced before
    /// this service followed the engines.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.prompt_queue().is_open()
            && (self.is_waiting() || self.steady(|streams| streams.partial().next().is_some()))
    }

    /// True if a report of the number of prompt tokens that a worker's rank had cached may reveal blocks that were
    /// announced before this service followed the engine.
    #[must_use]
    pub fn wants_answers(&self, worker: &str, rank: u32) -> bool {
        self.prompt_queue().is_open()
            && self.stream(worker, rank).is_some_and(|stream| stream.status.partial.load(Relaxed))
    }

    /// Records a report that a worker's rank took `cached_tokens` tokens of a prompt from its cache, which may reveal
    /// blocks that no batch has announced. `sent` is a time before or at which the prompt was sent to that rank.
    /// Returns false if the report cannot be used.
    pub fn answered(
        self: &Arc<Self>,
        worker: &str,
        rank: u32,
        (tokens, lora, salt): (&[u32], Option<&str>, Option<&str>),
        cached_tokens: usize,
        sent: Instant,
    ) -> bool {
        let blocks = cached_tokens.min(tokens.len()) / self.block_size as usize;
        if !self.wants_answers(worker, rank) {
            return false;
        }
        let answered = CacheReport { worker: worker.into(), rank, blocks, sent: time_of(sent) };
        self.leave(&tokens[..blocks * self.block_size as usize], lora, salt, Some(answered));
        true
    }

    fn leave(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>, answered: Option<CacheReport>) {
        let prompt_queue = self.prompt_queue();
        if lora.is_some_and(|lora| !lora.is_empty()) {
            prompt_queue.counts.prompts_lora.fetch_add(1, Relaxed);
            return;
        }
        if tokens.len() < self.block_size as usize {
            return;
        }
        let salt = salt.filter(|salt| !salt.is_empty()).map(Into::into);
        prompt_queue.leave(Prompt { keyspace: Arc::downgrade(self), tokens: tokens.into(), salt, answered });
    }
}

/// Time between two checks of the block hashes that engines were recently proved to hold.
const TICK: Duration = Duration::from_millis(100);
/// Time between two checks of all block hashes that engines were proved to hold and whose contents are unknown.
const SWEEP: Duration = Duration::from_secs(1);
/// Minimum working time of the adoption thread (see [`start`]) before it pauses to keep to its share of a CPU core.
const SLICE: Duration = Duration::from_millis(2);

/// Starts the adoption thread, which adds blocks to the index that were announced before the service followed their
/// engines. The thread ends when the prompt queue is closed. `share` is the share of a CPU core that it may use; `None`
/// is returned if it is 0.
pub(crate) fn start(fleet: &Arc<Fleet>, share: f64, context: &StreamContext) -> Result<Option<JoinHandle<()>>, Error> {
    if share == 0.0 {
        return Ok(None);
    }
    context.prompt_queue.open();
    let (fleet, prompt_queue) = (Arc::downgrade(fleet), context.prompt_queue.clone());
    let work = Work::new(context.schemes.clone());
    let run = move || run(&fleet, &prompt_queue, share, work);
    let thread = std::thread::Builder::new().name("kvatlas-adopt".to_owned()).spawn(run);
    thread.map(Some).map_err(|error| Error::Start {
        message: format!("cannot start the thread that learns blocks announced earlier: {error}"),
    })
}

fn run(fleet: &Weak<Fleet>, prompt_queue: &PromptQueue<Keyspace>, share: f64, mut work: Work) {
    let mut swept = Instant::now();
    let mut pace = Pace { prompt_queue, share, busy: Duration::ZERO };
    // It waits for what somebody leaves, or until streams may have proved something.
    while let Some(prompts) = prompt_queue.take(if work.is_idle() { TICK } else { Duration::ZERO }) {
        for prompt in prompts {
            pace.work(|| work.begin(prompt, &prompt_queue.counts));
        }
        while work.has_prompts() {
            // The first blocks of all prompts come before the later ones of any.
            pace.work(|| work.step(&prompt_queue.counts));
            if work.is_shallow_done() {
                break;
            }
        }
        let Some(fleet) = fleet.upgrade() else { return };
        let sweep = swept.elapsed() >= SWEEP;
        if sweep {
            swept = Instant::now();
        }
        if sweep {
            work.forget_old();
        }
        for keyspace in fleet.keyspaces() {
            if sweep {
                pace.work(|| work.take_up(&keyspace));
            }
            if keyspace.is_waiting() {
                pace.work(|| work.look_at(&keyspace, sweep, &prompt_queue.counts));
            }
        }
    }
}

/// Timer that pauses the adoption thread (see [`start`]), so that the thread uses no more than its share of a CPU core.
struct Pace<'a> {
    prompt_queue: &'a PromptQueue<Keyspace>,
    share: f64,
    /// Working time of the adoption thread since its last pause.
    busy: Duration,
}

impl Pace<'_> {
    fn work(&mut self, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        let took = start.elapsed();
        self.busy += took;
        self.prompt_queue.busy_micros.fetch_add(took.as_micros() as u64, Relaxed);
        if self.busy >= SLICE && self.share < 1.0 {
            let pause = self.busy.mul_f64(1.0 / self.share - 1.0);
            self.busy = Duration::ZERO;
            self.prompt_queue.rest(pause);
        }
    }
}
