//! Choice of an engine for a request: lookup of the prompt's blocks, decision, and reservation of the engine in one
//! step.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvatlas_follow::lookup::RankDepths;
use kvatlas_routing as core;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::candidates::look_up;
use super::candidates::{HeldThen, candidates, keeper, refused};
use super::waiting::{WaitUpdate, Waiter};
use super::{Core, Placement, Places, WarmUp};
use crate::answers::refusal::Refusal;
use crate::clock::seconds;
use crate::config::Role;
use crate::engines::Engine;
use crate::engines::fleet::Fleet;
use crate::placing::decisions::{Explanation, Record, unix_seconds};
use crate::remote::Question;
use crate::remote::index::{ExternalIndex, LookupResult};
use crate::remote::sites::{Bounds, Claim};
use crate::requests::facts::RequestFacts;
use crate::requests::task::Task;

thread_local! {
    /// Buffer of each thread for the results of a lookup in the index, reused to avoid allocation.
    static HELD: RefCell<Vec<RankDepths>> = const { RefCell::new(Vec::new()) };
}

/// Maximum number of attempts to choose an engine for a request when the chosen one has just been removed.
const TRIES: usize = 5;
/// Pause before the next attempt to choose an engine.
const PAUSE: Duration = Duration::from_millis(2);

/// Choice of an engine, with the data that explain it and a warm-up request that may follow from it.
struct ExplainedDecision {
    decision: core::Decision,
    /// Candidates and cost terms that were compared for the choice; None if not recorded.
    terms: Option<Box<Explanation>>,
    /// Bounds on cached tokens, as reported by the service that indexes many sites; None without this service.
    bounds: Option<Arc<Bounds>>,
    /// Request that makes another engine pull this prompt's blocks in advance (a warm-up); None for no such request.
    warm_up: Option<Box<WarmUp>>,
}

/// Comparison of the candidates for a request, computed to explain and not to choose.
pub(crate) struct Outlook {
    pub(crate) explained: Explanation,
    /// Number of blocks that each candidate holds; None without an index.
    pub(crate) held: Option<Vec<core::Depth>>,
    /// Bounds on the candidates' cached tokens, from the service that indexes many sites; None without it.
    pub(crate) bounds: Option<Arc<Bounds>>,
}

/// Outcome of an attempt to choose an engine: chosen, waiting in the queue, or no engine.
enum ChoiceResult {
    Placed(ExplainedDecision),
    Waits(core::RequestId, mpsc::UnboundedReceiver<WaitUpdate>),
    NoWorker,
}

/// Guard of a waiting request's place in the router's queue, which frees the place when dropped.
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

impl Places {
    /// Chooses an engine for a request, and reserves capacity there. `tried`: engines that are excluded because they
    /// failed.
    pub(crate) async fn choose(
        &self,
        shard: usize,
        facts: &RequestFacts,
        task: Task,
        tried: &[Arc<Engine>],
    ) -> Result<Placement, Refusal> {
        let started = Instant::now();
        for _ in 0..TRIES {
            let decided = match keeper(&self.fleet, facts) {
                Some(rank) => self.place_at(facts, task, rank).map(|decision| ExplainedDecision {
                    decision,
                    terms: None,
                    bounds: None,
                    warm_up: None,
                }),
                None => {
                    let allowed = candidates(&self.fleet, facts, task, tried)?;
                    match self.choose_or_wait(shard, facts, task, &allowed).await? {
                        ChoiceResult::Placed(decided) => Some(decided),
                        ChoiceResult::Waits(id, news) => {
                            facts.model.waited.fetch_add(1, Relaxed);
                            Box::pin(self.wait(facts, task, tried, allowed, id, news)).await?
                        }
                        ChoiceResult::NoWorker => None,
                    }
                }
            };
            if let Some(decided) = decided
                && let Some(placement) = self.placement(decided, facts, started)
            {
                if let Some(evidence) = &facts.prompt.evidence {
                    evidence.note_query();
                }
                return Ok(placement);
            }
            // Whoever was to take it has just gone: others may be there in a moment.
            tokio::time::sleep(PAUSE).await;
        }
        self.core().router.gave_up(core::Refusal::NoWorker);
        Err(not_placed(facts, core::Refusal::NoWorker))
    }

    /// Assigns a request to the rank `rank` of a draining engine, because this engine stores an item that the request
    /// continues; None if the engine has just been removed.
    fn place_at(&self, facts: &RequestFacts, task: Task, rank: core::WorkerId) -> Option<core::Decision> {
        HELD.with_borrow_mut(|held| {
            let looked = self.look_up(facts, held);
            let mut core = self.core();
            let now = seconds();
            let Core { router, depths, unheard, .. } = &mut *core;
            fill(depths, looked.then_some(&*held));
            let decision = router.place_at_keeper(&self.request(facts, task), depths, rank, now)?;
            placed(router, unheard.as_mut(), &decision, facts, task, now);
            Some(decision)
        })
    }

    async fn choose_or_wait(
        &self,
        shard: usize,
        facts: &RequestFacts,
        task: Task,
        allowed: &[core::WorkerId],
    ) -> Result<ChoiceResult, Refusal> {
        match self.external_index.as_ref().filter(|_| self.wants.hashes && !facts.prompt.hashes.is_empty()) {
            Some(elsewhere) => {
                let looked = Box::pin(ask(elsewhere, &self.fleet, shard, facts)).await;
                let (held, bounds) = looked.map_or((None, None), |looked| (Some(looked.held), looked.bounds));
                self.decide(facts, task, allowed, held.as_ref(), bounds)
            }
            None => HELD.with_borrow_mut(|held| {
                let looked = self.look_up(facts, held);
                self.decide(facts, task, allowed, looked.then_some(&*held), None)
            }),
        }
    }

    /// Waits in the queue until an engine has capacity for the request; the place in the queue is freed if the client
    /// leaves. None if all candidates (ranks that may be chosen) were removed before new ones could be determined.
    async fn wait(
        &self,
        facts: &RequestFacts,
        task: Task,
        tried: &[Arc<Engine>],
        mut allowed: Vec<core::WorkerId>,
        id: core::RequestId,
        mut news: mpsc::UnboundedReceiver<WaitUpdate>,
    ) -> Result<Option<ExplainedDecision>, Refusal> {
        let mut ticket = Ticket { places: self, id: Some(id) };
        let began = Instant::now();
        let (outcome, bounds) = loop {
            // The fleet may have changed before it was in the queue, too.
            let now_allowed = candidates(&self.fleet, facts, task, tried)?;
            if now_allowed != allowed {
                allowed = now_allowed;
                let mut core = self.core();
                core.router.allow(id, Some(&allowed));
                self.call(&core);
            }
            match news.recv().await {
                Some(WaitUpdate::Decided(outcome, bounds)) => break (outcome, bounds),
                Some(WaitUpdate::FleetChanged) => {}
                None => break (core::Outcome::Refused(core::Refusal::NoWorker), None),
            }
        };
        ticket.id = None;
        facts.waited.add(began.elapsed());
        match outcome {
            core::Outcome::Placed(decision) => {
                // The engine may have fallen asleep or died since the candidates were determined.
                let is_allowed =
                    candidates(&self.fleet, facts, task, tried).is_ok_and(|now| now.contains(&decision.worker));
                let mut core = self.core();
                if !is_allowed {
                    core.router.fail(decision.id, seconds());
                    return Ok(None);
                }
                let Core { router, unheard, .. } = &mut *core;
                placed(router, unheard.as_mut(), &decision, facts, task, seconds());
                Ok(Some(ExplainedDecision { decision, terms: None, bounds, warm_up: None }))
            }
            core::Outcome::Refused(core::Refusal::NoWorker) | core::Outcome::Waits(_) => Ok(None),
            core::Outcome::Refused(why) => Err(not_placed(facts, why)),
        }
    }

    /// Looks up the number of leading blocks of a prompt that each rank holds. True if there is an index for the
    /// request's model.
    fn look_up(&self, facts: &RequestFacts, held: &mut Vec<RankDepths>) -> bool {
        let Some(keyspace) = facts.prompt.keyspace.as_ref().filter(|_| self.wants.hashes) else { return false };
        let engines = self.fleet.engines();
        look_up(keyspace, &facts.prompt.hashes, &facts.prompt.others, &engines, held);
        true
    }

    fn decide(
        &self,
        facts: &RequestFacts,
        task: Task,
        allowed: &[core::WorkerId],
        held: Option<&Vec<RankDepths>>,
        bounds: Option<Arc<Bounds>>,
    ) -> Result<ChoiceResult, Refusal> {
        let request = self.request(facts, task);
        let mut core = self.core();
        let now = seconds();
        let Core { router, depths, unheard, tickets } = &mut *core;
        fill(depths, held);
        if let Some(unheard) = unheard.as_mut() {
            unheard.look_up(&facts.prompt.hashes, now, depths);
        }
        let terms = self.decisions.are_watched().then(|| Box::new(explain(router, &request, depths, allowed, now)));
        let chosen = match router.choose_or_wait(&request, depths, Some(allowed), now) {
            core::Outcome::Placed(decision) => {
                placed(router, unheard.as_mut(), &decision, facts, task, now);
                let is_plain = matches!(facts.body.prompt_field, "messages" | "prompt") && facts.prompt.media.is_none();
                let warm_up = held
                    .filter(|_| is_plain)
                    .and_then(|held| self.find_warm_up(router, &request, depths, held, (allowed, decision.worker)));
                Ok(ChoiceResult::Placed(ExplainedDecision { decision, terms, bounds, warm_up }))
            }
            core::Outcome::Waits(id) => {
                let (waiter, hears) = Waiter::new(facts, bounds);
                tickets.insert(id.0, waiter);
                Ok(ChoiceResult::Waits(id, hears))
            }
            core::Outcome::Refused(why @ core::Refusal::NoWorker) => {
                router.tries_again(why);
                Ok(ChoiceResult::NoWorker)
            }
            core::Outcome::Refused(why) => Err(not_placed(facts, why)),
        };
        self.call(&core);
        chosen
    }

    fn request<'f>(&self, facts: &'f RequestFacts, task: Task) -> core::Request<'f> {
        // Where prefill has engines of its own, who generates an answer takes the prompt over from one of these.
        let tells = facts.hints.tells && (task != Task::Generate || !self.fleet.is_split());
        core::Request {
            tokens: facts.prompt.tokens,
            block_size: facts.prompt.block_size,
            content_hashes: &facts.prompt.hashes,
            text: facts.prompt.text.as_deref(),
            session: facts.hints.session.map(|name| name.key),
            parent: facts.hints.session.and_then(|name| name.parent),
            kind: facts.hints.turn.as_ref().map(|turn| turn.kind),
            max_tokens: facts.body.max_tokens,
            priority: facts.hints.priority,
            at_once: !facts.body.generates,
            tells,
            answers: facts.body.answers,
            number: 0,
            waited: facts.waited.seconds(),
        }
    }

    /// Compares the candidate engines for a request, to explain decisions, without choosing one.
    pub(crate) async fn explain(&self, shard: usize, facts: &RequestFacts) -> Result<Outlook, Refusal> {
        let allowed = candidates(&self.fleet, facts, Task::Generate, &[])?;
        let (mut held, mut bounds) = (Vec::new(), None);
        let looked = match self.external_index.as_ref().filter(|_| self.wants.hashes && !facts.prompt.hashes.is_empty())
        {
            Some(elsewhere) => {
                let looked = Box::pin(ask(elsewhere, &self.fleet, shard, facts)).await;
                let is_known = looked.is_some();
                if let Some(looked) = looked {
                    (held, bounds) = (looked.held, looked.bounds);
                }
                is_known
            }
            None => self.look_up(facts, &mut held),
        };
        let mut core = self.core();
        let Core { router, depths, unheard, .. } = &mut *core;
        fill(depths, looked.then_some(&held));
        if let Some(unheard) = unheard.as_mut() {
            unheard.look_up(&facts.prompt.hashes, seconds(), depths);
        }
        let found = router.explain(&self.request(facts, Task::Generate), depths, Some(&allowed), seconds());
        let held = looked.then(|| found.workers.iter().map(|id| depths.get(id.0)).collect());
        Ok(Outlook { explained: named(router, found), held, bounds })
    }

    /// Makes the record of a request's assignment to the chosen engine. None if the engine has been removed in the
    /// meantime.
    fn placement(
        &self,
        ExplainedDecision { decision, terms, bounds: said, warm_up }: ExplainedDecision,
        facts: &RequestFacts,
        started: Instant,
    ) -> Option<Placement> {
        let Some(engine) = self.fleet.engine(&decision.name) else {
            self.core().router.fail(decision.id, seconds());
            return None;
        };
        let bounds = said.as_ref().and_then(|said| said.of(&engine.name));
        let global = self.external_index.as_deref().and_then(ExternalIndex::global);
        let is_at_site = global.is_some();
        let claim = global.zip(said).map(|(global, said)| Claim::new(global, &said.model, &engine.name, bounds));
        let took = started.elapsed();
        self.counts.decision.add(took);
        facts.model.note_placed(decision.why);
        let why = decision.why.as_str();
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        // A prompt that is computed for another engine has no answer of its own.
        let turn = facts.hints.turn.as_ref().filter(|_| engine.config.role != Role::Prefill);
        let record = (self.decisions.are_kept() || self.recorder.is_some()).then(|| {
            let record = Arc::new(Record {
                number: decision.id.0,
                at: unix_seconds(),
                model: facts.body.model.clone(),
                tokens: facts.prompt.tokens,
                block_size: facts.prompt.block_size,
                hashes: facts.prompt.hashes.clone(),
                worker: decision.name.clone(),
                rank: decision.rank,
                cached: decision.cached_tokens,
                predicted: decision.predicted_tokens,
                transfer: decision.transfer.as_deref().cloned(),
                why,
                micros,
                bounds,
                terms: terms.map(|terms| *terms),
                turn: turn.cloned(),
                ended: OnceLock::new(),
            });
            self.decisions.push(record.clone());
            record
        });
        let is_held = decision.cached_tokens > 0 || decision.held_blocks.is_some_and(|blocks| blocks > 0);
        let held_then =
            facts.prompt.keyspace.as_ref().filter(|_| is_held && engine.config.role == Role::Both).and_then(
                |keyspace| {
                    // What is on its way may be there or not.
                    let blocks = decision.held_blocks.filter(|_| decision.predicted_tokens == 0);
                    let held = HeldThen::new(keyspace, &engine.name, decision.rank, blocks)?;
                    // Blocks on other tiers than the device are expected, and none are pulled or on their way.
                    let pulls = decision.transfer.as_ref().is_some_and(|transfer| transfer.pull.is_some());
                    if decision.held_blocks.is_some() || decision.predicted_tokens > 0 || pulls {
                        return Some(held);
                    }
                    let hashes = facts.prompt.hashes_for(engine.dialect());
                    Some(held.loading(keyspace, hashes, &engine.name, decision.rank))
                },
            );
        Some(Placement {
            rank: engine.config.ranks.header(decision.rank, engine.config.rank_header),
            // What one engine has written for another is in nobody's cache yet.
            sent: facts
                .prompt
                .evidence
                .as_ref()
                .filter(|_| engine.config.role == Role::Both)
                .and_then(|evidence| evidence.sent(&engine.name, decision.rank)),
            counted: engine.counts.models.of(&facts.model.name),
            model: facts.model.clone(),
            engine,
            others: decision.others,
            id: decision.id,
            worker: decision.worker,
            held_then,
            is_at_site,
            cached: decision.cached_tokens,
            predicted: decision.predicted_tokens,
            uncached: decision.uncached_tokens,
            transfer: decision.transfer,
            warm_up,
            why,
            decided: Instant::now(),
            micros,
            block_size: facts.prompt.block_size,
            tokens: facts.prompt.is_counted.then_some(facts.prompt.tokens),
            media: facts.prompt.media.clone(),
            turn: turn.cloned(),
            first_token: OnceLock::new(),
            bounds,
            claim: Mutex::new(claim),
            record,
        })
    }
}

/// Counts a request for which no engine could be chosen, and makes its refusal.
fn not_placed(facts: &RequestFacts, why: core::Refusal) -> Refusal {
    facts.model.note_not_placed(why);
    refused(why)
}

/// Queries an index in another process for the blocks of a prompt that engines hold; None if that index does not
/// answer.
async fn ask(elsewhere: &ExternalIndex, fleet: &Fleet, shard: usize, facts: &RequestFacts) -> Option<LookupResult> {
    let engines = fleet.engines().clone();
    let model = facts.body.model.as_deref().unwrap_or_default();
    let question = Question { model, block_size: facts.prompt.block_size, hashes: &facts.prompt.hashes };
    elsewhere.look_up(shard, question, &engines).await
}

/// Converts the depths found by the index (numbers of leading blocks that ranks hold) to the form that the decision
/// core, which chooses engines, uses. The depths are unknown if `held` is None.
pub(super) fn fill(depths: &mut core::Depths, held: Option<&Vec<RankDepths>>) {
    let Some(held) = held else { return depths.clear() };
    depths.begin();
    for held in held {
        depths.set(held.number, core::Depth { device: held.device, host: held.host, any: held.any });
        if held.pullable > 0 {
            depths.set_loadable(held.number, held.host, held.any, held.pullable);
        }
    }
}

fn explain(
    router: &mut core::Router,
    request: &core::Request<'_>,
    depths: &core::Depths,
    allowed: &[core::WorkerId],
    now: f64,
) -> Explanation {
    let found = router.explain(request, depths, Some(allowed), now);
    named(router, found)
}

/// Converts the explanation of a choice by the decision core (which chooses engines) for display: candidates' numbers
/// become engine names and ranks.
fn named(router: &core::Router, found: core::Explanation) -> Explanation {
    let name = |id: &core::WorkerId| router.name(*id).map(|(name, rank)| (name.clone(), rank));
    let workers = found.workers.iter().map(|id| name(id).unwrap_or_else(|| ("?".into(), 0))).collect();
    Explanation { workers, cached_tokens: found.cached_tokens, transfers: found.transfers, terms: found.terms }
}

/// Records in the decision core (which chooses engines), and in the index of predicted blocks, that a request was
/// assigned to an engine.
fn placed(
    router: &mut core::Router,
    unheard: Option<&mut core::PredictedIndex>,
    decision: &core::Decision,
    facts: &RequestFacts,
    task: Task,
    now: f64,
) {
    // Its first token is not reported. A prefill engine is asked for that token alone, so that its answer tells.
    if !facts.body.streams && !task.is_prefill() {
        router.comes_whole(decision.id, now);
    }
    if let Some(unheard) = unheard {
        unheard.sent(decision.id.0, decision.worker.0, &facts.prompt.hashes, now);
    }
}
