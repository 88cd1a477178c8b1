//! The report of a run: the tables it prints and the JSON it writes.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::compare::Comparison;
use crate::measure::{Clock, Memory, Round};
use crate::options::Options;
use crate::threads::Threads;
use crate::trace::Trace;
use crate::workload::Workload;

#[derive(Serialize)]
pub struct Run {
    pub command: Vec<String>,
    pub unix_time: u64,
    pub machine: Machine,
    pub versions: Vec<(&'static str, String)>,
    pub trace: String,
    pub requests: usize,
    pub blocks_a_request: f64,
    pub seen_before: f64,
    pub seed: u64,
    pub rounds: usize,
    pub clock: Clock,
    pub subjects: Vec<(&'static str, &'static str)>,
    pub workloads: Vec<WorkloadResult>,
    pub seconds: f64,
}

#[derive(Serialize)]
pub struct Machine {
    pub cpu: String,
    pub threads: usize,
    pub os: String,
    /// Load average when the run began: what else the machine was doing.
    pub load: String,
}

#[derive(Serialize)]
pub struct WorkloadResult {
    pub name: &'static str,
    pub about: &'static str,
    pub requests: usize,
    pub stored: u64,
    pub removed: u64,
    pub held: u64,
    pub indexes: Vec<IndexResult>,
    pub comparison: Option<Comparison>,
}

#[derive(Serialize)]
pub struct IndexResult {
    pub name: &'static str,
    pub refused: Option<String>,
    pub rounds: Vec<Round>,
    pub threads: Vec<Threads>,
    pub memory: Option<Memory>,
}

impl Run {
    pub fn new(options: &Options, trace: &Trace, clock: Clock, subjects: Vec<(&'static str, &'static str)>) -> Self {
        let (blocks_a_request, seen_before, _) = trace.statistics();
        Self {
            command: std::env::args().collect(),
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            machine: Machine::here(),
            versions: vec![
                ("kvatlas", output("git", &["rev-parse", "--short", "HEAD"])),
                ("kv-index", "2.0.0".to_owned()),
                ("dynamo-kv-router", "1.6.1".to_owned()),
                ("rustc", output("rustc", &["--version"])),
            ],
            trace: trace.source.clone(),
            requests: trace.requests.len(),
            blocks_a_request,
            seen_before,
            seed: options.seed,
            rounds: options.rounds,
            clock,
            subjects,
            workloads: Vec::new(),
            seconds: 0.0,
        }
    }

    pub fn heading(&self) -> String {
        let mut text = format!(
            "{} requests of {}, {:.1} blocks of 512 each, {:.0} % seen before; seed {}, {} rounds\n{}, {} threads, load {}; reading the clock costs {:.1} ns (deducted everywhere), it steps by {} ns\n",
            self.requests,
            self.trace,
            self.blocks_a_request,
            100.0 * self.seen_before,
            self.seed,
            self.rounds,
            self.machine.cpu,
            self.machine.threads,
            self.machine.load,
            self.clock.overhead,
            self.clock.step,
        );
        if self.machine.load.parse().is_ok_and(|load: f64| load > 0.5) {
            text += "The load is above 0.5: times are rough, ratios of one run less so.\n";
        }
        for (name, about) in &self.subjects {
            let _ = writeln!(text, "  {name:<12} {about}");
        }
        text
    }
}

impl Machine {
    fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, m)| m.to_owned()));
        Self {
            cpu: model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            os: output("uname", &["-sr"]),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

/// Returns what a command prints, or nothing if it cannot be run: the report names what it can.
fn output(command: &str, arguments: &[&str]) -> String {
    let ran = Command::new(command).args(arguments).output().ok().filter(|o| o.status.success());
    ran.map_or_else(String::new, |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

impl WorkloadResult {
    pub fn new(w: &Workload) -> Self {
        let (stored, removed) = w.blocks_moved();
        Self {
            name: w.spec.name,
            about: w.spec.about,
            requests: w.first_lap,
            stored,
            removed,
            held: w.held,
            indexes: Vec::new(),
            comparison: None,
        }
    }
}

impl IndexResult {
    pub fn new(name: &'static str) -> Self {
        Self { name, refused: None, rounds: Vec::new(), threads: Vec::new(), memory: None }
    }

    /// True if the index lost events, or answered wrongly: its numbers are then those of another content.
    pub fn failed(&self, comparison: Option<&Comparison>) -> bool {
        let wrong =
            |c: &Comparison| c.indexes.iter().zip(&c.wrong).any(|(name, &wrong)| *name == self.name && wrong > 0);
        self.rounds.iter().any(|r| r.refused_events > 0) || comparison.is_some_and(wrong)
    }

    /// Median over the rounds of what `of` reads from each.
    pub fn median(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().filter_map(of).collect())
    }

    pub fn median_threads(&self, of: impl Fn(&Threads) -> f64) -> Option<f64> {
        median(self.threads.iter().map(of).collect())
    }
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The absolute numbers of one workload: medians over the rounds.
pub fn absolute(w: &WorkloadResult) -> String {
    let mut text = format!(
        "{}: {}; {} requests, {} blocks stored, {} removed, {} held\n",
        w.name, w.about, w.requests, w.stored, w.removed, w.held
    );
    let columns = [
        "find p50",
        "p99",
        "random p50",
        "p99",
        "store",
        "remove",
        "either",
        "B/held",
        "peak MB",
        "emptied",
        "dropped",
    ];
    let _ = write!(text, "  {:<12}", "");
    columns.iter().for_each(|c| {
        let _ = write!(text, "{c:>11}");
    });
    text.push('\n');
    for index in &w.indexes {
        let _ = write!(text, "  {:<12}", index.name);
        if let Some(why) = &index.refused {
            let _ = writeln!(text, "  {why}");
            continue;
        }
        let memory = index.memory.as_ref();
        let cells = [
            index.median(|r| Some(r.find_p50)),
            index.median(|r| Some(r.find_p99)),
            index.median(|r| Some(r.random_p50)),
            index.median(|r| Some(r.random_p99)),
            index.median(|r| r.store),
            index.median(|r| r.remove),
            index.median(|r| r.either),
            memory.map(|m| m.held_block),
            memory.map(|m| m.peak as f64 / 1e6),
            memory.map(|m| m.emptied as f64),
            memory.map(|m| m.dropped as f64),
        ];
        for cell in cells {
            let _ = write!(text, "{:>11}", cell.map_or_else(|| "-".to_owned(), number));
        }
        let refused = index.median(|r| Some(r.refused_events as f64)).unwrap_or(0.0);
        if refused > 0.0 {
            let _ = write!(text, "  refused {refused} events");
        }
        text.push('\n');
    }
    threads(w, &mut text);
    if let Some(comparison) = &w.comparison {
        compared(comparison, &mut text);
    }
    text
}

fn threads(w: &WorkloadResult, text: &mut String) {
    for index in w.indexes.iter().filter(|i| !i.threads.is_empty()) {
        let of = |field: fn(&Threads) -> f64| index.median_threads(field).unwrap_or(0.0);
        let _ = writeln!(
            text,
            "  {:<12} find beside a writer p50/p99 {}/{} (quiet {}/{}); writer {:.1} M blocks/s (alone {:.1}); lookups/s two readers {:.2} M (one {:.2})",
            index.name,
            number(of(|t| t.loud_p50)),
            number(of(|t| t.loud_p99)),
            number(of(|t| t.quiet_p50)),
            number(of(|t| t.quiet_p99)),
            of(|t| t.writer_beside) / 1e6,
            of(|t| t.writer_alone) / 1e6,
            of(|t| t.two_readers) / 1e6,
            of(|t| t.one_reader) / 1e6,
        );
    }
}

fn compared(c: &Comparison, text: &mut String) {
    let _ = write!(text, "  answers: {} queries, {} scores above zero; wrong:", c.queries, c.scores);
    for (name, wrong) in c.indexes.iter().zip(&c.wrong) {
        let _ = write!(text, " {name} {wrong}");
    }
    text.push('\n');
    for d in &c.differences {
        let _ = writeln!(
            text,
            "  {} says engine {} holds {} blocks of request {}, it holds {}. The smallest stream found:\n{}",
            d.index, d.engine, d.said, d.request, d.held, d.stream
        );
    }
}

/// Three digits or so: what a reader can use.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
