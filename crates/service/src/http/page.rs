//! `/ui/events`: what the page shows, gathered once for all who watch, and ten times a second only if anybody does.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use kvatlas_ui::{Feed, Viewer};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::app::App;
use super::dispatch::VERSION;
use super::health;
use super::refusal::Refusal;
use crate::log::panic_text;
use crate::shown::Looker;

/// Between two updates for those who watch.
const UPDATE: Duration = Duration::from_millis(100);

/// Between two points of what is drawn over time.
const POINT: Duration = Duration::from_secs(1);

/// Points that are kept of the fleet: ten minutes.
const POINTS: usize = 600;

/// Points that are kept of each engine: a minute.
const ENGINE_POINTS: usize = 60;

/// Pages that may be open.
const VIEWERS: usize = 64;

/// What the page shows.
pub(crate) struct Page {
    feed: Arc<Feed>,
    /// Somebody has begun to watch.
    watched: Notify,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { feed: Feed::new(VIEWERS), watched: Notify::new() }
    }

    /// A viewer more.
    pub(crate) fn watch(&self) -> Result<Viewer, Refusal> {
        let viewer = self.feed.watch().map_err(|full| {
            let message = format!("{} pages are open already; close one", full.viewers);
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_viewers", message)
        })?;
        self.watched.notify_one();
        Ok(viewer)
    }

    /// Ends all viewers: connections that never end by themselves would hold back the service's end.
    pub(crate) fn close(&self) {
        self.feed.close();
    }
}

/// Keeps it up to date for as long as the runtime lives.
pub(super) async fn run(app: &App) {
    let mut gathering = Gathering::new(app);
    let (started, mut point) = (Instant::now(), 0);
    loop {
        let until_point = (POINT * point).saturating_sub(started.elapsed());
        let is_watched = app.page.feed.viewers() > 0;
        tokio::select! {
            () = app.page.watched.notified(), if !is_watched => {}
            () = tokio::time::sleep(if is_watched { until_point.min(UPDATE) } else { until_point }) => {}
        }
        let is_due = started.elapsed() >= POINT * point;
        if is_due {
            // After a pause, as of a laptop that slept, not one for each second missed.
            point = (started.elapsed().as_secs_f64() / POINT.as_secs_f64()) as u32 + 1;
        }
        let work = std::panic::AssertUnwindSafe(|| {
            if is_due {
                gathering.point(app);
            }
            if app.page.feed.viewers() > 0 {
                app.page.feed.update(gathering.state(app));
            }
        });
        // A panic is a bug, and costs this update.
        if let Err(panic) = std::panic::catch_unwind(work) {
            app.counts.panics.fetch_add(1, Relaxed);
            tracing::error!(panic = panic_text(&*panic), "what the page shows caused a panic");
        }
    }
}

/// What is needed to say what has changed.
struct Gathering {
    looker: Looker,
    queries: u64,
    matched: u64,
    at: Instant,
}

impl Gathering {
    fn new(app: &App) -> Self {
        Self { looker: Looker::new(app.fleet.clone()), queries: 0, matched: 0, at: Instant::now() }
    }

    fn state(&mut self, app: &App) -> Value {
        let waiting = app.fleet.waiting();
        let rows = self.looker.rows();
        json!({
            "kind": "service",
            "version": VERSION,
            "ready": app.fleet.is_ready(),
            "waiting": (!waiting.is_over()).then(|| health::described(&waiting)),
            "queries": app.counts.queries.load(Relaxed),
            "queries_matched": app.counts.queries_matched.load(Relaxed),
            "connections": app.counts.connections.load(Relaxed),
            "engines": rows,
            "indexes": self.looker.indexes(),
        })
    }

    fn point(&mut self, app: &App) {
        let rates = self.looker.rates();
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        let (queries, matched) = (app.counts.queries.load(Relaxed), app.counts.queries_matched.load(Relaxed));
        let (more, more_matched) = (queries.wrapping_sub(self.queries), matched.wrapping_sub(self.matched));
        (self.queries, self.matched) = (queries, matched);
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_millis() as u64);
        let mut point = json!({
            "t": now,
            "events": tenth(rates.events),
            "queries": tenth(more as f64 / seconds),
            "blocks": rates.blocks,
        });
        if more > 0 {
            point["matched"] = json!((more_matched as f64 / more as f64 * 1e4).round() / 1e4);
        }
        if let Some(lag) = rates.lag {
            point["lag"] = tenth(lag.as_secs_f64() * 1e3).into();
        }
        app.page.feed.append("history", POINTS, [point]);
        let rows: Map<String, Value> =
            rates.rows.into_iter().map(|(name, (events, blocks))| (name, json!([tenth(events), blocks]))).collect();
        app.page.feed.append("engines", ENGINE_POINTS, [Value::Object(rows)]);
    }
}

fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
