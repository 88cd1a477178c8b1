//! Metrics of requests by model, and by model and engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_follow::metrics::{count_of, describe};
use kvatlas_routing::{ChoiceReason, Refusal};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::app::App;
use crate::engines::{EngineModelCounts, FAULTS};
use crate::histogram::Histogram;
use crate::model_counts::{GIVEN_UP, ModelCounts, OFF_BY, OFF_WHY, STATUSES};

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Writes the metrics of requests by model.
pub(super) fn requests(app: &App, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let models = app.counts.models.all();
    let help = "Requests on any path that is forwarded to engines, by the class of the status sent to the client (none: it disconnected before a status was sent) and model: an adapter counts as the model that it adapts; none: the request names no model, or was refused before it was read; other: no engine lists the model, or it is beyond the first 128";
    by_model(encoder, "requests", help, &models, "status", &STATUSES, |model| &model.requests)?;
    let help = "Requests that the router itself refused, by class of status, reason (the code of the answer) and model";
    let mut family = describe(encoder, "refused_requests", help, MetricType::Counter)?;
    for ((class, code, model), count) in app.counts.refused.all() {
        count_of(&mut family, &[("status", class), ("reason", code), ("model", &*model)], count)?;
    }
    let help = "Requests tried again, by the reason for which they had failed, as in engine_faults, and model";
    by_model(encoder, "retries", help, &models, "reason", &FAULTS, |model| &model.retries)?;
    let help = "Requests that no engine answered, by the reason why they were not sent again, and model; not_repeatable: they may change something";
    by_model(encoder, "unanswered_requests", help, &models, "reason", &GIVEN_UP, |model| &model.given_up)
}

/// Writes the metrics of routing decisions by model.
pub(super) fn decisions(app: &App, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (models, policy) = (app.counts.models.all(), app.places.policy());
    let help = "Requests placed, by policy, reason and model";
    let mut family = describe(encoder, "decisions", help, MetricType::Counter)?;
    for model in &models {
        for (why, count) in ChoiceReason::ALL.iter().zip(&model.placed) {
            let labels = [("policy", policy), ("reason", why.as_str()), ("model", &*model.name)];
            count_of(&mut family, &labels, count.load(Relaxed))?;
        }
    }
    let help = "Requests that were not placed, by reason and model; displaced: a request of higher priority took its place in a full queue";
    let reasons = Refusal::ALL.map(Refusal::as_str);
    by_model(encoder, "decisions_refused", help, &models, "reason", &reasons, |model| &model.not_placed)?;
    type Getter = fn(&ModelCounts) -> &AtomicU64;
    let counters: [(&str, &str, Getter); 3] = [
        ("decisions_waited", "Requests that waited in the router before they were placed, by model", |it| &it.waited),
        (
            "expected_cached_tokens",
            "Prompt tokens that the router expected in caches, over requests whose engine reported how many were, by model",
            |it| &it.expected_cached,
        ),
        (
            "reported_cached_tokens",
            "Prompt tokens that engines reported as cached, over the requests of expected_cached_tokens, by model",
            |it| &it.reported_cached,
        ),
    ];
    for (name, help, read) in counters {
        let mut family = describe(encoder, name, help, MetricType::Counter)?;
        for model in &models {
            count_of(&mut family, &[("model", &*model.name)], read(model).load(Relaxed))?;
        }
    }
    let help = "Difference in tokens between what an engine had cached and what was expected, by model; as_expected: less than a block; evicted_meanwhile: less than the index had, and removals came since; less_than_known: less, and none came; template_mismatch: engine and router count different numbers of prompt tokens";
    let mut family = describe(encoder, "cached_tokens_off", help, MetricType::Histogram)?;
    for model in &models {
        for (reason, counts) in OFF_WHY.iter().zip(&model.off) {
            let bounds = OFF_BY.iter().map(|bound| f64::from(*bound)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().map(|count| count.load(Relaxed))).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let least = buckets.iter().zip([0.0].iter().chain(buckets.iter().map(|(bound, _)| bound)));
            let sum = least.map(|((_, count), below)| *count as f64 * below).sum();
            let labels = [("reason", *reason), ("model", &*model.name)];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    Ok(())
}

/// Writes the metrics of requests by engine and model.
pub(super) fn engines(app: &App, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let none = &app.counts.models.none().name;
    let engines = app.fleet.engines();
    let all: Vec<_> =
        engines.iter().flat_map(|engine| counts_of(&engine.name, engine.counts.models.all(), none)).collect();
    let help = "Answers of an engine, by class of status and model";
    by_engine(encoder, "engine_answers", help, &all, "status", &CLASSES, |counts| &counts.answers)?;
    let help = "Requests that an engine did not answer, or not completely, or with an error under a status of 2xx, by reason and model";
    by_engine(encoder, "engine_faults", help, &all, "reason", &FAULTS, |counts| &counts.faults)?;
    type Getter = fn(&EngineModelCounts) -> &AtomicU64;
    let counters: [(&str, &str, Getter); 3] = [
        ("engine_cached_tokens", "Prompt tokens that an engine reported as cached, by model", |it| &it.cached_tokens),
        (
            "engine_prompt_tokens",
            "Prompt tokens of the requests for which an engine reported its cached tokens, by model",
            |it| &it.prompt_tokens,
        ),
        ("engine_output_tokens", "Tokens that an engine has generated, by model", |it| &it.output_tokens),
    ];
    for (name, help, read) in counters {
        let mut family = describe(encoder, name, help, MetricType::Counter)?;
        for (engine, counts) in &all {
            count_of(&mut family, &[("engine", &**engine), ("model", &*counts.model)], read(counts).load(Relaxed))?;
        }
    }
    type Times = fn(&EngineModelCounts) -> &Histogram<16>;
    let histograms: [(&str, &str, Times); 2] = [
        (
            "first_token_seconds",
            "Seconds from a request's arrival to the first token of its streamed answer (text, reasoning or a tool call), by engine and model",
            |it| &it.first_token,
        ),
        (
            "request_duration_seconds",
            "Seconds from a request's arrival to the end of its answer, of those that an engine answered completely and without an error, by engine and model",
            |it| &it.duration,
        ),
    ];
    for (name, help, read) in histograms {
        let mut family = describe(encoder, name, help, MetricType::Histogram)?;
        for (engine, counts) in &all {
            let (buckets, sum) = read(counts).read();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("engine", &**engine), ("model", &*counts.model)];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    Ok(())
}

/// Returns an engine's counters by model. An engine without counters gets one entry of zeros, so that it appears in the
/// metrics.
fn counts_of(
    engine: &Arc<str>,
    counts: Arc<Vec<Arc<EngineModelCounts>>>,
    none: &Arc<str>,
) -> Vec<(Arc<str>, Arc<EngineModelCounts>)> {
    let zeros = counts.is_empty().then(|| Arc::new(EngineModelCounts::new(none.clone())));
    counts.iter().cloned().chain(zeros).map(|counts| (engine.clone(), counts)).collect()
}

/// Writes a family of counters for each model and each value of a label.
fn by_model<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    models: &[Arc<ModelCounts>],
    label: &str,
    values: &[&str; N],
    read: impl Fn(&ModelCounts) -> &[AtomicU64; N],
) -> fmt::Result {
    let mut family = describe(encoder, name, help, MetricType::Counter)?;
    for model in models {
        for (value, count) in values.iter().zip(read(model)) {
            count_of(&mut family, &[(label, *value), ("model", &*model.name)], count.load(Relaxed))?;
        }
    }
    Ok(())
}

/// Writes a family of counters for each engine, each model and each value of a label.
fn by_engine<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    all: &[(Arc<str>, Arc<EngineModelCounts>)],
    label: &str,
    values: &[&str; N],
    read: impl Fn(&EngineModelCounts) -> &[AtomicU64; N],
) -> fmt::Result {
    let mut family = describe(encoder, name, help, MetricType::Counter)?;
    for (engine, counts) in all {
        for (value, count) in values.iter().zip(read(counts)) {
            let labels = [("engine", &**engine), (label, *value), ("model", &*counts.model)];
            count_of(&mut family, &labels, count.load(Relaxed))?;
        }
    }
    Ok(())
}
