//! Claims of sites about their cached tokens, compared with the engine's report when a request ends. The result is
//! reported to the service that indexes many sites.
//!
//! The end of a request only adds a report to a bounded queue; one task sends the reports.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::mpsc;

use super::SitesService;
use crate::engines::json_fields::{pick, read};
use crate::remote::{JSON, post};

/// Time limit for sending a report on whether a site's claim about cached tokens was true.
const LIMIT: Duration = Duration::from_secs(5);

/// Claim of a site (a fleet with its own router) about the cached tokens of a prompt, until the engine reports the real
/// number. If the claim is dropped earlier, its request is counted as not finished.
pub(crate) struct Claim {
    global: Arc<SitesService>,
    model: String,
    site: Arc<str>,
    /// Minimum and maximum number of cached tokens according to the claim; None if the site may have any number.
    pub(crate) bounds: Option<(u32, u32)>,
    is_over: bool,
}

impl Claim {
    pub(crate) fn new(global: &Arc<SitesService>, model: &str, site: &Arc<str>, bounds: Option<(u32, u32)>) -> Self {
        Self { global: global.clone(), model: model.to_owned(), site: site.clone(), bounds, is_over: false }
    }

    /// Sends the service a comparison of the site's claim with the engine's report, after a successful request.
    /// `cached`: number of tokens that the engine had cached, None if not reported; `is_other`: true if the engine
    /// counted the prompt's tokens differently, so that the comparison means nothing.
    pub(crate) fn report(mut self, cached: Option<u32>, is_other: bool) {
        self.is_over = true;
        let reports = &self.global.reports;
        let (at_least, at_most, was) = match (self.bounds, cached) {
            (None | Some((0, _)), _) => return reports.count(NOTHING_CLAIMED),
            _ if is_other => return reports.count(OTHER_TOKENS),
            (_, None) => return reports.count(NO_USAGE),
            (Some((least, most)), Some(was)) => (least, most, was),
        };
        let report = Report {
            model_name: self.model.clone(),
            routing_group: self.global.routing_group.clone(),
            site: self.site.to_string(),
            at_least,
            at_most,
            was,
            by_engine: true,
        };
        if reports.queue.try_send(report).is_err() {
            reports.count(QUEUE_FULL);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_over {
            self.global.reports.count(NOT_FINISHED);
        }
    }
}

/// Sends queued reports on whether sites' claims about cached tokens were true, until the router ends.
pub(crate) async fn run(global: Arc<SitesService>) {
    let Some(mut waiting) = global.reports.waiting.lock().take() else { return };
    let mut has_complained = false;
    while let Some(report) = waiting.recv().await {
        let Ok(body) = serde_json::to_vec(&report) else { continue };
        let sending = post(&global.at, global.own_shard, "/sites/compare", JSON, &body);
        let result = match tokio::time::timeout(LIMIT, sending).await {
            Ok(Ok((status, answer))) if status.is_success() => {
                let known = pick(&answer, ["known"]).and_then(|[known]| read::<bool>(known));
                if known == Some(true) { COMPARED } else { UNKNOWN_SITE }
            }
            // Nobody has sent digests since it began.
            Ok(Ok((_, answer))) if super::code(&answer).as_deref() == Some("unknown_keyspace") => UNKNOWN_SITE,
            Ok(Ok((status, _))) => {
                if !std::mem::replace(&mut has_complained, true) {
                    tracing::warn!(
                        %status,
                        "the service at global_url refuses what engines had cached, so sites that claim too much are not \
                         found out: it needs the admin key"
                    );
                }
                REFUSED
            }
            Ok(Err(_)) | Err(_) => NOT_TAKEN,
        };
        global.reports.count(result);
    }
}

/// Maximum number of queued reports on whether sites' claims about cached tokens were true.
const QUEUE: usize = 1024;
/// Names, in the metrics, of the outcomes of requests sent to a site with a claim about its cached tokens.
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

/// Queue of reports on whether sites' claims about cached tokens were true, and counts of the claims by outcome.
pub(crate) struct Reports {
    /// Number of requests sent to a site with a claim about its cached tokens, by the outcome of the comparison
    /// ([`REPORTED`]).
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
