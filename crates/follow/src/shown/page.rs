//! The viewers of a page, and how often there is something new for them: once a second.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_ui::{Feed, TooManyViewers, Viewer};
use serde_json::Value;
use tokio::sync::Notify;

use crate::log::panic_text;

/// Time between two points of what is drawn over time, and between two states for those who watch.
const POINT: Duration = Duration::from_secs(1);

/// Points that are kept of the fleet: ten minutes.
pub const POINTS: usize = 600;

/// Points that are kept of each engine: a minute.
pub const ENGINE_POINTS: usize = 60;

/// Pages that may be open.
const VIEWERS: usize = 64;

/// A page and those who watch it.
pub struct Page {
    feed: Arc<Feed>,
    /// Somebody has begun to watch.
    watched: Notify,
}

/// Says what a page shows.
pub trait PageSource {
    /// A second is over: puts a point more into the feed's lists. Also while nobody watches.
    fn point(&mut self, feed: &Feed);

    /// Returns what is so now, and puts into the feed's lists what has come. Only while somebody watches.
    fn state(&mut self, feed: &Feed) -> Value;

    /// Notes that the gathering has panicked: a bug, of which the log has more.
    fn panicked(&mut self);
}

impl Default for Page {
    fn default() -> Self {
        Self { feed: Feed::new(VIEWERS), watched: Notify::new() }
    }
}

impl Page {
    /// A viewer more.
    ///
    /// # Errors
    /// [`TooManyViewers`] if there are too many.
    pub fn watch(&self) -> Result<Viewer, TooManyViewers> {
        let viewer = self.feed.watch()?;
        self.watched.notify_one();
        Ok(viewer)
    }

    /// Ends all viewers: connections that never end by themselves would hold back a server's end.
    pub fn close(&self) {
        self.feed.close();
    }

    /// Keeps it up to date for as long as it is polled.
    pub async fn keep(&self, mut gathering: impl PageSource) {
        let (started, mut point) = (Instant::now(), 0);
        loop {
            let until_point = (POINT * point).saturating_sub(started.elapsed());
            tokio::select! {
                // Who opens the page sees it at once.
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
            // It costs this update.
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

/// With one decimal: what changes further behind is not worth sending.
#[must_use]
pub fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
