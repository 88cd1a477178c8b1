//! Requests that wait in the router until an engine has room.

use kvatlas_routing as core;

use super::{Core, Places};
use crate::clock::seconds;

/// A request that waits in the router. If it is dropped, so is its place in the queue.
pub(super) struct Ticket<'a> {
    pub(super) places: &'a Places,
    pub(super) id: Option<core::RequestId>,
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
    /// Time has passed: whoever waits may have waited too long, or long enough.
    pub(crate) fn tick(&self) {
        let mut core = self.core();
        let now = seconds();
        core.router.expire(now);
        core.bind(now);
    }
}

impl Core {
    /// Has all who wait ask again: each knows only the engines that there were when it came.
    pub(super) fn call_again(&mut self, now: f64) {
        for (id, ticket) in std::mem::take(&mut self.tickets) {
            self.router.fail(core::RequestId(id), now);
            drop(ticket);
        }
    }

    /// Tells those who waited and need not any more.
    pub(super) fn bind(&mut self, now: f64) {
        if self.tickets.is_empty() {
            return;
        }
        for (id, outcome) in self.router.bind(now) {
            let told = self.tickets.remove(&id.0).is_some_and(|ticket| ticket.send(outcome).is_ok());
            if !told {
                self.router.fail(id, now);
            }
        }
    }
}
