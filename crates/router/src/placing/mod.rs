//! Choice of an engine for each request: the routing library's state (the decision core), and the data around it.
//!
//! | file | contents |
//! |---|---|
//! | `candidates.rs` | engines that are eligible for a request, and those that hold its prompt's blocks |
//! | `choose.rs` | choice of an engine for a request: lookup, decision, reservation |
//! | `waiting.rs` | requests that wait for capacity at an engine |
//! | `placement.rs` | assignment of a request to an engine, its progress and its end there |
//! | `no_engine.rs`, `engine_wait.rs` | requests that wait because no engine is up: their queue, the log of the outage, and the wait of one request |
//! | `engines.rs` | changes of the fleet, and load reports of engines |
//! | `warm_up.rs` | transfer of blocks to engines that are new |

mod candidates;
mod choose;
pub(crate) mod decisions;
mod engine_wait;
mod engines;
mod no_engine;
mod placement;
pub(crate) mod record;
mod reuse;
mod waiting;
mod warm_up;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kvatlas_routing as core;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::clock::seconds;
use crate::config::Config;
use crate::counts::Counts;
use crate::engines::Engine;
use crate::engines::fleet::Fleet;
use crate::error::Error;
use crate::placing::decisions::Decisions;
use crate::placing::record::Recorder;
use crate::placing::reuse::ReuseMeter;
use crate::remote::index::ExternalIndex;
use crate::requests::prompts::PromptForms;

use waiting::Waiter;
use warm_up::WarmUps;

pub(crate) use candidates::may_be_served_elsewhere;
pub(crate) use choose::Outlook;
pub(crate) use no_engine::{EngineWait, NoEngine, OUTCOMES as WAIT_OUTCOMES};
pub(crate) use placement::Placement;
pub(crate) use warm_up::{WARM_UPS, WarmUp, WarmUpResult};

/// Number of blocks assumed for a cache whose capacity is neither configured nor reported by the engine.
const UNKNOWN_CACHE: usize = 16_384;

/// State with which the router chooses an engine for each request: the decision core, the fleet, and queues of waiting
/// requests.
pub(crate) struct Places {
    core: Mutex<Core>,
    pub(super) fleet: Arc<Fleet>,
    /// Client of an index in another process, which is queried for the blocks that engines hold; None if not
    /// configured.
    external_index: Option<Arc<ExternalIndex>>,
    counts: Arc<Counts>,
    /// Signal that wakes the task which chooses engines for waiting requests, because an engine may have become free.
    room: Notify,
    /// Queue of the requests that wait because no engine is up.
    pub(crate) no_engine: NoEngine,
    pub(crate) decisions: Decisions,
    /// Writer of the file in which routing decisions are recorded; None if no file is configured.
    pub(crate) recorder: Option<Recorder>,
    /// Estimate of the share of prompt tokens that caches of various sizes could hold.
    reuse: ReuseMeter,
    pub(crate) warm_ups: WarmUps,
    policy: String,
    wants: PromptForms,
}

struct Core {
    router: core::Router,
    depths: core::Depths,
    /// Index of the blocks that engines are predicted to hold, computed from the requests sent to them; None if engines
    /// publish events.
    unheard: Option<core::PredictedIndex>,
    /// Requests that wait for an engine, by the number that identifies each one in the decision core.
    tickets: HashMap<u64, Waiter>,
}

/// Figures of the decision core (which chooses engines), for the web page and the metrics.
pub(crate) struct Summary {
    pub(crate) policy: String,
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    /// Number of requests that wait because no engine is up.
    pub(crate) waiting_for_engine: usize,
    pub(crate) predicted_blocks: usize,
    /// Number of prompts in flight whose blocks were not predicted, as the table of predictions was full.
    pub(crate) predictions_dropped: u64,
    pub(crate) sessions: usize,
    pub(crate) peers: usize,
    pub(crate) counts: core::Counts,
}

impl Places {
    pub(crate) fn new(
        config: &Config,
        policy: core::BoxedPolicy,
        fleet: Arc<Fleet>,
        external_index: Option<Arc<ExternalIndex>>,
        counts: Arc<Counts>,
    ) -> Result<Self, Error> {
        let settings = core::Config {
            seed: config.seed,
            block_size: config.block_size,
            first_token_timeout: config.upstream.first_byte_timeout.as_secs_f64() + 60.0,
            ..config.routing.clone()
        };
        let name = policy.name().to_owned();
        let hashes = policy.uses_index() || config.record.is_some();
        let wants = PromptForms { hashes, text: policy.needs_text() };
        Ok(Self {
            core: Mutex::new(Core {
                router: core::Router::new(settings, policy),
                depths: core::Depths::unknown(),
                unheard: (config.no_events && hashes)
                    .then(|| core::PredictedIndex::new(core::Retention::Mock { blocks: UNKNOWN_CACHE })),
                tickets: HashMap::new(),
            }),
            fleet,
            external_index,
            counts,
            room: Notify::new(),
            no_engine: NoEngine::new(config.wait_for_engine, config.routing.queue_limit),
            decisions: Decisions::new(config.decisions),
            recorder: config.record.as_deref().map(open_record).transpose()?,
            reuse: ReuseMeter::new(seconds()),
            warm_ups: WarmUps::new(config.warm_up),
            policy: name,
            wants,
        })
    }

    /// Sets the number of alternative engines that each assignment of a request lists from now on
    /// ([`Placement::others`]) to at most `most`.
    pub(crate) fn name_others(&self, most: usize) {
        self.core().router.name_others(most);
    }

    /// Returns the fleet of engines from which one is chosen for each request.
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the forms of a prompt that the policy needs, such as block hashes or text.
    pub(crate) fn wants(&self) -> PromptForms {
        self.wants
    }

    pub(crate) fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the figures of the decision core (which chooses engines), for the web page and the metrics.
    pub(crate) fn summary(&self) -> Summary {
        let core = self.core();
        Summary {
            policy: self.policy.clone(),
            in_flight: core.router.in_flight(),
            waiting: core.router.waiting(),
            waiting_for_engine: self.no_engine.len(),
            predicted_blocks: core.router.predicted_blocks(),
            predictions_dropped: core.router.predictions_dropped(),
            sessions: core.router.sessions(),
            peers: core.router.peers(),
            counts: core.router.counts(),
        }
    }

    /// Returns, as JSON, the share of prompt tokens of about the last hour that a single cache could hold, for various
    /// sizes of the cache.
    pub(crate) fn reuse(&self) -> Value {
        self.reuse.to_json(self.fleet_blocks())
    }

    /// Returns the hit rates of two imagined single caches: one as large as all engines' caches together, and an
    /// unlimited one. None while the size of the caches or the prompts are unknown.
    pub(crate) fn possible_hit_rates(&self) -> [Option<f64>; 2] {
        [self.fleet_blocks().and_then(|blocks| self.reuse.rate(blocks)), self.reuse.rate(f64::INFINITY)]
    }

    /// Returns the capacity of all engines' caches together, in blocks; None if the capacity of any cache is unknown.
    fn fleet_blocks(&self) -> Option<f64> {
        let blocks: f64 = self.core().router.candidates(seconds()).capacity_blocks.iter().sum();
        (blocks.is_finite() && blocks > 0.0).then_some(blocks)
    }

    /// Returns, as JSON, the state of an engine's ranks in the decision core (which chooses engines).
    pub(crate) fn rows_of(&self, engine: &Engine) -> Value {
        let mut core = self.core();
        let transfers = transfers(&mut core);
        let rows = core.router.candidates(seconds());
        let of = |(id, rank): (&core::WorkerId, u32)| {
            let at = rows.worker.iter().position(|worker| *worker == id.0)?;
            Some(json!({
                "number": id.0,
                "rank": rank,
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
                "transfers": transfers.iter().filter(|it| it.is_of(&engine.name, rank)).map(LearntTransfer::to_json).collect::<Vec<_>>(),
                "warm_up": self.warm_ups.to_json(*id),
                "trusted": rows.trusted[at],
                "sent": rows.sent[at],
                "age": number(rows.age[at]),
            }))
        };
        engine.ids.get().into_iter().flatten().zip(engine.config.ranks.numbers()).filter_map(of).collect()
    }

    /// Returns the learnt costs of loading and pulling blocks, for all ranks.
    pub(crate) fn transfers(&self) -> Vec<LearntTransfer> {
        transfers(&mut self.core())
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }
}

fn transfers(core: &mut Core) -> Vec<LearntTransfer> {
    let costs = core.router.transfer_costs(seconds());
    let name = |id| core.router.name(id).map(|(name, rank)| (name.clone(), rank));
    let rows = costs.into_iter().filter_map(|cost| {
        let ((engine, rank), source) = (name(cost.worker)?, cost.source.map(name));
        let source = match source {
            Some(source) => Some(source?),
            None => None,
        };
        Some(LearntTransfer { engine, rank, source, cost })
    });
    rows.collect()
}

/// Learnt cost of one kind of transfer of blocks (a load from another tier, or a pull from another engine) to one rank
/// of an engine.
pub(crate) struct LearntTransfer {
    pub(crate) engine: Arc<str>,
    pub(crate) rank: u32,
    /// Name and rank of the engine from which blocks are pulled; None for a load.
    pub(crate) source: Option<(Arc<str>, u32)>,
    pub(crate) cost: core::TransferCost,
}

impl LearntTransfer {
    /// True if the cost is for transfers to the rank `rank` of the engine `engine`.
    pub(crate) fn is_of(&self, engine: &str, rank: u32) -> bool {
        *self.engine == *engine && self.rank == rank
    }

    /// Returns the learnt cost as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "kind": self.cost.kind,
            "source": self.source.as_ref().map(|(name, rank)| json!({ "worker": &**name, "rank": rank })),
            "floor": self.cost.line.floor,
            "seconds_per_token": self.cost.line.token,
            "samples": self.cost.samples,
            "out": self.cost.out,
        })
    }
}

fn open_record(path: &Path) -> Result<Recorder, Error> {
    Recorder::open(path)
        .map_err(|error| Error::start(format!("cannot record decisions in {}: {error}", path.display())))
}

/// Converts a number for JSON; None for an infinite number or NaN.
fn number(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
