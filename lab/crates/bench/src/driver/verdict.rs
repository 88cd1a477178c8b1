//! Result of a load test, with the verdict on its validity.

use hdrhistogram::Histogram;

use super::Label;
use super::generator::{Outcome, Schedule};
use super::lanes::{Times, histogram};
use crate::compare::Comparison;
use crate::machine::Clock;
use crate::options::Options;
use crate::plan::Plan;
use crate::result::{self, BacklogCounts, IssuedCounts, Memory, PlanFacts, Rates, RunResult};
use crate::subject::Counts;

/// Data of a finished load test, from which its result is computed.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) options: &'a Options,
    pub(crate) label: Label,
    pub(crate) schedule: &'a Schedule,
    pub(crate) outcome: Outcome,
    pub(crate) times: Times,
    pub(crate) trouble: Vec<String>,
    pub(crate) clock: Clock,
    pub(crate) counts: Counts,
    pub(crate) memory: Option<Memory>,
    pub(crate) comparison: Option<Comparison>,
}

/// Latest valid time for issuing the last operation, as a multiple of the measured window.
const ISSUE_SPAN: f64 = 1.01;
/// Latest valid time for completing all operations, as a multiple of the measured window.
const KEPT_UP: f64 = 1.1;
/// Largest valid share of the events, and of the lookups, that are queued at the end of the measured window.
const QUEUED: f64 = 0.05;

pub(crate) fn verdict(run: Run<'_>) -> RunResult {
    let (plan, schedule, outcome, options) = (run.plan, run.schedule, &run.outcome, run.options);
    let (measured, window, facts) = (schedule.measured, schedule.window, plan.facts());
    let mut why = Vec::new();

    let lag = lag(schedule, outcome);
    let lag_limit_ns = options.lag_limit(window);
    let issue_span_ns = outcome.batches.last().map_or(0, |&(_, at)| at.saturating_sub(schedule.start));
    let issued_all = outcome.lookups + outcome.events == facts.ops;
    let unmeasured = measured.ops == 0;
    if unmeasured {
        why.push("there is nothing to measure: the plan has no operations after the warm-up".to_owned());
    }
    if !issued_all {
        why.push(format!("only {} of {} operations were issued", outcome.lookups + outcome.events, facts.ops));
    }
    let late = issue_span_ns as f64 > window as f64 * ISSUE_SPAN;
    if late {
        why.push(format!(
            "invalid: the generator was late, the last operation was issued after {:.3} windows (at most {ISSUE_SPAN})",
            issue_span_ns as f64 / window as f64
        ));
    }
    let p99 = lag.as_ref().map_or(0, |lag| lag.value_at_quantile(0.99));
    if p99 > lag_limit_ns {
        why.push(format!("invalid: the generator was {p99} ns late at p99 (at most {lag_limit_ns})"));
    }
    let valid = !unmeasured && issued_all && !late && p99 <= lag_limit_ns;

    let queued_at_close = queued(schedule, outcome, &facts);
    let drained = outcome.drained_at.is_some() && run.trouble.is_empty();
    let total_ns = outcome.drained_at.map(|at| at.saturating_sub(schedule.start));
    let mut kept_up = !unmeasured && drained;
    for (what, share) in [("events", queued_at_close.events_share), ("lookups", queued_at_close.lookups_share)] {
        if share > QUEUED {
            kept_up = false;
            why.push(format!(
                "did not keep up: {:.1} % of the {what} were queued when the window closed (at most 5 %)",
                share * 100.0
            ));
        }
    }
    match total_ns {
        None => why.push(format!(
            "did not drain within {} windows after the close: {} of {} events applied, {} of {} lookups answered",
            options.patience(window) / window.max(1),
            outcome.applied,
            outcome.events,
            outcome.answered,
            outcome.lookups
        )),
        Some(total) if total as f64 > window as f64 * KEPT_UP => {
            kept_up = false;
            let windows = total as f64 / window as f64;
            why.push(format!("did not keep up: done after {windows:.3} windows (at most {KEPT_UP})"));
        }
        Some(_) => {}
    }
    why.extend(run.trouble.iter().cloned());

    let agrees = run.comparison.as_ref().and_then(|comparison| comparison.agrees(facts.lookups > 0));
    match (agrees, &run.comparison) {
        (Some(false), Some(comparison)) => why.push(comparison.words()),
        (None, _) if drained => why.push("nothing was compared with what the plan says".to_owned()),
        _ => {}
    }
    if run.counts.errors > 0 {
        // Failed calls take no time: a failed run's throughput means nothing.
        kept_up = false;
        let first = run.counts.first_error.as_deref().unwrap_or("unknown");
        why.push(format!("{} calls of the index failed, the first with: {first}", run.counts.errors));
    }
    let rates = |ns: Option<u64>| ns.filter(|&ns| ns > 0).map_or_else(Rates::default, |ns| rates(&measured, ns));
    let mut resolved = options.clone();
    resolved.lag_limit_ns = Some(lag_limit_ns);
    resolved.window_ns = Some(window);
    RunResult {
        schema: 1,
        ok: why.is_empty() && valid && kept_up && agrees == Some(true),
        valid,
        kept_up,
        drained,
        agrees,
        index: run.label.name,
        about: run.label.about,
        version: run.label.version,
        options: resolved,
        plan: PlanFacts {
            digest: plan.digest(),
            facts,
            meta: serde_json::from_str(&plan.columns().meta).unwrap_or_default(),
        },
        measured,
        issued: IssuedCounts { lookups: outcome.lookups, events: outcome.events },
        applied: outcome.applied,
        answered: outcome.answered,
        window_ns: window,
        offered: rates(Some(window)),
        achieved: rates(total_ns),
        issue_span_ns,
        lag: lag.as_ref().and_then(|lag| times(lag, 0)),
        lag_limit_ns,
        queued_at_close,
        max_queued_events: outcome.max_queued,
        drain_ns: outcome.drained_at.map(|at| at.saturating_sub(schedule.close())),
        total_ns,
        service: times(&run.times.service, run.clock.cost_ns),
        from_deadline: times(&run.times.from_deadline, 0),
        counts: run.counts,
        memory: run.memory,
        clock: run.clock,
        comparison: run.comparison,
        why,
    }
}

/// Distribution of the lateness of measured operations: the time at which an operation's batch had been issued, minus
/// the operation's deadline.
fn lag(schedule: &Schedule, outcome: &Outcome) -> Option<Histogram<u64>> {
    let mut lag = histogram();
    let mut next = 0;
    for &(upto, at) in &outcome.batches {
        for op in next.max(schedule.first)..upto as usize {
            lag.saturating_record(at.saturating_sub(schedule.due[op]));
        }
        next = upto as usize;
    }
    (!lag.is_empty()).then_some(lag)
}

fn queued(schedule: &Schedule, outcome: &Outcome, all: &result::Facts) -> BacklogCounts {
    let (applied, answered) = outcome.at_close;
    let events = all.events().saturating_sub(applied);
    let lookups = all.lookups.saturating_sub(answered);
    let share = |queued: u64, of: u64| if of == 0 { 0.0 } else { queued as f64 / of as f64 };
    BacklogCounts {
        events,
        lookups,
        events_share: share(events, schedule.measured.events()),
        lookups_share: share(lookups, schedule.measured.lookups),
    }
}

fn rates(measured: &result::Facts, ns: u64) -> Rates {
    let seconds = ns as f64 / 1e9;
    Rates { block_ops_per_s: measured.block_ops() as f64 / seconds, ops_per_s: measured.ops as f64 / seconds }
}

fn times(histogram: &Histogram<u64>, cost: u64) -> Option<result::Times> {
    if histogram.is_empty() {
        return None;
    }
    let at = |share| histogram.value_at_quantile(share).saturating_sub(cost);
    Some(result::Times {
        count: histogram.len(),
        mean: (histogram.mean() - cost as f64).max(0.0),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max().saturating_sub(cost),
    })
}
