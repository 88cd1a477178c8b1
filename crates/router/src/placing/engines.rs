//! Engines come, go, and say how they do.

use std::sync::Arc;

use kvatlas_routing as core;

use super::waiter::News;
use super::{Core, Places};
use crate::clock::{self, seconds};
use crate::engines::{Engine, HealthState};
use crate::remote::peer_requests::{Heard, SentRow, SharedRequests};

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

    /// Sets whether what the index says of an engine's rank at this place can be trusted.
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
            let SentRow { number, tokens, block_size, cached, output_left, .. } = row;
            Some(core::SentRequest { number, worker, tokens, block_size, cached, output_left, content_hashes })
        });
        let counted = core.router.hear_changes(peer, &changes, now + seconds, now);
        self.call(&core);
        Heard { counted, unknown }
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
