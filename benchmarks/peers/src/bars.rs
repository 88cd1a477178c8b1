//! The bars: ours as a share of the better peer in the same run.

use std::fmt::Write as _;

use crate::measure::Round;
use crate::report::{IndexResult, WorkloadResult};

const WORKLOADS: [&str; 6] = ["W1", "W2", "W3", "W4", "W4r", "W5"];

/// A metric of an index in a workload; smaller is better for all of them.
struct Metric {
    name: &'static str,
    of: fn(&IndexResult) -> Option<f64>,
    /// At most this share of the better peer, for each of [`WORKLOADS`].
    bars: [Option<f64>; 6],
}

fn rounds(index: &IndexResult, of: fn(&Round) -> Option<f64>) -> Option<f64> {
    index.median(of)
}

const METRICS: [Metric; 7] = [
    Metric {
        name: "find p50 (trace order)",
        of: |i| rounds(i, |r| Some(r.find_p50)),
        bars: [Some(0.65), Some(0.95), Some(0.85), Some(0.10), None, None],
    },
    Metric {
        name: "find p99",
        of: |i| rounds(i, |r| Some(r.find_p99)),
        bars: [Some(0.85), Some(0.95), Some(0.9), Some(0.25), None, None],
    },
    Metric {
        name: "find p50, random order",
        of: |i| rounds(i, |r| Some(r.random_p50)),
        bars: [Some(0.75), Some(0.95), Some(0.85), Some(0.2), None, None],
    },
    Metric { name: "find p99, random order", of: |i| rounds(i, |r| Some(r.random_p99)), bars: [None; 6] },
    Metric {
        name: "store, a block",
        of: |i| rounds(i, |r| r.store),
        bars: [Some(0.7), Some(1.0), Some(0.8), Some(0.3), None, None],
    },
    Metric {
        name: "remove, a block",
        of: |i| rounds(i, |r| r.remove),
        bars: [None, Some(1.0), Some(1.0), Some(0.5), None, None],
    },
    Metric {
        name: "bytes a held block",
        of: |i| i.memory.as_ref().map(|m| m.held_block),
        bars: [Some(0.6), Some(0.7), Some(0.55), Some(0.08), Some(0.9), None],
    },
];

/// Ours and the peers; what exists only to show the cost of expansion is neither. A peer that refused events of this
/// workload or answered wrongly is left out: it did not do the same work (the table says so).
fn split(w: &WorkloadResult) -> (Option<&IndexResult>, Vec<&IndexResult>) {
    let find = |name| w.indexes.iter().find(|i| i.name == name);
    let peers = w.indexes.iter().filter(|i| is_peer(i) && i.refused.is_none() && !i.failed(w.comparison.as_ref()));
    (find("ours"), peers.collect())
}

fn is_peer(index: &IndexResult) -> bool {
    !index.name.starts_with("ours")
}

fn verdict(value: f64, good: bool, bar: &str) -> String {
    format!("{value:.2} {bar} {}", if good { "ok" } else { "MISS" })
}

/// The table of ratios; empty without ours or without a peer.
pub fn table(workloads: &[WorkloadResult]) -> String {
    let named = |name: &str| workloads.iter().find(|w| w.name == name);
    let mut rows: Vec<(String, Vec<String>)> = METRICS.iter().map(|m| (m.name.to_owned(), ratios(m, named))).collect();
    for expanded in ["ours+scores", "ours+names"] {
        let scores = |(at, name): (usize, &&str)| {
            let workload = named(name)?;
            let index = workload.indexes.iter().find(|i| i.name == expanded)?;
            let best = split(workload).1.into_iter().filter_map(|i| rounds(i, |r| Some(r.random_p50)));
            let ratio = rounds(index, |r| Some(r.random_p50))? / best.min_by(f64::total_cmp)?;
            // Of 32 and of 1,000 workers.
            Some(if matches!(at, 0 | 3) { verdict(ratio, ratio <= 1.0, "<= 1") } else { format!("{ratio:.2}") })
        };
        let cells = WORKLOADS.iter().enumerate().map(|cell| scores(cell).unwrap_or_default()).collect();
        rows.push((format!("{expanded}, random"), cells));
    }
    let of_reader: [(&str, fn(&Round) -> Option<f64>); 2] = [("store", |r| r.store), ("remove", |r| r.remove)];
    for (what, of) in of_reader {
        let ratio = |name: &&str| {
            let workload = named(name)?;
            let reader = workload.indexes.iter().find(|i| i.name == "ours+reader")?;
            let best = split(workload).1.into_iter().filter_map(|i| rounds(i, of)).min_by(f64::total_cmp)?;
            Some(format!("{:.2}", rounds(reader, of)? / best))
        };
        let cells = WORKLOADS.iter().map(|name| ratio(name).unwrap_or_default()).collect();
        rows.push((format!("ours+reader, {what}"), cells));
    }
    let ours = |name: &str, of: fn(&Round) -> f64| {
        let index = split(named(name)?).0?;
        index.median(|r| Some(of(r)))
    };
    if let (Some(w4), Some(w5)) = (ours("W4", |r| r.find_p50), ours("W5", |r| r.find_p50)) {
        let mut cells = vec![String::new(); WORKLOADS.len()];
        cells[5] = verdict(w5 / w4, w5 <= 2.0 * w4, "<= 2");
        rows.push(("find p50 / our W4".to_owned(), cells));
    }
    rows.retain(|(_, cells)| cells.iter().any(|c| !c.is_empty()));
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("ours / the better peer (bar)\n");
    let _ = write!(text, "  {:<24}", "");
    WORKLOADS.iter().for_each(|w| {
        let _ = write!(text, "{w:>18}");
    });
    text.push('\n');
    for (name, cells) in rows {
        let _ = write!(text, "  {name:<24}");
        cells.iter().for_each(|c| {
            let _ = write!(text, "{c:>18}");
        });
        text.push('\n');
    }
    for w in workloads {
        for index in w.indexes.iter().filter(|i| is_peer(i) && i.failed(w.comparison.as_ref())) {
            let _ = writeln!(
                text,
                "left out of {}: {} (it refused events or answered wrongly, see above)",
                w.name, index.name
            );
        }
    }
    text + &beside(workloads)
}

fn ratios<'a>(metric: &Metric, named: impl Fn(&str) -> Option<&'a WorkloadResult>) -> Vec<String> {
    let cell = |(name, bar): (&&str, &Option<f64>)| {
        let (ours, peers) = split(named(name)?);
        let ours = (metric.of)(ours?)?;
        let better = peers.into_iter().filter_map(metric.of).min_by(f64::total_cmp)?;
        let ratio = ours / better;
        Some(match bar {
            Some(bar) => verdict(ratio, ratio <= *bar, &format!("<= {bar}")),
            None => format!("{ratio:.2}"),
        })
    };
    WORKLOADS.iter().zip(&metric.bars).map(|c| cell(c).unwrap_or_default()).collect()
}

/// Ours with a writer flat out against ours quiet, and the writer with a reader against the writer alone.
fn beside(workloads: &[WorkloadResult]) -> String {
    let mut text = String::new();
    for ours in workloads.iter().filter_map(|w| split(w).0).filter(|i| !i.threads.is_empty()) {
        // Ratios within a round, then their median: a round's two halves run one after the other.
        let ratio = |of: fn(&crate::threads::Threads) -> f64| ours.median_threads(of).unwrap_or(f64::NAN);
        let p50 = ratio(|t| t.loud_p50 / t.quiet_p50);
        let p99 = ratio(|t| t.loud_p99 / t.quiet_p99);
        let writer = ratio(|t| t.writer_beside / t.writer_alone);
        let readers = ratio(|t| t.two_readers / t.one_reader);
        let _ = writeln!(
            text,
            "beside a writer flat out: find p50 {}, p99 {}; the writer's rate beside a reader {}; two readers on one root {readers:.2} times one",
            verdict(p50, p50 <= 2.0, "<= 2"),
            verdict(p99, p99 <= 5.0, "<= 5"),
            verdict(writer, writer >= 0.5, ">= 0.5"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::measure::Round;
    use crate::report::{IndexResult, WorkloadResult};

    #[test]
    fn divides_by_the_better_peer_and_marks_misses() {
        let index = |name, find_p50, store| IndexResult {
            rounds: vec![Round {
                find_p50,
                find_p99: 1.0,
                random_p50: 1.0,
                random_p99: 1.0,
                store,
                ..Round::default()
            }],
            ..IndexResult::new(name)
        };
        let w = WorkloadResult {
            name: "W1",
            about: "",
            requests: 0,
            stored: 0,
            removed: 0,
            held: 0,
            indexes: vec![index("ours", 30.0, Some(9.0)), index("smg", 60.0, Some(10.0)), index("dynamo", 90.0, None)],
            comparison: None,
        };
        let text = table(&[w]);
        assert!(text.contains("0.50 <= 0.65 ok"), "{text}");
        assert!(text.contains("0.90 <= 0.7 MISS"), "{text}");
    }
}
