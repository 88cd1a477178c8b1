//! Whatever happens in whatever order: the books balance, nobody is sent where they may not go, and no ticket is lost.

use std::collections::{HashMap, HashSet};

use kvatlas_routing::{
    Config, Depth, Depths, Options, Order, Outcome, Refusal, Request, RequestId, Router, Usage, WorkerId, by_name,
};
use proptest::prelude::*;

const WORKERS: u8 = 5;
const QUEUE_LIMIT: usize = 6;
const BLOCK: u32 = 16;

#[derive(Debug, Clone)]
enum Step {
    Choose { tokens: u32, family: u8, own: u8, held: u8, session: Option<u8>, allowed: Option<u8>, priority: i8 },
    FirstToken(u8),
    Progress(u8, u8),
    Finish(u8, u8),
    Fail(u8),
    Add(u8),
    Remove(u8),
    Drain(u8),
    Pass(f64),
    Bind,
}

fn step() -> impl Strategy<Value = Step> {
    let choose =
        (1u32..4_000, 0u8..4, 0u8..4, any::<u8>(), prop::option::of(0u8..3), prop::option::of(1u8..32), -1i8..2);
    prop_oneof![
        8 => choose.prop_map(|(tokens, family, own, held, session, allowed, priority)| {
            Step::Choose { tokens, family, own, held, session, allowed, priority }
        }),
        4 => any::<u8>().prop_map(Step::FirstToken),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(which, tokens)| Step::Progress(which, tokens)),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(which, tokens)| Step::Finish(which, tokens)),
        1 => any::<u8>().prop_map(Step::Fail),
        1 => (0..WORKERS).prop_map(Step::Add),
        1 => (0..WORKERS).prop_map(Step::Remove),
        1 => (0..WORKERS).prop_map(Step::Drain),
        3 => (0.0..3.0).prop_map(Step::Pass),
        2 => Just(Step::Bind),
    ]
}

/// A prompt of a family: all of one begin alike.
fn hashes(tokens: u32, family: u8, own: u8) -> Vec<u64> {
    let alike = |block: u32| if block < 60 { 0 } else { u64::from(own) + 1 };
    (0..tokens / BLOCK).map(|block| u64::from(family) << 32 | alike(block) << 16 | u64::from(block)).collect()
}

struct World {
    router: Router,
    now: f64,
    workers: HashMap<u8, WorkerId>,
    up: HashSet<u8>,
    placed: Vec<RequestId>,
    /// The requests that wait, and where each may go.
    waits: HashMap<RequestId, Option<u8>>,
    log: Vec<String>,
    limit: f64,
}

impl World {
    fn new(policy: &str, order: Order, seed: u64) -> Self {
        let options = if policy == "kvatlas" { r#"{"hold": 0.05}"# } else { "" };
        let policy = by_name(policy, Options::from_json(options).unwrap(), seed).unwrap();
        let config = Config {
            queue_limit: QUEUE_LIMIT,
            queue_timeout: 4.0,
            first_token_timeout: 20.0,
            idle_timeout: 20.0,
            session_ttl: 5.0,
            order,
            ..Config::default()
        };
        let limit = config.first_token_timeout + config.announced_within;
        let mut world = Self {
            router: Router::new(config, policy),
            now: 0.0,
            workers: HashMap::new(),
            up: HashSet::new(),
            placed: Vec::new(),
            waits: HashMap::new(),
            log: Vec::new(),
            limit,
        };
        world.add(0);
        world.add(1);
        world
    }

    fn add(&mut self, worker: u8) {
        let id = self.router.add_worker(&format!("w{worker}"), 0, 1.0, self.now);
        self.workers.insert(worker, id);
        self.up.insert(worker);
    }

    fn may(&self, allowed: Option<u8>, worker: u8) -> bool {
        self.up.contains(&worker) && allowed.is_none_or(|mask| mask & 1 << worker != 0)
    }

    fn settle(&mut self, id: Option<RequestId>, allowed: Option<u8>, outcome: Outcome) {
        self.log.push(format!("{outcome:?}"));
        match outcome {
            Outcome::Placed(decision) => {
                let worker: u8 = decision.name[1..].parse().unwrap();
                assert!(self.may(allowed, worker), "{decision:?} may not take it: {allowed:?} of {:?}", self.up);
                assert_eq!(self.workers[&worker], decision.worker);
                assert!(decision.uncached_tokens >= 1, "one token is always computed");
                assert!(id.is_none_or(|id| id == decision.id));
                assert!(!self.placed.contains(&decision.id));
                self.placed.push(decision.id);
            }
            Outcome::Waits(id) => assert!(self.waits.insert(id, allowed).is_none()),
            Outcome::Refused(Refusal::NoWorker) => assert!((0..WORKERS).all(|worker| !self.may(allowed, worker))),
            Outcome::Refused(Refusal::QueueFull) => assert_eq!(self.router.waiting(), QUEUE_LIMIT),
            Outcome::Refused(Refusal::Displaced) => assert!(id.is_some(), "only what waited has a place to lose"),
        }
    }

    fn bind(&mut self) {
        for (id, outcome) in self.router.bind(self.now) {
            let allowed = self.waits.remove(&id).expect("it waited, and was not told of before");
            assert!(!matches!(outcome, Outcome::Waits(_)));
            self.settle(Some(id), allowed, outcome);
        }
        assert_eq!(self.router.waiting(), self.waits.len());
    }

    fn some(&self, which: u8) -> Option<RequestId> {
        (!self.placed.is_empty()).then(|| self.placed[usize::from(which) % self.placed.len()])
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Choose { tokens, family, own, held, session, allowed, priority } => {
                let hashes = hashes(tokens, family, own);
                let mut depths = Depths::default();
                for (worker, id) in &self.workers {
                    if self.up.contains(worker) && held & 1 << worker != 0 {
                        depths.set(id.0, Depth { device: u32::from(held), ..Depth::default() });
                    }
                }
                let request = Request {
                    tokens,
                    block_size: BLOCK,
                    content_hashes: &hashes,
                    session: session.map(u64::from),
                    priority: priority.into(),
                    ..Request::default()
                };
                let there = self.workers.keys().fold(0, |mask, worker| mask | 1 << worker);
                let allowed = allowed.map(|mask| mask & there);
                let ids: Option<Vec<WorkerId>> = allowed.map(|mask| {
                    let there = self.workers.iter().filter(|(worker, _)| mask & 1 << **worker != 0);
                    there.map(|(_, id)| *id).collect()
                });
                // Those that waited and were placed first are told of by `bind`; whoever calls `choose` may do it late.
                let outcome = self.router.choose_among(&request, &depths, ids.as_deref(), self.now);
                let refused = matches!(outcome, Outcome::Refused(Refusal::QueueFull));
                if !refused {
                    self.settle(None, allowed, outcome);
                }
                self.bind();
            }
            Step::FirstToken(which) => {
                if let Some(id) = self.some(which) {
                    self.router.first_token(id, self.now);
                }
            }
            Step::Progress(which, tokens) => {
                if let Some(id) = self.some(which) {
                    self.router.progress(id, tokens.into(), self.now);
                }
            }
            Step::Finish(which, tokens) => {
                if let Some(id) = self.some(which) {
                    let usage = Usage { output_tokens: Some(tokens.into()), ..Usage::default() };
                    self.router.finish(id, usage, self.now);
                    assert_eq!(self.router.finish(id, usage, self.now), None);
                    self.placed.retain(|its| *its != id);
                }
            }
            Step::Fail(which) => {
                if let Some(id) = self.some(which) {
                    self.router.fail(id, self.now);
                    self.placed.retain(|its| *its != id);
                } else if let Some(&id) = self.waits.keys().min() {
                    assert!(self.router.fail(id, self.now));
                    assert!(!self.router.fail(id, self.now));
                    self.waits.remove(&id);
                }
            }
            Step::Add(worker) => self.add(worker),
            Step::Remove(worker) => {
                if let Some(id) = self.workers.get(&worker) {
                    self.router.remove_worker(*id, self.now);
                    self.up.remove(&worker);
                    self.workers.remove(&worker);
                    // One of that name that joins later is another.
                    for allowed in self.waits.values_mut().flatten() {
                        *allowed &= !(1 << worker);
                    }
                }
            }
            Step::Drain(worker) => {
                if let Some(id) = self.workers.get(&worker) {
                    assert!(self.router.drain_worker(*id));
                    self.up.remove(&worker);
                }
            }
            Step::Pass(seconds) => self.now += seconds,
            Step::Bind => self.bind(),
        }
    }

    fn end(&mut self) {
        self.bind();
        for id in std::mem::take(&mut self.placed) {
            self.router.finish(id, Usage::default(), self.now);
        }
        // What waits is placed or has waited long enough.
        for _ in 0..200 {
            if self.waits.is_empty() {
                break;
            }
            self.now += 0.5;
            self.bind();
            for id in std::mem::take(&mut self.placed) {
                self.router.finish(id, Usage::default(), self.now);
            }
        }
        assert!(self.waits.is_empty(), "{} are still waiting", self.waits.len());
        assert_eq!(self.router.in_flight(), 0);
        let rows = self.router.rows();
        for row in 0..rows.len() {
            assert_eq!((rows.requests[row], rows.waiting[row]), (0, 0));
            let sums = [
                rows.queued_tokens[row],
                rows.queued_prompt_tokens[row],
                rows.context_tokens[row],
                rows.used_blocks[row],
                rows.output_tokens_left[row],
                rows.head_tokens[row],
            ];
            assert_eq!(sums, [0.0; 6], "row {row}");
        }
        self.router.expire(self.now + self.limit);
        assert_eq!(self.router.predicted_blocks(), 0, "what was sent is not on its way for ever");
        let counts = self.router.counts();
        assert_eq!(counts.placed, counts.finished + counts.failed_placed() + counts.expired + counts.orphaned);
    }
}

trait FailedPlaced {
    fn failed_placed(&self) -> u64;
}

impl FailedPlaced for kvatlas_routing::Counts {
    /// Number of requests that failed while they were with a worker.
    fn failed_placed(&self) -> u64 {
        self.failed - self.withdrawn
    }
}

fn run(policy: &str, order: Order, steps: &[Step]) -> Vec<String> {
    let mut world = World::new(policy, order, 7);
    for step in steps {
        world.step(step);
    }
    world.end();
    world.log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn books_balance_and_tickets_come_back_once(steps in prop::collection::vec(step(), 1..120), fcfs in any::<bool>()) {
        let order = if fcfs { Order::Fcfs } else { Order::LeastWork };
        run("kvatlas", order, &steps);
        run("random", order, &steps);
    }

    #[test]
    fn the_same_seed_decides_the_same(steps in prop::collection::vec(step(), 1..60)) {
        prop_assert_eq!(run("kvatlas", Order::LeastWork, &steps), run("kvatlas", Order::LeastWork, &steps));
    }
}
