//! Queue of the requests that wait because no engine is up: no engine is known yet, all refuse connections, or all are
//! asleep.
//!
//! Waiting requests are tried in the order of arrival. Each possible change of the fleet wakes the first request. Once
//! an engine is chosen for it, or it still finds none, it wakes the next one. While no engine is known to be up, one
//! request at a time is tried at engines that are down or failing, as health checks may be wrong or off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum time for which the first waiting request delays the next one while an engine is being chosen for it.
const TURN: Duration = Duration::from_millis(5);

/// Interval at which an engine is sought again for waiting requests although no change of the fleet is known.
const CALLED: Duration = Duration::from_millis(500);

/// Minimum time between two requests that are tried at an engine that is down or failing.
const SCOUT: Duration = Duration::from_secs(1);

/// Names, in the metrics, of the outcomes of a request's wait for an engine to come up.
pub(crate) const OUTCOMES: [&str; 4] = ["placed", "timeout", "full", "left"];

/// Queue of the requests that wait because no engine is up.
pub(crate) struct NoEngine {
    pub(super) patience: Duration,
    pub(super) most: usize,
    queue: Mutex<Queue>,
    pub(super) outage: Outage,
    /// Number of requests whose wait has ended, by the outcome ([`OUTCOMES`]).
    pub(crate) ended: [AtomicU64; OUTCOMES.len()],
}

#[derive(Default)]
struct Queue {
    /// Number that the next request to enter the queue gets, which determines its place.
    next: u64,
    /// Waiting requests by their number in the queue, each with the signal that wakes it.
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// Time at which the first request was last woken without a known change of the fleet.
    called: Option<Instant>,
    /// Number of the request that is being tried at engines that are down or failing, and the time at which the trial
    /// began; None if no request is being tried.
    scout: Option<(u64, Instant)>,
}

/// Place of a request in the queue of requests that wait because no engine is up. The request keeps its place if it
/// tries an engine that cannot be reached.
pub(crate) struct EngineWait<'a> {
    room: &'a NoEngine,
    pub(super) number: u64,
    pub(super) turn: Arc<Notify>,
    pub(super) started: Instant,
    /// Outcome of the wait, which is counted when the request gives up its place in the queue.
    pub(super) outcome: usize,
}

impl NoEngine {
    /// Makes an empty queue. `patience`: longest time that a request may wait; `most`: maximum number of waiting
    /// requests.
    pub(crate) fn new(patience: Duration, most: usize) -> Self {
        Self { patience, most, queue: Mutex::default(), outage: Outage::default(), ended: Default::default() }
    }

    /// Number of requests that wait because no engine is up.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().waiting.len()
    }

    /// Wakes the first waiting request, after a possible change of the fleet.
    pub(crate) fn call(&self) {
        self.call_after(None);
    }

    /// Wakes the first waiting request, and logs that no engine is up; called periodically, and does each only when it
    /// is due.
    pub(crate) fn look(&self) {
        let is_time = {
            let mut queue = self.queue.lock();
            let is_time = queue.called.is_none_or(|called| called.elapsed() >= CALLED);
            if is_time {
                queue.called = Some(Instant::now());
            }
            is_time
        };
        if is_time {
            self.call();
        }
        self.outage.look(self.len());
    }

    fn call_after(&self, number: Option<u64>) {
        let queue = self.queue.lock();
        let next = number.map_or(0, |number| number + 1);
        if let Some((_, turn)) = queue.waiting.range(next..).next() {
            turn.notify_one();
        }
    }

    /// Assigns a request a place in the queue of requests that wait because no engine is up; None if the queue is full.
    pub(super) fn enter(&self) -> Option<EngineWait<'_>> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= self.most {
            return None;
        }
        let (number, turn) = (queue.next, Arc::new(Notify::new()));
        queue.next += 1;
        Some(EngineWait { room: self, number, turn, started: Instant::now(), outcome: LEFT })
    }

    /// True if the request with the number `number` may be tried now at engines that are down or failing.
    pub(super) fn may_scout(&self, number: u64) -> bool {
        let mut queue = self.queue.lock();
        let is_free = queue.scout.is_none_or(|(scout, since)| scout == number || since.elapsed() >= SCOUT);
        if is_free {
            queue.scout = Some((number, Instant::now()));
        }
        is_free
    }
}

const PLACED: usize = 0;
pub(super) const TIMEOUT: usize = 1;
pub(super) const FULL: usize = 2;
const LEFT: usize = 3;

impl EngineWait<'_> {
    /// Runs `choosing`, which chooses an engine for the request, and then wakes the next request. If the choice takes
    /// longer than [`TURN`], the next request is woken earlier.
    pub(crate) async fn in_turn<T>(&self, mut choosing: std::pin::Pin<Box<impl Future<Output = T>>>) -> T {
        let chosen = tokio::time::timeout(TURN, choosing.as_mut()).await;
        self.pass_on();
        match chosen {
            Ok(chosen) => chosen,
            // It waits for room at an engine: others need not wait for that.
            Err(_) => choosing.await,
        }
    }

    /// Records that an engine has accepted the waiting request.
    pub(crate) fn placed(mut self) {
        self.outcome = PLACED;
        self.room.outage.place();
    }

    /// Takes the request out of the queue while the request is tried at an engine.
    pub(super) fn try_one(&self) {
        self.room.queue.lock().waiting.remove(&self.number);
    }

    /// Enters the queue at the request's original place, for the first time or after a failed attempt.
    pub(super) fn stand_in_line(&self) {
        let mut queue = self.room.queue.lock();
        queue.waiting.insert(self.number, self.turn.clone());
        if queue.scout.is_some_and(|(scout, _)| scout == self.number) {
            // The others try no sooner than it would again.
            queue.scout = None;
        }
    }

    pub(super) fn pass_on(&self) {
        self.room.call_after(Some(self.number));
    }
}

impl Drop for EngineWait<'_> {
    fn drop(&mut self) {
        self.room.ended[self.outcome].fetch_add(1, Relaxed);
        let mut queue = self.room.queue.lock();
        queue.waiting.remove(&self.number);
        if queue.scout.is_some_and(|(scout, _)| scout == self.number) {
            queue.scout = None;
        }
        drop(queue);
        // It may have had the turn.
        self.pass_on();
    }
}

/// Interval between two log lines about an outage (a time in which no engine is up).
const EVERY: Duration = Duration::from_secs(60);

/// Time without a further request that lacks an engine after which an outage is considered over, once an engine has
/// accepted a waiting request.
const CALM: Duration = Duration::from_secs(1);

/// Present outage, during which no engine is up, with figures for the log; None without an outage.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<Numbers>>);

struct Numbers {
    since: Instant,
    /// Time of the last request that found no engine or was refused.
    last: Instant,
    /// Time of the last log line about the outage.
    told: Instant,
    met: u64,
    refused: u64,
    placed: u64,
}

impl Outage {
    /// Records a request that found no engine, and logs the beginning of an outage. `states`: function that describes
    /// the engines' states.
    pub(super) fn begin(&self, patience: Duration, states: impl FnOnce() -> Option<String>) {
        let now = Instant::now();
        let mut outage = self.0.lock();
        if let Some(numbers) = outage.as_mut() {
            numbers.met += 1;
            numbers.last = now;
            return;
        }
        *outage = Some(Numbers { since: now, last: now, told: now, met: 1, refused: 0, placed: 0 });
        drop(outage);
        let states = states().unwrap_or_else(|| "the router has no engines".to_owned());
        if patience.is_zero() {
            tracing::warn!("no engine is up for a request, which is refused, as are others: {states}");
        } else {
            tracing::warn!("no engine is up for a request: it waits for {patience:?}, as do others: {states}");
        }
    }

    /// Records that a request was refused because of the outage (because no engine is up).
    pub(super) fn refuse(&self) {
        if let Some(numbers) = self.0.lock().as_mut() {
            numbers.refused += 1;
            numbers.last = Instant::now();
        }
    }

    /// Records that an engine has accepted a waiting request.
    pub(super) fn place(&self) {
        if let Some(numbers) = self.0.lock().as_mut() {
            numbers.placed += 1;
        }
    }

    /// Logs the outage (that no engine is up) if enough time has passed since the last log line. `waiting`: number of
    /// waiting requests.
    pub(super) fn look(&self, waiting: usize) {
        let now = Instant::now();
        let mut outage = self.0.lock();
        let Some(numbers) = outage.as_mut() else { return };
        let Numbers { met, refused, placed, .. } = *numbers;
        let (took, calm) = ((now - numbers.since).as_secs_f64(), now - numbers.last);
        if waiting == 0 && (calm >= EVERY || (placed > 0 && calm >= CALM)) {
            let took = took - calm.as_secs_f64();
            tracing::info!(
                "the outage is over: for {took:.1} s no engine was up for {met} requests, of which {placed} waited and \
                 were placed, and {refused} were refused"
            );
            *outage = None;
        } else if now - numbers.told >= EVERY {
            numbers.told = now;
            tracing::warn!(
                "still no engine is up: in {took:.0} s for {met} requests, of which {placed} were placed, {refused} were \
                 refused, and {waiting} wait"
            );
        }
    }
}
