//! Requests that wait because no engine is up: none is known yet, all refuse connections, or all are asleep.
//!
//! They are tried in order of arrival: whatever may change something gives the first one its turn, which passes it on when
//! it has a place at an engine, or still finds none. As long as no engine is known to be up, one of them at a time tries
//! those that stand down: health checks may be wrong, or off.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::Places;
use super::Task;
use super::outage::Outage;
use crate::app::App;
use crate::engine::{Engine, HealthState};
use crate::fleet::Fleet;
use crate::lock;
use crate::refusal::Refusal;
use crate::request_facts::RequestFacts;

/// Time for which the turn stays with a request that is being placed.
const TURN: Duration = Duration::from_millis(5);

/// Time between two calls of those that wait while nothing is known to have changed.
const CALLED: Duration = Duration::from_millis(500);

/// Time after which another request may try engines that stand down.
const SCOUT: Duration = Duration::from_secs(1);

/// Time after which a client that waited in vain may try again.
const AGAIN: Duration = Duration::from_secs(5);

/// Engines that a refusal names.
const NAMED: usize = 4;

/// Outcomes of waits, as the metrics name them.
pub(crate) const OUTCOMES: [&str; 4] = ["placed", "timeout", "full", "left"];

/// The requests that wait because no engine is up.
pub(crate) struct NoEngine {
    patience: Duration,
    most: usize,
    queue: Mutex<Queue>,
    outage: Outage,
    /// Waits that ended, by [`OUTCOMES`].
    pub(crate) ended: [AtomicU64; OUTCOMES.len()],
}

#[derive(Default)]
struct Queue {
    /// The number of the next request.
    next: u64,
    /// Requests that wait, by their numbers, and what wakes them.
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// Time at which they were last called because time had passed.
    called: Option<Instant>,
    /// The one that tries engines that stand down, and since when.
    scout: Option<(u64, Instant)>,
}

/// A request's place among those that wait. It comes back to the place if an engine that it tries cannot be reached.
pub(crate) struct EngineWait<'a> {
    room: &'a NoEngine,
    number: u64,
    turn: Arc<Notify>,
    started: Instant,
    /// The outcome that is counted when it is dropped.
    outcome: usize,
}

impl NoEngine {
    /// `patience`: how long a request may wait; `most`: how many may.
    pub(crate) fn new(patience: Duration, most: usize) -> Self {
        Self { patience, most, queue: Mutex::default(), outage: Outage::default(), ended: Default::default() }
    }

    /// Number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).waiting.len()
    }

    /// Gives the first of those that wait its turn: something has changed, or some time has passed.
    pub(crate) fn call(&self) {
        self.call_after(None);
    }

    /// Looks after those that wait, again and again: time may have passed, and the log may have to tell of it.
    pub(crate) fn look(&self) {
        let is_time = {
            let mut queue = lock(&self.queue);
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
        let queue = lock(&self.queue);
        let next = number.map_or(0, |number| number + 1);
        if let Some((_, turn)) = queue.waiting.range(next..).next() {
            turn.notify_one();
        }
    }

    /// Gives a request a place in the queue.
    fn enter(&self) -> Option<EngineWait<'_>> {
        let mut queue = lock(&self.queue);
        if queue.waiting.len() >= self.most {
            return None;
        }
        let (number, turn) = (queue.next, Arc::new(Notify::new()));
        queue.next += 1;
        Some(EngineWait { room: self, number, turn, started: Instant::now(), outcome: LEFT })
    }

    /// True if this request may try engines that stand down now.
    fn may_scout(&self, number: u64) -> bool {
        let mut queue = lock(&self.queue);
        let is_free = queue.scout.is_none_or(|(scout, since)| scout == number || since.elapsed() >= SCOUT);
        if is_free {
            queue.scout = Some((number, Instant::now()));
        }
        is_free
    }
}

const PLACED: usize = 0;
const TIMEOUT: usize = 1;
const FULL: usize = 2;
const LEFT: usize = 3;

impl EngineWait<'_> {
    /// Runs the choice of an engine in the request's turn, which is then the next one's.
    pub(crate) async fn in_turn<T>(&self, mut choosing: std::pin::Pin<Box<impl Future<Output = T>>>) -> T {
        let chosen = tokio::time::timeout(TURN, choosing.as_mut()).await;
        self.pass_on();
        match chosen {
            Ok(chosen) => chosen,
            // It waits for room at an engine: others need not wait for that.
            Err(_) => choosing.await,
        }
    }

    /// Notes that an engine has taken the request.
    pub(crate) fn placed(mut self) {
        self.outcome = PLACED;
        self.room.outage.place();
    }

    /// Leaves the queue, to try an engine.
    fn try_one(&self) {
        lock(&self.room.queue).waiting.remove(&self.number);
    }

    /// Waits in the queue, again if the request was not taken.
    fn stand_in_line(&self) {
        let mut queue = lock(&self.room.queue);
        queue.waiting.insert(self.number, self.turn.clone());
        if queue.scout.is_some_and(|(scout, _)| scout == self.number) {
            // The others try no sooner than it would again.
            queue.scout = None;
        }
    }

    fn pass_on(&self) {
        self.room.call_after(Some(self.number));
    }
}

impl Drop for EngineWait<'_> {
    fn drop(&mut self) {
        self.room.ended[self.outcome].fetch_add(1, Relaxed);
        let mut queue = lock(&self.room.queue);
        queue.waiting.remove(&self.number);
        if queue.scout.is_some_and(|(scout, _)| scout == self.number) {
            queue.scout = None;
        }
        drop(queue);
        // It may have had the turn.
        self.pass_on();
    }
}

impl Places {
    /// True if requests may wait for an engine.
    pub(crate) fn may_wait(&self) -> bool {
        !self.no_engine.patience.is_zero()
    }

    /// Waits until an engine may take a request, for which there was none because of `why`. `place`: its place in the
    /// queue, which it gets here the first time; `tried`: engines that did not take it.
    ///
    /// # Errors
    /// The request is not to wait, or has waited for as long as it may: this is its refusal.
    pub(crate) async fn wait_for_engine<'a>(
        &'a self,
        place: &mut Option<EngineWait<'a>>,
        app: &App,
        known: &RequestFacts,
        task: Task,
        tried: &[Arc<Engine>],
        why: Refusal,
    ) -> Result<(), Refusal> {
        let (room, fleet) = (&self.no_engine, &app.fleet);
        let mut has_others = false;
        if place.is_none() {
            // They have said when to come back.
            if availability(fleet, known, task, &[]) == Availability::Paused {
                return Err(why);
            }
            let is_outage = tried.is_empty() || availability(fleet, known, task, tried) != Availability::Up;
            if is_outage {
                room.outage.begin(room.patience, || states(fleet, known, task));
            }
            if room.patience.is_zero() {
                room.outage.refuse();
                return Err(if all_asleep(fleet, known, task) { refusal(fleet, known, task, "") } else { why });
            }
            *place = room.enter();
            has_others = !is_outage;
        }
        let Some(place) = place.as_mut() else {
            room.ended[FULL].fetch_add(1, Relaxed);
            room.outage.refuse();
            let more = format!("; {} requests wait for one already, and no more may (router.queue)", room.most);
            return Err(refusal(fleet, known, task, &more));
        };
        let until = place.started + room.patience;
        place.stand_in_line();
        if has_others {
            // It had no retries left for them.
            room.call();
        }
        loop {
            let is_over = until <= Instant::now() || timeout_at(until.into(), place.turn.notified()).await.is_err();
            if is_over {
                place.outcome = TIMEOUT;
                room.outage.refuse();
                let more = format!("; the request waited for {:?} (router.wait_for_engine)", room.patience);
                return Err(refusal(fleet, known, task, &more));
            }
            match availability(fleet, known, task, &[]) {
                Availability::Up => break,
                Availability::Doubtful if room.may_scout(place.number) => break,
                _ => place.pass_on(),
            }
        }
        place.try_one();
        Ok(())
    }
}

/// Makes the refusal of a request that no engine is up for: it says what is wrong with each.
fn refusal(fleet: &Fleet, known: &RequestFacts, task: Task, more: &str) -> Refusal {
    let (code, message) = match states(fleet, known, task) {
        None => ("no_engines", format!("the router has no engines{more}")),
        Some(states) if all_asleep(fleet, known, task) => {
            ("engines_asleep", format!("all engines that could take the request are asleep: {states}{more}"))
        }
        Some(states) => ("no_engine_available", format!("no engine is up: {states}{more}")),
    };
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code, message).again_after(AGAIN)
}

/// The states of the engines that could take a request, in words. None: there are none.
fn states(fleet: &Fleet, known: &RequestFacts, task: Task) -> Option<String> {
    let engines = fleet.engines();
    let serving: Vec<&Arc<Engine>> = engines.iter().filter(|engine| could_take(engine, known, task)).collect();
    let words = |engine: &&Arc<Engine>| {
        let (name, standing) = (&engine.name, engine.health.standing());
        match lock(&engine.why_not).as_deref() {
            Some(why) => format!("{name} is {} ({why})", standing.name()),
            None if standing == HealthState::Up && !engine.can_do(task) => {
                format!("{name} has not said yet how it hands blocks over")
            }
            None if standing == HealthState::Up => format!("{name} could not be reached"),
            None => format!("{name} is {}", standing.name()),
        }
    };
    let mut said = serving.iter().take(NAMED).map(words).collect::<Vec<_>>().join(", ");
    if serving.len() > NAMED {
        said += &format!(" and {} more", serving.len() - NAMED);
    }
    (!serving.is_empty()).then_some(said)
}

fn all_asleep(fleet: &Fleet, known: &RequestFacts, task: Task) -> bool {
    let engines = fleet.engines();
    let mut serving = engines.iter().filter(|engine| could_take(engine, known, task)).peekable();
    serving.peek().is_some() && serving.all(|engine| engine.health.standing() == HealthState::Asleep)
}

/// Engines that could take a request, by the best of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Availability {
    /// There is one that works, as far as is known.
    Up,
    /// All of them stand down, or failed the last time: one may be back.
    Doubtful,
    /// All of them asked to be left alone for a while.
    Paused,
    /// None of them takes requests.
    None,
}

/// The availability of engines that could take a request, without those that were tried.
fn availability(fleet: &Fleet, known: &RequestFacts, task: Task, tried: &[Arc<Engine>]) -> Availability {
    let engines = fleet.engines();
    let is_other = |engine: &Arc<Engine>| !tried.iter().any(|other| Arc::ptr_eq(engine, other));
    let serving = engines.iter().filter(|engine| is_other(engine) && could_take(engine, known, task));
    serving.map(|engine| availability_of(engine, task)).min_by_key(|it| *it as u8).unwrap_or(Availability::None)
}

fn availability_of(engine: &Engine, task: Task) -> Availability {
    // One whose kind is not known cannot be part of a pair yet.
    if !engine.can_do(task) {
        return Availability::None;
    }
    match engine.health.standing() {
        HealthState::Up | HealthState::Busy | HealthState::Silent => Availability::Up,
        HealthState::Down | HealthState::Failing => Availability::Doubtful,
        HealthState::Paused => Availability::Paused,
        HealthState::Asleep | HealthState::Draining => Availability::None,
    }
}

fn could_take(engine: &Engine, known: &RequestFacts, task: Task) -> bool {
    engine.is_for(task) && engine.models.load().may_serve(known.model.as_deref())
}
