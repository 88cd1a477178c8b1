//! The queue of requests that wait for room at an engine.
//!
//! Anything that may make room wakes one task, which places the waiting requests one at a time: it determines which
//! requests are next, looks up their prompts again without holding the lock, as engines' caches have changed meanwhile,
//! and lets the decision core decide.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_follow::state::Keyspace;
use kvatlas_routing as core;
use tokio::sync::mpsc;

use super::choose::fill;
use super::{Core, Places, candidates};
use crate::clock::seconds;
use crate::engines::HealthState;
use crate::remote::Question;
use crate::remote::index::LookupResult;
use crate::remote::sites::Bounds;
use crate::requests::facts::{DialectBlocks, RequestFacts};

/// The parts of a prompt that are needed to look up its blocks again.
#[derive(Clone)]
pub(super) struct Prompt {
    pub(super) model: Option<String>,
    pub(super) hashes: Arc<[u64]>,
    pub(super) others: Vec<DialectBlocks>,
    pub(super) block_size: u32,
    pub(super) keyspace: Option<Arc<Keyspace>>,
}

/// Message to a request that waits for a decision.
pub(super) enum WaitUpdate {
    /// The waiting has ended, with this outcome.
    Decided(core::Outcome, Option<Arc<Bounds>>),
    /// The engines have changed, so that others may be able to take the request.
    FleetChanged,
}

/// A request that waits for a decision.
pub(super) struct Waiter {
    pub(super) told: mpsc::UnboundedSender<WaitUpdate>,
    pub(super) prompt: Prompt,
    pub(super) looked: Instant,
    /// Bounds most recently reported by the service that indexes many sites; None without it.
    pub(super) bounds: Option<Arc<Bounds>>,
}

impl Waiter {
    /// Makes the waiter, and the receiver of messages to it.
    pub(super) fn new(
        facts: &RequestFacts,
        bounds: Option<Arc<Bounds>>,
    ) -> (Self, mpsc::UnboundedReceiver<WaitUpdate>) {
        let (told, hears) = mpsc::unbounded_channel();
        let prompt = Prompt {
            model: facts.body.model.clone(),
            hashes: facts.prompt.hashes.clone(),
            others: facts.prompt.others.clone(),
            block_size: facts.prompt.block_size,
            keyspace: facts.prompt.keyspace.clone(),
        };
        (Self { told, prompt, looked: Instant::now(), bounds }, hears)
    }
}

/// Interval for trying again without a known change, as requests expire and waits end.
const TICK: Duration = Duration::from_millis(20);

/// Interval for querying an index in another process again for a waiting prompt.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of prompts queried at once.
const ASKED_AT_ONCE: usize = 8;

impl Places {
    /// Wakes the task that places waiting requests, if any wait.
    pub(super) fn call(&self, core: &Core) {
        if !core.tickets.is_empty() {
            self.room.notify_one();
        }
    }

    /// Places waiting requests; never returns.
    pub(crate) async fn bind(&self) {
        let (mut standings, mut looked) = (Vec::new(), Instant::now());
        loop {
            let _ = tokio::time::timeout(TICK, self.room.notified()).await;
            self.core().router.expire(seconds());
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.look_at_engines(&mut standings);
            }
            while self.bind_one().await {
                // Whoever serves requests wants the lock as well.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Tells waiting requests if an engine stands otherwise than before: it takes no more requests, or takes them again.
    fn look_at_engines(&self, standings: &mut Vec<(HealthState, bool)>) {
        let engines = self.fleet.engines();
        let now = engines.iter().map(|engine| (engine.health.standing(), engine.takes_requests()));
        if !now.clone().eq(standings.iter().copied()) {
            standings.clear();
            standings.extend(now);
            self.core().fleet_changed();
        }
    }

    /// Places the next waiting request. False if there is no room, or no request waits.
    async fn bind_one(&self) -> bool {
        let stale = if self.external_index.is_some() { ASKED_AGAIN } else { Duration::ZERO };
        let next: Vec<(u64, Prompt)> = {
            let mut core = self.core();
            let Core { router, tickets, .. } = &mut *core;
            if tickets.is_empty() {
                return false;
            }
            let mut prompt = |id: &core::RequestId| {
                let waiter = tickets.get_mut(&id.0).filter(|waiter| waiter.looked.elapsed() >= stale)?;
                waiter.looked = Instant::now();
                Some((id.0, waiter.prompt.clone()))
            };
            router.next_in_turn(seconds()).iter().filter_map(&mut prompt).collect()
        };
        let found = if self.wants().hashes { self.look_up_all(next).await } else { HashMap::new() };
        let mut core = self.core();
        let now = seconds();
        let Core { router, unheard, tickets, .. } = &mut *core;
        for (number, looked) in &found {
            if let Some(waiter) = tickets.get_mut(number) {
                waiter.bounds = looked.bounds.clone();
            }
        }
        let bound = router.bind_up_to(1, now, |request, depths| {
            if let Some(looked) = found.get(&request.number) {
                fill(depths, Some(&looked.held));
            }
            if let Some(unheard) = unheard {
                unheard.look_up(request.content_hashes, now, depths);
            }
        });
        let mut is_placed = false;
        for (id, outcome) in bound {
            is_placed |= matches!(outcome, core::Outcome::Placed(_));
            if let core::Outcome::Refused(why @ core::Refusal::NoWorker) = outcome {
                router.tries_again(why);
            }
            let told = tickets
                .remove(&id.0)
                .is_some_and(|waiter| waiter.told.send(WaitUpdate::Decided(outcome, waiter.bounds)).is_ok());
            if !told {
                router.fail(id, now);
            }
        }
        is_placed
    }

    /// Looks up the blocks that engines hold of each prompt; the numbers identify the requests.
    async fn look_up_all(&self, prompts: Vec<(u64, Prompt)>) -> HashMap<u64, LookupResult> {
        let engines = self.fleet.engines().clone();
        let mut found = HashMap::new();
        let Some(elsewhere) = &self.external_index else {
            for (number, prompt) in prompts {
                let Some(keyspace) = prompt.keyspace else { continue };
                let mut held = Vec::new();
                candidates::look_up(&keyspace, &prompt.hashes, &prompt.others, &engines, &mut held);
                found.insert(number, LookupResult { held, bounds: None });
            }
            return found;
        };
        let mut asked = tokio::task::JoinSet::new();
        for (number, prompt) in prompts.into_iter().filter(|(_, prompt)| !prompt.hashes.is_empty()).take(ASKED_AT_ONCE)
        {
            let (elsewhere, engines) = (elsewhere.clone(), engines.clone());
            asked.spawn(async move {
                let model = prompt.model.as_deref().unwrap_or_default();
                let question = Question { model, block_size: prompt.block_size, hashes: &prompt.hashes };
                Some((number, elsewhere.look_up(elsewhere.own_shard(), question, &engines).await?))
            });
        }
        while let Some(answer) = asked.join_next().await {
            found.extend(answer.ok().flatten());
        }
        found
    }
}
