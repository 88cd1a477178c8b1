//! Measurements of one index on one thread: lookups, events, memory.

use std::time::Instant;

use serde::Serialize;

use crate::adapters::Adapter;
use crate::alloc;
use crate::rng::Rng;
use crate::workload::{PlainEvent, Workload};

/// Events handed to an index with a queue before it is waited for, when its throughput is measured.
const QUEUED: usize = 256;

/// The clock as this machine has it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Clock {
    /// ns between two readings with nothing between them: subtracted from every lookup and event of every index.
    pub overhead: f64,
    /// ns between two different readings at least: some processors' clocks step by ten.
    pub step: f64,
}

impl Clock {
    pub fn measure() -> Self {
        let mut all: Vec<u32> = (0..200_000).map(|_| nanoseconds(Instant::now())).collect();
        // Times of all short lengths show the steps; the time of nothing may show only one of them.
        let lengths = (0..200_000u32).map(|i| {
            let start = Instant::now();
            (0..i % 64).for_each(|_| std::hint::spin_loop());
            nanoseconds(start)
        });
        let mut clock = Self { overhead: 0.0, step: f64::from(step(lengths.collect())) };
        clock.overhead = clock.percentile(&mut all, 0.5);
        clock
    }

    /// The value that `share` of all do not exceed, without the clock's own cost. Values within one step of the
    /// clock are taken to be spread evenly over it, so that medians are not themselves multiples of the step.
    pub fn percentile(&self, values: &mut [u32], share: f64) -> f64 {
        if values.is_empty() {
            return 0.0;
        }
        let rank = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
        let value = f64::from(*values.select_nth_unstable(rank - 1).1);
        let low = value - self.step / 2.0;
        let below = values.iter().filter(|&&v| f64::from(v) < low).count();
        let within = values.iter().filter(|&&v| (low..low + self.step).contains(&f64::from(v))).count();
        low + self.step * (rank - below) as f64 / within.max(1) as f64 - self.overhead
    }
}

/// The usual distance between the different values that short times take. Neighbours one apart are one value,
/// rounded: a clock that steps by single nanoseconds gives one long row of neighbours, so 1.
fn step(mut times: Vec<u32>) -> u32 {
    times.sort_unstable();
    // The slowest tenth holds the interruptions, whose values say nothing.
    times.truncate(times.len() * 9 / 10);
    times.dedup();
    let starts: Vec<u32> =
        times.iter().enumerate().filter(|&(i, &t)| i == 0 || t > times[i - 1] + 1).map(|(_, &t)| t).collect();
    let mut gaps: Vec<u32> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(1)
}

/// ns since `start`, up to four seconds.
pub fn nanoseconds(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// One round of one index. Times in ns, the clock's own cost deducted; `None` where it cannot be measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    pub find_p50: f64,
    pub find_p99: f64,
    pub random_p50: f64,
    pub random_p99: f64,
    /// A block stored / removed.
    pub store: Option<f64>,
    pub remove: Option<f64>,
    /// A block, stored or removed, for an index with a queue: until drained.
    pub either: Option<f64>,
    /// Events the index refused, as far as it says.
    pub refused_events: u64,
}

struct Latencies {
    all: Vec<u32>,
    clock: Clock,
}

impl Latencies {
    fn find<A: Adapter>(&mut self, index: &A, contents: &[u64]) {
        let mut query = A::query(contents);
        let start = Instant::now();
        index.find(&mut query);
        self.all.push(nanoseconds(start));
    }

    fn at(&mut self, share: f64) -> f64 {
        self.clock.percentile(&mut self.all, share)
    }
}

/// Time and blocks of one kind of event.
#[derive(Default)]
struct Kind {
    nanoseconds: u64,
    events: u64,
    blocks: u64,
}

impl Kind {
    fn a_block(&self, clock: Clock) -> Option<f64> {
        (self.blocks > 0).then(|| (self.nanoseconds as f64 - self.events as f64 * clock.overhead) / self.blocks as f64)
    }
}

/// Fills the index request by request (lookup, then the request's events, as in a router), then asks all
/// queries again in random order.
pub fn round<A: Adapter>(w: &Workload, clock: Clock, shuffle: u64) -> Result<Round, String> {
    let mut index = A::build(&w.spec)?;
    let mut found = Latencies { all: Vec::with_capacity(w.first_lap), clock };
    let (mut store, mut remove) = (Kind::default(), Kind::default());
    let (mut contents, mut spelled) = (Vec::new(), PlainEvent::default());
    let mut refused_events = 0;
    for number in 0..w.first_lap {
        w.query(number, &mut contents);
        found.find(&index, &contents);
        for event in w.events_of(number) {
            w.spell(event, &mut spelled);
            let mut event = A::event(&spelled);
            let start = Instant::now();
            let applied = index.apply(&mut event);
            let spent = nanoseconds(start);
            refused_events += u64::from(!applied);
            let kind = if spelled.store { &mut store } else { &mut remove };
            kind.nanoseconds += u64::from(spent);
            kind.events += 1;
            kind.blocks += spelled.names.len() as u64;
        }
        index.settle();
    }
    let mut result = Round { find_p50: found.at(0.5), find_p99: found.at(0.99), refused_events, ..Round::default() };
    if A::INLINE {
        result.store = store.a_block(clock);
        result.remove = remove.a_block(clock);
    }

    let mut order: Vec<usize> = (0..w.first_lap).collect();
    Rng::new(shuffle).shuffle(&mut order);
    found.all.clear();
    for number in order {
        w.query(number, &mut contents);
        found.find(&index, &contents);
    }
    result.random_p50 = found.at(0.5);
    result.random_p99 = found.at(0.99);
    drop(index);
    if !A::INLINE {
        result.either = Some(queued::<A>(w)?);
    }
    Ok(result)
}

/// Throughput of an index with a queue: chunks of events handed over, then waited for.
fn queued<A: Adapter>(w: &Workload) -> Result<f64, String> {
    let mut index = A::build(&w.spec)?;
    let mut spelled = PlainEvent::default();
    let (mut spent, mut blocks) = (0, 0);
    let mut chunk = Vec::with_capacity(QUEUED);
    let events = (0..w.first_lap).flat_map(|number| w.events_of(number));
    let mut flush = |index: &mut A, chunk: &mut Vec<A::Event>| {
        let start = Instant::now();
        for event in chunk.iter_mut() {
            index.apply(event);
        }
        index.settle();
        spent += start.elapsed().as_nanos();
        chunk.clear();
    };
    for event in events {
        w.spell(event, &mut spelled);
        blocks += spelled.names.len();
        chunk.push(A::event(&spelled));
        if chunk.len() == QUEUED {
            flush(&mut index, &mut chunk);
        }
    }
    flush(&mut index, &mut chunk);
    Ok(spent as f64 / blocks.max(1) as f64)
}

/// Bytes asked of the allocator by one index.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Bytes that are allocated with everything of the first lap applied.
    pub live: i64,
    pub peak: i64,
    /// Bytes live for each block that an engine holds.
    pub held_block: f64,
    /// Bytes that are left when every block has been removed by events, and when the index has been dropped.
    pub emptied: i64,
    pub dropped: i64,
    /// The index's own account, when it was full.
    pub accounting: Option<String>,
}

/// Fills an index, empties it by events, drops it, all under the counting allocator.
pub fn memory<A: Adapter>(w: &Workload) -> Result<Memory, String> {
    let mut spelled = PlainEvent::default();
    // Spell the largest events first, so that growth of the buffer is not counted.
    spelled.names.reserve(1 << 16);
    spelled.contents.reserve(1 << 16);
    alloc::start();
    let result = (|| {
        let mut index = A::build(&w.spec)?;
        let mut apply = |index: &mut A, event| {
            w.spell(event, &mut spelled);
            let mut event = A::event(&spelled);
            index.apply(&mut event);
        };
        for number in 0..w.first_lap {
            w.events_of(number).iter().for_each(|event| apply(&mut index, event));
            index.settle();
        }
        let (live, peak) = (alloc::live(), alloc::peak());
        let accounting = index.accounting();
        let about = accounting.as_ref().map_or(0, |a| a.capacity() as i64);
        w.drain().iter().for_each(|event| apply(&mut index, event));
        index.settle();
        let emptied = alloc::live() - about;
        drop(index);
        let dropped = alloc::live() - about;
        Ok(Memory { live, peak, held_block: live as f64 / w.held.max(1) as f64, emptied, dropped, accounting })
    })();
    alloc::stop();
    result
}

#[cfg(test)]
mod tests {
    use super::{Clock, step};

    #[test]
    fn tells_a_coarse_clock_from_a_fine_one() {
        let repeat = |values: &[u32]| values.iter().copied().cycle().take(1_000).collect();
        assert_eq!(step(repeat(&[20, 21, 30, 31, 20, 40, 20, 30, 21, 20])), 10);
        assert_eq!(step(repeat(&[17, 18, 19, 20, 21])), 1);
        assert_eq!(step(repeat(&[20])), 1);
    }

    #[test]
    fn percentiles_fall_between_the_steps_of_the_clock() {
        let clock = Clock { overhead: 20.0, step: 10.0 };
        let mut values = [30, 30, 30, 30, 40, 40, 40, 40, 40, 900];
        // The fifth of ten is the first of five in 35..45.
        assert!((clock.percentile(&mut values, 0.5) - 17.0).abs() < 1e-9);
        assert!((clock.percentile(&mut values, 1.0) - 885.0).abs() < 1e-9);
        assert_eq!(clock.percentile(&mut [], 0.5), 0.0);
    }
}
