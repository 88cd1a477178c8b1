//! Tests that the load test judges correctly: indexes that are slow, wrong, stuck or broken on purpose, and a generator
//! that stalls.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::BlockHash;
use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{Tier, View};
use parking_lot::Mutex;

use super::*;
use crate::plan::Columns;
use crate::subject::Counts;
use crate::testing::{Mix, plan};

/// Faults of an index, chosen by a test.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Time that the index takes to apply an event.
    slow_event: Duration,
    /// Time that the index takes for a lookup.
    slow_lookup: Duration,
    /// Index of the first event that is counted as applied but dropped; `None` to apply all.
    forget_from: Option<u64>,
    /// True if the index answers one block more than the truth for every worker.
    boast: bool,
    /// Index of the first event that is never applied; `None` to apply all.
    stuck_from: Option<u64>,
    /// True if lookups panic.
    panic: bool,
    /// True if lookups do not return for a minute.
    hang: bool,
    /// True if the index cannot list the blocks that its workers hold.
    silent: bool,
}

/// The reference index with faults, and a thread that applies its events. The events are kept for the tests.
struct FaultyFeed {
    faults: Faults,
    index: Mutex<ReferenceIndex>,
    applied: AtomicU64,
    lookups: AtomicU64,
    log: Arc<Mutex<Vec<Change>>>,
    queue: std::sync::mpsc::Sender<Change>,
    received: Mutex<Option<std::sync::mpsc::Receiver<Change>>>,
    given_up: AtomicBool,
}

impl FaultyFeed {
    fn work(&self) {
        let Some(received) = self.received.lock().take() else { return };
        while !self.given_up.load(Ordering::Relaxed) {
            let Ok(change) = received.recv_timeout(Duration::from_millis(5)) else { continue };
            let number = self.applied.load(Ordering::Relaxed);
            if self.faults.stuck_from.is_some_and(|from| number >= from) {
                continue;
            }
            std::thread::sleep(self.faults.slow_event);
            self.log.lock().push(change.clone());
            if self.faults.forget_from.is_none_or(|from| number < from) {
                let mut index = self.index.lock();
                let worker = change.worker().to_string();
                match change {
                    Change::Store { parent, block_hashes, content_hashes, .. } => {
                        index.store(&worker, 0, Tier::Gpu, parent, &block_hashes, &content_hashes).unwrap();
                    }
                    Change::Remove { block_hashes, .. } => index.remove(&worker, 0, Tier::Gpu, &block_hashes),
                    Change::Clear { .. } => index.clear(&worker, None, None),
                    Change::Drop { .. } => index.drop_worker(&worker),
                }
            }
            self.applied.fetch_add(1, Ordering::Release);
        }
    }
}

/// A faulty index and its event thread, which end together.
struct FaultySubject(Arc<FaultyFeed>, Option<std::thread::JoinHandle<()>>);

impl FaultySubject {
    fn new(faults: Faults, log: &Arc<Mutex<Vec<Change>>>) -> Self {
        let (queue, received) = std::sync::mpsc::channel();
        let index = Arc::new(FaultyFeed {
            faults,
            index: Mutex::new(ReferenceIndex::new(false)),
            applied: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            log: Arc::clone(log),
            queue,
            received: Mutex::new(Some(received)),
            given_up: AtomicBool::new(false),
        });
        let working = Arc::clone(&index);
        Self(index, Some(std::thread::spawn(move || working.work())))
    }
}

impl Drop for FaultySubject {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap();
    }
}

impl Subject for FaultySubject {
    type Message = Change;
    type Query = Vec<u64>;
    type Lane = ();

    fn message(&self, change: Change) -> Change {
        change
    }

    fn query(&self, contents: &[u64]) -> Vec<u64> {
        contents.to_vec()
    }

    fn lane(&self) {}

    fn send(&self, message: Change) {
        self.0.queue.send(message).unwrap();
    }

    fn applied(&self) -> u64 {
        self.0.applied.load(Ordering::Acquire)
    }

    fn flush(&self) {}

    fn lookup(&self, (): &mut (), _: &Vec<u64>) {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        assert!(!self.0.faults.panic, "a lookup that panics, as it shall");
        std::thread::sleep(self.0.faults.slow_lookup);
        if self.0.faults.hang {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(60) && !self.0.given_up.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        scores.clear();
        for (worker, depth) in self.0.index.lock().find(contents).scores(View::Device) {
            scores.push((worker.parse().unwrap(), depth + u32::from(self.0.faults.boast)));
        }
        Ok(())
    }

    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>> {
        if self.0.faults.silent {
            return None;
        }
        let events = self.0.index.lock().dump();
        let held = events.into_iter().flat_map(|event| match event {
            kvatlas_index::Event::Store { worker, block_hashes, .. } => {
                block_hashes.into_iter().map(|name| (worker.parse().unwrap(), name)).collect()
            }
            _ => Vec::new(),
        });
        Some(held.collect())
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn give_up(&self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

fn label() -> Label {
    Label { name: "faulty".to_owned(), about: String::new(), version: String::new() }
}

const WINDOW: Duration = Duration::from_millis(200);

fn options() -> Options {
    // Unless a test is about it, a slow test machine may delay the generator.
    let lag_limit_ns = Some(Duration::from_secs(60).as_nanos() as u64);
    // The same holds for long sleeps.
    let drain_windows = 100.0;
    Options { window_ns: Some(WINDOW.as_nanos() as u64), lag_limit_ns, drain_windows, seed: 7, ..Options::default() }
}

fn with(plan: &Plan, options: &Options, faults: Faults, hooks: Hooks) -> (RunResult, Vec<Change>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let interrupt = Arc::new(AtomicBool::new(false));
    let result = run_with(plan, options, label(), &interrupt, || Ok(FaultySubject::new(faults, &log)), hooks).unwrap();
    let log = log.lock().clone();
    (result, log)
}

fn ran(faults: Faults) -> RunResult {
    with(&plan(1, Mix::default()), &options(), faults, Hooks::default()).0
}

fn says(result: &RunResult, words: &str) -> bool {
    result.why.iter().any(|why| why.contains(words))
}

#[test]
fn every_operation_is_issued_once_and_in_order() {
    let plan = plan(2, Mix::default());
    for warm_up in [0.0, 0.4] {
        let options = Options { warm_up, query_threads: 2, ..options() };
        let (result, log) = with(&plan, &options, Faults::default(), Hooks::default());
        let facts = plan.facts();
        assert_eq!(log, plan.ops().filter_map(|op| op.change()).collect::<Vec<_>>());
        assert_eq!((result.issued.events, result.issued.lookups), (facts.events(), facts.lookups));
        assert_eq!((result.applied, result.answered), (facts.events(), facts.lookups));
        assert_eq!(result.measured.ops, facts.ops - (facts.ops as f64 * warm_up).ceil() as u64);
        assert_eq!(result.service.unwrap().count, result.measured.lookups);
        assert_eq!(result.from_deadline.unwrap().count, result.measured.lookups);
        assert_eq!(result.lag.unwrap().count, result.measured.ops);
        assert!(result.drained && result.agrees == Some(true), "{:?}", result.why);
        let comparison = result.comparison.unwrap();
        assert!(comparison.holdings.unwrap().compared > 0 && comparison.depths.nonzero > 0);
        assert!(comparison.reference.nonzero > 0 && comparison.wrong == 0 && comparison.examples.is_empty());
        assert!(result.total_ns.unwrap() >= WINDOW.as_nanos() as u64);
    }
}

#[test]
fn slow_to_apply_does_not_keep_up() {
    // Every event takes five times its share of the window.
    let plan = plan(1, Mix::default());
    let slow_event = WINDOW * 5 / plan.facts().events() as u32;
    let (result, _) = with(&plan, &options(), Faults { slow_event, ..Faults::default() }, Hooks::default());
    assert!(!result.kept_up && !result.ok && result.drained, "{:?}", result.why);
    assert!(says(&result, "of the events were queued"), "{:?}", result.why);
    assert!(says(&result, "did not keep up: done after"), "{:?}", result.why);
    assert!(result.queued_at_close.events_share > 0.5 && result.max_queued_events > 0);
    assert!(result.achieved.block_ops_per_s < result.offered.block_ops_per_s / 2.0);
    assert_eq!(result.agrees, Some(true), "slow is not wrong");
}

#[test]
fn slow_to_answer_does_not_keep_up_and_users_wait() {
    let plan = plan(1, Mix::default());
    let slow_lookup = WINDOW * 5 / plan.facts().lookups as u32;
    let (result, _) = with(&plan, &options(), Faults { slow_lookup, ..Faults::default() }, Hooks::default());
    assert!(!result.kept_up && !result.ok && result.drained, "{:?}", result.why);
    assert!(result.queued_at_close.lookups_share > 0.5);
    // The lookups were issued in time though the answers were slow, as in any open loop.
    let (service, waited) = (result.service.unwrap(), result.from_deadline.unwrap());
    assert!(waited.p50 > 10 * service.p50, "{waited:?} {service:?}");
    assert!(waited.max > (WINDOW * 3).as_nanos() as u64, "{waited:?}");
}

#[test]
fn lost_holdings_are_found() {
    let result = ran(Faults { forget_from: Some(40), ..Faults::default() });
    assert_eq!((result.agrees, result.ok), (Some(false), false));
    let comparison = result.comparison.unwrap();
    assert!(comparison.holdings.unwrap().missing > 0 && comparison.wrong > 0 && !comparison.examples.is_empty());
    assert!(result.why.iter().any(|why| why.starts_with("wrong:")), "{:?}", result.why);
}

#[test]
fn wrong_answers_are_found_even_if_holdings_are_right() {
    for silent in [false, true] {
        let result = ran(Faults { boast: true, silent, ..Faults::default() });
        assert_eq!((result.agrees, result.ok), (Some(false), false));
        let comparison = result.comparison.unwrap();
        assert_eq!(comparison.holdings.is_none(), silent);
        assert!(comparison.depths.wrong >= comparison.depths.nonzero && comparison.depths.nonzero > 0);
        assert!(comparison.reference.wrong > 0);
    }
}

#[test]
fn nothing_compared_is_no_agreement() {
    let plan = plan(1, Mix::default());
    for options in [Options { check_seconds: 0.0, ..options() }, Options { samples: 0, ..options() }] {
        let (result, _) = with(&plan, &options, Faults { silent: true, ..Faults::default() }, Hooks::default());
        assert_eq!((result.agrees, result.ok), (None, false));
        assert!(says(&result, "nothing was compared"), "{:?}", result.why);
    }
}

#[test]
fn an_index_that_never_drains_is_given_up() {
    let options = Options { drain_windows: 1.0, ..options() };
    let plan = plan(1, Mix::default());
    let start = Instant::now();
    let (result, _) = with(&plan, &options, Faults { stuck_from: Some(10), ..Faults::default() }, Hooks::default());
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(!result.drained && !result.kept_up && !result.ok && result.comparison.is_none());
    assert_eq!((result.drain_ns, result.total_ns, result.applied), (None, None, 10));
    assert_eq!(result.achieved.ops_per_s, 0.0);
    assert!(says(&result, "did not drain"), "{:?}", result.why);
}

#[test]
fn a_lookup_that_panics_or_never_returns_is_told() {
    let result = ran(Faults { panic: true, ..Faults::default() });
    assert!(!result.ok && says(&result, "panicked in a lookup"), "{:?}", result.why);
    let plan = plan(1, Mix::default());
    let options = Options { drain_windows: 1.0, ..options() };
    let (result, _) = with(&plan, &options, Faults { hang: true, ..Faults::default() }, Hooks::default());
    assert!(!result.ok && !result.drained && says(&result, "did not return"), "{:?}", result.why);
}

#[test]
fn a_stalled_generator_is_reported() {
    let plan = plan(1, Mix::default());
    let last = plan.len() - 1;
    // In the middle: late at p99, though the end may be on time again.
    let stall = |at: usize, time: Duration| Hooks {
        before: Some(Box::new(move |op| {
            if op == at {
                std::thread::sleep(time);
            }
        })),
    };
    let strict = Options { lag_limit_ns: Some(20_000_000), ..options() };
    let (result, _) = with(&plan, &strict, Faults::default(), stall(last / 2, WINDOW / 4));
    assert!(!result.valid && !result.ok && says(&result, "ns late at p99"), "{:?}", result.why);
    assert!(result.lag.unwrap().max >= (WINDOW / 5).as_nanos() as u64);
    // At the end: the window is overrun.
    let (result, _) = with(&plan, &options(), Faults::default(), stall(last, WINDOW));
    assert!(!result.valid && !result.ok && says(&result, "the last operation was issued after"), "{:?}", result.why);
    assert!(result.issue_span_ns > (WINDOW * 3 / 2).as_nanos() as u64);
}

#[test]
fn plans_without_events_without_lookups_and_with_nothing() {
    let only = |keep: fn(u8) -> bool| {
        let all = plan(3, Mix::default());
        let c = all.columns();
        let kept: Vec<usize> = (0..all.len()).filter(|&op| keep(c.kinds[op])).collect();
        let pick = |column: &[u64]| kept.iter().map(|&op| column[op]).collect();
        Plan::new(Columns {
            times: pick(&c.times),
            kinds: kept.iter().map(|&op| c.kinds[op]).collect(),
            workers: kept.iter().map(|&op| c.workers[op]).collect(),
            starts: pick(&c.starts),
            lengths: kept.iter().map(|&op| c.lengths[op]).collect(),
            parents: pick(&c.parents),
            ..c.clone()
        })
        .unwrap()
    };
    let run = |plan: &Plan| with(plan, &options(), Faults::default(), Hooks::default()).0;
    let lookups = run(&only(|kind| kind == 0));
    assert!(lookups.drained && lookups.issued.events == 0 && lookups.answered == lookups.issued.lookups);
    assert_eq!(lookups.agrees, None, "there is nothing that could have been wrong");
    let events = run(&only(|kind| kind != 0));
    assert!(events.drained && events.service.is_none() && events.agrees == Some(true), "{:?}", events.why);
    let nothing = run(&only(|_| false));
    assert!(!nothing.ok && !nothing.valid && !nothing.kept_up && says(&nothing, "nothing to measure"));
}

#[test]
fn an_interrupt_ends_it() {
    let plan = plan(1, Mix::default());
    let interrupt = Arc::new(AtomicBool::new(false));
    let options = Options { window_ns: Some(60_000_000_000), ..options() };
    let log = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let setter = {
        let interrupt = Arc::clone(&interrupt);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            interrupt.store(true, Ordering::Relaxed);
        })
    };
    let build = || Ok(FaultySubject::new(Faults::default(), &log));
    let ended = run_with(&plan, &options, label(), &interrupt, build, Hooks::default());
    assert!(matches!(ended, Err(Error::Interrupted)));
    assert!(start.elapsed() < Duration::from_secs(20));
    setter.join().unwrap();
}

#[test]
fn what_cannot_be_made_is_an_error() {
    let plan = plan(1, Mix::default());
    let interrupt = Arc::new(AtomicBool::new(false));
    let failing = || Err::<FaultySubject, _>(Error::Index("no".to_owned()));
    assert!(matches!(run(&plan, &options(), label(), &interrupt, failing), Err(Error::Index(_))));
    let panicking = || -> Result<FaultySubject, Error> { panic!("as it shall") };
    assert!(matches!(run(&plan, &options(), label(), &interrupt, panicking), Err(Error::Index(_))));
}
