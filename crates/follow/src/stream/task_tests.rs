//! Tests of a stream's task, with simulated sockets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Chain, payload_at};
use kvatlas_index::{View, hash};
use kvatlas_wire::Cleared;
use tokio::sync::oneshot;

use super::engine::follow;
use super::transport::{Transport, TransportEvent};
use crate::config::StreamConfig;
use crate::state::{Keyspace, Registration, State, Stream};

/// Events that the simulated sockets deliver to the task.
#[derive(Default)]
struct Line {
    incoming: VecDeque<TransportEvent<Vec<u8>>>,
    /// Batches of the engine, all of which can be replayed.
    batches: Vec<Vec<u8>>,
    waker: Option<Waker>,
    fail: bool,
    opened: u32,
    /// Sequence number of each live batch that was read, with true if the stream was trusted at that time.
    trusted_at: Vec<(u64, bool)>,
}

impl Line {
    fn push(&mut self, incoming: TransportEvent<Vec<u8>>) {
        self.incoming.push_back(incoming);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct Fake(Arc<Mutex<Line>>, Arc<Stream>);

impl Transport for Fake {
    type Payload = Vec<u8>;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        let mut line = self.0.lock().expect("no one panics with it");
        let fail = std::mem::take(&mut line.fail);
        line.waker = Some(cx.waker().clone());
        let next = line.incoming.pop_front();
        if let Some(TransportEvent::Live { seq, .. }) = &next {
            line.trusted_at.push((*seq, self.1.status.is_trusted()));
        }
        drop(line);
        assert!(!fail, "as the test wants it");
        next.map_or(Poll::Pending, Poll::Ready)
    }

    fn ask(&mut self, from: u64) {
        let mut line = self.0.lock().expect("no one panics with it");
        for seq in from..line.batches.len() as u64 {
            let payload = line.batches[seq as usize].clone();
            line.push(TransportEvent::Reply { seq, payload });
        }
        line.push(TransportEvent::ReplyEnd);
    }

    fn cancel(&mut self) {}

    fn reconnect(&mut self) {}
}

/// Chain of blocks that the simulated engines announce.
const CHAIN: Chain = Chain { life: 0, block_size: 2 };

fn store(block: u64, rank: Option<u32>) -> Vec<u8> {
    payload_at(0.0, rank, vec![CHAIN.stored(block)])
}

/// Makes a batch that stores a block of another size than the index's.
fn store_badly() -> Vec<u8> {
    payload_at(0.0, None, vec![Chain { life: 1, block_size: 3 }.stored(0)])
}

fn clear() -> Vec<u8> {
    payload_at(0.0, None, vec![Cleared.into()])
}

struct Bench {
    line: Arc<Mutex<Line>>,
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Bench {
    fn new(batches: Vec<Vec<u8>>) -> Self {
        let keyspace = Arc::new(Keyspace::new("m", "g", 2).expect("a block size"));
        Self::of(keyspace, "w", batches)
    }

    /// Follows a further stream, rank 0 of `worker`, whose blocks go into the index of `keyspace`. `batches` are those
    /// that can be replayed.
    fn of(keyspace: Arc<Keyspace>, worker: &str, batches: Vec<Vec<u8>>) -> Self {
        let registration = Registration {
            worker: worker.to_owned(),
            names: None,
            model: "m".to_owned(),
            routing_group: "g".to_owned(),
            block_size: 2,
            rank: 0,
            endpoint: "ipc:///nowhere".parse().expect("an endpoint"),
            replay_endpoint: Some("ipc:///nowhere-else".parse().expect("an endpoint")),
            topic: String::new(),
            count_copies: true,
            host_chunk: None,
            source: String::new(),
        };
        let stream = Arc::new(Stream::new(worker.into(), registration));
        keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
        let line = Arc::new(Mutex::new(Line { batches, ..Line::default() }));
        let (stop, stopped) = oneshot::channel();
        let (lines, of) = (line.clone(), stream.clone());
        let transport = move || {
            let mut line = lines.lock().expect("no one panics with it");
            line.incoming.clear();
            line.opened += 1;
            line.push(TransportEvent::Connected);
            drop(line);
            Fake(lines.clone(), of.clone())
        };
        let config = StreamConfig::default();
        let task = tokio::spawn(follow(keyspace.clone(), stream.clone(), config.into(), transport, stopped));
        Self { line, keyspace, stream, stop, task }
    }

    fn depth(&self, rank: u32) -> u32 {
        let contents = hash::content_hashes(&CHAIN.tokens(20), 2, None, None);
        let found = self.keyspace.index().find(&contents).to_owned();
        let mine = |(worker, of, _): &&(&Arc<str>, u32, u32)| **worker == self.stream.worker && *of == rank;
        found.by_rank(View::Device).iter().find(mine).map_or(0, |(_, _, depth)| *depth)
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", self.stream.status);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Returns the last error of the stream, if it has ended and no other error has begun.
fn was_wrong(bench: &Bench) -> Option<String> {
    let status = &bench.stream.status;
    status.previous_error().filter(|_| status.last_error().is_none()).map(|(error, _)| error)
}

#[tokio::test]
async fn an_error_stays_until_the_engine_says_that_all_is_well() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    let push = |incoming| bench.line.lock().expect("no one panics with it").push(incoming);
    let error = || bench.stream.status.last_error();
    let publish = |payload: Vec<u8>| {
        let mut line = bench.line.lock().expect("no one panics with it");
        let seq = line.batches.len() as u64;
        line.batches.push(payload.clone());
        line.push(TransportEvent::Live { seq, payload });
    };
    // Trusted all the time, but for a question that may be answered: that comes every five seconds.
    push(TransportEvent::Unreachable("no replay".to_owned()));
    publish(store(1, None));
    bench.until(|bench| bench.depth(0) == 2).await;
    bench.until(|bench| was_wrong(bench).as_deref() == Some("no replay")).await;
    // What is lost explains why it is partial.
    publish(store_badly());
    bench.until(|_| error().is_some()).await;
    push(TransportEvent::Disconnected("gone".to_owned()));
    push(TransportEvent::Connected);
    bench.until(|bench| bench.stream.status.counters.reconnects.load(Relaxed) == 1).await;
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    assert!(bench.stream.status.partial.load(Relaxed) && error().is_some());
    publish(clear());
    bench.until(|bench| !bench.stream.status.partial.load(Relaxed)).await;
    bench.until(|_| error().is_none()).await;
}

#[tokio::test]
async fn a_panic_costs_the_holdings_and_nothing_else() {
    let bench = Bench::new((0..5).map(|block| store(block, None)).collect());
    bench.until(|bench| bench.depth(0) == 5 && bench.stream.status.is_trusted()).await;
    let seen = AtomicU32::new(0);
    {
        let mut line = bench.line.lock().expect("no one panics with it");
        line.fail = true;
        line.batches.push(store(5, None));
        line.push(TransportEvent::BadFrames);
    }
    bench
        .until(|bench| {
            seen.fetch_or(u32::from(!bench.stream.status.is_trusted() && bench.depth(0) == 0), Relaxed);
            bench.stream.status.counters.task_restarts.load(Relaxed) == 1 && bench.depth(0) == 6
        })
        .await;
    assert_eq!(seen.load(Relaxed), 1, "nothing was held, and not trusted, in between");
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    assert_eq!(bench.line.lock().expect("no one panics with it").opened, 2);
    bench.until(|bench| was_wrong(bench).is_some_and(|error| error.contains("as the test wants it"))).await;
    bench.stop.send(()).expect("it runs");
    bench.task.await.expect("it ends");
    assert_eq!(bench.stream.status.state(), State::Stopped);
}

#[tokio::test]
async fn a_panic_inside_the_index_costs_all_who_share_it_and_is_said() {
    let first = Bench::new((0..5).map(|block| store(block, None)).collect());
    let other = Bench::of(first.keyspace.clone(), "x", (0..3).map(|block| store(block, None)).collect());
    first.until(|bench| bench.depth(0) == 5 && bench.stream.status.is_trusted()).await;
    other.until(|bench| bench.depth(0) == 3 && bench.stream.status.is_trusted()).await;
    let broken = first.keyspace.index().clone();
    first.keyspace.fail.store(true, Relaxed);
    {
        let mut line = first.line.lock().expect("no one panics with it");
        line.batches.push(store(5, None));
        line.push(TransportEvent::Live { seq: 5, payload: store(5, None) });
    }
    first.until(|bench| bench.keyspace.rebuilds() == 1).await;
    other.until(|bench| bench.line.lock().expect("no one panics with it").opened == 2).await;
    other.until(|bench| bench.depth(0) == 3 && bench.stream.status.is_trusted()).await;
    first.until(|bench| bench.depth(0) == 6 && bench.stream.status.is_trusted()).await;
    assert!(!Arc::ptr_eq(&broken, &first.keyspace.index()));
    for (bench, restarts) in [(&first, 1), (&other, 0)] {
        let status = &bench.stream.status;
        bench.until(|bench| was_wrong(bench).is_some_and(|error| error.contains("internal error"))).await;
        assert_eq!(status.counters.task_restarts.load(Relaxed), restarts);
    }
    // Whoever still feeds the old one is not trusted for it.
    first.keyspace.set_trusted(&other.stream, &broken, true);
    assert!(!other.stream.status.is_trusted());
}

#[tokio::test]
async fn batches_may_name_another_rank() {
    let bench = Bench::new(vec![store(0, None), store(1, Some(3))]);
    bench.until(|bench| bench.stream.status.last_seq() == Some(1)).await;
    assert!(bench.stream.ranks().contains(&3));
    assert_eq!((bench.depth(0), bench.depth(3)), (1, 0));
    // The first block of rank 3 makes the second one count.
    bench.line.lock().expect("no one panics with it").push(TransportEvent::Live { seq: 2, payload: store(0, Some(3)) });
    bench.until(|bench| bench.depth(3) == 2).await;
    assert_eq!(bench.depth(0), 1);
}

#[tokio::test]
async fn ranks_without_end_are_one_rank() {
    let bench = Bench::new((0..1200).map(|rank| store(u64::from(rank), Some(rank))).collect());
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    assert_eq!(bench.stream.ranks(), (0..1024).collect());
    assert_eq!(bench.stream.status.counters.rank_conflicts.load(Relaxed), 1200 - 1024);
    let held = bench.keyspace.index().ranks();
    assert_eq!(held.len(), 1024);
    assert_eq!(held.iter().find(|held| held.rank == 0).map(|held| held.device_blocks), Some(1 + 1200 - 1024));
}

#[tokio::test]
async fn what_is_wrong_is_counted_and_told() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    {
        let mut line = bench.line.lock().expect("no one panics with it");
        line.push(TransportEvent::Live { seq: 1, payload: b"nonsense".to_vec() });
        line.push(TransportEvent::BadFrames);
        // What it was in truth.
        let batches = [store(0, None), store(0, None), store(1, None)];
        line.batches = batches.to_vec();
        line.push(TransportEvent::Live { seq: 2, payload: batches[2].clone() });
        line.push(TransportEvent::Unreachable("so".to_owned()));
    }
    bench.until(|bench| bench.depth(0) == 2).await;
    bench.until(|bench| was_wrong(bench).as_deref() == Some("so")).await;
    let counters = &bench.stream.status.counters;
    assert_eq!((counters.undecodable_batches.load(Relaxed), counters.malformed_messages.load(Relaxed)), (1, 1));
    assert_eq!((counters.batches.load(Relaxed), counters.gaps.load(Relaxed)), (4, 1));
}

#[tokio::test]
async fn what_is_there_is_taken_in_whole_and_counted_once() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    let batches: Vec<Vec<u8>> = (0..500).map(|block| store(block, None)).collect();
    let bytes: usize = batches.iter().map(Vec::len).sum();
    {
        let mut line = bench.line.lock().expect("no one panics with it");
        line.batches = batches.clone();
        for (seq, payload) in (0..).zip(batches).skip(1) {
            line.push(TransportEvent::Live { seq, payload });
        }
    }
    bench.until(|bench| bench.stream.status.counters.batches.load(Relaxed) == 500).await;
    let counters = &bench.stream.status.counters;
    let counted = (counters.events.load(Relaxed), counters.stored_blocks.load(Relaxed), counters.bytes.load(Relaxed));
    assert_eq!((counted, counters.gaps.load(Relaxed)), ((500, 500, bytes as u64), 0));
    assert_eq!(bench.stream.status.last_seq(), Some(499));
    assert_eq!((bench.depth(0), bench.stream.status.is_trusted()), (20, true));
}

/// Checks that a stream is not shown as trusted any more once it is known not to be, even if many batches are still to
/// be read.
#[tokio::test]
async fn trust_ends_before_the_next_batch_is_read() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    {
        let mut line = bench.line.lock().expect("no one panics with it");
        for seq in [1, 2, 4, 5, 6] {
            line.push(TransportEvent::Live { seq, payload: store(seq, None) });
        }
    }
    bench.until(|bench| bench.line.lock().expect("no one panics with it").trusted_at.len() == 5).await;
    let trusted_at = bench.line.lock().expect("no one panics with it").trusted_at.clone();
    // Whoever reads the fourth has seen that the third is missing only after that.
    assert_eq!(trusted_at, [(1, true), (2, true), (4, true), (5, false), (6, false)]);
}

/// Checks that a message which shows that the engine works ends the errors before it and none after it, even if many
/// messages are handled at once.
#[tokio::test]
async fn a_good_word_ends_the_errors_before_it_only() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    {
        let mut line = bench.line.lock().expect("no one panics with it");
        line.push(TransportEvent::Unreachable("before".to_owned()));
        line.push(TransportEvent::ReplyEnd);
        line.push(TransportEvent::Unreachable("after".to_owned()));
    }
    let errors = |bench: &Bench| {
        let status = &bench.stream.status;
        (status.previous_error().map(|(error, _)| error), status.last_error())
    };
    bench.until(|bench| errors(bench).1.as_deref() == Some("after")).await;
    assert_eq!(errors(&bench).0.as_deref(), Some("before"));
}

#[tokio::test]
async fn a_lost_connection_is_not_trusted() {
    let bench = Bench::new(vec![store(0, None)]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    bench.line.lock().expect("no one panics with it").push(TransportEvent::Disconnected("gone".to_owned()));
    bench.until(|bench| !bench.stream.status.is_trusted()).await;
    assert_eq!((bench.stream.status.state(), bench.depth(0)), (State::Connecting, 1));
    bench.line.lock().expect("no one panics with it").push(TransportEvent::Connected);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    assert_eq!(bench.stream.status.counters.reconnects.load(Relaxed), 1);
}

#[tokio::test]
async fn a_clear_of_one_rank_says_nothing_of_the_others() {
    // Rank 3 still holds what was forgotten when a batch could not be read.
    let bench = Bench::new(vec![store(0, None), store(0, Some(3)), b"nonsense".to_vec(), clear()]);
    bench.until(|bench| bench.stream.status.is_trusted()).await;
    assert_eq!((bench.stream.status.last_seq(), bench.depth(3)), (Some(3), 0));
    assert!(bench.stream.status.partial.load(Relaxed));
}

/// Simulated sockets that always have an event to read: a gap, and the same batches after it again and again.
struct Flood(u64);

impl Transport for Flood {
    type Payload = Vec<u8>;

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<TransportEvent<Vec<u8>>> {
        self.0 += 1;
        Poll::Ready(match self.0 {
            1 => TransportEvent::Connected,
            2 => TransportEvent::Live { seq: 0, payload: clear() },
            _ => TransportEvent::Live { seq: 2, payload: clear() },
        })
    }

    fn ask(&mut self, _: u64) {}

    fn cancel(&mut self) {}

    fn reconnect(&mut self) {}
}

#[tokio::test]
async fn time_passes_for_a_stream_that_is_never_idle() {
    let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
    let stream = Stream::for_test("w", 0);
    keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(follow(keyspace, stream.clone(), StreamConfig::default().into(), || Flood(0), stopped));
    let start = Instant::now();
    while stream.status.last_seq() != Some(2) {
        assert!(start.elapsed() < Duration::from_secs(60), "the gap is never given up: {:?}", stream.status);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send(()).expect("it runs");
    task.await.expect("it ends");
}
