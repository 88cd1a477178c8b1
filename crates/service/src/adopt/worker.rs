//! The thread, and its share of a core.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::desk::Desk;
use super::work::Work;
use crate::config::StreamConfig;
use crate::error::Error;
use crate::fleet::Fleet;

/// Between two looks at what streams have proved.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at all that was ever proved and is not known.
const SWEEP: Duration = Duration::from_secs(1);
/// Work after which it rests.
const SLICE: Duration = Duration::from_millis(2);

/// Starts it; none if its share is 0. It ends when the desk is closed.
pub(crate) fn start(fleet: &Arc<Fleet>, share: f64, config: &StreamConfig) -> Result<Option<JoinHandle<()>>, Error> {
    if share == 0.0 {
        return Ok(None);
    }
    config.desk.open();
    let (fleet, desk) = (Arc::downgrade(fleet), config.desk.clone());
    let work = Work::new(config.schemes.clone());
    let run = move || run(&fleet, &desk, share, work);
    let thread = std::thread::Builder::new().name("kvatlas-adopt".to_owned()).spawn(run);
    thread.map(Some).map_err(|error| Error::Start {
        message: format!("cannot start the thread that learns blocks announced earlier: {error}"),
    })
}

fn run(fleet: &Weak<Fleet>, desk: &Desk, share: f64, mut work: Work) {
    let mut swept = Instant::now();
    let mut pace = Pace { desk, share, busy: Duration::ZERO };
    // It waits for what somebody leaves, or until streams may have proved something.
    while let Some(prompts) = desk.take(if work.is_idle() { TICK } else { Duration::ZERO }) {
        for prompt in prompts {
            pace.work(|| work.begin(prompt, &desk.counts));
        }
        while work.has_prompts() {
            // The first blocks of all prompts come before the later ones of any.
            pace.work(|| work.step(&desk.counts));
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
                pace.work(|| work.look_at(&keyspace, sweep, &desk.counts));
            }
        }
    }
}

/// Keeps to the share.
struct Pace<'a> {
    desk: &'a Desk,
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
        self.desk.busy_micros.fetch_add(took.as_micros() as u64, Relaxed);
        if self.busy >= SLICE && self.share < 1.0 {
            let pause = self.busy.mul_f64(1.0 / self.share - 1.0);
            self.busy = Duration::ZERO;
            self.desk.rest(pause);
        }
    }
}
