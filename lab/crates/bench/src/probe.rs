//! Measurement of single lookups without load: an index is built from a plan's events, then one thread looks up, one
//! query after the other, and each call is timed. Nothing is queued, so the measurement shows how a design scales and
//! not what load it sustains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvatlas_designs::Scores;
use serde::Serialize;

use crate::error::Error;
use crate::machine::{Clock, between};
use crate::plan::{Op, Plan};
use crate::result::Times;
use crate::subject::Subject;

/// Number of events sent to the index before waiting for them to be applied: enough to keep several threads busy, few
/// enough to fit in memory.
const AT_ONCE: usize = 1_024;
/// Number of lookups whose answers are checked against the plan.
const CHECKED: usize = 64;

/// Result of timing single lookups with [`probe`].
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// True if all events were applied within the time limit; otherwise nothing was looked up.
    pub built: bool,
    /// Duration of applying all events, in ns.
    pub build_ns: u64,
    /// Number of events applied.
    pub events: u64,
    /// Number of pairs of a worker and a held block, as counted by the index; `None` if it does not count them.
    pub blocks: Option<u64>,
    /// Number of lookups timed: all of the plan's, or fewer if the time limit passed.
    pub lookups: u64,
    /// Distribution of the time of a lookup call, in ns, without the cost of reading the clock.
    pub service: Option<Times>,
    /// Number of wrong answers among the first lookups. The plan names a worker for each lookup, and a plan for this
    /// measurement looks up only prompts that this worker holds to the last block.
    pub wrong: u64,
    /// Description of the first wrong answer.
    pub example: Option<String>,
    /// Properties of the machine's clock, measured just before.
    pub clock: Clock,
}

/// Builds an index from a plan's events, then times the plan's lookups, each part within its time limit. Every lookup
/// runs once untimed before, as far as half of `look` allows.
///
/// # Errors
/// [`Error::Interrupted`]; [`Error::Index`] if the index failed to answer.
pub fn probe<S: Subject>(
    plan: &Plan,
    subject: &S,
    build: Duration,
    look: Duration,
    interrupt: &AtomicBool,
) -> Result<Probe, Error> {
    let clock = Clock::measure();
    let going = || if interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
    let start = Instant::now();
    let mut events = 0;
    let mut queries = Vec::with_capacity(plan.facts().lookups as usize);
    let mut checked = Vec::new();
    let mut found = Probe {
        built: true,
        build_ns: 0,
        events: 0,
        blocks: None,
        lookups: 0,
        service: None,
        wrong: 0,
        example: None,
        clock,
    };
    for op in plan.ops() {
        if let Op::Lookup { worker, contents } = op {
            if checked.len() < CHECKED {
                checked.push((worker, contents));
            }
            queries.push(subject.query(contents));
            continue;
        }
        let Some(change) = op.change() else { continue };
        subject.send(subject.message(change));
        events += 1;
        if events % AT_ONCE == 0 {
            subject.flush();
            going()?;
            if start.elapsed() > build {
                found.built = false;
                break;
            }
        }
    }
    subject.flush();
    found.build_ns = between(start, Instant::now());
    found.events = events as u64;
    if !found.built {
        return Ok(found);
    }
    found.blocks = subject.counts().blocks;
    let mut scores = Scores::new();
    for (worker, contents) in checked {
        subject.answer(contents, &mut scores).map_err(Error::Index)?;
        let depth = scores.iter().find(|score| score.0 == worker).map_or(0, |score| score.1);
        if depth as usize != contents.len() {
            found.wrong += 1;
            let words = || format!("worker {worker}: depth {depth}, should be {}", contents.len());
            found.example.get_or_insert_with(words);
        }
    }

    let mut lane = subject.lane();
    let start = Instant::now();
    for query in &queries {
        subject.lookup(&mut lane, query);
        if start.elapsed() > look / 2 {
            break;
        }
    }
    let mut service = Vec::with_capacity(queries.len());
    let start = Instant::now();
    for query in &queries {
        let before = Instant::now();
        subject.lookup(&mut lane, query);
        let after = Instant::now();
        service.push(between(before, after).saturating_sub(found.clock.cost_ns));
        if between(start, after) > look.as_nanos() as u64 {
            going()?;
            break;
        }
    }
    found.lookups = service.len() as u64;
    found.service = times(service);
    Ok(found)
}

fn times(mut all: Vec<u64>) -> Option<Times> {
    all.sort_unstable();
    let at = |share: f64| all[((all.len() as f64 * share).ceil() as usize).clamp(1, all.len()) - 1];
    let max = *all.last()?;
    Some(Times {
        count: all.len() as u64,
        mean: all.iter().sum::<u64>() as f64 / all.len() as f64,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max,
    })
}
