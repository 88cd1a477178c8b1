//! The adoption thread, and its share of a core.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::work::Work;
use crate::context::StreamContext;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::state::{Keyspace, PromptQueue};

/// Time between two looks at the latest proofs of streams.
const TICK: Duration = Duration::from_millis(100);
/// Time between two looks at all proved names that are not known.
const SWEEP: Duration = Duration::from_secs(1);
/// Work after which the thread rests.
const SLICE: Duration = Duration::from_millis(2);

/// Starts the thread; none if its share is 0. It ends when the queue is closed.
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

/// Pace of the thread: rests that keep it to its share.
struct Pace<'a> {
    prompt_queue: &'a PromptQueue<Keyspace>,
    share: f64,
    /// Work since the last rest.
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
