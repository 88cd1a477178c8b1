//! Data of a web page: the streams and rates of a fleet, gathered once a second for all viewers. The service and the router each
//! have a page that shows them.

mod observer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_ui::{Feed, TooManyViewers, Viewer};
use serde_json::Value;
use tokio::sync::Notify;

pub use self::observer::{FleetObserver, Rates};
use crate::log::panic_text;

/// Time between two points of a chart, and between two states sent to viewers.
const POINT: Duration = Duration::from_secs(1);

/// Points kept of the fleet: ten minutes.
pub const POINTS: usize = 600;

/// Points kept of each engine: a minute.
pub const ENGINE_POINTS: usize = 60;

/// Most viewers at once.
const VIEWERS: usize = 64;

/// A page and its viewers.
pub struct Page {
    feed: Arc<Feed>,
    /// Notified by each new viewer.
    watched: Notify,
}

/// Source of the contents of a page.
pub trait PageSource {
    /// Adds a point to the feed's charts. Called each second, also without viewers.
    fn point(&mut self, feed: &Feed);

    /// Returns the present state, and adds new entries to the feed's lists. Called only with viewers.
    fn state(&mut self, feed: &Feed) -> Value;

    /// Records a panic while contents were gathered: a bug, whose details are in the log.
    fn panicked(&mut self);
}

impl Default for Page {
    fn default() -> Self {
        Self { feed: Feed::new(VIEWERS), watched: Notify::new() }
    }
}

impl Page {
    /// Adds a viewer.
    ///
    /// # Errors
    /// [`TooManyViewers`] if there are too many.
    pub fn watch(&self) -> Result<Viewer, TooManyViewers> {
        let viewer = self.feed.watch()?;
        self.watched.notify_one();
        Ok(viewer)
    }

    /// Ends all viewers, whose connections would otherwise hold back the end of the server.
    pub fn close(&self) {
        self.feed.close();
    }

    /// Keeps the page up to date for as long as the future is polled.
    pub async fn keep(&self, mut gathering: impl PageSource) {
        let (started, mut point) = (Instant::now(), 0);
        loop {
            let until_point = (POINT * point).saturating_sub(started.elapsed());
            tokio::select! {
                // A new viewer sees the page at once.
                () = self.watched.notified() => {}
                () = tokio::time::sleep(until_point) => {}
            }
            let is_due = started.elapsed() >= POINT * point;
            if is_due {
                // After a pause, as of a laptop that slept, not one for each second missed.
                point = (started.elapsed().as_secs_f64() / POINT.as_secs_f64()) as u32 + 1;
            }
            let work = AssertUnwindSafe(|| {
                if is_due {
                    gathering.point(&self.feed);
                }
                if self.feed.viewers() > 0 {
                    let state = gathering.state(&self.feed);
                    self.feed.update(state);
                }
            });
            // A panic costs this update alone.
            if let Err(panic) = catch_unwind(work) {
                gathering.panicked();
                tracing::error!(
                    panic = panic_text(&*panic),
                    "internal error while the page's contents were being made"
                );
            }
        }
    }
}

/// Rounds to one decimal: smaller changes are not worth sending.
#[must_use]
pub fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
