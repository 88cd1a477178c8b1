//! Reading of request bodies; long ones are read on other threads, so that they do not delay other connections.
//!
//! A prompt is worth only so much time and memory: a request whose prompt is not read by then is placed by load. It is
//! then known as far as its other fields tell.
//!
//! The next turn is that of the client of whose prompts the fewest are being read, and among its own that of the shortest.
//! The longest of all leave one of the turns to others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
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
use crate::requests::facts::{BodyFields, PromptFacts};
use crate::requests::long_work::{LONG_BODY, LongWork, failed, takes_long};
use crate::requests::prompts::{PromptLimits, Prompts};
use crate::requests::routes::{ModelAt, of_query};

/// Time within which a prompt must be read, its turn included.
const PATIENCE: Duration = Duration::from_millis(500);

/// Extra time for work that cannot check the time limit itself.
const GRACE: Duration = Duration::from_millis(250);

/// Time within which the tokens of a probe must be made.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Description of a body by its request.
pub(crate) struct BodySource<'a> {
    /// The endpoint whose prompt it has, if it has one.
    pub(crate) endpoint: Option<Endpoint>,
    /// The place of the model's name, if it has no prompt.
    pub(crate) model: ModelAt,
    /// The header `Content-Type`.
    pub(crate) kind: &'a str,
    /// The query of the path, which may name the model, too.
    pub(crate) query: Option<&'a str>,
    /// True if engines get the body without changes.
    pub(crate) as_is: bool,
    /// True if work on the body [takes long](crate::requests::long_work::takes_long).
    pub(crate) takes_long: bool,
}

/// Reads the bodies of requests.
pub(crate) struct BodyReader {
    pub(crate) prompts: Prompts,
    fleet: Arc<Fleet>,
    /// The engines' event streams, if this router follows them.
    follower: Option<Arc<Follower>>,
    /// Memory for the bodies of all requests.
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

    /// Receives a body as a whole, of `most` bytes at most.
    ///
    /// # Errors
    /// [`Refusal`] if it is longer, breaks off, or has not come until `until`.
    pub(crate) async fn receive(&self, body: RequestBody, most: usize, until: Instant) -> Result<Bytes, Refusal> {
        let limits = BodyLimits { most, thrown_away: 0, until };
        body::read(body, limits, &self.memory).await.map_err(|fault| Refusal::of_body(&fault, most))
    }

    /// Unpacks a body that is compressed, to at most `most` bytes. None if it is not.
    ///
    /// # Errors
    /// [`Refusal`] if it is compressed more than once, in an unknown encoding, or cannot be unpacked.
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

    /// Reads what a body asks.
    pub(crate) async fn look_at(
        self: &Arc<Self>,
        client: Client,
        source: BodySource<'_>,
        body: &Bytes,
    ) -> Result<(BodyFields, PromptFacts), Refusal> {
        let BodySource { endpoint, model, kind, query, as_is, takes_long } = source;
        let Some(endpoint) = endpoint else {
            let (kind, of_query) = (kind.to_owned(), query.and_then(of_query));
            let read = move |body: &[u8]| {
                let model = model.of(&kind, body).or(of_query);
                (BodyFields::unread(model, false), PromptFacts::of_work(body))
            };
            return self.threads.run_on(body, takes_long, read).await;
        };
        let limits = PromptLimits { as_is, ..PromptLimits::until(Instant::now() + PATIENCE) };
        let (fields, prompt) = if body.len() > LONG_BODY {
            Box::pin(self.read_beside(client, endpoint, body, None, limits)).await?
        } else {
            let recalled = self.prompts.recall(endpoint, body);
            if self.prompts.is_long(&recalled) || takes_long {
                Box::pin(self.read_beside(client, endpoint, body, Some(recalled), limits)).await?
            } else {
                self.read(endpoint, body, &recalled, limits)
            }
        };
        if self.prompts.asks_engines() && prompt.why_not.is_some() {
            let asking = ask_for_tokens(&self.prompts, &self.fleet, &self.threads, endpoint, body, &fields, prompt);
            let prompt = Box::pin(asking).await?;
            return Ok((fields, prompt));
        }
        Ok((fields, prompt))
    }

    /// Reads a body on another thread, after waiting for a turn and for memory. Without its prompt if that takes too
    /// long.
    async fn read_beside(
        self: &Arc<Self>,
        client: Client,
        endpoint: Endpoint,
        body: &Bytes,
        recalled: Option<RecalledBody>,
        limits: PromptLimits,
    ) -> Result<(BodyFields, PromptFacts), Refusal> {
        let PromptLimits { until, as_is, .. } = limits;
        let new_bytes = recalled.as_ref().map_or(body.len(), RecalledBody::new_bytes);
        if !self.prompts.are_read() {
            return self.without_prompt(endpoint, body, as_is, None).await;
        }
        let Some(turn) = self.prompts.turns.wait(client, new_bytes, until).await else {
            return self.without_prompt(endpoint, body, as_is, Some(PromptFailure::TookTooLong)).await;
        };
        let Some(memory) = self.memory.reserve(reading_memory(new_bytes), until).await else {
            return self.without_prompt(endpoint, body, as_is, Some(PromptFailure::NoRoom)).await;
        };
        let reading = tokio::task::spawn_blocking({
            let (reader, body) = (self.clone(), body.clone());
            move || {
                let recalled = recalled.unwrap_or_else(|| reader.prompts.recall(endpoint, &body));
                let made = reader.read(endpoint, &body, &recalled, limits);
                drop((recalled, memory, turn));
                made
            }
        });
        match timeout_at((until + GRACE).into(), reading).await {
            Ok(made) => made.map_err(|_| failed()),
            Err(_) => self.without_prompt(endpoint, body, as_is, Some(PromptFailure::TookTooLong)).await,
        }
    }

    /// Reads a body but for its prompt.
    async fn without_prompt(
        self: &Arc<Self>,
        endpoint: Endpoint,
        body: &Bytes,
        as_is: bool,
        why_not: Option<PromptFailure>,
    ) -> Result<(BodyFields, PromptFacts), Refusal> {
        let reader = self.clone();
        let read = move |body: &[u8]| {
            let limits = PromptLimits { until: Instant::now() + PATIENCE, unread: why_not, as_is };
            reader.read(endpoint, body, &RecalledBody::nothing(body), limits)
        };
        self.threads.run_on(body, takes_long(body), read).await
    }

    fn read(
        &self,
        endpoint: Endpoint,
        body: &[u8],
        recalled: &RecalledBody,
        limits: PromptLimits,
    ) -> (BodyFields, PromptFacts) {
        let dialects = |model: Option<&str>| self.fleet.dialects(model);
        let takes_names = |model: Option<&str>| self.fleet.takes_image_ids(model);
        self.prompts.read(self.follower.as_deref(), dialects, takes_names, endpoint, body, recalled, limits)
    }

    /// Returns the token ids of a completion's prompt, as the router makes them for engines of a dialect.
    pub(crate) fn completion_tokens(&self, dialect: Dialect, body: &[u8]) -> Option<Vec<u32>> {
        let recalled = self.prompts.recall(Endpoint::Completions, body);
        // Completions are alike for all engines.
        let any = |_: Option<&str>| Dialects { main: dialect, others: Vec::new(), only_model: None };
        let limits = PromptLimits::until(Instant::now() + PROBE_PATIENCE);
        let follower = self.follower.as_deref();
        let (_, prompt) = self.prompts.read(follower, any, |_| false, Endpoint::Completions, body, &recalled, limits);
        prompt.ids
    }
}

/// Bytes of the prompts that leave a turn to others.
const LONGEST: usize = 1 << 20;

/// Client of a turn, by its address.
pub(crate) type Client = Option<IpAddr>;

/// The turns, and who waits for one.
pub(crate) struct ReadingTurns {
    all: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    /// Turns that the longest prompts have.
    longest: usize,
    /// Number of turns of each client that has any.
    by_client: HashMap<Client, usize>,
    waiting: Vec<Waiter>,
}

struct Waiter {
    client: Client,
    bytes: usize,
    tell: oneshot::Sender<ReadingTurn>,
}

/// A turn, until this is dropped.
pub(crate) struct ReadingTurn {
    turns: Arc<ReadingTurns>,
    client: Client,
    bytes: usize,
}

impl ReadingTurns {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all: all.max(1), state: Mutex::default() })
    }

    /// Waits for a turn to read a prompt of `bytes` bytes. None if there is none until then.
    pub(crate) async fn wait(self: &Arc<Self>, client: Client, bytes: usize, until: Instant) -> Option<ReadingTurn> {
        let told = {
            let mut state = self.state.lock();
            if self.may_begin(&state, bytes) {
                state.begin(client, bytes);
                return Some(ReadingTurn { turns: self.clone(), client, bytes });
            }
            let (tell, told) = oneshot::channel();
            state.waiting.push(Waiter { client, bytes, tell });
            told
        };
        timeout_at(until.into(), told).await.ok()?.ok()
    }

    fn may_begin(&self, state: &State, bytes: usize) -> bool {
        let most_longest = (self.all - 1).max(1);
        state.taken < self.all && (bytes <= LONGEST || state.longest < most_longest)
    }

    /// Gives a free turn to one who waits.
    fn next(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.waiting.retain(|waiter| !waiter.tell.is_closed());
        let due = state.waiting.iter().enumerate().filter(|(_, waiter)| self.may_begin(&state, waiter.bytes));
        let turns = |client: &Client| state.by_client.get(client).copied().unwrap_or(0);
        let Some((at, _)) = due.min_by_key(|(_, waiter)| (turns(&waiter.client), waiter.bytes)) else { return };
        let Waiter { client, bytes, tell } = state.waiting.remove(at);
        state.begin(client, bytes);
        drop(state);
        // Whoever has left meanwhile gives it back, as it is dropped.
        let _ = tell.send(ReadingTurn { turns: self.clone(), client, bytes });
    }
}

impl State {
    fn begin(&mut self, client: Client, bytes: usize) {
        self.taken += 1;
        self.longest += usize::from(bytes > LONGEST);
        *self.by_client.entry(client).or_default() += 1;
    }
}

impl Drop for ReadingTurn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.state.lock();
            state.taken -= 1;
            state.longest -= usize::from(self.bytes > LONGEST);
            if let Some(turns) = state.by_client.get_mut(&self.client) {
                *turns -= 1;
                if *turns == 0 {
                    state.by_client.remove(&self.client);
                }
            }
        }
        self.turns.next();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(number: u8) -> Client {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Lets `waiting` wait, in this order, while `held` has all turns. Returns who is next each time that one is done.
    async fn order(turns: &Arc<ReadingTurns>, held: ReadingTurn, waiting: &[(u8, usize)]) -> Vec<(u8, usize)> {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for &(number, bytes) in waiting {
            let (turns, tell) = (turns.clone(), tell.clone());
            tokio::spawn(async move {
                let turn = turns.wait(client(number), bytes, later()).await.expect("a turn");
                tell.send((number, bytes, turn)).ok();
            });
            tokio::task::yield_now().await;
        }
        drop((tell, held));
        let mut found = Vec::new();
        while let Some((number, bytes, turn)) = told.recv().await {
            found.push((number, bytes));
            drop(turn);
        }
        found
    }

    #[tokio::test]
    async fn the_shortest_is_next() {
        let turns = ReadingTurns::new(1);
        let held = turns.wait(client(1), 10, later()).await.expect("a turn");
        let found = order(&turns, held, &[(1, 300), (2, 200), (1, 100), (2, 400)]).await;
        assert_eq!(found, [(1, 100), (2, 200), (1, 300), (2, 400)]);
        assert_eq!(turns.state.lock().by_client.len(), 0);
    }

    #[tokio::test]
    async fn a_client_with_none_is_before_one_that_has_some() {
        let turns = ReadingTurns::new(2);
        let _other = turns.wait(client(1), 10, later()).await.expect("a turn");
        let held = turns.wait(client(1), 10, later()).await.expect("a turn");
        let found = order(&turns, held, &[(1, 100), (1, 200), (2, 300)]).await;
        assert_eq!(found, [(2, 300), (1, 100), (1, 200)]);
    }

    #[tokio::test]
    async fn the_longest_leave_a_turn_to_others() {
        let (turns, now) = (ReadingTurns::new(2), Instant::now());
        let long = turns.wait(client(1), LONGEST + 1, now).await.expect("a turn");
        assert!(turns.wait(client(2), LONGEST + 1, now).await.is_none());
        let short = turns.wait(client(1), LONGEST, now).await.expect("a turn");
        assert!(turns.wait(client(2), 1, now).await.is_none());
        drop((long, short));
        assert_eq!(turns.state.lock().taken, 0);
        assert!(turns.wait(client(2), LONGEST + 1, now).await.is_some());
    }
}
