//! One load test from beginning to end: create the index, run the plan, drain the queues, compare, judge.
//!
//! Threads: the generator issues operations at their deadlines and then waits until the queues are empty; query threads
//! look up; the index has its own event threads. The calling thread waits for the generator. Data between threads is
//! passed by counters, never by locks.

mod generator;
mod lanes;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::compare;
use crate::error::Error;
use crate::machine::{self, Clock};
use crate::options::Options;
use crate::plan::{Op, Plan};
use crate::result::{Memory, RunResult};
use crate::subject::Subject;
use generator::{Generator, Hooks, Outcome, Schedule};
use lanes::{Lanes, wait_for};

/// Description of a tested index, for the result.
#[derive(Clone, Debug)]
pub struct Label {
    /// Name of the index.
    pub name: String,
    /// Short description of the tested index.
    pub about: String,
    /// Origin of the tested index (such as its package), with its version.
    pub version: String,
}

/// Maximum time to wait for a thread that should have ended, so that a lookup that never returns does not prevent the
/// result.
const LAST_LOOKUP: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Runs a plan of events and lookups against the index that `build` creates, and returns the measurements.
///
/// `build` runs on a thread that is pinned to the processors of the event threads, so that threads started by `build`
/// are pinned, too. `interrupt` may be set at any time; the load test then ends soon, with all its threads.
///
/// # Errors [`Error::Options`] if the options are impossible, [`Error::Index`] if the index cannot be created,
/// [`Error::Interrupted`]. Failures during the load test are reported in the result.
pub fn run<S: Subject>(
    plan: &Plan,
    options: &Options,
    label: Label,
    interrupt: &Arc<AtomicBool>,
    build: impl FnOnce() -> Result<S, Error> + Send,
) -> Result<RunResult, Error> {
    run_with(plan, options, label, interrupt, build, Hooks::default())
}

pub(crate) fn run_with<S: Subject>(
    plan: &Plan,
    options: &Options,
    label: Label,
    interrupt: &Arc<AtomicBool>,
    build: impl FnOnce() -> Result<S, Error> + Send,
    hooks: Hooks,
) -> Result<RunResult, Error> {
    options.check()?;
    let beginning = (options.until < 1.0).then(|| plan.beginning(options.until));
    let plan = beginning.as_ref().unwrap_or(plan);
    let schedule = Schedule::new(plan, options)?;
    let rss_before = machine::resident_bytes();
    let subject = Arc::new(built(options, build)?);

    let mut messages = Vec::with_capacity(plan.facts().events() as usize);
    let mut queries = Vec::with_capacity(plan.facts().lookups as usize);
    for op in plan.ops() {
        if interrupt.load(Ordering::Relaxed) {
            bury(subject);
            return Err(Error::Interrupted);
        }
        match op {
            Op::Lookup { contents, .. } => queries.push(subject.query(contents)),
            _ => messages.extend(op.change().map(|change| subject.message(change))),
        }
    }
    let rss_ready = machine::resident_bytes();
    let clock = Clock::measure();

    let lanes = Lanes::start(&subject, queries, &schedule, options)?;
    let generator = Generator {
        subject: Arc::clone(&subject),
        messages,
        lanes: Arc::clone(&lanes.shared),
        interrupt: Arc::clone(interrupt),
        schedule,
        burst: Duration::from_nanos(options.burst_ns),
        hooks,
    };
    let (schedule, outcome) = on_generator_thread(generator, options, &lanes)?;
    let (times, mut trouble) = lanes.finish(LAST_LOOKUP);
    trouble.extend(outcome.trouble.clone());
    if interrupt.load(Ordering::Relaxed) {
        subject.give_up();
        bury(subject);
        return Err(Error::Interrupted);
    }

    let rss_end = machine::resident_bytes();
    let memory = (|| Some(Memory { rss_before: rss_before?, rss_ready: rss_ready?, rss_end: rss_end? }))();
    let drained = outcome.drained_at.is_some() && times.is_some();
    let comparison = if drained && options.check_seconds > 0.0 {
        Some(compare::compare(plan, &*subject, options, interrupt)?)
    } else {
        None
    };
    let counts = if drained { subject.counts() } else { Default::default() };
    if drained {
        drop(subject);
    } else {
        subject.give_up();
        bury(subject);
    }
    Ok(verdict::verdict(verdict::Run {
        plan,
        options,
        label,
        schedule: &schedule,
        outcome,
        times: times.unwrap_or_default(),
        trouble,
        clock,
        counts,
        memory,
        comparison,
    }))
}

/// Creates the index on a new thread, pinned to the processors of the index's threads.
fn built<S: Subject>(options: &Options, build: impl FnOnce() -> Result<S, Error> + Send) -> Result<S, Error> {
    let cpus = options.pin.get(1 + options.query_threads..).unwrap_or_default();
    let make = || {
        machine::pin(cpus)?;
        build()
    };
    std::thread::scope(|scope| scope.spawn(make).join())
        .unwrap_or_else(|_| Err(Error::Index("the index panicked while it was made".to_owned())))
}

fn on_generator_thread<S: Subject>(
    generator: Generator<S>,
    options: &Options,
    lanes: &Lanes<S>,
) -> Result<(Schedule, Outcome), Error> {
    let (cpu, patience) = (options.pin.first().copied(), options.patience(generator.schedule.window));
    let work = move || {
        machine::pin(cpu.as_slice())?;
        machine::sleep_exactly();
        Ok::<_, Error>(generator.run(patience))
    };
    let thread = std::thread::Builder::new().name("kvatlas-generate".to_owned()).spawn(work);
    let ran = thread.map_err(|error| Error::Index(format!("no thread for the generator: {error}")))?.join();
    let failed = match ran {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(error)) => error,
        Err(_) => Error::Index("the index panicked while it took an event".to_owned()),
    };
    lanes.shared.stop();
    Err(failed)
}

/// Drops an index whose end may take long or never come, waiting only for a moment.
fn bury<S: Subject>(subject: Arc<S>) {
    let grave = std::thread::Builder::new().name("kvatlas-bury".to_owned()).spawn(move || drop(subject));
    if let Ok(grave) = grave {
        wait_for(&grave, LAST_LOOKUP);
    }
}

#[cfg(test)]
mod tests;
