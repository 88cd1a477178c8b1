//! Queue of the requests that wait for capacity at an engine.
//!
//! Each event that may free capacity wakes one task, which handles the waiting requests one at a time: it determines
//! which requests are next, looks up their prompts again without holding the lock, as engines' caches have changed
//! meanwhile, and chooses engines for them.

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

/// Parts of a waiting request's prompt that are needed to look up its blocks again.
#[derive(Clone)]
pub(super) struct Prompt {
    pub(super) model: Option<String>,
    pub(super) hashes: Arc<[u64]>,
    pub(super) others: Vec<DialectBlocks>,
    pub(super) block_size: u32,
    pub(super) keyspace: Option<Arc<Keyspace>>,
}

/// Message to the task of a request that waits for an engine to be chosen.
pub(super) enum WaitUpdate {
    /// End of the wait: the choice of an engine or its refusal, and the bounds on cached tokens that a service above
    /// many sites reported.
    Decided(core::Outcome, Option<Arc<Bounds>>),
    /// Change of the fleet, so that other engines may now be eligible for the request.
    FleetChanged,
}

/// Request that waits for an engine to be chosen.
pub(super) struct Waiter {
    pub(super) told: mpsc::UnboundedSender<WaitUpdate>,
    pub(super) prompt: Prompt,
    pub(super) looked: Instant,
    /// Bounds on cached tokens most recently reported by the service that indexes many sites; None without this
    /// service.
    pub(super) bounds: Option<Arc<Bounds>>,
}

impl Waiter {
    /// Makes the record of a waiting request, and the receiver of messages to its task.
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

/// Interval at which waiting requests are examined without a known change, because some requests may have waited too
/// long.
const TICK: Duration = Duration::from_millis(20);

/// Minimum time between two queries to an index in another process for the same waiting prompt.
const ASKED_AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of concurrent queries for waiting prompts to an index in another process.
const ASKED_AT_ONCE: usize = 8;

impl Places {
    /// Wakes the task that chooses engines for waiting requests, if any request waits.
    pub(super) fn call(&self, core: &Core) {
        if !core.tickets.is_empty() {
            self.room.notify_one();
        }
    }

    /// Chooses engines for waiting requests in a loop that never ends.
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

    /// Notifies waiting requests if the health state of an engine has changed since the last call, so that it no longer
    /// gets requests or gets them again. `standings`: for each engine at the last call, its state, and true if it could be
    /// given requests.
    fn look_at_engines(&self, standings: &mut Vec<(HealthState, bool)>) {
        let engines = self.fleet.engines();
        let now = engines.iter().map(|engine| (engine.health.standing(), engine.takes_requests()));
        if !now.clone().eq(standings.iter().copied()) {
            standings.clear();
            standings.extend(now);
            self.core().fleet_changed();
        }
    }

    /// Chooses an engine for the next waiting request. Returns false if no engine has capacity, or no request waits.
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

    /// Looks up, for several waiting prompts, the blocks that engines hold. The numbers identify the requests.
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
