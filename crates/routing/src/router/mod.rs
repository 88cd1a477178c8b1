//! Router, which keeps the state of the workers, asks a policy to choose one, and reserves that worker in the same
//! step.

mod belief;
mod bind;
mod config;
mod fleet;
mod life;
mod next_best;
mod outcome;
mod peer_requests;
mod place;
mod request_changes;
mod transfers;
mod waiting;
mod workers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::{Match, OwnedMatch, View};

use crate::candidates::Candidates;
use crate::depths::Depths;
use crate::policy::{Policy, Terms};
use crate::predict::{Leaf, PredictedIndex, SentPrompts};
use crate::request::Request;
use crate::time::Time;
use crate::transfers::{MovedTokens, Transfers};
pub use belief::Belief;
pub use config::{Config, Order};
use fleet::Fleet;
pub use outcome::{
    ChoiceReason, Counts, Decision, FinishedRequest, Load, Outcome, PullSource, Refusal, RequestId, Transfer,
    TransferAction, Usage, WorkerId,
};
use request_changes::{ExpectedBlocks, Peers, Share};
pub use request_changes::{RequestChanges, RequestReport, SentRequest};
pub use transfers::TransferCost;
use waiting::{Room, Turn, WaitingRequests};

/// Router, which chooses a worker for each request, and tracks the requests until they end.
///
/// All times are the caller's, in seconds; a time before the latest one so far is replaced by that one. Call
/// [`Router::bind`] after every event that may give a worker room (a first token, an end, a worker that joins), and
/// every few hundredths of a second while [`Router::waiting`] is not 0.
///
/// ```
/// use kvatlas_routing::{Config, Depths, Outcome, Request, Router, Usage, by_name};
///
/// let policy = by_name("kvatlas", Default::default(), 0)?;
/// let mut router = Router::new(Config::default(), policy);
/// router.add_worker("a", 0, 1.0, 0.0);
/// let request = Request { tokens: 4000, block_size: 16, content_hashes: &[1; 250], ..Request::default() };
/// let Outcome::Placed(decision) = router.choose(&request, &Depths::unknown(), 0.0) else { panic!("nobody waits") };
/// assert_eq!(&*decision.name, "a");
/// router.first_token(decision.id, 0.5);
/// router.finish(decision.id, Usage::default(), 2.0);
/// # Ok::<(), kvatlas_routing::Error>(())
/// ```
pub struct Router {
    config: Config,
    policy: Box<dyn Policy>,
    fleet: Fleet,
    placed: HashMap<u64, Reservation>,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    transfers: Transfers,
    /// Names of the groups of workers that pull blocks from each other; the first group has number 1.
    groups: Vec<Box<str>>,
    /// Queue of requests whose first tokens will not be reported, by the time at which their prompts should be
    /// computed.
    unseen: BinaryHeap<Reverse<(Time, u64)>>,
    first_tokens: u64,
    on_the_way: SentPrompts,
    /// Prediction of the workers' cached blocks, used instead of the index if engines publish no events.
    unheard: Option<PredictedIndex>,
    guessed: Depths,
    sessions: Sessions,
    waiting: WaitingRequests,
    /// Requests that other routers have sent to the workers; they count like this router's own requests.
    peers: Peers,
    /// Outcomes of waiting requests that were placed or refused, until `bind` returns them.
    bound: Vec<(RequestId, Outcome)>,
    room: Room,
    tried: f64,
    round: u64,
    now: f64,
    number: u64,
    total_placed: u64,
    counts: Counts,
    mean_output: f64,
    outputs: f64,
    /// Largest number of alternative workers that the router names in a decision.
    others: usize,
    /// Decaying sum of the prompt tokens that were expected to be computed; `gone`: decaying sum of the prompt tokens
    /// that were expected in a cache but had been evicted when the request arrived.
    computed: f64,
    gone: f64,
    // Kept for their memory.
    expected: ExpectedBlocks,
    who: Vec<u32>,
    turns: Vec<Turn>,
}

/// Request in flight, with the worker that is reserved for it.
#[derive(Debug)]
struct Reservation {
    worker: u32,
    share: Share,
    cached: u32,
    answers: f64,
    sent: f64,
    /// Number of tokens in a block.
    block_size: u32,
    session: Option<u64>,
    first_token: Option<f64>,
    /// True if the prompt counts as computed although its first token was not reported.
    passed: bool,
    /// Time of the last report about the request, in seconds; `steps_since`, `steps`: time of the last sample of the
    /// time between tokens, and number of tokens since then.
    heard: f64,
    steps_since: f64,
    steps: f64,
    deadline: f64,
    leaf: Option<Leaf>,
    /// Number of the prompt's blocks that are not stored by hash; they count as used by this request alone.
    nameless: f64,
    uncached: u32,
    /// Loads and pulls of blocks that were planned for the request; None if there are none.
    moved: Option<Box<MovedTokens>>,
}

impl Router {
    /// Creates a router without workers.
    #[must_use]
    pub fn new(config: Config, policy: Box<dyn Policy>) -> Self {
        Self {
            fleet: Fleet::new(&config),
            placed: HashMap::new(),
            due: BinaryHeap::new(),
            transfers: transfers::of(&config),
            groups: Vec::new(),
            unseen: BinaryHeap::new(),
            first_tokens: 0,
            on_the_way: SentPrompts::new(config.predicted_limit),
            unheard: config.no_events.map(PredictedIndex::new),
            guessed: Depths::unknown(),
            sessions: Sessions::default(),
            waiting: WaitingRequests::default(),
            peers: Peers::default(),
            bound: Vec::new(),
            room: Room::default(),
            tried: f64::NEG_INFINITY,
            round: 0,
            now: 0.0,
            number: 0,
            total_placed: 0,
            counts: Counts::default(),
            mean_output: config.output_tokens,
            outputs: 0.0,
            others: 0,
            computed: 0.0,
            gone: 0.0,
            expected: ExpectedBlocks::default(),
            who: Vec::new(),
            turns: Vec::new(),
            policy,
            config,
        }
    }

    /// Settings of the router.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the largest number of alternative workers that each decision names ([`Decision::others`]); initially 0.
    pub fn name_others(&mut self, most: usize) {
        self.others = most;
    }

    /// Name of the routing policy.
    #[must_use]
    pub fn policy(&self) -> &str {
        self.policy.name()
    }

    /// True if the policy uses the index of cached blocks.
    #[must_use]
    pub fn uses_index(&self) -> bool {
        self.policy.uses_index()
    }

    /// Number of requests that are at workers.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.placed.len()
    }

    /// Number of requests that wait in the router.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of blocks stored for prompts that are on their way to workers.
    #[must_use]
    pub fn predicted_blocks(&self) -> usize {
        self.on_the_way.blocks()
    }

    /// Number of prompts on their way that were not stored, because the store of these prompts was full.
    #[must_use]
    pub fn predictions_dropped(&self) -> u64 {
        self.on_the_way.dropped()
    }

    /// Number of sessions that the router remembers.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Counts of requests and events since the router was created.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { left_out_samples: self.fleet.left_out_samples(), ..self.counts }
    }

    /// Mean number of tokens that a request generates, as measured.
    #[must_use]
    pub fn mean_output(&self) -> f64 {
        self.mean_output
    }

    /// Table of all workers, including drained workers and those that have left. Columns that depend on a request or on
    /// the time have their values from the last request.
    #[must_use]
    pub fn rows(&self) -> &Candidates {
        self.fleet.rows()
    }

    /// Predicts the number of a prompt's leading blocks that each worker holds, if engines publish no events; None
    /// otherwise. Reuses the memory of the field `guessed`, so store the result there afterwards.
    fn guess(&mut self, request: &Request<'_>, now: f64) -> Option<Depths> {
        let unheard = self.unheard.as_mut()?;
        let mut depths = std::mem::take(&mut self.guessed);
        unheard.look_up(request.content_hashes, now, &mut depths);
        Some(depths)
    }

    /// Converts the caller's time to a time that never decreases.
    fn at(&mut self, now: f64) -> f64 {
        if now > self.now {
            self.now = now;
        }
        self.now
    }

    fn complete<'a>(&self, request: &Request<'a>) -> Request<'a> {
        let block_size = if request.block_size == 0 { self.config.block_size } else { request.block_size }.max(1);
        let full = request.tokens / block_size;
        let hashes = request.content_hashes;
        let content_hashes = &hashes[..hashes.len().min(full as usize)];
        Request { block_size, content_hashes, answers: request.answers.max(1), ..*request }
    }
}

/// Sessions, each with the worker to which its requests go.
#[derive(Debug, Default)]
struct Sessions {
    places: HashMap<u64, (u32, Time, u64)>,
    /// Sessions by the time at which they expire; a counter distinguishes equal times.
    ends: BTreeMap<(Time, u64), u64>,
    count: u64,
}

impl Sessions {
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Worker of a session; None if the session has expired or is unknown.
    fn get(&self, session: u64, now: f64) -> Option<u32> {
        self.places.get(&session).filter(|(_, end, _)| end.0 > now).map(|place| place.0)
    }

    /// Sets the worker of a session until the time `until`, in seconds. If there are more than `limit` sessions,
    /// removes the one that expires first.
    fn set(&mut self, session: u64, worker: u32, until: f64, limit: usize) {
        self.count += 1;
        if let Some((_, end, count)) = self.places.insert(session, (worker, Time(until), self.count)) {
            self.ends.remove(&(end, count));
        }
        self.ends.insert((Time(until), self.count), session);
        while self.places.len() > limit {
            let Some((_, session)) = self.ends.pop_first() else { break };
            self.places.remove(&session);
        }
    }

    /// Removes sessions that have expired at the time `now`.
    fn expire(&mut self, now: f64) {
        while let Some(first) = self.ends.first_entry()
            && first.key().0.0 <= now
        {
            self.places.remove(&first.remove());
        }
    }

    /// Removes the sessions of a worker that has left.
    fn left(&mut self, worker: u32) {
        self.places.retain(|_, place| place.0 != worker);
        let places = &self.places;
        self.ends.retain(|_, session| places.contains_key(session));
    }
}

/// Result of a lookup of a prompt in the index of cached blocks.
pub trait Lookup {
    /// Calls `f` with the worker, rank and depth (number of leading blocks) of each rank that holds any block of the
    /// prompt.
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32));
    /// True if the results are equal for all views, which are sets of tiers.
    fn is_plain(&self) -> bool;
}

impl Lookup for Match<'_> {
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32)) {
        Match::for_each(self, view, f);
    }

    fn is_plain(&self) -> bool {
        Match::is_plain(self)
    }
}

impl Lookup for OwnedMatch {
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32)) {
        OwnedMatch::for_each(self, view, f);
    }

    fn is_plain(&self) -> bool {
        OwnedMatch::is_plain(self)
    }
}

/// Explanation of a router's choice for a request: data of each candidate.
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    /// Numbers of the candidates, the workers that may take the request.
    pub workers: Vec<WorkerId>,
    /// Number of prompt tokens that each candidate is expected to have in its cache.
    pub cached_tokens: Vec<u32>,
    /// Parts of the prompt that each candidate would load or pull, as in
    /// [`Decision::transfer`](crate::Decision::transfer); empty if nothing can be loaded or pulled.
    pub transfers: Vec<Option<Transfer>>,
    /// Terms (summands of the cost) by which the policy compares the candidates; None if the policy computes none.
    pub terms: Option<Terms>,
}

impl Router {
    /// Explains how the policy rates the candidates for a request, without side effects.
    pub fn explain(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: Option<&[WorkerId]>,
        now: f64,
    ) -> Explanation {
        let now = self.at(now);
        let request = Request { number: self.number + 1, ..self.complete(request) };
        let guessed = self.guess(&request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        if !self.gather(&request, depths, allowed, now) {
            return Explanation::default();
        }
        self.hold_back(now);
        let Self { fleet, who, expected, .. } = self;
        fleet.candidates(depths, Some(expected), (!who.is_empty()).then_some(who), now);
        self.note_ways(&request, depths, None, now);
        let (fleet, policy) = (&self.fleet, &self.policy);
        let candidates = fleet.same_candidates((!self.who.is_empty()).then_some(&self.who));
        let cached = |row: usize| -> u32 { request.tokens - request.uncached(candidates.reached(row)) };
        let transfers = candidates.ways.iter().enumerate();
        let transfers =
            transfers.map(|(row, way)| way.is_choice().then(|| fleet.transfer(way, &request, candidates, row)));
        let explanation = Explanation {
            workers: candidates.worker.iter().map(|&worker| WorkerId(worker)).collect(),
            cached_tokens: (0..candidates.len()).map(cached).collect(),
            terms: policy.explain(&request, candidates, now),
            transfers: transfers.collect(),
        };
        self.guessed = guessed.unwrap_or_default();
        explanation
    }
}
