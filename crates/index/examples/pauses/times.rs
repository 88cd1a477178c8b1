//! Times of events, and their report.

use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Events longer than these many nanoseconds are counted.
const LIMITS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The longest event.
#[derive(Clone, Default)]
struct Longest {
    processor: u64,
    wall: u64,
    what: String,
}

/// Times that the events of one kind took.
#[derive(Clone)]
pub(crate) struct Times {
    name: String,
    nanoseconds: Vec<u64>,
    longest: Longest,
    /// True if these are times that others waited.
    are_waits: bool,
    /// Time that reading the clock takes.
    clock: u64,
}

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

impl Times {
    pub(crate) fn new(name: &str) -> Self {
        let mut clock: Vec<u64> = (0..1_001).map(|_| processor_time().abs_diff(processor_time())).collect();
        clock.sort_unstable();
        Self {
            name: name.to_owned(),
            nanoseconds: Vec::new(),
            longest: Longest::default(),
            are_waits: false,
            clock: clock[500],
        }
    }

    /// Times one event.
    pub(crate) fn time<T>(&mut self, what: &str, event: impl FnOnce() -> T) -> T {
        let (wall, processor) = (Instant::now(), processor_time());
        let result = event();
        let processor = processor_time().abs_diff(processor).saturating_sub(self.clock);
        let wall = wall.elapsed();
        self.nanoseconds.push(processor);
        if processor > self.longest.processor {
            let wall = wall.as_nanos() as u64;
            self.longest = Longest { processor, wall, what: format!("{what}, number {}", self.nanoseconds.len()) };
        }
        result
    }

    /// Times how long others wait who want to change something during a long event: by the wall clock, as waiting takes no
    /// processor. Each has a processor to itself, if there are two: what is to be seen is not who waits for one.
    pub(crate) fn time_others(&mut self, what: &str, event: impl FnOnce() + Send, other: impl Fn()) {
        self.are_waits = true;
        let before = sched_getaffinity(None).expect("a set of processors");
        let mut processors = (0..CpuSet::MAX_CPU).filter(|at| before.is_set(*at));
        let (first, second) = (processors.next(), processors.next());
        let go_to = |processor: Option<usize>| {
            let Some(processor) = processor else { return };
            let mut set = CpuSet::new();
            set.set(processor);
            sched_setaffinity(None, &set).expect("one that is there");
        };
        thread::scope(|scope| {
            let event = scope.spawn(move || {
                go_to(second);
                event();
            });
            go_to(first);
            while !event.is_finished() {
                let start = Instant::now();
                other();
                let wall = start.elapsed().as_nanos() as u64;
                self.nanoseconds.push(wall);
                if wall > self.longest.processor {
                    let what = format!("another during {what}, number {}", self.nanoseconds.len());
                    self.longest = Longest { processor: wall, wall, what };
                }
            }
        });
        sched_setaffinity(None, &before).expect("those from before");
    }

    pub(crate) fn heading() -> String {
        format!(
            "{:<44} {:>9} {:>8} {:>8} {:>8} {:>9} | {:>8} {:>7} {:>6} {:>5} {:>5} | longest",
            "us", "events", "p50", "p99", "p99.99", "longest", ">1", ">10", ">100", ">1000", ">10^4"
        )
    }

    /// Prints a line, and adds all to `sum`.
    pub(crate) fn tell(mut self, sum: &mut Self) {
        if self.nanoseconds.is_empty() {
            return;
        }
        self.nanoseconds.sort_unstable();
        let n = self.nanoseconds.len();
        let at = |share: f64| micros(self.nanoseconds[((n as f64 * share) as usize).min(n - 1)]);
        let over = LIMITS.map(|limit| n - self.nanoseconds.partition_point(|&time| time <= limit));
        let Longest { processor, wall, what } = &self.longest;
        eprintln!(
            "{:<44} {n:>9} {:>8.1} {:>8.1} {:>8.1} {:>9.1} | {:>8} {:>7} {:>6} {:>5} {:>5} | {what} ({:.1} by the wall)",
            self.name,
            at(0.5),
            at(0.99),
            at(0.9999),
            micros(*processor),
            over[0],
            over[1],
            over[2],
            over[3],
            over[4],
            micros(*wall)
        );
        if *processor > sum.longest.processor {
            sum.longest = self.longest.clone();
            sum.longest.what = format!("{}: {}", self.name, sum.longest.what);
        }
        // Those who had nothing to wait for are as many as there was time for: they are no events.
        if !self.are_waits {
            sum.nanoseconds.append(&mut self.nanoseconds);
        }
    }
}

fn micros(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6
}
