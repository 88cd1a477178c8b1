//! Route `/ui/events`: sends the data of the service's web page as server-sent events.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;
use kvatlas_follow::page::{ENGINE_POINTS, FleetObserver, POINTS, PageSource, tenth};
use kvatlas_follow::report::{self, VERSION};
use kvatlas_ui::{Feed, Viewer};
use serde_json::{Map, Value, json};

use crate::answer::Refusal;
use crate::app::App;

/// Registers a viewer of the web page. Refused if there is the maximum number of viewers already.
pub(crate) fn watch(app: &App) -> Result<Viewer, Refusal> {
    app.page.watch().map_err(|full| {
        let message = format!("{} pages are already open, which is the maximum; close one", full.viewers);
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_viewers", message)
    })
}

/// Updates the data of the web page periodically, for as long as the async runtime runs.
pub(crate) async fn run(app: Arc<App>) {
    let looker = FleetObserver::new(app.fleet.clone());
    app.page.keep(PageState { looker, app: app.clone(), queries: 0, matched: 0, at: Instant::now() }).await;
}

/// Source of the web page's data, with the counts at the last update, from which rates per second are computed.
struct PageState {
    app: Arc<App>,
    looker: FleetObserver,
    queries: u64,
    matched: u64,
    at: Instant,
}

impl PageSource for PageState {
    fn state(&mut self, _: &Feed) -> Value {
        let app = &self.app;
        let waiting = app.fleet.waiting();
        let rows = self.looker.rows();
        json!({
            "kind": "service",
            "version": VERSION,
            "ready": app.fleet.is_ready(),
            "waiting": (!waiting.is_over()).then(|| report::waiting(&waiting)),
            "queries": app.counts.queries.load(Relaxed),
            "queries_matched": app.counts.queries_matched.load(Relaxed),
            "connections": app.front.connections(),
            "engines": rows,
            "indexes": self.looker.indexes(),
        })
    }

    fn point(&mut self, feed: &Feed) {
        let rates = self.looker.rates();
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        let counts = &self.app.counts;
        let (queries, matched) = (counts.queries.load(Relaxed), counts.queries_matched.load(Relaxed));
        let (more, more_matched) = (queries.wrapping_sub(self.queries), matched.wrapping_sub(self.matched));
        (self.queries, self.matched) = (queries, matched);
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_millis() as u64);
        let point = json!({
            "t": now,
            "events": tenth(rates.events),
            "queries": tenth(more as f64 / seconds),
            "blocks": rates.blocks,
            "matched": (more > 0).then(|| (more_matched as f64 / more as f64 * 1e4).round() / 1e4),
            "lag": rates.lag.map(|lag| tenth(lag.as_secs_f64() * 1e3)),
        });
        feed.append("history", POINTS, [point]);
        let rows: Map<String, Value> =
            rates.rows.into_iter().map(|(name, (events, blocks))| (name, json!([tenth(events), blocks]))).collect();
        feed.append("engines", ENGINE_POINTS, [Value::Object(rows)]);
    }

    fn panicked(&mut self) {
        self.app.counts.panics.fetch_add(1, Relaxed);
    }
}
