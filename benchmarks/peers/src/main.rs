//! kvatlas and the released block indexes side by side: one process, one stream, one set of queries.

mod adapters;
mod alloc;
mod bars;
mod compare;
mod dump;
mod engines;
mod measure;
mod options;
mod report;
mod rng;
mod shrink;
mod specs;
mod threads;
mod trace;
mod wait;
mod workload;

use std::time::{Duration, Instant};

use adapters::{Adapter, ConcurrentAdapter};
use options::Options;
use report::{IndexResult, Run, WorkloadResult};
use specs::{SPECS, Spec};
use trace::Trace;
use workload::Workload;

#[global_allocator]
static ALLOCATOR: alloc::CountingAllocator = alloc::CountingAllocator;

type Round = fn(&Workload, measure::Clock, u64) -> Result<measure::Round, String>;
type Threads = fn(&Workload, measure::Clock, u64, Duration) -> Result<Option<threads::Threads>, String>;

/// An index under measurement: what [`measure`], [`compare`] and [`threads`] can do with it.
struct Subject {
    name: &'static str,
    about: &'static str,
    /// One of ours that exists for its lookup times only.
    lookups_only: bool,
    more_engines_than: u32,
    round: Round,
    memory: fn(&Workload) -> Result<measure::Memory, String>,
    threads: Option<Threads>,
    maker: compare::Maker,
}

impl Subject {
    fn of<A: Adapter + 'static>() -> Self {
        Self {
            name: A::NAME,
            about: A::ABOUT,
            lookups_only: false,
            more_engines_than: A::MORE_ENGINES_THAN,
            round: measure::round::<A>,
            memory: measure::memory::<A>,
            threads: None,
            maker: compare::maker::<A>(),
        }
    }

    fn concurrent<A: ConcurrentAdapter + 'static>() -> Self {
        Self { threads: Some(threads::threads::<A>), ..Self::of::<A>() }
    }
}

fn subjects() -> Vec<Subject> {
    vec![
        #[cfg(feature = "ours")]
        Subject::concurrent::<adapters::ours::Ours>(),
        #[cfg(feature = "ours")]
        Subject { lookups_only: true, ..Subject::of::<adapters::ours::OursScores>() },
        #[cfg(feature = "ours")]
        Subject { lookups_only: true, ..Subject::of::<adapters::ours::OursNames>() },
        #[cfg(feature = "ours")]
        Subject::of::<adapters::reader::OursReader>(),
        Subject::concurrent::<adapters::smg::Smg>(),
        Subject::of::<adapters::smg::Shards>(),
        Subject::of::<adapters::dynamo::Radix>(),
        Subject::concurrent::<adapters::dynamo::Crtc>(),
    ]
}

fn main() {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| match options {
        Some(options) => run(&options),
        None => {
            println!("{}", options::USAGE);
            Ok(())
        }
    });
    if let Err(message) = outcome {
        eprintln!("kvatlas-peers: {message}");
        std::process::exit(2);
    }
}

fn run(options: &Options) -> Result<(), String> {
    let started = Instant::now();
    let mut trace = Trace::find(options.trace.as_deref(), options.seed)?;
    if let Some(limit) = options.requests {
        trace.requests.truncate(limit);
    }
    if let Some((name, path)) = &options.dump {
        let spec = SPECS.into_iter().find(|spec| spec.name == name).ok_or_else(|| format!("no workload {name:?}"))?;
        return dump::dump(&Workload::build(spec, &trace, options.seed, 1), path);
    }
    let subjects: Vec<Subject> = subjects().into_iter().filter(|s| options.wants_index(s.name)).collect();
    let clock = measure::Clock::measure();
    let mut result = Run::new(options, &trace, clock, subjects.iter().map(|s| (s.name, s.about)).collect());
    println!("{}", result.heading());
    for spec in SPECS.into_iter().filter(|spec| options.wants_workload(spec.name)) {
        let workload = run_workload(spec, &trace, &subjects, clock, options)?;
        println!("{}", report::absolute(&workload));
        result.workloads.push(workload);
    }
    result.seconds = started.elapsed().as_secs_f64();
    println!("{}", bars::table(&result.workloads));
    println!("{:.0} s", result.seconds);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&result).map_err(|e| e.to_string())?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if result.workloads.iter().flat_map(|w| &w.comparison).flat_map(|c| &c.differences).any(|d| d.index == "ours") {
        return Err("ours answered wrongly, see above".to_owned());
    }
    Ok(())
}

fn run_workload(
    spec: Spec,
    trace: &Trace,
    subjects: &[Subject],
    clock: measure::Clock,
    options: &Options,
) -> Result<WorkloadResult, String> {
    let started = Instant::now();
    let subjects: Vec<&Subject> = subjects.iter().filter(|s| spec.engines > s.more_engines_than).collect();
    let progress = |what: &str| eprintln!("[{:>4.0} s] {} {what}", started.elapsed().as_secs_f64(), spec.name);
    let workload = Workload::build(spec, trace, options.seed, 1);
    // Readers beside a writer need engines that go on evicting: W1 with small caches, run twice.
    let busy = (spec.name == "W1" && options.wants_phase("threads"))
        .then(|| Workload::build(Spec { capacity: spec.capacity / 8, ..spec }, trace, options.seed, 2));
    progress("engines ran");
    let mut indexes: Vec<IndexResult> = subjects.iter().map(|s| IndexResult::new(s.name)).collect();
    let mut result = WorkloadResult::new(&workload);
    if options.wants_phase("compare") {
        let makers: Vec<_> = subjects.iter().filter(|s| !s.lookups_only).map(|s| &s.maker).collect();
        let samples = if spec.copies == 1 { 400 } else { 100 };
        result.comparison = Some(compare::compare(&workload, &makers, samples));
        progress("answers compared");
    }
    if options.wants_phase("memory") {
        for (subject, index) in subjects.iter().zip(&mut indexes).filter(|(s, _)| !s.lookups_only) {
            match (subject.memory)(&workload) {
                Ok(memory) => index.memory = Some(memory),
                Err(why) => index.refused = Some(why),
            }
        }
        progress("memory counted");
    }
    for number in 0..options.rounds {
        // Every round starts with another index, so that none always runs in the wake of the same one.
        for turn in 0..subjects.len() {
            let at = (turn + number) % subjects.len();
            let (subject, index) = (subjects[at], &mut indexes[at]);
            alloc::give_back();
            if options.wants_phase("time") && index.refused.is_none() {
                match (subject.round)(&workload, clock, options.seed + number as u64) {
                    Ok(round) => index.rounds.push(round),
                    Err(why) => index.refused = Some(why),
                }
            }
            if let Some(threads) = subject.threads
                && let Some(busy) = &busy
                && index.refused.is_none()
            {
                index.threads.extend(threads(busy, clock, options.seed + number as u64, options.thread_time)?);
            }
        }
        progress(&format!("round {} of {}", number + 1, options.rounds));
    }
    result.indexes = indexes;
    Ok(result)
}
