//! Query threads of a load test. Lookups have no queue: the generator increments a number ("issued"), and any free
//! thread claims the plan's next lookup by incrementing another ("claimed").

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::generator::Schedule;
use crate::error::Error;
use crate::machine;
use crate::machine::between;
use crate::options::Options;
use crate::subject::Subject;

/// A value on separate cache lines (two, as processors fetch pairs), so that writes of other threads to neighbouring
/// memory do not slow its use.
#[repr(align(128))]
#[derive(Default)]
struct CacheLines<T>(T);

/// State of one query thread that other threads read.
#[derive(Default)]
struct State {
    done: AtomicU64,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// State shared by the generator of the load and the query threads.
pub(crate) struct SharedState {
    issued: CacheLines<AtomicUsize>,
    claimed: CacheLines<AtomicUsize>,
    stopped: AtomicBool,
    threads: Vec<CacheLines<State>>,
    /// Moment from which deadlines are counted, set before the first lookup is issued.
    origin: OnceLock<Instant>,
}

impl SharedState {
    /// Sets the moment `origin`, from which deadlines are counted.
    pub(crate) fn begin(&self, origin: Instant) {
        let _ = self.origin.set(origin);
    }

    /// Issues all lookups before the index `upto`, that is, lets the query threads run them, and wakes as many sleeping
    /// threads as there are unclaimed lookups.
    #[inline]
    pub(crate) fn issue(&self, upto: usize) {
        self.issued.0.store(upto, Ordering::Release);
        // Either this sees a thread asleep, or the thread, after marking itself asleep, sees the new number.
        fence(Ordering::SeqCst);
        let mut unclaimed = upto.saturating_sub(self.claimed.0.load(Ordering::Relaxed));
        for CacheLines(state) in &self.threads {
            if unclaimed == 0 {
                break;
            }
            if state.asleep.load(Ordering::Relaxed) && state.asleep.swap(false, Ordering::Relaxed) {
                self.wake(state);
                unclaimed -= 1;
            }
        }
    }

    fn wake(&self, state: &State) {
        if let Some(thread) = state.thread.get() {
            thread.unpark();
        }
    }

    /// Number of lookups that the query threads have answered so far.
    pub(crate) fn done(&self) -> u64 {
        self.threads.iter().fold(0, |sum: u64, state| sum.saturating_add(state.0.done.load(Ordering::Acquire)))
    }

    /// Tells the query threads to begin no more lookups.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.threads.iter().for_each(|state| self.wake(&state.0));
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> bool {
        self.claimed.0.load(Ordering::Relaxed) < self.issued.0.load(Ordering::Acquire)
    }

    #[inline]
    fn claim(&self) -> Option<usize> {
        let mut next = self.claimed.0.load(Ordering::Relaxed);
        while next < self.issued.0.load(Ordering::Acquire) {
            match self.claimed.0.compare_exchange_weak(next, next + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next),
                Err(now) => next = now,
            }
        }
        None
    }

    fn sleep(&self, state: &State) {
        state.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.waiting() && !self.stopped() {
            // The time limit guards only against bugs: issuing wakes the threads.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        state.asleep.store(false, Ordering::Relaxed);
    }
}

/// Distributions of two times of the measured lookups: the duration of the call alone, and the time from the deadline
/// to the answer.
pub(crate) struct Times {
    pub(crate) service: Histogram<u64>,
    pub(crate) from_deadline: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Self { service: histogram(), from_deadline: histogram() }
    }
}

/// Creates a histogram of times up to an hour, in ns, with three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    // The library accepts these constant bounds; the second call cannot fail either.
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap_or_else(|_| unreachable!("constant bounds"))
}

/// The query threads of one load test.
pub(crate) struct Lanes<S: Subject> {
    pub(crate) shared: Arc<SharedState>,
    threads: Vec<JoinHandle<Result<Times, Error>>>,
    _subject: std::marker::PhantomData<S>,
}

struct Work<S: Subject> {
    subject: Arc<S>,
    queries: Vec<S::Query>,
    due: Vec<u64>,
    first: usize,
}

impl<S: Subject> Lanes<S> {
    pub(crate) fn start(
        subject: &Arc<S>,
        queries: Vec<S::Query>,
        schedule: &Schedule,
        options: &Options,
    ) -> Result<Self, Error> {
        let (due, first) = schedule.of_lookups();
        let work = Arc::new(Work { subject: Arc::clone(subject), queries, due, first });
        let shared = Arc::new(SharedState {
            issued: CacheLines::default(),
            claimed: CacheLines::default(),
            stopped: AtomicBool::new(false),
            threads: (0..options.query_threads).map(|_| CacheLines::default()).collect(),
            origin: OnceLock::new(),
        });
        let mut lanes = Self { shared, threads: Vec::new(), _subject: std::marker::PhantomData };
        for number in 0..options.query_threads {
            let (work, shared) = (Arc::clone(&work), Arc::clone(&lanes.shared));
            let cpu = options.pin.get(1 + number).copied();
            let look_up = move || {
                machine::pin(cpu.as_slice())?;
                Ok(answer_all(&work, &shared, &shared.threads[number].0))
            };
            match std::thread::Builder::new().name("kvatlas-lookups".to_owned()).spawn(look_up) {
                Ok(thread) => {
                    let _ = lanes.shared.threads[number].0.thread.set(thread.thread().clone());
                    lanes.threads.push(thread);
                }
                Err(error) => {
                    lanes.shared.stop();
                    return Err(Error::Index(format!("no thread for lookups: {error}")));
                }
            }
        }
        Ok(lanes)
    }

    /// Ends the query threads, waiting for at most `patience`. Returns the measured times, `None` if a thread did not
    /// end or panicked, and descriptions of the problems.
    pub(crate) fn finish(self, patience: Duration) -> (Option<Times>, Vec<String>) {
        self.shared.stop();
        let mut all = Times::default();
        let mut trouble = Vec::new();
        for thread in self.threads {
            if !wait_for(&thread, patience) {
                trouble.push(format!("a lookup did not return within {} s", patience.as_secs()));
                continue;
            }
            match thread.join() {
                Ok(Ok(times)) => {
                    // Both have the same bounds.
                    let _ = all.service.add(&times.service);
                    let _ = all.from_deadline.add(&times.from_deadline);
                }
                Ok(Err(error)) => trouble.push(error.to_string()),
                Err(_) => trouble.push("the index panicked in a lookup".to_owned()),
            }
        }
        (trouble.is_empty().then_some(all), trouble)
    }
}

impl SharedState {
    /// True if a query thread has panicked, the only way in which it ends before being stopped.
    pub(crate) fn broken(&self) -> bool {
        self.threads.iter().any(|state| state.0.done.load(Ordering::Relaxed) == BROKEN)
    }
}

/// Value in place of a thread's number of lookups that marks the thread as panicked.
const BROKEN: u64 = 1 << 63;

/// Guard that marks its query thread as panicked if dropped during a panic.
struct Watch<'a>(&'a State);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.done.store(BROKEN, Ordering::Release);
        }
    }
}

fn answer_all<S: Subject>(work: &Work<S>, shared: &SharedState, state: &State) -> Times {
    let _watch = Watch(state);
    let mut times = Times::default();
    let mut lane = work.subject.lane();
    let mut done = 0;
    loop {
        if shared.stopped() {
            return times;
        }
        let Some(number) = shared.claim() else {
            shared.sleep(state);
            continue;
        };
        let query = &work.queries[number];
        let start = Instant::now();
        work.subject.lookup(&mut lane, query);
        let end = Instant::now();
        if number >= work.first {
            // Nothing is issued before the origin is set.
            let origin = shared.origin.get().copied().unwrap_or(start);
            times.service.saturating_record(between(start, end));
            times.from_deadline.saturating_record(between(origin, end).saturating_sub(work.due[number]));
        }
        done += 1;
        state.done.store(done, Ordering::Release);
    }
}

/// Waits for the end of a thread, for at most `patience`. Returns true if the thread ended in time.
pub(super) fn wait_for<T>(thread: &JoinHandle<T>, patience: Duration) -> bool {
    let start = Instant::now();
    while !thread.is_finished() {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}
