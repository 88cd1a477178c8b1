//! Sessions that stick to a worker, for a time.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::time::Time;

/// The workers that the requests of each session go to.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    places: HashMap<u64, (u32, Time, u64)>,
    /// Sessions by when they end; the counter tells equal times apart.
    ends: BTreeMap<(Time, u64), u64>,
    count: u64,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The worker of a session that has not ended.
    pub(super) fn get(&self, session: u64, now: f64) -> Option<u32> {
        self.places.get(&session).filter(|(_, end, _)| end.0 > now).map(|place| place.0)
    }

    /// A session is there until then. Of more than `limit`, the one that would end first goes.
    pub(super) fn set(&mut self, session: u64, worker: u32, until: f64, limit: usize) {
        self.count += 1;
        if let Some((_, end, count)) = self.places.insert(session, (worker, Time(until), self.count)) {
            self.ends.remove(&(end, count));
        }
        self.ends.insert((Time(until), self.count), session);
        while self.places.len() > limit {
            let Some((_, session)) = self.ends.pop_first() else { break };
            self.places.remove(&session);
        }
    }

    /// Drops those that have ended.
    pub(super) fn expire(&mut self, now: f64) {
        while let Some(first) = self.ends.first_entry()
            && first.key().0.0 <= now
        {
            self.places.remove(&first.remove());
        }
    }

    /// A worker is gone.
    pub(super) fn left(&mut self, worker: u32) {
        self.places.retain(|_, place| place.0 != worker);
        let places = &self.places;
        self.ends.retain(|_, session| places.contains_key(session));
    }
}
