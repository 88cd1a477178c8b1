//! Decisions as the page reads them.

use serde_json::{Value, json};

use crate::placing::decisions::{Explanation, Record};

/// Formats a decision as a line of the page.
pub(super) fn line(record: &Record) -> Value {
    let ended = record.ended.get();
    json!({
        "number": record.number,
        "t": (record.at * 1e3) as u64,
        "worker": &*record.worker,
        "rank": record.rank,
        "model": record.model,
        "tokens": record.tokens,
        "predicted": record.cached,
        "why": record.why,
        "decide_us": record.micros,
        "cached": ended.and_then(|ended| ended.cached),
        "counted": ended.and_then(|ended| ended.counted),
        "output": ended.and_then(|ended| ended.output),
        "ttft_ms": ended.and_then(|ended| ended.first_token).map(millis),
        "took_ms": ended.map(|ended| millis(ended.took)),
        "state": ended.map(|ended| ended.how),
    })
}

/// A decision with its candidates, if they were kept.
pub(super) fn whole(record: &Record, policy: &str) -> Value {
    let mut told = line(record);
    told["policy"] = policy.into();
    told["not_announced"] = record.predicted.into();
    told["candidates"] = Value::Array(Vec::new());
    if let Some(explained) = &record.terms {
        (told["terms"], told["candidates"]) = candidates(explained);
    }
    told
}

/// Names of the terms, the compared sum last, and a row for each candidate.
fn candidates(explained: &Explanation) -> (Value, Value) {
    let names = explained.terms.as_ref().map(|terms| terms.names.clone()).unwrap_or_default();
    let values = explained.terms.as_ref().map(|terms| &*terms.values).unwrap_or_default();
    let rows = explained.workers.iter().zip(&explained.cached_tokens).enumerate();
    let candidates = rows.map(|(row, ((worker, rank), cached))| {
        let terms = values.get(row * names.len()..(row + 1) * names.len()).unwrap_or_default();
        json!({ "worker": &**worker, "rank": rank, "cached": cached, "terms": terms })
    });
    let candidates = candidates.collect();
    (json!(names), candidates)
}

pub(super) fn millis(seconds: f64) -> f64 {
    (seconds * 1e4).round() / 10.0
}
