//! The schedule of a load test (a deadline for each operation) and the generator, a thread that issues every operation
//! at its deadline, or as soon after it as possible, without waiting for results.
//!
//! On two processors this thread shares with an event thread and a query thread, so it must cost little: an event is a
//! move into the index's queue, a lookup is an incremented number, the clock is read once for up to [`BATCH`]
//! operations, and lateness is computed after the end. If nothing is due the thread sleeps, and at least for a minimum
//! time: a wake-up costs some microseconds, more than many operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::lanes::SharedState;
use crate::error::Error;
use crate::machine::nanoseconds;
use crate::options::Options;
use crate::plan::{Columns, Facts, Kind, Plan};
use crate::subject::Subject;

/// Deadlines of a plan's operations, in ns since the beginning of the warm-up. The plan's times are stretched so that
/// its measured part takes exactly the time of the measured window.
pub(crate) struct Schedule {
    /// Deadline of each operation, in ns.
    pub(crate) due: Vec<u64>,
    /// True for each operation that is a lookup.
    pub(crate) lookups: Vec<bool>,
    /// Index of the plan's first measured operation; earlier operations are the warm-up.
    pub(crate) first: usize,
    /// Deadline of the first measured operation, in ns.
    pub(crate) start: u64,
    pub(crate) window: u64,
    pub(crate) measured: Facts,
}

impl Schedule {
    pub(crate) fn new(plan: &Plan, options: &Options) -> Result<Self, Error> {
        let Columns { times, kinds, .. } = plan.columns();
        let first = ((plan.len() as f64 * (options.warm_up / options.until)).ceil() as usize).min(plan.len());
        let measured = plan.facts_of(first..plan.len());
        let window = options.window(&measured)?;
        // Operations with one common time cannot be spread: they are all due at once.
        let scale = |time: u64| match measured.span_ns {
            0 => 0,
            span => u64::try_from(u128::from(time) * u128::from(window) / u128::from(span)).unwrap_or(u64::MAX),
        };
        let origin = times.first().copied().unwrap_or(0);
        let due: Vec<u64> = times.iter().map(|&time| scale(time - origin)).collect();
        if let Some(&last) = due.last()
            && last > window.saturating_mul(1_000)
        {
            return Err(Error::Options(format!(
                "warm_up {}: the operations before the measured part would take more than 1,000 windows",
                options.warm_up
            )));
        }
        Ok(Self {
            start: due.get(first).copied().unwrap_or(0),
            lookups: kinds.iter().map(|&kind| kind == Kind::Lookup as u8).collect(),
            due,
            first,
            window,
            measured,
        })
    }

    /// Time at which the measured window ends, in ns.
    pub(crate) fn close(&self) -> u64 {
        self.start + self.window
    }

    /// Deadlines of the lookups alone, in ns, and the number of lookups before the first measured one.
    pub(crate) fn of_lookups(&self) -> (Vec<u64>, usize) {
        let due = self.due.iter().zip(&self.lookups).filter(|(_, lookup)| **lookup).map(|(&due, _)| due).collect();
        let before = self.lookups[..self.first].iter().filter(|lookup| **lookup).count();
        (due, before)
    }
}

/// Maximum number of operations issued between two readings of the clock, while their deadlines have passed.
const BATCH: usize = 32;
/// Interval at which the number of queued events is sampled, in ns.
const LOOK: u64 = 1_000_000;
/// Interval at which the generator of the load checks whether all queues of events and lookups are empty.
const POLL: Duration = Duration::from_micros(50);
/// Time between the start of the load generator and the first operation's deadline, enough for all threads to start.
const LEAD: Duration = Duration::from_millis(5);

/// Functions that a test lets the load generator call before it issues an operation.
#[derive(Default)]
pub(crate) struct Hooks {
    #[cfg(test)]
    pub(crate) before: Option<Box<dyn Fn(usize) + Send>>,
}

pub(crate) struct Generator<S: Subject> {
    pub(crate) subject: Arc<S>,
    pub(crate) messages: Vec<S::Message>,
    pub(crate) lanes: Arc<SharedState>,
    pub(crate) interrupt: Arc<AtomicBool>,
    pub(crate) schedule: Schedule,
    pub(crate) burst: Duration,
    #[cfg_attr(not(test), expect(dead_code, reason = "nothing happens in between but in tests"))]
    pub(crate) hooks: Hooks,
}

/// Measurements of the load generator (the thread that issues operations), with all times in ns since the beginning of
/// the warm-up.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Number of operations issued before each batch, and the time at which the batch had been issued, in ns.
    pub(crate) batches: Vec<(u32, u64)>,
    pub(crate) lookups: u64,
    pub(crate) events: u64,
    pub(crate) applied: u64,
    pub(crate) answered: u64,
    /// Number of events applied, and number of lookups answered, when the measured window ended.
    pub(crate) at_close: (u64, u64),
    pub(crate) max_queued: u64,
    /// Time at which all queues of events and lookups were empty, in ns; `None` if they never were.
    pub(crate) drained_at: Option<u64>,
    pub(crate) trouble: Option<String>,
}

impl<S: Subject> Generator<S> {
    pub(crate) fn run(mut self, patience: u64) -> (Schedule, Outcome) {
        let mut out = Outcome { batches: Vec::with_capacity(self.schedule.due.len()), ..Outcome::default() };
        let origin = Instant::now() + LEAD;
        self.lanes.begin(origin);
        std::thread::sleep(LEAD);
        self.issue_all(origin, &mut out);
        self.drain(origin, patience, &mut out);
        self.lanes.stop();
        (self.schedule, out)
    }

    fn issue_all(&mut self, origin: Instant, out: &mut Outcome) {
        let mut messages = std::mem::take(&mut self.messages).into_iter();
        let due = &self.schedule.due[..];
        let (mut next, mut lookups) = (0, 0);
        let mut look = 0;
        let mut at_close = None;
        while next < due.len() {
            let now = nanoseconds(origin);
            if now >= self.schedule.close() && at_close.is_none() {
                at_close = Some((self.subject.applied(), self.lanes.done()));
            }
            if due[next] > now {
                if self.interrupt.load(Ordering::Relaxed) || self.lanes.broken() {
                    break;
                }
                std::thread::sleep(Duration::from_nanos(due[next] - now).max(self.burst));
                continue;
            }
            let upto = due.len().min(next + BATCH);
            let before = lookups;
            while next < upto && due[next] <= now {
                #[cfg(test)]
                if let Some(before) = &self.hooks.before {
                    before(next);
                }
                if self.schedule.lookups[next] {
                    lookups += 1;
                } else if let Some(message) = messages.next() {
                    if lookups > before {
                        // A lookup that is due before an event must not wait for its sending.
                        self.lanes.issue(lookups);
                    }
                    self.subject.send(message);
                    out.events += 1;
                }
                next += 1;
            }
            if lookups > before {
                self.lanes.issue(lookups);
            }
            out.batches.push((next as u32, nanoseconds(origin)));
            if now >= look {
                look = now + LOOK;
                out.max_queued = out.max_queued.max(out.events.saturating_sub(self.subject.applied()));
                if self.interrupt.load(Ordering::Relaxed) || self.lanes.broken() {
                    break;
                }
            }
        }
        out.lookups = lookups as u64;
        if let Some(at_close) = at_close {
            out.at_close = at_close;
            return;
        }
        if next == due.len() {
            let left = self.schedule.close().saturating_sub(nanoseconds(origin));
            self.pause(Duration::from_nanos(left));
        }
        out.at_close = (self.subject.applied(), self.lanes.done());
    }

    /// Waits until all operations have been applied and answered, at most until `patience` (ns) has passed.
    fn drain(&self, origin: Instant, patience: u64, out: &mut Outcome) {
        let last = self.schedule.close().saturating_add(patience);
        loop {
            out.applied = self.subject.applied();
            out.answered = self.lanes.done();
            let now = nanoseconds(origin);
            if self.lanes.broken() {
                out.answered = 0;
                out.trouble = Some("a query thread ended early".to_owned());
                return;
            }
            if out.applied >= out.events && out.answered >= out.lookups {
                self.subject.flush();
                out.applied = self.subject.applied();
                out.drained_at = Some(nanoseconds(origin));
                return;
            }
            out.max_queued = out.max_queued.max(out.events.saturating_sub(out.applied));
            if now > last || self.interrupt.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sleeps for a time, and wakes early if the load test is interrupted.
    fn pause(&self, time: Duration) {
        let start = Instant::now();
        while !self.interrupt.load(Ordering::Relaxed) {
            let Some(left) = time.checked_sub(start.elapsed()) else { return };
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}
