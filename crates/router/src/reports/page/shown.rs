//! Contents of the router's web page: engines with their caches, recent decisions, and rates.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use kvatlas_follow::page::{ENGINE_POINTS, FleetObserver, POINTS, PageSource, Rates, tenth};
use kvatlas_ui::Feed;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::engines::Engine;
use crate::placing::decisions::{Explanation, Record};

/// Maximum number of routing decisions sent to the web page at a time, equal to the number that the page shows.
const DECISIONS: usize = 100;

/// Number of an engine's recent decisions from which its hit rates and times are computed.
const OF_AN_ENGINE: usize = 64;

/// Updates the contents of the web page periodically until the router ends.
pub(crate) async fn run(app: Arc<App>) {
    let looker = app.follower.as_ref().map(|service| FleetObserver::new(service.fleet().clone()));
    let counted = PageCounts::of(&app);
    let (open, figures) = (HashMap::new(), HashMap::new());
    let shown = PageState { looker, counted, at: Instant::now(), told: 0, open, figures, app: app.clone() };
    app.page.keep(shown).await;
}

struct PageState {
    app: Arc<App>,
    looker: Option<FleetObserver>,
    counted: PageCounts,
    at: Instant,
    /// Number of the last decision sent to the web page.
    told: u64,
    /// Decisions sent to the web page whose requests have not ended yet, by number.
    open: HashMap<u64, Arc<Record>>,
    figures: HashMap<Arc<str>, Figures>,
}

/// Router's counters at one moment, from which the rates on the web page are computed.
#[derive(Default)]
struct PageCounts {
    requests: u64,
    /// Number of prompt tokens in finished requests whose engine reported cached tokens. The fields `expected` and
    /// `reported` count those of these tokens that were expected and reported to be cached.
    prompt: u64,
    expected: u64,
    reported: u64,
    first_tokens: Vec<(f64, u64)>,
    decision: Vec<(f64, u64)>,
}

/// Hit rates of an engine's cache and times to the first token, from the engine's recent requests.
#[derive(Default, Clone, Copy)]
struct Figures {
    /// Share of prompt tokens that the engine reported as cached; None if unknown.
    real: Option<f64>,
    /// Share of prompt tokens that the router expected to be cached; None if unknown.
    predicted: Option<f64>,
    /// Median time from a decision to the first token, in seconds; None if no first token was observed.
    first_token: Option<f64>,
}

impl PageSource for PageState {
    fn state(&mut self, feed: &Feed) -> Value {
        self.tell(feed);
        let mut rows = self.looker.as_mut().map(FleetObserver::rows).unwrap_or_default();
        for engine in self.app.fleet.engines().iter() {
            self.rows_of(engine, &mut rows);
        }
        let app = &self.app;
        let (summary, counts) = (app.places.summary(), &app.counts);
        let (leaving, any) = (app.leaving.load(Relaxed), app.fleet.has_any_up());
        json!({
            "kind": "router",
            "version": env!("CARGO_PKG_VERSION"),
            "policy": summary.policy,
            "ready": any && !leaving,
            "waiting": { "draining": leaving },
            "requests": counts.all_requests(),
            "in_flight": summary.in_flight,
            "waiting_here": summary.waiting + summary.waiting_for_engine,
            "errors": counts.refused.errors(),
            "refused": counts.refused.by_code(),
            "retries": counts.all_retries(),
            "connections": app.front.connections(),
            "changing_prompts": app.proxy.sessions.habits(),
            "engines": rows,
            "indexes": self.looker.as_ref().map(FleetObserver::indexes),
        })
    }

    fn point(&mut self, feed: &Feed) {
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        let now = PageCounts::of(&self.app);
        let before = std::mem::replace(&mut self.counted, now);
        let now = &self.counted;
        let share = |part: u64, of: u64| (of > 0).then(|| (part as f64 / of as f64 * 1e4).round() / 1e4);
        let prompt = now.prompt.saturating_sub(before.prompt);
        let summary = self.app.places.summary();
        let [fleet, unlimited] = self.app.places.possible_hit_rates();
        let hit_real = share(now.reported.saturating_sub(before.reported), prompt);
        // A router that has not seen the prompts that caches are full of knows no bound yet.
        let possible = fleet.or(unlimited).filter(|most| hit_real.is_none_or(|real| real <= *most));
        let rates = self.looker.as_mut().map(FleetObserver::rates);
        let Rates { events, rows, blocks, lag } = rates.clone().unwrap_or_default();
        let point = json!({
            "t": SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_millis() as u64),
            "requests": tenth(now.requests.saturating_sub(before.requests) as f64 / seconds),
            "in_flight": summary.in_flight,
            "waiting_here": summary.waiting + summary.waiting_for_engine,
            "hit_real": hit_real,
            "hit_predicted": share(now.expected.saturating_sub(before.expected), prompt),
            // What one cache of the engines' size could hold of the last hour's prompts; any cache, if that is not known.
            "hit_possible": possible.map(|rate| (rate * 1e4).round() / 1e4),
            "ttft": quantile(&before.first_tokens, &now.first_tokens, 0.5).map(millis),
            "ttft_p99": quantile(&before.first_tokens, &now.first_tokens, 0.99).map(millis),
            // In milliseconds too, and much shorter.
            "decision": quantile(&before.decision, &now.decision, 0.5).map(|took| (took * 1e6).round() / 1e3),
            "events": rates.is_some().then(|| tenth(events)),
            "blocks": rates.is_some().then_some(blocks),
            "lag": lag.map(|lag| millis(lag.as_secs_f64())),
        });
        feed.append("history", POINTS, [point]);
        let rows: Map<String, Value> =
            rows.into_iter().map(|(name, (events, blocks))| (name, json!([tenth(events), blocks]))).collect();
        feed.append("engines", ENGINE_POINTS, [Value::Object(rows)]);
        if feed.viewers() > 0 {
            self.figure();
        }
    }

    fn panicked(&mut self) {
        self.app.counts.panics.fetch_add(1, Relaxed);
    }
}

impl PageState {
    /// Adds the decision core's state of an engine's ranks (load and speed) to the web page's rows from the index.
    fn rows_of(&self, engine: &Engine, rows: &mut Map<String, Value>) {
        let models = engine.models.load();
        let figures = self.figures.get(&engine.name).copied().unwrap_or_default();
        let standing = engine.health.standing().name();
        let condition = engine.record.lock().condition_to_json();
        // Discovery lists an engine that is not registered as a whole: it is the same engine, which has a row for each rank.
        let unregistered = rows.remove(&*engine.name);
        let Value::Array(ranks) = self.app.places.rows_of(engine) else { return };
        for known in &ranks {
            let rank = &known["rank"];
            let row = rows.entry(format!("{}/{rank}", engine.name)).or_insert_with(|| json!({}));
            if let (Some(row), Some(Value::Object(whole))) = (row.as_object_mut(), &unregistered) {
                row.extend(whole.clone());
            }
            let number = |name: &str| known[name].as_f64().filter(|number| number.is_finite());
            let more = json!({
                "worker": &*engine.name,
                "rank": rank,
                "url": engine.config.url,
                "up": standing,
                "condition": condition,
                "model": models.names.iter().map(|model| &*model.name).collect::<Vec<_>>().join(", "),
                "role": Some(engine.config.role.name()).filter(|role| *role != "both"),
                "weight": engine.config.weight,
                "in_flight": known["requests"],
                "waiting": known["waiting"],
                "queued_tokens": number("queued_tokens").map(f64::round),
                "requests": known["sent"],
                "failures": engine.counts.faults().iter().sum::<u64>(),
                "prefill_rate": number("prefill_rate").map(f64::round),
                "step_ms": number("step_time").map(millis),
                "reported_running": known["reported_running"],
                "reported_waiting": known["reported_waiting"],
                "reported_kv_usage": number("reported_kv_usage").map(|share| (share * 1e3).round() / 1e3),
                "capacity": number("capacity_blocks"),
                "transfers": known["transfers"],
                "hit_real": figures.real,
                "hit_predicted": figures.predicted,
                "ttft_ms": figures.first_token.map(millis),
            });
            if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
                row.extend(more);
            }
        }
    }

    /// Sends new decisions to the web page, and decisions whose requests have ended since they were sent.
    fn tell(&mut self, feed: &Feed) {
        let last = self.app.places.decisions.last(DECISIONS);
        // The newest come first.
        let new: Vec<_> = last.into_iter().take_while(|record| record.number > self.told).collect();
        let mut lines = Vec::new();
        for (number, record) in std::mem::take(&mut self.open) {
            if record.ended.get().is_some() {
                lines.push(line(&record));
            } else {
                self.open.insert(number, record);
            }
        }
        self.told = new.first().map_or(self.told, |record| record.number);
        for record in new.into_iter().rev() {
            lines.push(line(&record));
            // What never ends must not be kept for ever.
            if record.ended.get().is_none() && self.open.len() < 2 * DECISIONS {
                self.open.insert(record.number, record);
            }
        }
        feed.append("decisions", 2 * DECISIONS, lines);
    }

    /// Computes the hit rates and times to the first token of all engines from their recent decisions.
    fn figure(&mut self) {
        let mut by_engine: BTreeMap<Arc<str>, Vec<Arc<Record>>> = BTreeMap::new();
        for record in self.app.places.decisions.last(usize::MAX) {
            let records = by_engine.entry(record.worker.clone()).or_default();
            if records.len() < OF_AN_ENGINE && record.ended.get().is_some() {
                records.push(record);
            }
        }
        self.figures = by_engine.into_iter().map(|(name, records)| (name, Figures::of(&records))).collect();
    }
}

impl Figures {
    fn of(records: &[Arc<Record>]) -> Self {
        let (mut tokens, mut expected, mut real) = (0u64, 0u64, 0u64);
        let mut first_tokens = Vec::new();
        for record in records {
            let Some(ended) = record.ended.get() else { continue };
            if let Some(cached) = ended.cached {
                tokens += u64::from(record.tokens);
                expected += u64::from(record.cached);
                real += u64::from(cached);
            }
            first_tokens.extend(ended.first_token);
        }
        first_tokens.sort_by(f64::total_cmp);
        let share = |part: u64| (tokens > 0).then(|| (part as f64 / tokens as f64 * 1e3).round() / 1e3);
        Self {
            real: share(real),
            predicted: share(expected),
            first_token: first_tokens.get(first_tokens.len() / 2).copied(),
        }
    }
}

impl PageCounts {
    fn of(app: &App) -> Self {
        let counts = app.places.summary().counts;
        let engines = app.fleet.engines();
        let prompt = engines.iter().map(|engine| engine.counts.models.total(|model| &model.prompt_tokens)).sum();
        Self {
            requests: app.counts.all_requests(),
            prompt,
            expected: counts.expected_cached,
            reported: counts.reported_cached,
            first_tokens: app.counts.first_token.read().0,
            decision: app.counts.decision.read().0,
        }
    }
}

/// Computes a quantile of the values added to a histogram between two readings, interpolated linearly within its
/// bucket; None if no values were added. `share`: the quantile, from 0 to 1.
fn quantile(before: &[(f64, u64)], now: &[(f64, u64)], share: f64) -> Option<f64> {
    let added = |at: usize| now[at].1.saturating_sub(before.get(at).map_or(0, |bucket| bucket.1));
    let all: u64 = (0..now.len()).map(added).sum();
    if all == 0 {
        return None;
    }
    let (wanted, mut below, mut low) = (share * all as f64, 0.0, 0.0);
    for (at, (bound, _)) in now.iter().enumerate() {
        let here = added(at) as f64;
        if here > 0.0 && below + here >= wanted {
            // What is beyond the last bound is at least that.
            let width = if bound.is_finite() { bound - low } else { 0.0 };
            return Some(low + width * (wanted - below) / here);
        }
        below += here;
        if bound.is_finite() {
            low = *bound;
        }
    }
    Some(low)
}

/// Makes the line that the web page shows for a decision, as JSON.
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

/// Makes the details of a decision as JSON, with its candidates if they were recorded.
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

/// Returns the names of the cost terms, the total last, and a row for each candidate, as JSON.
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

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_of_what_was_added() {
        let before = [(1.0, 5), (2.0, 0), (f64::INFINITY, 0)];
        let now = [(1.0, 5), (2.0, 10), (f64::INFINITY, 0)];
        assert_eq!(quantile(&before, &now, 0.5), Some(1.5));
        assert_eq!(quantile(&before, &now, 1.0), Some(2.0));
        assert_eq!(quantile(&now, &now, 0.5), None);
        assert_eq!(quantile(&[], &now, 0.2), Some(0.6));
        let beyond = [(1.0, 5), (2.0, 0), (f64::INFINITY, 7)];
        assert_eq!(quantile(&before, &beyond, 0.99), Some(2.0));
    }
}
