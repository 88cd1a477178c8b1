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
    }

    /// An engine that requests can find now is new, or can be used again: those who wait learn of it.
    pub(crate) fn is_back(&self) {
        self.core().fleet_changed();
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
        core.fleet_changed();
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

    /// What the index says of an engine's rank can be trusted, or not.
    pub(crate) fn set_trusted(&self, engine: &Engine, rank: usize, trusted: bool) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(rank)) {
            self.core().router.set_trusted(*id, trusted);
        }
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
}
