//! Adoption of blocks that streams have not announced: `kvatlas-adopt` says how and why that is right.
//!
//! Streams record the names that they prove (`stream/holdings.rs`). Each prompt that is queried, or of which an engine reports
//! cached tokens, goes to the [`PromptQueue`], if any stream waits for names at all; a worker looks
//! at it later, in a thread of its own that takes no more than its share of a core (here, and `work.rs`).

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
    /// Records a query for a prompt, from whose tokens blocks may be adopted. Cheap if no stream waits for names: one
    /// word is read.
    pub fn note_query(self: &Arc<Self>, tokens: &[u32], lora: Option<&str>, salt: Option<&str>) {
        if self.is_waiting() && self.prompt_queue().is_open() {
            self.was_asked(false);
            self.leave(tokens, lora, salt, None);
        }
    }

    /// Records a query by content hashes. Nothing can be adopted from it, as engines' block names depend on the tokens.
    /// True if a query by tokens might have helped.
    pub fn note_hash_query(&self) -> bool {
        if !self.is_nameable() || !self.prompt_queue().is_open() {
            return false;
        }
        self.was_asked(true);
        self.prompt_queue().counts.prompts_hashed.fetch_add(1, Relaxed);
        true
    }

    /// True if queries, or engines' reports of cached tokens, may now lead to adopted blocks.
    #[must_use]
    pub fn learns(&self) -> bool {
        self.prompt_queue().is_open()
            && (self.is_waiting() || self.steady(|streams| streams.partial().next().is_some()))
    }

    /// True if a report of how many prompt tokens a worker's rank had cached may lead to adopted blocks.
    #[must_use]
    pub fn wants_answers(&self, worker: &str, rank: u32) -> bool {
        self.prompt_queue().is_open()
            && self.stream(worker, rank).is_some_and(|stream| stream.status.partial.load(Relaxed))
    }

    /// Records a report that a worker's rank took `cached_tokens` tokens of a prompt from its cache. `sent`: time at
    /// which the prompt was sent to that rank, or earlier. False if nothing can be adopted from the report.
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

/// Time between two checks of the block names that streams have lately proved their engines to hold.
const TICK: Duration = Duration::from_millis(100);
/// Time between two checks of all block names that engines were proved to hold and whose contents are unknown.
const SWEEP: Duration = Duration::from_secs(1);
/// Working time after which the adoption thread rests.
const SLICE: Duration = Duration::from_millis(2);

/// Starts the adoption thread, which ends when the prompt queue is closed; `None` if `share`, its part of a core, is 0.
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

/// Pace of the adoption thread: rests that keep the thread to its share of a core.
struct Pace<'a> {
    prompt_queue: &'a PromptQueue<Keyspace>,
    share: f64,
    /// Working time since the last rest.
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
