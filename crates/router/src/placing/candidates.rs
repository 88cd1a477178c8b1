//! Selection of the engines that are eligible for a request, and lookup of the prompt's blocks in this process's index.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::StatusCode;
use kvatlas_follow::lookup::RankDepths;
use kvatlas_follow::state::{Keyspace, Stream};
use kvatlas_index::Segment;
use kvatlas_routing as core;

use crate::answers::refusal::Refusal;
use crate::config::Handover;
use crate::engines::fleet::{EngineTable, Fleet};
use crate::engines::{Engine, HealthState, Serving};
use crate::requests::facts::{DialectBlocks, RequestFacts};
use crate::requests::task::Task;

/// Returns the ranks of all engines that are eligible for a request, at least one; an error if there are none. `tried`:
/// engines that are excluded because they failed.
pub(super) fn candidates(
    fleet: &Fleet,
    facts: &RequestFacts,
    task: Task,
    tried: &[Arc<Engine>],
) -> Result<Vec<core::WorkerId>, Refusal> {
    let engines = fleet.engines();
    let model = facts.body.model.as_deref();
    let may = |engine: &Engine| facts.hints.only_engine.as_ref().is_none_or(|only| *only == engine.name);
    let room = facts.room(task.is_prefill());
    let has_room = |engine: &Engine| engine.models.load().have_room(room) || engine.has_room(model, room);
    let serving = |engine: &Engine| match model {
        _ if !may(engine) || !engine.is_for(task) || !has_room(engine) => Serving::Not,
        Some(model) => engine.models.load().serving(model),
        None => Serving::Listed,
    };
    let with = |how: Serving, is_such: fn(&Engine) -> bool| -> Vec<core::WorkerId> {
        let mut ids = Vec::with_capacity(engines.len());
        let mut failing: Vec<core::WorkerId> = Vec::new();
        for engine in engines.iter().filter(|it| is_such(it) && serving(it) == how) {
            if engine.can_do(task) && !tried.iter().any(|other| Arc::ptr_eq(engine, other)) {
                let of = if engine.recent.is_failing() { &mut failing } else { &mut ids };
                of.extend(engine.ids.get().into_iter().flatten());
            }
        }
        // If more than half of them fail, it is rather something that they share, or the requests.
        if failing.len() > ids.len() {
            ids.append(&mut failing);
        }
        ids.sort_unstable();
        ids
    };
    let is_up = Engine::takes_requests;
    // Evidence against all of them is more likely to be wrong than all of them are: one has to be tried. Those that are
    // seen to live come first.
    let is_alive = |engine: &Engine| {
        matches!(engine.health.standing(), HealthState::Busy | HealthState::Silent | HealthState::Failing)
    };
    let is_down = |engine: &Engine| engine.health.standing() == HealthState::Down;
    for (how, is_such) in [
        (Serving::Listed, is_up as fn(&Engine) -> bool),
        (Serving::Unknown, is_up),
        (Serving::Listed, is_alive),
        (Serving::Listed, is_down),
        (Serving::Unknown, is_alive),
        (Serving::Unknown, is_down),
        (Serving::Denied, is_up),
        (Serving::Denied, is_alive),
        (Serving::Denied, is_down),
    ] {
        let found = with(how, is_such);
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let serving = || engines.iter().filter(|engine| serving(engine) != Serving::Not);
    if serving().next().is_none() {
        let serves = |engine: &Engine| may(engine) && engine.models.load().may_serve(model);
        let lacking = engines.iter().filter(|engine| serves(engine) && engine.is_for(task));
        if let Some(most) = lacking.filter_map(|engine| engine.max_len(model)).max() {
            return Err(too_long(facts, task, most));
        }
        if engines.iter().any(|engine| serves(engine)) {
            let message = "all engines that could take this request only compute prompts (prefill) or only go on from \
                            them (decode), and the other half is missing: add engines of that role, or some that do both";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_pair", message));
        }
        return Err(match model {
            Some(model) if !engines.is_empty() => {
                let shown: String = model.chars().take(128).collect();
                let message = format!("no engine serves the model {shown:?}; GET /v1/models lists the models");
                Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
            }
            _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engines", "the router has no engines"),
        });
    }
    // Engines that are being asked what they are may turn out to be able to.
    let is_sglang = |engine: &Arc<Engine>| engine.handover() == Some(Handover::Sglang);
    if task == Task::Alone && serving().all(|engine| !engine.can_do(task) && is_sglang(engine)) {
        return Err(cannot_be_split());
    }
    let pause = serving().map(|engine| engine.health.busy_for()).filter(|pause| !pause.is_zero()).min();
    Err(refused(core::Refusal::NoWorker).again_after(pause.unwrap_or(Duration::from_secs(1))))
}

/// True if an engine that is not in `asked` may serve the request's model.
pub(crate) fn may_be_served_elsewhere(fleet: &Fleet, facts: &RequestFacts, task: Task, asked: &[&Arc<Engine>]) -> bool {
    let (Some(model), None) = (facts.body.model.as_deref(), &facts.hints.only_engine) else { return false };
    fleet.engines().iter().any(|engine| {
        let is_new =
            !asked.iter().any(|other| Arc::ptr_eq(engine, other)) && engine.is_for(task) && engine.can_do(task);
        is_new
            && engine.health.standing() != HealthState::Draining
            && engine.has_room(facts.body.model.as_deref(), facts.room(task.is_prefill()))
            && matches!(engine.models.load().serving(model), Serving::Listed | Serving::Unknown)
    })
}

/// Makes the refusal of a request that is too long for every engine's context; `most` is the longest context, in
/// tokens.
fn too_long(facts: &RequestFacts, task: Task, most: u32) -> Refusal {
    let (prompt, answer) = (facts.prompt.tokens, facts.room(task.is_prefill()) - facts.prompt.tokens);
    // The words by which clients of both APIs know it, and shorten the prompt or the answer.
    let message = if prompt.saturating_add(answer.min(1)) > most {
        format!(
            "prompt is too long: {prompt} tokens > {most} maximum. This model's maximum context length is {most} \
             tokens, and the answer needs one of them: reduce the length of the prompt"
        )
    } else {
        format!(
            "input length and `max_tokens` exceed context limit: {prompt} + {answer} > {most}, decrease input length \
             or `max_tokens` and try again. This model's maximum context length is {most} tokens, and the request \
             wants {} ({prompt} in the prompt, {answer} in the answer)",
            u64::from(prompt) + u64::from(answer)
        )
    };
    Refusal::bad("context_length_exceeded", message).about(facts.body.prompt_field)
}

/// Returns a rank of the engine that stores an item which the request names, if this engine is draining and therefore
/// not among the candidates; None otherwise.
pub(super) fn keeper(fleet: &Fleet, facts: &RequestFacts) -> Option<core::WorkerId> {
    let engine = fleet.engine(facts.hints.only_engine.as_deref()?)?;
    if engine.health.standing() != HealthState::Draining {
        return None;
    }
    engine.ids.get()?.first().copied()
}

/// Makes the refusal of a request that cannot be split between SGLang's prefill and decode engines.
fn cannot_be_split() -> Refusal {
    let message = "the engines are pairs of SGLang's, which compute only what a prefill and a decode engine can share: \
                   chats, completions, Messages, Responses and /generate, as uncompressed JSON with the whole \
                   conversation (no previous_response_id). Add an engine that does both (--engine) for other requests";
    Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_in_pairs", message)
}

/// Makes the refusal of a request for which no engine was chosen, or which lost its place in the queue. `why`: reason.
pub(super) fn refused(why: core::Refusal) -> Refusal {
    let message = match why {
        core::Refusal::NoWorker => "no engine takes requests at present",
        core::Refusal::QueueFull => "all engines are fully loaded, and the router's queue is full",
        core::Refusal::Displaced => {
            "all engines are fully loaded, the router's queue is full, and a request of higher priority took this one's place"
        }
    };
    let status = StatusCode::from_u16(why.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Refusal::new(status, why.as_str(), message).again_after(Duration::from_secs(1))
}

/// Looks up the number of leading blocks of a prompt that each rank holds. For an engine with a dialect in `others`
/// (another way of rendering chats), the blocks of the prompt in that dialect are looked up.
pub(super) fn look_up(
    keyspace: &Keyspace,
    hashes: &[u64],
    others: &[DialectBlocks],
    engines: &EngineTable,
    held: &mut Vec<RankDepths>,
) {
    if others.is_empty() {
        return keyspace.look_up(hashes, |worker, rank| engines.number(worker, rank), held);
    }
    let is_of =
        |worker: &str, is_wanted: &dyn Fn(&Engine) -> bool| engines.get(worker).is_some_and(|engine| is_wanted(engine));
    let has_main = |engine: &Engine| !others.iter().any(|other| other.dialect == engine.dialect());
    let of_main = |worker: &str, rank| is_of(worker, &has_main).then(|| engines.number(worker, rank))?;
    keyspace.look_up(hashes, of_main, held);
    let mut found = Vec::new();
    for other in others {
        let has_it = |engine: &Engine| engine.dialect() == other.dialect;
        let of_other = |worker: &str, rank| is_of(worker, &has_it).then(|| engines.number(worker, rank))?;
        keyspace.look_up(&other.hashes, of_other, &mut found);
        held.append(&mut found);
    }
}

/// Number of blocks of a prompt that an engine held at one moment, with a counter that later shows whether the engine
/// lost blocks since.
pub(super) struct HeldThen {
    stream: Arc<Stream>,
    lost: u64,
    /// Number of held blocks that the engine can reuse from its cache; None if not comparable with the cached tokens
    /// that the engine will report.
    pub(super) blocks: Option<u32>,
    /// Blocks of the prompt that the engine is expected to load from pools which may have lost them; None for none.
    unsure: Option<Box<UnsureLoad>>,
}

/// Blocks of a prompt that an engine is expected to load from pools whose members may not announce removals.
struct UnsureLoad {
    keyspace: Arc<Keyspace>,
    hashes: Arc<[u64]>,
    segments: Vec<Segment>,
    /// Time of the lookup, in seconds on the clock of the index.
    at: f64,
}

impl HeldThen {
    /// Records the number of blocks that a rank holds now; None if the rank's events are not followed, or its event
    /// stream is not trusted.
    pub(super) fn new(keyspace: &Keyspace, worker: &str, rank: u32, blocks: Option<u32>) -> Option<Self> {
        let stream = keyspace.stream(worker, rank).filter(|stream| stream.status.is_trusted())?;
        let blocks = blocks.filter(|_| !stream.status.upper_bound.load(Relaxed));
        Some(Self { lost: lost(&stream), stream, blocks, unsure: None })
    }

    /// Looks up the blocks of the prompt that the engine is expected to load from pools which may have lost them.
    pub(super) fn loading(mut self, keyspace: &Arc<Keyspace>, hashes: &Arc<[u64]>, worker: &str, rank: u32) -> Self {
        self.unsure = keyspace.find_unsure(hashes, worker, rank).map(|(segments, at)| {
            Box::new(UnsureLoad { keyspace: keyspace.clone(), hashes: hashes.clone(), segments, at })
        });
        self
    }

    /// Removes blocks from the pool that should have had them, if the engine reused `reused` leading blocks of the prompt,
    /// fewer than the `expected` ones, and the next one was to be loaded from a pool.
    pub(super) fn note_reused(&self, reused: u32, expected: u32) {
        let Some(unsure) = self.unsure.as_ref().filter(|_| reused < expected) else { return };
        let missed = unsure.segments.iter().find(|it| (it.start..it.end).contains(&reused));
        if let Some(pool) = missed.and_then(|it| it.pool.as_ref()) {
            unsure.keyspace.miss_in_pool(pool, &unsure.hashes, reused, unsure.at);
        }
    }

    /// True if the engine may have lost blocks since this number of held blocks was recorded.
    pub(super) fn may_be_gone(&self) -> bool {
        lost(&self.stream) != self.lost || !self.stream.status.is_trusted()
    }
}

/// Returns a number that changes whenever the engine of a stream loses blocks, or may have lost some. Losses in other
/// cache groups (layers with a cache of their own) count too, as the affected prompts are unknown.
fn lost(stream: &Stream) -> u64 {
    let (status, counters) = (&stream.status, &stream.status.counters);
    let all = [&counters.removed_blocks, &counters.clears, &counters.resets, &counters.group_events, &status.epoch];
    all.iter().map(|count| count.load(Relaxed)).fold(0, u64::wrapping_add)
}
