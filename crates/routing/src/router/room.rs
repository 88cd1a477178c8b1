//! Notes of where room may have come: a request that waits for one worker is asked about again when something ended there.

/// The last time that room may have come, for each worker. Times are counted in such events.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// True if some may have come since waiting requests were last tried.
    pub(super) is_new: bool,
    events: u64,
    anywhere: u64,
    at: Vec<u64>,
}

impl Room {
    /// There may be room at a worker.
    pub(super) fn came_to(&mut self, worker: u32) {
        let at = worker as usize;
        if self.at.len() <= at {
            self.at.resize(at + 1, 0);
        }
        self.events += 1;
        self.at[at] = self.events;
        self.is_new = true;
    }

    /// There may be room at any worker.
    pub(super) fn came(&mut self) {
        self.events += 1;
        self.anywhere = self.events;
        self.is_new = true;
    }

    /// The time now.
    pub(super) fn now(&self) -> u64 {
        self.events
    }

    /// True if there may be more room at a worker than there was at that time.
    pub(super) fn is_new_at(&self, worker: u32, since: u64) -> bool {
        self.anywhere > since || self.at.get(worker as usize).is_some_and(|at| *at > since)
    }
}
