//! Reports to the service above sites after requests: how many tokens the site's engine had cached, beside what the
//! site had claimed. So a site that claims more than it has is doubted there, and gets no more requests by its claims.
//!
//! A request's end only puts the report into a bounded queue; one task sends them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

/// Capacity of the queue of reports.
const QUEUE: usize = 1024;
/// The outcomes of placed requests whose site's bounds were asked for.
pub(crate) const REPORTED: [&str; 9] = [
    "compared",
    "nothing_claimed",
    "not_finished",
    "no_usage",
    "other_tokens",
    "queue_full",
    "not_taken",
    "refused",
    "unknown_site",
];
pub(super) const COMPARED: usize = 0;
pub(super) const NOTHING_CLAIMED: usize = 1;
pub(super) const NOT_FINISHED: usize = 2;
pub(super) const NO_USAGE: usize = 3;
pub(super) const OTHER_TOKENS: usize = 4;
pub(super) const QUEUE_FULL: usize = 5;
pub(super) const NOT_TAKEN: usize = 6;
pub(super) const REFUSED: usize = 7;
pub(super) const UNKNOWN_SITE: usize = 8;

/// Reports on their way.
pub(crate) struct Reports {
    /// Requests by [`REPORTED`].
    pub(crate) counts: [AtomicU64; REPORTED.len()],
    pub(super) queue: mpsc::Sender<Report>,
    pub(super) waiting: Mutex<Option<mpsc::Receiver<Report>>>,
}

impl Default for Reports {
    fn default() -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        Self { counts: Default::default(), queue, waiting: Mutex::new(Some(waiting)) }
    }
}

impl Reports {
    pub(super) fn count(&self, what: usize) {
        self.counts[what].fetch_add(1, Relaxed);
    }
}

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) model_name: String,
    pub(super) routing_group: String,
    pub(super) site: String,
    pub(super) at_least: u32,
    pub(super) at_most: u32,
    pub(super) was: u32,
    pub(super) by_engine: bool,
}
