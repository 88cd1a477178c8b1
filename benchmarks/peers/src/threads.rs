//! Readers beside a writer, and readers beside each other.
//!
//! The writer applies the trace's second lap over and over (see `Workload::build`): the index stays in a steady
//! state, and every lap is the same work. An index that consumes events gets fresh ones between chunks, off the
//! writer's clock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::adapters::ConcurrentAdapter;
use crate::measure::{Clock, nanoseconds};
use crate::rng::Rng;
use crate::workload::{PlainEvent, Workload};

/// Events the writer applies between two looks at its clock.
const CHUNK: usize = 512;

#[derive(Clone, Debug, Serialize)]
pub struct Threads {
    /// ns of one lookup without and with a writer flat out on another thread, the clock's own cost deducted.
    pub quiet_p50: f64,
    pub quiet_p99: f64,
    pub loud_p50: f64,
    pub loud_p99: f64,
    /// Blocks stored and removed a second, alone and with one reader flat out.
    pub writer_alone: f64,
    pub writer_beside: f64,
    /// Lookups a second of one reader, and of two together, all under one first block.
    pub one_reader: f64,
    pub two_readers: f64,
}

/// One round. `None` if the trace leaves nothing to write once it has been run.
pub fn threads<A: ConcurrentAdapter>(
    w: &Workload,
    clock: Clock,
    shuffle: u64,
    time: Duration,
) -> Result<Option<Threads>, String> {
    let mut index = A::build(&w.spec)?;
    let mut spelled = PlainEvent::default();
    for number in 0..w.first_lap {
        for event in w.events_of(number) {
            w.spell(event, &mut spelled);
            let mut event = A::event(&spelled);
            index.apply(&mut event);
        }
    }
    index.settle();
    let lap: Vec<PlainEvent> = w
        .events_after_first_lap()
        .iter()
        .map(|event| {
            let mut out = PlainEvent::default();
            w.spell(event, &mut out);
            out
        })
        .collect();
    if lap.is_empty() {
        return Ok(None);
    }
    let mut queries: Vec<A::Query> = Vec::new();
    let mut contents = Vec::new();
    let mut order: Vec<usize> = (0..w.first_lap).collect();
    Rng::new(shuffle).shuffle(&mut order);
    for &number in &order {
        w.query(number, &mut contents);
        queries.push(A::query(&contents));
    }
    let mut events: Vec<A::Event> = lap.iter().map(A::event).collect();

    let (reader, writer) = index.split();
    let mut quiet = latencies::<A>(reader, &mut queries, time);
    let started = Instant::now();
    let writer_alone = write::<A>(reader, writer, &mut events, &lap, || started.elapsed() >= time);
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(2));
    let (mut loud, writer_beside) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            barrier.wait();
            write::<A>(reader, writer, &mut events, &lap, || stop.load(Relaxed))
        });
        barrier.wait();
        let loud = latencies::<A>(reader, &mut queries, time);
        stop.store(true, Relaxed);
        (loud, writing.join().expect("the writer does not panic"))
    });
    let (left, right) = queries.split_at_mut(order.len() / 2);
    let one_reader = lookups_a_second::<A>(reader, vec![&mut *left], time);
    let two_readers = lookups_a_second::<A>(reader, vec![left, right], time);
    Ok(Some(Threads {
        quiet_p50: clock.percentile(&mut quiet, 0.5),
        quiet_p99: clock.percentile(&mut quiet, 0.99),
        loud_p50: clock.percentile(&mut loud, 0.5),
        loud_p99: clock.percentile(&mut loud, 0.99),
        writer_alone,
        writer_beside,
        one_reader,
        two_readers,
    }))
}

/// Times single lookups, over and over all queries, for about `time`.
fn latencies<A: ConcurrentAdapter>(reader: &A::Reader, queries: &mut [A::Query], time: Duration) -> Vec<u32> {
    let mut all = Vec::with_capacity(1 << 22);
    let begun = Instant::now();
    while begun.elapsed() < time {
        for query in queries.iter_mut() {
            let start = Instant::now();
            A::find_in(reader, query);
            all.push(nanoseconds(start));
        }
    }
    all
}

/// Applies whole laps until `enough`. Blocks a second, by the time spent applying.
fn write<A: ConcurrentAdapter>(
    reader: &A::Reader,
    writer: &mut A::Writer,
    events: &mut [A::Event],
    lap: &[PlainEvent],
    enough: impl Fn() -> bool,
) -> f64 {
    let (mut spent, mut blocks) = (Duration::ZERO, 0);
    while !enough() {
        for (events, spelled) in events.chunks_mut(CHUNK).zip(lap.chunks(CHUNK)) {
            let start = Instant::now();
            A::apply_in(reader, writer, events);
            spent += start.elapsed();
            blocks += spelled.iter().map(|e| e.names.len()).sum::<usize>();
            if !A::REUSABLE {
                events.iter_mut().zip(spelled).for_each(|(event, spelled)| *event = A::event(spelled));
            }
        }
    }
    blocks as f64 / spent.as_secs_f64()
}

/// Lookups a second of one thread for each set of queries, all at once.
fn lookups_a_second<A: ConcurrentAdapter>(reader: &A::Reader, sets: Vec<&mut [A::Query]>, time: Duration) -> f64 {
    let barrier = Barrier::new(sets.len());
    let run = |queries: &mut [A::Query]| {
        barrier.wait();
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < time {
            queries.iter_mut().for_each(|query| A::find_in(reader, query));
            count += queries.len();
        }
        count as f64 / begun.elapsed().as_secs_f64()
    };
    let run = &run;
    std::thread::scope(|scope| {
        let running: Vec<_> = sets.into_iter().map(|queries| scope.spawn(move || run(queries))).collect();
        running.into_iter().map(|thread| thread.join().expect("a reader does not panic")).sum()
    })
}
