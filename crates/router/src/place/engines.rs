//! Engines come, go, and say how they do.

use std::sync::Arc;

use kvatlas_routing as core;

use super::{Core, Places};
use crate::clock::seconds;
use crate::engine::{Engine, Standing};
use crate::peers::Row;

impl Places {
    /// An engine will take requests, in the place of `replaced`, once requests can find it ([`Self::is_back`]). If that is the same engine with other settings,
    /// the requests there and all that was learnt of it stay.
    pub(crate) fn add(&self, replaced: Option<&Engine>, engine: &Arc<Engine>) {
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
        if engine.health.standing() == Standing::Draining {
            for id in &ids {
                core.router.drain_worker(*id);
            }
        }
        let _ = engine.ids.set(ids);
    }

    /// An engine that requests can find now is new, or can be used again: those who wait learn of it.
    pub(crate) fn is_back(&self) {
        self.core().fleet_changed();
    }

    /// An engine is gone.
    pub(crate) fn remove(&self, engine: &Engine) {
        self.core().leave(engine, seconds(), |_| false);
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
        core.fleet_changed();
    }

    /// What an engine says of the rank at this place.
    pub(crate) fn report(&self, engine: &Engine, place: usize, load: &core::Load) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            let mut core = self.core();
            core.router.report(*id, load, seconds());
            if let (Some(unheard), Some(blocks)) = (&mut core.unheard, load.capacity_blocks) {
                unheard.set_room(id.0, blocks as usize);
            }
        }
    }

    /// What this router has at each rank of each engine.
    pub(crate) fn own_work(&self) -> Vec<Row> {
        let core = self.core();
        let workers = core.router.workers().map(|(id, _)| id);
        let row = |id| {
            let ((name, rank), work) = (core.router.name(id)?, core.router.own_work(id)?);
            Some(Row::new(name, rank, &work))
        };
        workers.filter_map(row).collect()
    }

    /// What another router has there: of how many ranks that are known here.
    pub(crate) fn hear(&self, peer: u64, lasts: f64, rows: &[Row]) -> usize {
        let mut core = self.core();
        let now = seconds();
        let mut heard = 0;
        for row in rows {
            if let Some(id) = core.router.worker(&row.engine, row.rank) {
                heard += usize::from(core.router.set_peer(peer, id, &row.work(), now + lasts, now));
            }
        }
        self.call(&core);
        heard
    }

    /// What the index says of an engine's rank at this place can be trusted, or not.
    pub(crate) fn set_trusted(&self, engine: &Engine, place: usize, trusted: bool) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            self.core().router.set_trusted(*id, trusted);
        }
    }
}

impl Core {
    /// An engine's ranks are gone, except those whose number `stays`.
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
