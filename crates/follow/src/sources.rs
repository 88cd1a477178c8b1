//! Sources in which engines are found automatically, such as the pods of a cluster or the addresses of a host name,
//! with the latest report on each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::metrics::{count_of, describe, encode, gauge_of};

/// State of a source in which engines are found, such as the pods of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    /// The source is being queried for the first time; its engines are not known yet.
    Asking,
    /// The list of the source's engines is known, and is kept up to date.
    Following,
    /// The source does not answer or refuses the request. The last known list of engines stays in use, and changes are
    /// missed.
    Away,
}

impl SourceState {
    fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Following => "following",
            Self::Away => "away",
        }
    }
}

/// Report of discovery (the automatic registration of engines) on a source in which it finds engines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceReport {
    /// Name of the source of engines in the configuration.
    pub source: String,
    /// State of the list of engines that the source gives.
    pub state: SourceState,
    /// Error code of the current problem with the source, equal in every release; `None` if there is none.
    pub code: Option<String>,
    /// Human-readable description of the current problem with the source; `None` if there is none.
    pub reason: Option<String>,
    /// Number of engines in the source's list, by their state, such as `ready`.
    pub members: BTreeMap<String, u64>,
    /// Counts of notable events at the source of engines, by their name.
    pub counts: BTreeMap<String, u64>,
}

struct Source {
    report: SourceReport,
    since: Instant,
}

/// Latest report on each source of engines, by the source's name.
#[derive(Default)]
pub struct Sources {
    known: Mutex<BTreeMap<String, Source>>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sources")
    }
}

impl Sources {
    /// Stores a report on a source, given as a [`SourceReport`] in JSON, in place of the previous one.
    ///
    /// # Errors
    /// [`Error::Config`] if the text is not a report on a source.
    pub fn report(&self, report: &str) -> Result<(), Error> {
        let report: SourceReport = serde_json::from_str(report).map_err(|error| Error::config(error.to_string()))?;
        let mut known = self.known.lock();
        let before = known.get(&report.source).filter(|before| before.report.state == report.state);
        let since = before.map_or_else(Instant::now, |before| before.since);
        known.insert(report.source.clone(), Source { report, since });
        Ok(())
    }

    /// True if there are no sources, so that all engines come from the configuration.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// Describes all sources in JSON; `None` if there are none.
    #[must_use]
    pub fn to_json(&self) -> Option<Value> {
        let known = self.known.lock();
        let shown = |Source { report, since }: &Source| {
            json!({
                "source": report.source,
                "state": report.state.name(),
                "since_ms": since.elapsed().as_millis() as u64,
                "code": report.code,
                "reason": report.reason,
                "members": report.members,
            })
        };
        (!known.is_empty()).then(|| known.values().map(shown).collect())
    }

    /// Appends the metrics of all sources, without the final `# EOF` line.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_metrics(self: &Arc<Self>, out: &mut String) -> fmt::Result {
        encode(Scrape(self.clone()), out)
    }
}

#[derive(Debug)]
struct Scrape(Arc<Sources>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let known = self.0.known.lock();
        let help = "1 while what a source of engines lists is known and followed; 0 while it is asked for the first time, or away: what was known of it stays in use";
        let mut family = describe(&mut encoder, "discovery_source_known", help, MetricType::Gauge)?;
        for Source { report, .. } in known.values() {
            let known = report.state == SourceState::Following;
            gauge_of(&mut family, &[("source", &*report.source)], i64::from(known))?;
        }
        let help = "Time for which a source of engines has been away, in seconds";
        let mut family = describe(&mut encoder, "discovery_source_away_seconds", help, MetricType::Gauge)?;
        for Source { report, since } in known.values() {
            let away = if report.state == SourceState::Away { since.elapsed() } else { Duration::ZERO };
            gauge_of(&mut family, &[("source", &*report.source)], away.as_secs() as i64)?;
        }
        let help = "Members of a source of engines, such as pods, by state: ready ones get requests; of those that are not_ready or terminating only the events are followed; the others are left out, by reason";
        let mut family = describe(&mut encoder, "discovery_members", help, MetricType::Gauge)?;
        for Source { report, .. } in known.values() {
            for (state, count) in &report.members {
                gauge_of(&mut family, &[("source", &*report.source), ("state", state)], *count as i64)?;
            }
        }
        let help =
            "What happened at a source of engines: lists, watches and changes of members, and problems by their code";
        let mut family = describe(&mut encoder, "discovery_source_events", help, MetricType::Counter)?;
        for Source { report, .. } in known.values() {
            for (event, count) in &report.counts {
                count_of(&mut family, &[("source", &*report.source), ("event", event)], *count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_report_counts_and_the_time_is_that_of_the_state() {
        let sources = Arc::new(Sources::default());
        assert_eq!(sources.to_json(), None);
        let report = |state: &str, ready: u64| {
            let counts = json!({ "list": 1 });
            let report =
                json!({ "source": "k8s:a/b", "state": state, "members": { "ready": ready }, "counts": counts });
            sources.report(&report.to_string())
        };
        report("following", 2).unwrap();
        let first = sources.known.lock()["k8s:a/b"].since;
        report("following", 3).unwrap();
        assert_eq!(sources.known.lock()["k8s:a/b"].since, first);
        let shown = sources.to_json().unwrap();
        assert_eq!((&shown[0]["state"], &shown[0]["members"]["ready"]), (&json!("following"), &json!(3)));
        let mut text = String::new();
        sources.write_metrics(&mut text).unwrap();
        for line in [
            r#"kvatlas_discovery_source_known{source="k8s:a/b"} 1"#,
            r#"kvatlas_discovery_members{source="k8s:a/b",state="ready"} 3"#,
            r#"kvatlas_discovery_source_events_total{source="k8s:a/b",event="list"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        report("away", 3).unwrap();
        assert_ne!(sources.known.lock()["k8s:a/b"].since, first);
        assert!(report("elsewhere", 3).is_err());
    }
}
