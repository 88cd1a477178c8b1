//! Engines come, go, and say how they do.

use std::sync::Arc;

use kvatlas_routing as core;

use super::waiter::News;
use super::{Core, Places};
use crate::clock::seconds;
use crate::engine::{Engine, HealthState};
use crate::peer_requests::SentRow;
use crate::peers::Row;

impl Places {
    /// Adds an engine, in the place of `replaced`, which takes requests once they can find it ([`Self::is_back`]). If
    /// `replaced` is the same engine with other settings, the requests there and all that was learnt of it stay.
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
        if engine.health.standing() == HealthState::Draining {
            for id in &ids {
                core.router.drain_worker(*id);
            }
        }
        let _ = engine.ids.set(ids);
    }

    /// Tells those who wait that an engine that requests can find now is new, or can be used again.
    pub(crate) fn is_back(&self) {
        self.core().fleet_changed();
        self.no_engine.call();
    }

    /// Removes an engine that is gone.
    pub(crate) fn remove(&self, engine: &Engine) {
        self.core().leave(engine, seconds(), |_| false);
    }

    /// Makes an engine take nothing new, or lets it do so again.
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
        self.no_engine.call();
    }

    /// Takes in what an engine says of the load of its rank at this place.
    pub(crate) fn report(&self, engine: &Engine, place: usize, load: &core::Load) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            let mut core = self.core();
            core.router.report(*id, load, seconds());
            if let (Some(unheard), Some(blocks)) = (&mut core.unheard, load.capacity_blocks) {
                unheard.set_room(id.0, blocks as usize);
            }
        }
    }

    /// Returns what this router has at each rank of each engine.
    pub(crate) fn own_work(&self) -> Vec<Row> {
        let core = self.core();
        let workers = core.router.workers().map(|(id, _)| id);
        let row = |id| {
            let ((name, rank), work) = (core.router.name(id)?, core.router.own_work(id)?);
            Some(Row::new(name, rank, &work))
        };
        workers.filter_map(row).collect()
    }

    /// Takes in what another router has at each rank. Returns the number of rows that count here.
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

    /// Returns what has changed among this router's requests, for a router that was told this much.
    pub(crate) fn changes_since(
        &self,
        told: &mut core::RequestReport,
        most_blocks: usize,
    ) -> core::RequestChanges<SentRow> {
        let core = self.core();
        core.router.changes_since(told, most_blocks).map(|sent| {
            let (name, rank) = core.router.name(sent.worker)?;
            Some(SentRow::new(name, rank, &sent))
        })
    }

    /// True if another router tells of its requests.
    pub(crate) fn hears_of(&self, peer: u64) -> bool {
        self.core().router.hears_of(peer)
    }

    /// Takes in what has changed among another router's requests, with the content hashes of those that it has sent.
    /// `anew`: what it said before is forgotten.
    pub(crate) fn hear_changes(
        &self,
        peer: u64,
        anew: bool,
        lasts: f64,
        changes: core::RequestChanges<SentRow>,
        content_hashes: Vec<Vec<u64>>,
    ) {
        let mut core = self.core();
        let now = seconds();
        if anew {
            core.router.forget_changes(peer, now);
        }
        let mut content_hashes = content_hashes.into_iter();
        let changes = changes.map(|row| {
            let content_hashes = content_hashes.next()?;
            let worker = core.router.worker(&row.engine, row.rank)?;
            let SentRow { number, tokens, block_size, cached, session, .. } = row;
            Some(core::SentRequest { number, worker, tokens, block_size, cached, session, content_hashes })
        });
        core.router.hear_changes(peer, &changes, now + lasts, now);
        self.call(&core);
    }

    /// Sets whether what the index says of an engine's rank at this place can be trusted.
    pub(crate) fn set_trusted(&self, engine: &Engine, place: usize, trusted: bool) {
        if let Some(id) = engine.ids.get().and_then(|ids| ids.get(place)) {
            self.core().router.set_trusted(*id, trusted);
        }
    }
}

impl Core {
    /// Removes an engine's ranks, except those whose number `stays`.
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
    /// Lets all who wait find out who may take them: each knows only the engines that there were when it came.
    pub(super) fn fleet_changed(&self) {
        for waiter in self.tickets.values() {
            // Whoever does not listen any more gives its place back.
            let _ = waiter.told.send(News::FleetChanged);
        }
    }
}
