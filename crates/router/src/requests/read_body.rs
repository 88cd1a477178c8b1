//! Reading of request bodies. Long ones are read on other threads, so that they do not delay other connections.
//!
//! Time and memory for reading a prompt are limited: a request whose prompt is not read in time is routed by load, and
//! only its other fields are known.
//!
//! The number of prompts read concurrently is limited too. When a thread is free, the next prompt comes from the client
//! with the fewest prompts being read; of this client's waiting prompts, the shortest is read first. Very long prompts
//! never occupy the last free thread.

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::HeaderMap;
use kvatlas_follow::Follower;
use kvatlas_http::{BodyLimits, Memory, RequestBody, body};
use kvatlas_prompt::{Dialect, Endpoint, PromptFailure, RecalledBody, reading_memory};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::answers::refusal::Refusal;
use crate::engines::fleet::{Dialects, Fleet};
use crate::requests::encoding::{DecodedBody, Encoding, unpack};
use crate::requests::engine_tokens::ask_for_tokens;
use crate::requests::facts::{BodyFields, PromptFacts, ReadBody};
use crate::requests::long_work::{LONG_BODY, LongWork, failed, takes_long};
use crate::requests::prompts::{PromptLimits, Prompts};
use crate::requests::routes::{ModelAt, of_query};

/// Time limit for reading a prompt, including the wait for a free thread.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time limit for computing the tokens of the probe text, with which engines' tokenizers are compared.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Properties of a body that are determined by its request's path and headers.
pub(crate) struct BodySource<'a> {
    /// API endpoint of the body's prompt; None if the body has no prompt.
    pub(crate) endpoint: Option<Endpoint>,
    /// Place of the model's name in a body that has no prompt.
    pub(crate) model: ModelAt,
    /// Value of the header `Content-Type`.
    pub(crate) kind: &'a str,
    /// Query of the request's URL, which may name the model; None for a URL without a query.
    pub(crate) query: Option<&'a str>,
    /// True if the body is forwarded to the engine unchanged.
    pub(crate) as_is: bool,
    /// True if processing the body [takes long](crate::requests::long_work::takes_long).
    pub(crate) takes_long: bool,
}

/// Reader of request bodies, with limits on time, memory and threads.
pub(crate) struct BodyReader {
    pub(crate) prompts: Prompts,
    fleet: Arc<Fleet>,
    /// Follower of the engines' event streams, which feeds the index; None if this router does not follow events
    /// itself.
    follower: Option<Arc<Follower>>,
    /// Memory limit for the bodies of all requests.
    memory: Arc<Memory>,
    pub(crate) threads: LongWork,
}

impl BodyReader {
    pub(crate) fn new(
        prompts: Prompts,
        fleet: Arc<Fleet>,
        follower: Option<Arc<Follower>>,
        memory: Arc<Memory>,
        threads: LongWork,
    ) -> Arc<Self> {
        Arc::new(Self { prompts, fleet, follower, memory, threads })
    }

    /// Receives a whole body of at most `most` bytes.
    ///
    /// # Errors
    /// [`Refusal`] if the body is longer, breaks off, or has not arrived by `until`.
    pub(crate) async fn receive(&self, body: RequestBody, most: usize, until: Instant) -> Result<Bytes, Refusal> {
        let limits = BodyLimits { most, thrown_away: 0, until };
        body::read(body, limits, &self.memory).await.map_err(|fault| Refusal::of_body(&fault, most))
    }

    /// Decompresses a body to at most `most` bytes; None for a body without compression.
    ///
    /// # Errors
    /// [`Refusal`] if the body has several content encodings or an unknown one, or cannot be decompressed.
    pub(crate) async fn unpack(
        &self,
        headers: &HeaderMap,
        body: &Bytes,
        most: usize,
    ) -> Result<Option<DecodedBody>, Refusal> {
        match Encoding::of(headers) {
            Encoding::Plain => Ok(None),
            Encoding::One(coding) => Box::pin(unpack(coding, body, most, &self.memory)).await.map(Some),
            Encoding::Several => Err(Refusal::several_encodings()),
            Encoding::Unknown => Err(Refusal::unreadable()),
        }
    }

    /// Reads the fields and the prompt of a body.
    pub(crate) async fn look_at(
        self: &Arc<Self>,
        client: Client,
        source: BodySource<'_>,
        body: &Bytes,
    ) -> Result<ReadBody, Refusal> {
        let BodySource { endpoint, model, kind, query, as_is, takes_long } = source;
        let Some(endpoint) = endpoint else {
            let (kind, of_query) = (kind.to_owned(), query.and_then(of_query));
            let read = move |body: &[u8]| {
                let model = model.of(&kind, body).or(of_query);
                Box::new((BodyFields::unread(model, false), PromptFacts::of_work(body)))
            };
            return self.threads.run_on(body, takes_long, read).await;
        };
        let limits = PromptLimits { as_is, ..PromptLimits::until(Instant::now() + PATIENCE) };
        let read = if body.len() > LONG_BODY {
            Box::pin(self.read_beside(client, endpoint, body, None, limits)).await?
        } else {
            let recalled = self.prompts.recall(endpoint, body);
            if self.prompts.is_long(&recalled) || takes_long {
                Box::pin(self.read_beside(client, endpoint, body, Some(recalled), limits)).await?
            } else {
                self.read(endpoint, body, &recalled, limits)
            }
        };
        if self.prompts.asks_engines() && read.1.why_not.is_some() {
            let (fields, prompt) = *read;
            let asking = ask_for_tokens(&self.prompts, &self.fleet, &self.threads, endpoint, body, &fields, prompt);
            let prompt = Box::pin(asking).await?;
            return Ok(Box::new((fields, prompt)));
        }
        Ok(read)
    }

    /// Reads a body on another thread, after waiting for a free thread and for memory. If this takes too long, the body
    /// is read without its prompt.
    async fn read_beside(
        self: &Arc<Self>,
        client: Client,
        endpoint: Endpoint,
        body: &Bytes,
        recalled: Option<RecalledBody>,
        limits: PromptLimits,
    ) -> Result<ReadBody, Refusal> {
        let PromptLimits { until, as_is, .. } = limits;
        let new_bytes = recalled.as_ref().map_or(body.len(), RecalledBody::new_bytes);
        if !self.prompts.are_read() {
            return self.without_prompt(endpoint, body, as_is, None).await;
        }
        let read = {
            let (reader, body, runtime) = (self.clone(), body.clone(), tokio::runtime::Handle::current());
            move || {
                let memory = runtime.block_on(reader.memory.reserve(reading_memory(new_bytes), until))?;
                let recalled = recalled.unwrap_or_else(|| reader.prompts.recall(endpoint, &body));
                let read = reader.read(endpoint, &body, &recalled, limits);
                drop((recalled, memory));
                Some(read)
            }
        };
        let why_not = match self.prompts.turns.run(client, new_bytes, until, read).await {
            Ok(Some(read)) => return Ok(read),
            Ok(None) => PromptFailure::NoRoom,
            Err(NoResult::TookTooLong) => PromptFailure::TookTooLong,
            Err(NoResult::Panicked) => return Err(failed()),
        };
        self.without_prompt(endpoint, body, as_is, Some(why_not)).await
    }

    /// Reads a body without its prompt. `why_not`: reason for not reading the prompt.
    async fn without_prompt(
        self: &Arc<Self>,
        endpoint: Endpoint,
        body: &Bytes,
        as_is: bool,
        why_not: Option<PromptFailure>,
    ) -> Result<ReadBody, Refusal> {
        let reader = self.clone();
        let read = move |body: &[u8]| {
            let limits = PromptLimits { until: Instant::now() + PATIENCE, unread: why_not, as_is };
            reader.read(endpoint, body, &RecalledBody::nothing(body), limits)
        };
        self.threads.run_on(body, takes_long(body), read).await
    }

    fn read(&self, endpoint: Endpoint, body: &[u8], recalled: &RecalledBody, limits: PromptLimits) -> ReadBody {
        let dialects = |model: Option<&str>| self.fleet.dialects(model);
        let takes_names = |model: Option<&str>| self.fleet.takes_image_ids(model);
        self.prompts.read(self.follower.as_deref(), dialects, takes_names, endpoint, body, recalled, limits)
    }

    /// Returns the token ids of a completion's prompt, as the router computes them for engines of the dialect
    /// `dialect`.
    pub(crate) fn completion_tokens(&self, dialect: Dialect, body: &[u8]) -> Option<Vec<u32>> {
        let recalled = self.prompts.recall(Endpoint::Completions, body);
        // Completions are alike for all engines.
        let any = |_: Option<&str>| Dialects { main: dialect, others: Vec::new(), only_model: None };
        let limits = PromptLimits::until(Instant::now() + PROBE_PATIENCE);
        let follower = self.follower.as_deref();
        let read = self.prompts.read(follower, any, |_| false, Endpoint::Completions, body, &recalled, limits);
        read.1.ids
    }
}

/// Size of a prompt, in bytes, above which the prompt is very long, so that its conversion to tokens must not use the
/// last free thread.
const LONGEST: usize = 1 << 20;

/// Extra time after the deadline for reading a prompt, for work that cannot check the deadline itself.
const GRACE: Duration = Duration::from_millis(250);

/// Client whose prompt is read, by IP address; None if unknown.
pub(crate) type Client = Option<IpAddr>;

/// Reason why the conversion of a prompt to tokens had no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoResult {
    TookTooLong,
    Panicked,
}

/// Limit on the number of long prompts that are read concurrently, with the queue of work that waits for a free thread.
pub(crate) struct ReadingTurns {
    all: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    /// Number of very long prompts that are being read.
    longest: usize,
    /// Number of prompts that are being read for each client; clients without any are left out.
    by_client: HashMap<Client, usize>,
    waiting: Vec<Turn>,
}

/// Conversion of a prompt to tokens that is in progress or waits for a free thread.
struct Turn {
    client: Client,
    bytes: usize,
    work: Box<dyn FnOnce() + Send>,
    /// Flag that is set once the work begins; dropped by the owner if no task waits for the result any more.
    has_begun: Weak<AtomicBool>,
}

impl ReadingTurns {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all: all.max(1), state: Mutex::default() })
    }

    /// Runs work on a prompt of `bytes` bytes on another thread, as soon as one is free. A thread that has finished
    /// continues with waiting work, so that no thread is woken between two prompts.
    ///
    /// # Errors
    /// [`NoResult`] if the work does not begin by `until`, or takes much longer than until then, or panics.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        client: Client,
        bytes: usize,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let (tell, mut told) = oneshot::channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        let work = Box::new(move || drop(tell.send(work())));
        self.begin_or_wait(Turn { client, bytes, work, has_begun: Arc::downgrade(&has_begun) });
        let mut done = timeout_at(until.into(), &mut told).await;
        if done.is_err() && has_begun.load(Relaxed) {
            done = timeout_at((until + GRACE).into(), told).await;
        }
        done.map_err(|_| NoResult::TookTooLong)?.map_err(|_| NoResult::Panicked)
    }

    fn begin_or_wait(self: &Arc<Self>, turn: Turn) {
        {
            let mut state = self.state.lock();
            if !self.may_begin(&state, turn.bytes) {
                state.waiting.push(turn);
                return;
            }
            state.begin(&turn);
        }
        let turns = self.clone();
        tokio::task::spawn_blocking(move || {
            let mut next = Some(turn);
            while let Some(Turn { client, bytes, work, has_begun }) = next {
                if let Some(has_begun) = has_begun.upgrade() {
                    has_begun.store(true, Relaxed);
                    // The panic is reported where it happens; who waits for the result learns of it.
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(work));
                }
                next = turns.pass_on(client, bytes);
            }
        });
    }

    fn may_begin(&self, state: &State, bytes: usize) -> bool {
        let most_longest = (self.all - 1).max(1);
        state.taken < self.all && (bytes <= LONGEST || state.longest < most_longest)
    }

    /// Records that a thread has finished a prompt of `client`, and returns the waiting work that the thread does next;
    /// None if no work waits.
    fn pass_on(&self, client: Client, bytes: usize) -> Option<Turn> {
        let mut state = self.state.lock();
        state.end(client, bytes);
        state.waiting.retain(|turn| turn.has_begun.strong_count() > 0);
        let due = state.waiting.iter().enumerate().filter(|(_, turn)| self.may_begin(&state, turn.bytes));
        let turns = |client: &Client| state.by_client.get(client).copied().unwrap_or(0);
        let (at, _) = due.min_by_key(|(_, turn)| (turns(&turn.client), turn.bytes))?;
        let turn = state.waiting.remove(at);
        state.begin(&turn);
        Some(turn)
    }
}

impl State {
    fn begin(&mut self, turn: &Turn) {
        self.taken += 1;
        self.longest += usize::from(turn.bytes > LONGEST);
        *self.by_client.entry(turn.client).or_default() += 1;
    }

    fn end(&mut self, client: Client, bytes: usize) {
        self.taken -= 1;
        self.longest -= usize::from(bytes > LONGEST);
        if let Some(turns) = self.by_client.get_mut(&client) {
            *turns -= 1;
            if *turns == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn client(number: u8) -> Client {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Occupies a thread, in tests, until the returned sender is dropped.
    fn hold(turns: &Arc<ReadingTurns>, number: u8, bytes: usize) -> mpsc::Sender<()> {
        let (end, ended) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicBool::new(false));
        let work = Box::new(move || {
            let _ = ended.recv();
        });
        turns.begin_or_wait(Turn { client: client(number), bytes, work, has_begun: Arc::downgrade(&begun) });
        while !begun.load(Relaxed) {
            std::thread::yield_now();
        }
        end
    }

    /// Queues the work `waiting` in the given order while `held` occupies a thread, and then frees the thread. Returns
    /// the order in which the work is done.
    async fn order(turns: &Arc<ReadingTurns>, held: mpsc::Sender<()>, waiting: &[(u8, usize)]) -> Vec<(u8, usize)> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut all = tokio::task::JoinSet::new();
        for &(number, bytes) in waiting {
            let (turns, read) = (turns.clone(), read.clone());
            all.spawn(async move {
                let work = move || read.lock().push((number, bytes));
                turns.run(client(number), bytes, later(), work).await.expect("it is read");
            });
            tokio::task::yield_now().await;
        }
        drop(held);
        all.join_all().await;
        std::mem::take(&mut *read.lock())
    }

    #[tokio::test]
    async fn the_shortest_is_next() {
        let turns = ReadingTurns::new(1);
        let held = hold(&turns, 1, 10);
        let found = order(&turns, held, &[(1, 300), (2, 200), (1, 100), (2, 400)]).await;
        assert_eq!(found, [(1, 100), (2, 200), (1, 300), (2, 400)]);
        while turns.state.lock().taken > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(turns.state.lock().by_client.len(), 0);
    }

    #[tokio::test]
    async fn a_client_with_none_is_before_one_that_has_some() {
        let turns = ReadingTurns::new(2);
        let _other = hold(&turns, 1, 10);
        let held = hold(&turns, 1, 10);
        let found = order(&turns, held, &[(1, 100), (1, 200), (2, 300)]).await;
        assert_eq!(found, [(2, 300), (1, 100), (1, 200)]);
    }

    #[tokio::test]
    async fn the_longest_leave_a_turn_to_others() {
        let (turns, now) = (ReadingTurns::new(2), Instant::now());
        let _long = hold(&turns, 1, LONGEST + 1);
        assert_eq!(turns.run(client(2), LONGEST + 1, now, || ()).await, Err(NoResult::TookTooLong));
        assert_eq!(turns.run(client(1), LONGEST, later(), || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_and_a_client_that_has_left_cost_no_turn() {
        let turns = ReadingTurns::new(1);
        let held = hold(&turns, 1, 10);
        let ran = Arc::new(AtomicBool::new(false));
        let gone = turns.run(client(1), 10, Instant::now(), {
            let ran = ran.clone();
            move || ran.store(true, Relaxed)
        });
        assert_eq!(gone.await, Err(NoResult::TookTooLong));
        drop(held);
        let panics = turns.run(client(1), 10, later(), || -> u8 { panic!("a fault") });
        assert_eq!(panics.await, Err(NoResult::Panicked));
        assert_eq!(turns.run(client(1), 10, later(), || 7).await, Ok(7));
        assert!(!ran.load(Relaxed), "work that nobody waits for is not done");
    }
}
