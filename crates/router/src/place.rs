//! Where a request goes: the decision core, and what it has to be told.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use kvatlas_routing as core;
use kvatlas_service::lookup::Held;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::app::App;
use crate::clock::seconds;
use crate::config::{Config, Role};
use crate::decisions::{Decisions, Ended, Explained, Record, unix_seconds};
use crate::engine::{Engine, Standing};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::learn::Sent;
use crate::lock;
use crate::observe::Seen;
use crate::prompts::{Known, Wants};
use crate::record::Recorder;
use crate::refusal::Refusal;

const WORKER: HeaderName = HeaderName::from_static("x-kvatlas-worker");
const CACHED: HeaderName = HeaderName::from_static("x-kvatlas-cached-tokens");
const MICROS: HeaderName = HeaderName::from_static("x-kvatlas-decision-us");
const WHY: HeaderName = HeaderName::from_static("x-kvatlas-reason");

/// Blocks that a cache is taken to have room for where neither the configuration nor the engine says.
const UNKNOWN_CACHE: usize = 16_384;

/// Policies that look at nothing of the prompt.
const BLIND: [&str; 5] = ["random", "round-robin", "power-of-two", "least-loaded", "session"];

/// Upper bounds of the buckets for tokens by which a prediction was off.
pub(crate) const OFF_BY: [u32; 8] = [0, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Why what an engine had cached was not what was expected.
pub(crate) const OFF_WHY: [&str; 4] = ["as_expected", "evicted_meanwhile", "not_yet_announced", "more_than_known"];

/// An engine that takes a request. It is reserved there until one of the ways to end it is called.
pub(crate) struct Placement {
    pub(crate) engine: Arc<Engine>,
    /// Its data-parallel rank, if it has several.
    pub(crate) rank: Option<u32>,
    id: core::RequestId,
    cached: u32,
    predicted: u32,
    why: &'static str,
    decided: Instant,
    micros: u32,
    block_size: u32,
    /// What the index may learn by the answer.
    sent: Option<Sent>,
    /// Prompt tokens that are expected not to be there.
    uncached: u32,
    first_token: OnceLock<Instant>,
    record: Option<Arc<Record>>,
}

/// Decides.
pub(crate) struct Places {
    core: Mutex<Core>,
    pub(crate) decisions: Decisions,
    /// The file that they are written to, if there is one.
    pub(crate) recorder: Option<Recorder>,
    policy: String,
    wants: Wants,
    queue_timeout: Duration,
    /// Finished requests whose engine said what it had cached, by [`OFF_WHY`] and [`OFF_BY`] and beyond.
    pub(crate) off: [[AtomicU64; OFF_BY.len() + 1]; OFF_WHY.len()],
}

struct Core {
    router: core::Router,
    depths: core::Depths,
    /// What engines should hold by what was sent to them, where they do not tell.
    unheard: Option<core::PredictedIndex>,
    /// Who waits for a decision.
    tickets: HashMap<u64, oneshot::Sender<core::Outcome>>,
}

/// What a page wants to know of the decision core.
pub(crate) struct Summary {
    pub(crate) policy: String,
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) predicted_blocks: usize,
    pub(crate) sessions: usize,
    pub(crate) counts: core::Counts,
}

thread_local! {
    /// What a lookup found, kept for its memory.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl Places {
    /// `policy`: the caller's own, or else the one that the configuration names.
    pub(crate) fn new(config: &Config, policy: Option<Box<dyn core::Policy>>) -> Result<Self, Error> {
        let given = |options: &serde_json::Map<String, Value>| {
            core::Options::from_json(&Value::Object(options.clone()).to_string())
        };
        let policy = match policy {
            Some(policy) => policy,
            None => core::by_name(&config.policy, given(&config.policy_options)?, config.seed)?,
        };
        let mut options = given(&config.routing.options)?;
        let settings = core::Config::from_options(&mut options, config.seed, config.block_size)?;
        options.finish("of the router")?;
        let settings = core::Config {
            session_ttl: config.session_ttl.as_secs_f64(),
            queue_limit: config.routing.queue,
            queue_timeout: config.routing.queue_timeout.as_secs_f64(),
            first_token_timeout: config.upstream.first_byte_timeout.as_secs_f64() + 60.0,
            ..settings
        };
        let name = policy.name().to_owned();
        let hashes = policy.uses_index() || config.record.is_some();
        let wants = Wants { hashes, text: !BLIND.contains(&&*name) && name != "kvatlas" };
        Ok(Self {
            core: Mutex::new(Core {
                router: core::Router::new(settings, policy),
                depths: core::Depths::unknown(),
                unheard: (config.no_events && hashes)
                    .then(|| core::PredictedIndex::new(core::Forgets::Mock { blocks: UNKNOWN_CACHE })),
                tickets: HashMap::new(),
            }),
            decisions: Decisions::new(config.decisions),
            recorder: config.record.as_deref().map(open_record).transpose()?,
            policy: name,
            wants,
            queue_timeout: config.routing.queue_timeout,
            off: Default::default(),
        })
    }

    /// What of a prompt is looked at.
    pub(crate) fn wants(&self) -> Wants {
        self.wants
    }

    pub(crate) fn policy(&self) -> &str {
        &self.policy
    }

    /// An engine takes requests from now on, in the place of `replaced`. If that is the same engine with other settings,
    /// the requests there and all that was learnt of it stay.
    pub(crate) fn add(&self, replaced: Option<&Engine>, engine: &Arc<Engine>) {
        let mut core = self.core();
        let now = seconds();
        if let Some(replaced) = replaced {
            let same = replaced.config.url == engine.config.url;
            let stay = if same { engine.config.ranks as usize } else { 0 };
            core.leave(replaced, stay, now);
        }
        let weight = engine.config.weight;
        let ids: Box<[_]> =
            (0..engine.config.ranks).map(|rank| core.router.add_worker(&engine.name, rank, weight, now)).collect();
        if let Some(blocks) = engine.config.capacity_blocks {
            let load = core::Load { capacity_blocks: Some(blocks as f64), ..core::Load::default() };
            for id in &ids {
                core.router.report(*id, &load, now);
                if let Some(unheard) = &mut core.unheard {
                    unheard.set_room(id.0, blocks as usize);
                }
            }
        }
        if engine.health.standing() == Standing::Draining {
            for id in &ids {
                core.router.drain_worker(*id);
            }
        }
        let _ = engine.ids.set(ids);
        core.call_again(now);
    }

    /// An engine can be used again: those who wait begin anew, as they know it not.
    pub(crate) fn is_back(&self) {
        self.core().call_again(seconds());
    }

    /// An engine is gone.
    pub(crate) fn remove(&self, engine: &Engine) {
        self.core().leave(engine, 0, seconds());
    }

    /// An engine takes nothing new, or does again.
    pub(crate) fn drain(&self, engine: &Engine, drain: bool) {
        let mut core = self.core();
        for id in engine.ids.get().into_iter().flatten() {
            if drain {
                core.router.drain_worker(*id);
            } else {
                core.router.resume_worker(*id);
            }
        }
        core.call_again(seconds());
    }

    /// What an engine says of itself.
    pub(crate) fn report(&self, engine: &Engine, rank: usize, load: &core::Load) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(rank)) {
            let mut core = self.core();
            core.router.report(*id, load, seconds());
            if let (Some(unheard), Some(blocks)) = (&mut core.unheard, load.capacity_blocks) {
                unheard.set_room(id.0, blocks as usize);
            }
        }
    }

    /// What the index says of an engine's rank can be trusted, or not.
    pub(crate) fn set_trusted(&self, engine: &Engine, rank: usize, trusted: bool) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(rank)) {
            self.core().router.set_trusted(*id, trusted);
        }
    }

    /// Time has passed: whoever waits may have waited too long, or long enough.
    pub(crate) fn tick(&self) {
        let mut core = self.core();
        let now = seconds();
        core.router.expire(now);
        core.bind(now);
    }

    /// An engine for a request, not one of `tried` if there is another.
    pub(crate) async fn choose(
        &self,
        app: &App,
        shard: usize,
        known: &Known,
        role: Role,
        tried: &[Arc<Engine>],
    ) -> Result<Placement, Refusal> {
        let started = Instant::now();
        let until = started + self.queue_timeout;
        loop {
            if let Some(placement) = self.try_to_choose(app, shard, known, role, tried, started).await? {
                if let Some(telling) = &known.telling {
                    telling.asked();
                }
                return Ok(placement);
            }
            // Who may take it has changed while it waited.
            if until <= Instant::now() {
                return Err(refused(core::Refusal::QueueTimeout));
            }
        }
    }

    /// The same once. None: it waited, and the fleet has changed meanwhile.
    async fn try_to_choose(
        &self,
        app: &App,
        shard: usize,
        known: &Known,
        role: Role,
        tried: &[Arc<Engine>],
        started: Instant,
    ) -> Result<Option<Placement>, Refusal> {
        let allowed = candidates(&app.fleet, known.model.as_deref(), role, tried)?;
        let chosen = match app.remote.as_ref().filter(|_| self.wants.hashes && !known.hashes.is_empty()) {
            Some(remote) => {
                let engines = app.fleet.engines().clone();
                let model = known.model.as_deref().unwrap_or_default();
                let number = |worker: &str, rank| row(&engines, worker, rank);
                let held = remote.look_up(shard, model, &known.hashes, number).await;
                self.decide(known, &allowed, held.as_ref())?
            }
            None => HELD.with_borrow_mut(|held| {
                let looked = self.look_up(&app.fleet, known, held);
                self.decide(known, &allowed, looked.then_some(&*held))
            })?,
        };
        let (id, receiver) = match chosen {
            Chosen::Placed(decision, terms) => {
                return self.placement(app, decision, known, terms, started).map(Some);
            }
            Chosen::Waits(id, receiver) => (id, receiver),
        };
        let mut ticket = Ticket { places: self, id: Some(id) };
        let outcome = receiver.await;
        ticket.id = None;
        match outcome {
            Ok(core::Outcome::Placed(decision)) => {
                let mut core = self.core();
                let Core { router, unheard, .. } = &mut *core;
                placed(router, unheard.as_mut(), &decision, known, seconds());
                drop(core);
                self.placement(app, decision, known, None, started).map(Some)
            }
            Ok(core::Outcome::Refused(why)) => Err(refused(why)),
            Ok(core::Outcome::Waits(_)) | Err(_) => Ok(None),
        }
    }

    /// Whether somebody could be asked.
    fn look_up(&self, fleet: &Fleet, known: &Known, held: &mut Vec<Held>) -> bool {
        let Some(keyspace) = known.keyspace.as_ref().filter(|_| self.wants.hashes) else { return false };
        let engines = fleet.engines();
        let number = |worker: &str, rank: u32| row(&engines, worker, rank);
        keyspace.look_up(&known.hashes, number, held);
        true
    }

    fn decide(&self, known: &Known, allowed: &[core::WorkerId], held: Option<&Vec<Held>>) -> Result<Chosen, Refusal> {
        let request = request(known);
        let mut core = self.core();
        let now = seconds();
        let Core { router, depths, unheard, tickets } = &mut *core;
        match held {
            None => depths.clear(),
            Some(held) => {
                depths.begin();
                for held in held {
                    depths.set(held.number, core::Depth { device: held.device, host: held.host, any: held.any });
                }
            }
        }
        if let Some(unheard) = unheard.as_mut() {
            unheard.look_up(&known.hashes, now, depths);
        }
        let terms = self.decisions.are_watched().then(|| explain(router, &request, depths, allowed, now));
        let chosen = match router.choose_among(&request, depths, Some(allowed), now) {
            core::Outcome::Placed(decision) => {
                placed(router, unheard.as_mut(), &decision, known, now);
                Ok(Chosen::Placed(decision, terms))
            }
            core::Outcome::Waits(id) => {
                let (sender, receiver) = oneshot::channel();
                tickets.insert(id.0, sender);
                Ok(Chosen::Waits(id, receiver))
            }
            core::Outcome::Refused(why) => Err(refused(why)),
        };
        core.bind(now);
        chosen
    }

    /// How the candidates for a request look, without any effect.
    pub(crate) fn explain(&self, app: &App, known: &Known) -> Result<Explained, Refusal> {
        let allowed = candidates(&app.fleet, known.model.as_deref(), Role::Decode, &[])?;
        let mut held = Vec::new();
        let looked = self.look_up(&app.fleet, known, &mut held);
        let mut core = self.core();
        let Core { router, depths, .. } = &mut *core;
        depths.clear();
        if looked {
            depths.begin();
            for held in &held {
                depths.set(held.number, core::Depth { device: held.device, host: held.host, any: held.any });
            }
        }
        Ok(explain(router, &request(known), depths, &allowed, seconds()))
    }

    fn placement(
        &self,
        app: &App,
        decision: core::Decision,
        known: &Known,
        terms: Option<Explained>,
        started: Instant,
    ) -> Result<Placement, Refusal> {
        let Some(engine) = app.fleet.engine(&decision.name) else {
            self.core().router.fail(decision.id, seconds());
            return Err(refused(core::Refusal::NoWorker));
        };
        let took = started.elapsed();
        app.counts.decision.add(took);
        let why = decision.why.as_str();
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let record = (self.decisions.are_kept() || self.recorder.is_some()).then(|| {
            let record = Arc::new(Record {
                number: decision.id.0,
                at: unix_seconds(),
                model: known.model.clone(),
                tokens: known.tokens,
                block_size: known.block_size,
                hashes: known.hashes.clone(),
                worker: decision.name.clone(),
                rank: decision.rank,
                cached: decision.cached_tokens,
                predicted: decision.predicted_tokens,
                why,
                micros,
                terms,
                ended: OnceLock::new(),
            });
            self.decisions.push(record.clone());
            record
        });
        Ok(Placement {
            rank: (engine.config.ranks > 1).then_some(decision.rank),
            // What one engine has written for another is in nobody's cache yet.
            sent: known
                .telling
                .as_ref()
                .filter(|_| engine.config.role == Role::Both)
                .and_then(|telling| telling.sent(&engine.name, decision.rank)),
            engine,
            id: decision.id,
            cached: decision.cached_tokens,
            predicted: decision.predicted_tokens,
            uncached: decision.uncached_tokens,
            why,
            decided: Instant::now(),
            micros,
            block_size: known.block_size,
            first_token: OnceLock::new(),
            record,
        })
    }

    /// The first token of a stream has come.
    pub(crate) fn first_token(&self, placement: &Placement) {
        let _ = placement.first_token.set(Instant::now());
        let mut core = self.core();
        let now = seconds();
        core.router.first_token(placement.id, now);
        core.bind(now);
    }

    /// So many tokens more have come.
    pub(crate) fn progress(&self, placement: &Placement, tokens: u32) {
        self.core().router.progress(placement.id, tokens, seconds());
    }

    /// A request is over, and well.
    pub(crate) fn finish(&self, placement: &Placement, seen: Seen) {
        let output = seen.usage.output.or((seen.events > 0).then_some(seen.events));
        let usage = core::Usage { cached_tokens: seen.usage.cached, output_tokens: output };
        {
            let mut core = self.core();
            let now = seconds();
            core.router.finish(placement.id, usage, now);
            let blocks = output.unwrap_or(0) / placement.block_size.max(1);
            if let Some(unheard) = &mut core.unheard {
                unheard.ended(placement.id.0, blocks as usize, now);
            }
            core.bind(now);
        }
        if let Some(cached) = seen.usage.cached {
            let (why, off) = placement.off_by(cached);
            let at = OFF_BY.partition_point(|bound| *bound < off);
            self.off[why][at].fetch_add(1, Relaxed);
        }
        if let Some(sent) = &placement.sent {
            sent.answered(&placement.engine.name, seen.usage);
        }
        placement.ended("finished", seen.usage.cached, output);
        self.put_down(placement);
    }

    /// A request has failed at an engine.
    pub(crate) fn fail(&self, placement: &Placement) {
        self.end(placement, "failed");
    }

    /// A client has given a request up.
    pub(crate) fn cancel(&self, placement: &Placement) {
        self.end(placement, "cancelled");
    }

    fn end(&self, placement: &Placement, how: &'static str) {
        let mut core = self.core();
        let now = seconds();
        core.router.fail(placement.id, now);
        if let Some(unheard) = &mut core.unheard {
            unheard.failed(placement.id.0, now);
        }
        core.bind(now);
        drop(core);
        placement.ended(how, None, None);
        self.put_down(placement);
    }

    /// Into the record of decisions, if one is kept.
    fn put_down(&self, placement: &Placement) {
        if let (Some(recorder), Some(record)) = (&self.recorder, &placement.record) {
            recorder.push(record.clone());
        }
    }

    /// What a page wants to know.
    pub(crate) fn summary(&self) -> Summary {
        let core = self.core();
        Summary {
            policy: self.policy.clone(),
            in_flight: core.router.in_flight(),
            waiting: core.router.waiting(),
            predicted_blocks: core.router.predicted_blocks(),
            sessions: core.router.sessions(),
            counts: core.router.counts(),
        }
    }

    /// An engine's ranks, as the decision core has them.
    pub(crate) fn rows_of(&self, engine: &Engine) -> Value {
        let mut core = self.core();
        let rows = core.router.candidates(seconds());
        let of = |id: &core::WorkerId| {
            let at = rows.worker.iter().position(|worker| *worker == id.0)?;
            Some(json!({
                "number": id.0,
                "requests": rows.requests[at],
                "waiting": rows.waiting[at],
                "queued_tokens": number(rows.queued_tokens[at]),
                "context_tokens": number(rows.context_tokens[at]),
                "prefill_rate": number(rows.prefill_rate[at]),
                "step_time": number(rows.step_time[at]),
                "reported_waiting": number(rows.reported_waiting[at]),
                "reported_running": number(rows.reported_running[at]),
                "reported_kv_usage": number(rows.reported_kv_usage[at]),
                "reported_age": number(rows.reported_age[at]),
                "held_blocks": number(rows.held_blocks[at]),
                "capacity_blocks": number(rows.capacity_blocks[at]),
                "trusted": rows.trusted[at],
                "sent": rows.sent[at],
                "age": number(rows.age[at]),
            }))
        };
        engine.ids.get().into_iter().flatten().filter_map(of).collect()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }
}

impl Core {
    /// An engine's ranks from `first` on are gone.
    fn leave(&mut self, engine: &Engine, first: usize, now: f64) {
        for id in engine.ids.get().into_iter().flatten().skip(first) {
            self.router.remove_worker(*id, now);
            if let Some(unheard) = &mut self.unheard {
                unheard.left(id.0);
            }
        }
    }

    /// Has all who wait ask again: each knows only the engines that there were when it came.
    fn call_again(&mut self, now: f64) {
        for (id, ticket) in std::mem::take(&mut self.tickets) {
            self.router.fail(core::RequestId(id), now);
            drop(ticket);
        }
    }

    /// Tells those who waited and need not any more.
    fn bind(&mut self, now: f64) {
        if self.tickets.is_empty() {
            return;
        }
        for (id, outcome) in self.router.bind(now) {
            let told = self.tickets.remove(&id.0).is_some_and(|ticket| ticket.send(outcome).is_ok());
            if !told {
                self.router.fail(id, now);
            }
        }
    }
}

/// What became of a request to place.
enum Chosen {
    Placed(core::Decision, Option<Explained>),
    Waits(core::RequestId, oneshot::Receiver<core::Outcome>),
}

/// A request that waits in the router. If it is dropped, so is its place in the queue.
struct Ticket<'a> {
    places: &'a Places,
    id: Option<core::RequestId>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut core = self.places.core();
            core.tickets.remove(&id.0);
            core.router.fail(id, seconds());
        }
    }
}

impl Placement {
    /// Puts who answers, and why, into the headers of an answer.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        headers.insert(WORKER, self.engine.header.clone());
        headers.insert(CACHED, HeaderValue::from(self.cached));
        headers.insert(MICROS, HeaderValue::from(self.micros));
        headers.insert(WHY, HeaderValue::from_static(self.why));
    }

    /// Prompt tokens that the engine is expected to compute; of a prompt without hashes, all of them.
    pub(crate) fn uncached(&self, known: &Known) -> u32 {
        if known.hashes.is_empty() { known.tokens } else { self.uncached }
    }

    /// Why what was cached is not what was expected, and by how many tokens.
    fn off_by(&self, cached: u32) -> (usize, u32) {
        let off = cached.abs_diff(self.cached);
        let why = match cached.cmp(&self.cached) {
            _ if off < self.block_size => 0,
            std::cmp::Ordering::Less if off <= self.predicted => 2,
            std::cmp::Ordering::Less => 1,
            _ => 3,
        };
        (why, off)
    }

    fn ended(&self, how: &'static str, cached: Option<u32>, output: Option<u32>) {
        let Some(record) = &self.record else { return };
        let since = |at: &Instant| at.duration_since(self.decided).as_secs_f64();
        let _ = record.ended.set(Ended {
            how,
            cached,
            output,
            first_token: self.first_token.get().map(since),
            took: self.decided.elapsed().as_secs_f64(),
        });
    }
}

fn open_record(path: &Path) -> Result<Recorder, Error> {
    Recorder::open(path)
        .map_err(|error| Error::start(format!("cannot record decisions in {}: {error}", path.display())))
}

fn request(known: &Known) -> core::Request<'_> {
    core::Request {
        tokens: known.tokens,
        block_size: known.block_size,
        content_hashes: &known.hashes,
        text: known.text.as_deref(),
        session: known.session,
        max_tokens: known.max_tokens,
        priority: known.priority,
        answers: known.answers,
        number: 0,
    }
}

fn explain(
    router: &mut core::Router,
    request: &core::Request<'_>,
    depths: &core::Depths,
    allowed: &[core::WorkerId],
    now: f64,
) -> Explained {
    let found = router.explain(request, depths, Some(allowed), now);
    let name = |id: &core::WorkerId| router.name(*id).map(|(name, rank)| (name.clone(), rank));
    let workers = found.workers.iter().map(|id| name(id).unwrap_or_else(|| ("?".into(), 0))).collect();
    Explained { workers, cached_tokens: found.cached_tokens, terms: found.terms }
}

/// What has to be noted of a request that goes to an engine.
fn placed(
    router: &mut core::Router,
    unheard: Option<&mut core::PredictedIndex>,
    decision: &core::Decision,
    known: &Known,
    now: f64,
) {
    // Nobody will tell of its first token.
    if !known.streams {
        router.comes_whole(decision.id, now);
    }
    if let Some(unheard) = unheard {
        unheard.sent(decision.id.0, decision.worker.0, &known.hashes, now);
    }
}

/// What a client is told when the decision core places its request nowhere.
fn refused(why: core::Refusal) -> Refusal {
    let message = match why {
        core::Refusal::NoWorker => "no engine takes requests now",
        core::Refusal::QueueFull => "all engines have enough to do, and as many requests wait in the router as may",
        core::Refusal::QueueTimeout => "all engines have enough to do; the request waited as long as it may",
    };
    let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Refusal::new(status, why.as_str(), message).again_after(Duration::from_secs(1))
}

/// The decision core's number for a worker's rank.
fn row(engines: &[Arc<Engine>], worker: &str, rank: u32) -> Option<u32> {
    let at = engines.binary_search_by(|engine| (*engine.name).cmp(worker)).ok()?;
    engines[at].ids.get()?.get(rank as usize).map(|id| id.0)
}

/// What JSON can say.
fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The ranks of engines that may take a request, at least one.
fn candidates(
    fleet: &Fleet,
    model: Option<&str>,
    role: Role,
    tried: &[Arc<Engine>],
) -> Result<Vec<core::WorkerId>, Refusal> {
    let engines = fleet.engines();
    let serves = |engine: &Engine| engine.does(role) && model.is_none_or(|model| engine.models.load().serves(model));
    let with = |standing: fn(Standing) -> bool| -> Vec<core::WorkerId> {
        let mut ids = Vec::with_capacity(engines.len());
        for engine in engines.iter().filter(|engine| serves(engine) && standing(engine.health.standing())) {
            if !tried.iter().any(|other| Arc::ptr_eq(engine, other)) {
                ids.extend(engine.ids.get().into_iter().flatten());
            }
        }
        ids.sort_unstable();
        ids
    };
    let up = with(|standing| standing == Standing::Up);
    if !up.is_empty() {
        return Ok(up);
    }
    // Evidence against all of them is more likely to be wrong than all of them are: somebody has to try.
    let others = with(|standing| matches!(standing, Standing::Down | Standing::Failing | Standing::Silent));
    if !others.is_empty() {
        return Ok(others);
    }
    let serving = || engines.iter().filter(|engine| serves(engine));
    if serving().next().is_none() {
        return Err(match model {
            Some(model) if !engines.is_empty() => {
                let shown: String = model.chars().take(128).collect();
                let message =
                    format!("no engine serves the model {shown:?}; GET /v1/models lists those that there are");
                Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
            }
            _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engines", "there are no engines"),
        });
    }
    let pause = serving().map(|engine| engine.health.busy_for()).filter(|pause| !pause.is_zero()).min();
    Err(refused(core::Refusal::NoWorker).again_after(pause.unwrap_or(Duration::from_secs(1))))
}
