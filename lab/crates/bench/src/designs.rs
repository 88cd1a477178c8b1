//! Index designs of the crate `kvatlas-designs` under test, and load tests of a design by its name.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kvatlas_designs::pool::EventPool;
use kvatlas_designs::{Change, ConcurrentDesign, Feed, LadderStats, RUNGS, Refusal, Scores, WorkerId};
use kvatlas_index::BlockHash;

use crate::driver::{Label, run};
use crate::error::Error;
use crate::options::Options;
use crate::plan::Plan;
use crate::probe::{Probe, probe};
use crate::result::RunResult;
use crate::subject::{Counts, Subject};

/// Runs a plan of events and lookups against a new, empty index of the design `name`. The design `block-index` is timed
/// with its answer in the form of levels.
///
/// # Errors Those of [`run`]; [`Error::Index`] if there is no design of that name or it cannot be created with these
/// options.
pub fn run_design(plan: &Plan, name: &str, options: &Options, interrupt: &Arc<AtomicBool>) -> Result<RunResult, Error> {
    let about = RUNGS.iter().find(|rung| rung.name == name.strip_suffix("-strict").unwrap_or(name));
    let label = Label {
        name: name.to_owned(),
        about: about.map_or("", |rung| rung.what).to_owned(),
        version: concat!("kvatlas ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let made = design_options(options);
    // The reported options are those in use.
    let options = Options {
        jump_size: Some(made.jump_size),
        shards: Some(made.shards),
        group_size: Some(made.group_size),
        ..options.clone()
    };
    run(plan, &options, label, interrupt, || open(name, &made))
}

/// Name of the load test without an index: see [`run_null`].
pub const NULL: &str = "null";

/// Runs a plan without an index: the event threads of `block-index` drop every event, and lookups find nothing. The
/// sustained rate is the ceiling of the load test itself on this machine. No comparison is made.
///
/// # Errors Those of [`run`].
pub fn run_null(plan: &Plan, options: &Options, interrupt: &Arc<AtomicBool>) -> Result<RunResult, Error> {
    let label = Label {
        name: NULL.to_owned(),
        about: "no index: the driver, its queues and its threads".to_owned(),
        version: concat!("kvatlas ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let options = Options { check_seconds: 0.0, ..options.clone() };
    let pool = || EventPool::try_new(Null, options.event_threads).map_err(|error| Error::Index(error.to_string()));
    run(plan, &options, label, interrupt, || Ok(FeedSubject(Box::new(pool()?))))
}

/// Times single lookups like [`probe`], in a new, empty index of the design `name`.
///
/// # Errors Those of [`probe`]; [`Error::Index`] if there is no design of that name or it cannot be created with these
/// options.
pub fn probe_rung(
    plan: &Plan,
    name: &str,
    options: &Options,
    build: Duration,
    look: Duration,
    interrupt: &AtomicBool,
) -> Result<Probe, Error> {
    probe(plan, &open(name, &design_options(options))?, build, look, interrupt)
}

fn design_options(options: &Options) -> kvatlas_designs::Options {
    let defaults = kvatlas_designs::Options::default();
    kvatlas_designs::Options {
        event_threads: options.event_threads,
        jump_size: options.jump_size.unwrap_or(defaults.jump_size),
        shards: options.shards.unwrap_or(defaults.shards),
        group_size: options.group_size.unwrap_or(defaults.group_size),
        strict: options.strict,
    }
}

fn open(name: &str, options: &kvatlas_designs::Options) -> Result<FeedSubject, Error> {
    kvatlas_designs::open(name, options).map(FeedSubject).map_err(|error| Error::Index(error.to_string()))
}

/// A design without an index, which accepts every change and finds nothing: it measures the cost of the load test, the
/// queues and the threads.
#[derive(Debug, Default)]
struct Null;

impl ConcurrentDesign for Null {
    fn store(&self, _: WorkerId, _: Option<BlockHash>, _: &[BlockHash], _: &[u64]) -> Result<(), Refusal> {
        Ok(())
    }

    fn remove(&self, _: WorkerId, _: &[BlockHash]) {}

    fn clear(&self, _: WorkerId) {}

    fn drop_worker(&self, _: WorkerId) {}

    fn find(&self, _: &[u64], scores: &mut Scores) {
        scores.clear();
    }

    fn stats(&self) -> LadderStats {
        LadderStats::default()
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        Vec::new()
    }
}

/// Any running index ([`Feed`]) under test. Its own threads apply events; lookups run on the caller's thread, or where
/// the design runs them, and are timed with the answer in the design's own form ([`Feed::answer`]).
pub struct FeedSubject(pub Box<dyn Feed>);

impl From<LadderStats> for Counts {
    fn from(stats: LadderStats) -> Self {
        Self {
            refused_stores: Some(stats.refused),
            unknown_removals: Some(stats.unknown_removals),
            messages: Some(stats.messages),
            workers: Some(stats.workers),
            blocks: Some(stats.blocks),
            entries: Some(stats.entries),
            errors: 0,
            first_error: None,
        }
    }
}

impl Subject for FeedSubject {
    type Message = Change;
    type Query = Box<[u64]>;
    type Lane = Scores;

    fn message(&self, change: Change) -> Change {
        change
    }

    fn query(&self, contents: &[u64]) -> Box<[u64]> {
        contents.into()
    }

    fn lane(&self) -> Scores {
        Scores::new()
    }

    fn send(&self, message: Change) {
        self.0.send(message);
    }

    fn applied(&self) -> u64 {
        self.0.applied()
    }

    fn flush(&self) {
        self.0.flush();
    }

    fn lookup(&self, scores: &mut Scores, query: &Box<[u64]>) {
        std::hint::black_box(self.0.answer(query, scores));
        std::hint::black_box(&*scores);
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        self.0.find(contents, scores);
        Ok(())
    }

    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>> {
        Some(self.0.holdings())
    }

    fn counts(&self) -> Counts {
        let broken = self.0.broken();
        Counts { errors: u64::from(broken.is_some()), first_error: broken, ..self.0.stats().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Mix, plan};

    fn options() -> Options {
        // The test is that all is applied and right; under other load a run may be late.
        Options { window_ns: Some(50_000_000), lag_limit_ns: Some(u64::MAX), query_threads: 2, ..Options::default() }
    }

    #[test]
    fn rungs_that_never_give_in_agree_with_the_plan() {
        let plan = plan(4, Mix::default());
        for name in ["block-index", "block-index-scores", "dict-strict", "inverted-strict"] {
            let options = Options { event_threads: 2, ..options() };
            let result = run_design(&plan, name, &options, &Arc::default()).unwrap();
            assert_eq!(result.agrees, Some(true), "{name}: {:?}", result.why);
            assert_eq!((result.applied, result.answered), (plan.facts().events(), plan.facts().lookups));
            let held = result.comparison.and_then(|comparison| comparison.holdings).unwrap();
            assert_eq!(result.counts.blocks, Some(held.compared), "{name}");
            assert!(result.options.jump_size.is_some() && !result.about.is_empty());
        }
    }

    #[test]
    fn nothing_keeps_up_and_says_that_it_is_nothing() {
        let plan = plan(4, Mix::default());
        let result = run_null(&plan, &options(), &Arc::default()).unwrap();
        assert_eq!((result.applied, result.answered), (plan.facts().events(), plan.facts().lookups));
        assert_eq!((result.drained, result.agrees, result.ok), (true, None, false));
    }

    #[test]
    fn what_is_no_rung_is_refused() {
        let plan = plan(4, Mix::default());
        let refused = |name: &str, options: &Options| run_design(&plan, name, options, &Arc::default()).unwrap_err();
        assert!(matches!(refused("ladder", &options()), Error::Index(what) if what.contains("ladder")));
        let neither = Options { window_ns: None, ..options() };
        assert!(matches!(refused("dict", &neither), Error::Options(_)));
        #[cfg(target_os = "linux")]
        {
            let nowhere = Options { pin: vec![0, 0, 0, 1_000_000], ..options() };
            assert!(matches!(refused("dict", &nowhere), Error::Options(what) if what.contains("pin")));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_can_be_pinned() {
        let pin = vec![0, 0, 0, 0];
        let result =
            run_design(&plan(4, Mix::default()), "dict", &Options { pin, ..options() }, &Arc::default()).unwrap();
        assert!(result.drained, "{:?}", result.why);
    }
}
