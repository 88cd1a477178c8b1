//! Updates of the decision core (the library that chooses engines): changes of the fleet, load reports of engines, and
//! requests reported by other routers.

use std::sync::Arc;

use kvatlas_routing as core;

use super::waiting::WaitUpdate;
use super::{Core, Places};
use crate::clock::{self, seconds};
use crate::config::EngineConfig;
use crate::engines::fleet::Adder;
use crate::engines::slowness::{CurrentPrompt, SeenSpeed};
use crate::engines::{DrainedBy, Engine, HealthState};
use crate::error::Error;
use crate::remote::peer_requests::{Heard, SentRow, SharedRequests};

impl Places {
    /// Adds an engine to the fleet, or replaces the engine of the same name.
    pub(crate) fn set_engine(&self, config: EngineConfig, adds: Adder) -> Result<Arc<Engine>, Error> {
        // The decision core knows it before requests can find it: at no moment is there nobody of its name.
        let changed = self.fleet.set(config, adds, |replaced, added| self.add(replaced, added))?;
        self.is_back();
        if let Some(replaced) = changed.replaced {
            replaced.pool.clear();
        }
        Ok(changed.added)
    }

    /// Removes an engine from the fleet. Requests that the engine is processing continue.
    pub(crate) fn remove_engine(&self, name: &str) -> Result<Arc<Engine>, Error> {
        let removed = self.fleet.remove(name)?;
        self.remove(&removed);
        Ok(removed)
    }

    /// Drains an engine on behalf of the party `by`, so that it gets no new requests, or ends this draining. The engine
    /// gets new requests again when no party drains it.
    pub(crate) fn drain_engine(&self, name: &str, by: DrainedBy, drain: bool) -> Result<Arc<Engine>, Error> {
        let engine = self.fleet.engine(name).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        let is_draining = engine.health.set_draining(by, drain);
        self.drain(&engine, is_draining);
        tracing::info!(engine = name, ?by, drain, is_draining, "an engine was drained, or taken back");
        Ok(engine)
    }

    /// Adds an engine to the decision core (which chooses engines), in place of `replaced`. Waiting requests are
    /// considered for the engine after [`Self::is_back`]. If `replaced` is the same engine with other settings, its
    /// requests and its learnt speeds are kept.
    fn add(&self, replaced: Option<&Engine>, engine: &Arc<Engine>) {
        let mut core = self.core();
        let now = seconds();
        if let Some(replaced) = replaced {
            let same = replaced.config.url == engine.config.url;
            core.leave(replaced, now, |rank| same && engine.config.ranks.place(rank).is_some());
        }
        let weight = engine.config.weight;
        let ids: Box<[_]> =
            engine.config.ranks.numbers().map(|rank| core.router.add_worker(&engine.name, rank, weight, now)).collect();
        if let Some(blocks) = engine.config.capacity_blocks {
            let load = core::Load { capacity_blocks: Some(blocks as f64), ..core::Load::default() };
            for id in &ids {
                core.router.report(*id, &load, now);
                if let Some(unheard) = &mut core.unheard {
                    unheard.set_room(id.0, blocks as usize);
                }
            }
        }
        for id in &ids {
            if engine.health.is_draining() {
                core.router.drain_worker(*id);
            } else if replaced.is_some() {
                core.router.resume_worker(*id);
            }
        }
        let _ = engine.ids.set(ids);
    }

    /// Makes waiting requests determine their candidates again, because an engine is new or available again.
    pub(crate) fn is_back(&self) {
        self.core().fleet_changed();
        self.no_engine.call();
    }

    /// Removes an engine from the decision core (which chooses engines).
    fn remove(&self, engine: &Engine) {
        self.core().leave(engine, seconds(), |_| false);
        engine.ids.get().into_iter().flatten().for_each(|id| self.warm_ups.forget(*id));
    }

    /// Starts or ends draining an engine in the decision core (which chooses engines).
    fn drain(&self, engine: &Engine, drain: bool) {
        let mut core = self.core();
        for id in engine.ids.get().into_iter().flatten() {
            if drain {
                core.router.drain_worker(*id);
            } else {
                core.router.resume_worker(*id);
            }
        }
        core.fleet_changed();
        self.no_engine.call();
    }

    /// Passes the load that an engine reports for one rank to the decision core (which chooses engines). `place`:
    /// position of the rank.
    pub(crate) fn report(&self, engine: &Engine, place: usize, load: &core::Load) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            let mut core = self.core();
            core.router.report(*id, load, seconds());
            if let (Some(unheard), Some(blocks)) = (&mut core.unheard, load.capacity_blocks) {
                unheard.set_room(id.0, blocks as usize);
            }
        }
    }

    /// Records the number of tokens whose blocks a rank of an engine holds. `place`: position of the rank.
    pub(crate) fn note_held(&self, engine: &Engine, place: usize, tokens: u64) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            self.warm_ups.note_held(*id, tokens);
        }
    }

    /// Updates the record of whether an engine and others can pull blocks from each other, and of the engine's last
    /// sign of life.
    pub(crate) fn keep_pulls(&self, engine: &Engine) {
        let group = engine.pulls().then(|| engine.config.pull_group.as_deref().unwrap_or_default());
        // One that takes no requests may still have what others pull.
        let is_well = !engine.health.is_down()
            && !matches!(
                engine.health.standing(),
                HealthState::Down | HealthState::Failing | HealthState::Silent | HealthState::Asleep
            );
        let heard = seconds() - engine.stillness().0.as_secs_f64();
        let mut core = self.core();
        for id in engine.ids.get().into_iter().flatten() {
            core.router.set_pulls(*id, group.filter(|_| is_well), seconds());
            core.router.heard(*id, heard);
        }
    }

    /// Returns the observed speed of each engine in `engines`, which is the speed of the engine's fastest rank.
    pub(crate) fn seen_speeds(&self, engines: &[Arc<Engine>]) -> Vec<SeenSpeed> {
        let mut core = self.core();
        let rows = core.router.candidates(seconds());
        let of = |engine: &Arc<Engine>| {
            let models = engine.models.load();
            let names: Vec<_> = models.names.iter().map(|model| &*model.name).collect();
            let kind = format!("{} {}", engine.config.role.name(), names.join(" "));
            let mut speed = SeenSpeed { kind, prefill_rate: 0.0, step_time: f64::INFINITY, requests: 0, current: None };
            for id in engine.ids.get().into_iter().flatten() {
                let Some(at) = rows.worker.iter().position(|worker| *worker == id.0) else { continue };
                let weight = rows.weight[at];
                speed.prefill_rate = speed.prefill_rate.max(rows.prefill_rate[at] / weight);
                speed.step_time = speed.step_time.min(rows.step_time[at] * weight);
                speed.requests += rows.sent[at];
                let elapsed = rows.head_elapsed[at];
                if rows.head_tokens[at] > 0.0 && speed.current.is_none_or(|other| elapsed < other.elapsed) {
                    let (tokens, kv_usage) = (rows.head_tokens[at], rows.reported_kv_usage[at]);
                    speed.current = Some(CurrentPrompt { tokens, elapsed, kv_usage });
                }
            }
            speed
        };
        engines.iter().map(of).collect()
    }

    /// Sets whether the index's record of the blocks of one rank is reliable. `place`: position of the rank in the
    /// engine.
    pub(crate) fn set_trusted(&self, engine: &Engine, place: usize, trusted: bool) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            self.core().router.set_trusted(*id, trusted);
        }
    }
}

impl SharedRequests for Places {
    fn changes_since(&self, told: &mut core::RequestReport, most_blocks: usize) -> core::RequestChanges<SentRow> {
        let core = self.core();
        core.router.changes_since(told, most_blocks).map(|sent| {
            let (name, rank) = core.router.name(sent.worker)?;
            Some(SentRow::new(name, rank, &sent))
        })
    }

    fn hears_of(&self, peer: u64) -> bool {
        self.core().router.hears_of(peer)
    }

    fn hear_changes(
        &self,
        peer: u64,
        anew: bool,
        seconds: f64,
        changes: core::RequestChanges<SentRow>,
        content_hashes: Vec<Vec<u64>>,
    ) -> Heard {
        let mut core = self.core();
        let now = clock::seconds();
        if anew {
            core.router.forget_changes(peer, now);
        }
        let mut content_hashes = content_hashes.into_iter();
        let mut unknown = 0;
        let changes = changes.map(|row| {
            let content_hashes = content_hashes.next()?;
            let Some(worker) = core.router.worker(&row.engine, row.rank) else {
                unknown += 1;
                return None;
            };
            let SentRow { number, tokens, block_size, cached, session, output_left, .. } = row;
            Some(core::SentRequest { number, worker, tokens, block_size, cached, session, output_left, content_hashes })
        });
        let counted = core.router.hear_changes(peer, &changes, now + seconds, now);
        self.call(&core);
        Heard { counted, unknown }
    }
}

impl Core {
    /// Removes an engine's ranks from the decision core (which chooses engines), except ranks for whose ids `stays`
    /// returns true.
    fn leave(&mut self, engine: &Engine, now: f64, stays: impl Fn(u32) -> bool) {
        let ids = engine.ids.get().into_iter().flatten();
        for (id, _) in ids.zip(engine.config.ranks.numbers()).filter(|(_, rank)| !stays(*rank)) {
            self.router.remove_worker(*id, now);
            if let Some(unheard) = &mut self.unheard {
                unheard.left(id.0);
            }
        }
    }
}

impl Core {
    /// Makes all waiting requests determine their candidate engines again.
    pub(super) fn fleet_changed(&self) {
        for waiter in self.tickets.values() {
            // A request that has stopped listening gives its place back itself.
            let _ = waiter.told.send(WaitUpdate::FleetChanged);
        }
    }
}
