//! Answer to `GET /metrics`, in Prometheus's format. The documentation copies names, labels and texts from this file
//! (`tools/docs/router_metrics.py`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_follow::metrics::{self, count_of, counter, describe, gauge_of};
use kvatlas_http::metrics::write_process;
use kvatlas_prompt::{Endpoint, PromptFailure};
use kvatlas_routing::{Kind, PullResult};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::answers::stored::FOUND;
use crate::app::App;
use crate::config::Source;
use crate::counts::HEDGES;
use crate::engines::{Engine, HealthState, Trouble};
use crate::histogram::Histogram;
use crate::placing::{LearntTransfer, WAIT_OUTCOMES, WARM_UPS};
use crate::proxy::{PREPARED, RESULTS};
use crate::remote::cache_reports;
use crate::remote::index::ExternalIndex;
use crate::remote::peers;
use crate::remote::sites;
use crate::reports::model_metrics;
use crate::requests::facts;
use crate::spans::SPAN_RESULTS;

/// Writes all metrics of the router as text in Prometheus's format.
pub(crate) fn text(app: &Arc<App>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("kvatlas_router");
    registry.register_collector(Box::new(Scrape(app.clone())));
    let mut out = String::with_capacity(16 << 10);
    encode_registry(&mut out, &registry)?;
    match &app.follower {
        Some(service) => service.write_metrics(&mut out)?,
        // A router that follows no events describes sources only if it has any: the page of its metrics has none of theirs.
        None if app.sources.is_empty() => {}
        None => app.sources.write_metrics(&mut out)?,
    }
    write_process(&mut out)?;
    encode_eof(&mut out)?;
    Ok(out)
}

struct Scrape(Arc<App>);

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.requests(&mut encoder)?;
        self.decisions(&mut encoder)?;
        self.reuse(&mut encoder)?;
        self.sessions(&mut encoder)?;
        self.engines(&mut encoder)
    }
}

impl Scrape {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = &self.0.counts;
        model_metrics::requests(&self.0, encoder)?;
        let help = "Requests to prefill and decode engines: whether the prefill engine computed the prompt first, meanwhile (at the same time), or not (alone); refused: SGLang's decode engines do nothing without one";
        let mut family = describe(encoder, "handovers", help, MetricType::Counter)?;
        for (how, count) in PREPARED.iter().zip(&counts.handovers) {
            count_of(&mut family, &[("prefill", *how)], count.load(Relaxed))?;
        }
        let warm_ups = &self.0.places.warm_ups;
        let help = "With warm_up, requests of the router's own that let a new engine pull a prompt: brought, nothing (it computed the prompt instead), refused, failed, or late; each but the first ends the engine's warm-up";
        let mut family = describe(encoder, "warm_ups", help, MetricType::Counter)?;
        for (result, count) in WARM_UPS.iter().zip(&warm_ups.results) {
            count_of(&mut family, &[("result", *result)], count.load(Relaxed))?;
        }
        let help = "Prompt tokens that new engines had in their cache after such requests";
        counter(encoder, "warm_up_tokens", help, warm_ups.tokens.load(Relaxed))?;
        let help = "With hedge_after, streamed requests whose first byte took long: won (the second engine answered first), lost, or left_out (a twentieth of the requests was at two engines already)";
        let mut family = describe(encoder, "hedged_requests", help, MetricType::Counter)?;
        for (outcome, count) in HEDGES.iter().zip(&counts.hedges) {
            count_of(&mut family, &[("outcome", *outcome)], count.load(Relaxed))?;
        }
        let help = "With forward_tokens, completions by what the engine got: tokens, or the text because of not_a_text (token ids or a list), works_on_text (such as echo), no_tokens (the router has none), adapter, apart (another engine computes the prompt), or not_proven (the engine may make other tokens)";
        let mut family = describe(encoder, "forwarded_completions", help, MetricType::Counter)?;
        for (result, count) in RESULTS.iter().zip(&self.0.proxy.tokens.counts) {
            count_of(&mut family, &[("as", *result)], count.load(Relaxed))?;
        }
        let help = "Requests that continue, read or cancel something that an engine keeps (an answer of /v1/responses, a file, a batch): that engine is known, was found by asking all engines (found), is unknown as no engine has it, is known but gone (engine_gone), or was not looked for as that was done in vain a moment ago or too often (not_asked)";
        let mut family = describe(encoder, "stored_answer_requests", help, MetricType::Counter)?;
        for (found, count) in FOUND.iter().zip(&self.0.proxy.answer_engines.asked) {
            count_of(&mut family, &[("engine", *found)], count.load(Relaxed))?;
        }
        let help = "Answers of /v1/responses, files and batches whose engine is known";
        gauge(encoder, "stored_answers", help, self.0.proxy.answer_engines.len() as u64)?;
        if !self.0.config.peers.is_empty() {
            let help = "Reports to other routers: told (accepted), not_taken (no answer, or the next one must begin anew), refused (such as for a wrong key) or bad_certificate (of the other router, with https); requests in reports from other routers: heard, or unknown_engine (at an engine of no name here)";
            let mut family = describe(encoder, "peer_reports", help, MetricType::Counter)?;
            for (result, count) in peers::RESULTS.iter().zip(&self.0.peers.counts) {
                count_of(&mut family, &[("result", *result)], count.load(Relaxed))?;
            }
            gauge(
                encoder,
                "peers",
                "Other routers whose requests count at present",
                self.0.places.summary().peers as u64,
            )?;
        }
        if let Some(picks) = self.0.picker_counts.get() {
            let help = "Requests for which gateways asked for an engine: picked, refused by the router, too_large, no_room (the memory for bodies is full, or the body did not arrive), without_body (the gateway shows the body too late or in part), or left (the gateway's stream ended before)";
            let mut family = describe(encoder, "gateway_requests", help, MetricType::Counter)?;
            for (result, count) in [
                ("picked", &picks.picked),
                ("refused", &picks.refused),
                ("too_large", &picks.too_large),
                ("no_room", &picks.no_room),
                ("without_body", &picks.without_body),
                ("left", &picks.left),
            ] {
                count_of(&mut family, &[("result", result)], count.load(Relaxed))?;
            }
        }
        let help = "Requests whose header names an objective that is followed in the cluster (known), or none that there is (unknown: they have the usual priority)";
        let mut family = describe(encoder, "objective_requests", help, MetricType::Counter)?;
        for (found, count) in facts::OBJECTIVE_FOUND.iter().zip(&self.0.proxy.objectives.named) {
            count_of(&mut family, &[("objective", *found)], count.load(Relaxed))?;
        }
        self.external_index(encoder)?;
        let help = "Streams that began with a comment to the client (comment_after), before anything had come from an engine: what their engine says in its head is lost, and refusals are told as events";
        counter(encoder, "early_streams", help, counts.early_streams.load(Relaxed))?;
        counter(
            encoder,
            "panics",
            "Requests that met an internal error. This is a bug; the log has the details",
            counts.panics.load(Relaxed),
        )?;
        let help = "Spans of requests for OpenTelemetry, once they have ended: sent, not_taken by the collector, or dropped as the queue was full (queue_full)";
        let mut family = describe(encoder, "spans", help, MetricType::Counter)?;
        for (at, result) in SPAN_RESULTS.iter().enumerate() {
            let count = self.0.spans.as_ref().map_or(0, |spans| spans.counts.ended[at].load(Relaxed));
            count_of(&mut family, &[("result", *result)], count)?;
        }
        let front = &self.0.front;
        gauge(encoder, "connections", "Open connections of clients", front.connections())?;
        let help = "Connections that were closed before they sent a key, to make room for others";
        counter(encoder, "connections_evicted", help, front.evicted())?;
        let help = "Connections that were closed before they sent a key, for another reason: too_many_streams at once, or an unread_answer";
        let mut family = describe(encoder, "strangers_closed", help, MetricType::Counter)?;
        for (reason, count) in front.closed_strangers() {
            count_of(&mut family, &[("reason", reason)], count)?;
        }
        let help = "Bytes that connections which have not sent a key count for. Beyond 80 MiB, the largest are closed";
        gauge(encoder, "stranger_bytes", help, front.stranger_bytes())?;
        let help =
            "HTTP/2 streams that were reset because the client did not take the answer within http.write_timeout";
        counter(encoder, "stalled_streams", help, front.stalled_streams())?;
        gauge(
            encoder,
            "body_bytes",
            "Memory of the bodies of all requests in bytes, also while they are sent to engines",
            front.memory.used() as u64,
        )?;
        let help = "Requests refused because http.body_memory was full, by reason: no_room for the body, or it was too slow and gave_way to others";
        let mut family = describe(encoder, "bodies_refused", help, MetricType::Counter)?;
        for (reason, count) in front.memory.refused() {
            count_of(&mut family, &[("reason", reason)], count)?;
        }
        histogram(
            encoder,
            "decision_seconds",
            "Seconds that a decision took, including waiting in the router",
            &counts.decision,
        )?;
        let help = "Prompts that could not be tokenized, or only in part, by kind of request and reason; stored: it continues an answer that an engine keeps; skips_cache: the engine computes all of it, such as for prompt_logprobs; not_answered: the engine's /tokenize did not tell the tokens in time";
        let mut family = describe(encoder, "prompts_without_tokens", help, MetricType::Counter)?;
        for (endpoint, counts) in Endpoint::ALL.iter().zip(&self.0.reader.prompts.why_not) {
            for (why, count) in PromptFailure::ALL.iter().zip(counts) {
                count_of(&mut family, &[("endpoint", endpoint.word()), ("reason", why.word())], count.load(Relaxed))?;
            }
        }
        let help = "Prompts that the router looked at to learn what is cached of them, by kind of request";
        let mut family = describe(encoder, "prompts_looked_at", help, MetricType::Counter)?;
        for (endpoint, count) in Endpoint::ALL.iter().zip(&self.0.reader.prompts.unread.all) {
            count_of(&mut family, &[("endpoint", endpoint.word())], count.load(Relaxed))?;
        }
        let help = "Share of the last prompts that could not be tokenized, for reasons that are not the request's own: not_answered, no_tokenizer, no_template, template_refuses, other_item, took_too_long, no_room";
        let mut family = describe(encoder, "prompts_unread_share", help, MetricType::Gauge)?;
        family.encode_gauge(&self.0.reader.prompts.unread.share())?;
        let help =
            "Prompts tokenized once more, as engines of another kind or version make another prompt of the request";
        let mut family = describe(encoder, "prompts_again", help, MetricType::Counter)?;
        count_of(&mut family, &[], self.0.reader.prompts.again.load(Relaxed))?;
        Ok(())
    }

    /// Writes the metrics of the index in another process, and of the reports of cached tokens to this index.
    fn external_index(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        match self.0.external_index.as_deref() {
            None => {}
            Some(ExternalIndex::Index(remote)) => {
                let help = "Queries to the service at router.index";
                let mut family = describe(encoder, "index_questions", help, MetricType::Counter)?;
                for (result, count) in [("answered", &remote.answered), ("unanswered", &remote.unanswered)] {
                    count_of(&mut family, &[("result", result)], count.load(Relaxed))?;
                }
            }
            Some(ExternalIndex::Global(global)) => {
                let help = "Queries to the service at router.global_url: answered, unanswered, refused (such as without a key), unknown_keyspace (no site has sent a digest of the model), other_block_size, or not_asked (for a second, after three without an answer)";
                let mut family = describe(encoder, "global_questions", help, MetricType::Counter)?;
                for (result, count) in sites::ANSWERS.iter().zip(&global.questions) {
                    count_of(&mut family, &[("result", *result)], count.load(Relaxed))?;
                }
                let help = "Requests for whose prompt the service at router.global_url had answered: compared (it was told what the engine had cached), or not: nothing_claimed (by the site), not_finished, no_usage (the engine does not say), other_tokens (engine and router count different numbers), queue_full, not_taken (no answer), refused (no admin key), unknown_site";
                let mut family = describe(encoder, "global_reports", help, MetricType::Counter)?;
                for (result, count) in sites::REPORTED.iter().zip(&global.reports.counts) {
                    count_of(&mut family, &[("result", *result)], count.load(Relaxed))?;
                }
            }
        }
        let Some(observed) = &self.0.cache_reporter else { return Ok(()) };
        let help = "Prompts with what engines had cached of them, for the service at router.index: used (it could learn by it), not_needed, dropped (too many were waiting), refused (no admin key, or an unknown worker), not_taken (no answer)";
        let mut family = describe(encoder, "index_reports", help, MetricType::Counter)?;
        for (result, count) in cache_reports::RESULTS.iter().zip(&observed.counts) {
            count_of(&mut family, &[("result", *result)], count.load(Relaxed))?;
        }
        Ok(())
    }

    fn decisions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let places = &self.0.places;
        let summary = places.summary();
        model_metrics::decisions(&self.0, encoder)?;
        counter(
            encoder,
            "predictions_dropped",
            "Prompts sent to engines that did not count as on their way, because too many blocks were",
            summary.predictions_dropped,
        )?;
        counter(
            encoder,
            "requests_expired",
            "Requests given up because nothing more was heard of them",
            summary.counts.expired,
        )?;
        counter(
            encoder,
            "speed_samples_left_out",
            "Measurements of an engine's speed that were not used: far from all others, or faster than any engine",
            summary.counts.left_out_samples,
        )?;
        if let Some(recorder) = &places.recorder {
            let help = "Decisions for the record: written, dropped because too many were waiting, or failed because the file could not be written";
            let mut family = describe(encoder, "recorded_decisions", help, MetricType::Counter)?;
            for (result, count) in recorder.counts().by_name() {
                count_of(&mut family, &[("result", result)], count)?;
            }
        }
        let help = "Requests whose engine was told to pull a part of the prompt from another engine, and that are over: brought (all that was expected), short (a part), nothing, late (no first token long after it was due), failed (so did the request), or unknown (the engine does not say what it had cached)";
        let mut family = describe(encoder, "pulls", help, MetricType::Counter)?;
        for (result, count) in PullResult::ALL.iter().zip(summary.counts.pulled) {
            count_of(&mut family, &[("result", result.as_str())], count)?;
        }
        self.transfers(encoder)?;
        gauge(encoder, "queue", "Requests that wait in the router for room at an engine", summary.waiting as u64)?;
        gauge(
            encoder,
            "queue_for_engine",
            "Requests that wait in the router because no engine is up (wait_for_engine)",
            places.no_engine.len() as u64,
        )?;
        let help = "Requests that no engine was up for, by how their wait ended: placed at an engine, timeout, full (as many waited as may), or left (the client did, or it was refused for another reason)";
        let mut family = describe(encoder, "waits_for_engine", help, MetricType::Counter)?;
        for (outcome, count) in WAIT_OUTCOMES.iter().zip(&places.no_engine.ended) {
            count_of(&mut family, &[("outcome", *outcome)], count.load(Relaxed))?;
        }
        gauge(
            encoder,
            "predicted_blocks",
            "Blocks that are expected at engines because a prompt was sent there",
            summary.predicted_blocks as u64,
        )?;
        gauge(encoder, "sessions", "Sessions that stay with an engine (session_ttl)", summary.sessions as u64)?;
        Ok(())
    }

    fn reuse(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Share of the prompt tokens of about the last hour that one cache could hold: one as large as all engines' caches, or one without limit; NaN as long as that is not known";
        let mut family = describe(encoder, "possible_hit_rate", help, MetricType::Gauge)?;
        for (cache, rate) in ["fleet", "unlimited"].into_iter().zip(self.0.places.possible_hit_rates()) {
            gauge_of(&mut family, &[("cache", cache)], rate.unwrap_or(f64::NAN))?;
        }
        Ok(())
    }

    fn sessions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let sessions = &self.0.proxy.sessions;
        let help = "Prompts by what named their session; none: nothing did";
        let mut family = describe(encoder, "session_prompts", help, MetricType::Counter)?;
        let sources = Source::ALL.iter().map(|source| source.word()).chain(["none"]);
        for (source, count) in sources.zip(&sessions.by_source) {
            count_of(&mut family, &[("source", source)], count.load(Relaxed))?;
        }
        let help = "Prompts of sessions, by the event that brought them about";
        let mut family = describe(encoder, "turns", help, MetricType::Counter)?;
        for (kind, count) in Kind::ALL.iter().zip(&sessions.by_kind) {
            count_of(&mut family, &[("kind", kind.as_str())], count.load(Relaxed))?;
        }
        gauge(encoder, "known_sessions", "Sessions whose last answer is remembered", sessions.len() as u64)?;
        let (turns, lately) = sessions.lost_turns();
        let help = "Turns of sessions whose prompts begin differently turn after turn, so that no cache helps";
        counter(encoder, "changing_prompts", help, turns)?;
        gauge(encoder, "changing_prompt_sessions", "Sessions with such prompts in the last ten minutes", lately as u64)
    }

    fn engines(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let engines = self.0.fleet.engines();
        model_metrics::engines(&self.0, encoder)?;
        let help = "Questions about prompts to an engine, by path and result: tokens; refused (the engine lacks the route, or does not let the router use it), rejected (it does not take this request), failed, or late; a route that was refused, late or failed several times is left alone for 10 seconds";
        let mut family = describe(encoder, "engine_prompt_questions", help, MetricType::Counter)?;
        for engine in engines.iter() {
            for (path, route) in engine.side_routes.all() {
                for (result, count) in route.outcomes() {
                    count_of(&mut family, &[("engine", &*engine.name), ("path", path), ("result", result)], count)?;
                }
            }
        }
        let mut family = describe(
            encoder,
            "engine_standing",
            "1 for the state that an engine is in, 0 for the others",
            MetricType::Gauge,
        )?;
        for engine in engines.iter() {
            let now = engine.health.standing().name();
            for standing in HealthState::NAMES {
                let labels = [("engine", &*engine.name), ("standing", standing)];
                family.encode_family(&labels)?.encode_gauge(&i64::from(now == standing))?;
            }
        }
        let help = "1 for the worst thing that is known of an engine or of its events, 0 for the others";
        let mut family = describe(encoder, "engine_condition", help, MetricType::Gauge)?;
        for engine in engines.iter() {
            let now = engine.record.lock().condition.as_ref().map(|condition| condition.ill);
            for ill in Trouble::ALL {
                let labels = [("engine", &*engine.name), ("condition", ill.name())];
                family.encode_family(&labels)?.encode_gauge(&i64::from(now == Some(ill)))?;
            }
        }
        type Getter = fn(&Engine) -> u64;
        let gauges: [(&str, &str, Getter); 2] = [
            ("engine_requests_in_flight", "Requests at an engine", |engine| {
                engine.counts.in_flight.load(Relaxed) as u64
            }),
            (
                "engine_requests_waiting",
                "Requests at an engine for which no part of the answer's body has come yet",
                |engine| engine.counts.waiting.load(Relaxed) as u64,
            ),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for engine in engines.iter() {
                let labels = [("engine", &*engine.name)];
                family.encode_family(&labels)?.encode_gauge(&i64::try_from(read(engine)).unwrap_or(i64::MAX))?;
            }
        }
        let counters: [(&str, &str, Getter); 5] = [
            (
                "engine_broken_answers",
                "Answers that broke off, or ended with an error, after part of them had been sent to the client",
                |engine| engine.counts.broken.load(Relaxed),
            ),
            ("engine_cancelled", "Requests that clients cancelled", |engine| engine.counts.cancelled.load(Relaxed)),
            ("engine_connections", "Connections opened to an engine", |engine| engine.counts.connections.load(Relaxed)),
            (
                "engine_oversized_answers",
                "Answers of an engine about itself, and lines, models and ranks in them, that were left out as they are longer or more than is taken",
                |engine| engine.counts.oversized.load(Relaxed),
            ),
            ("engine_left_alone", "How often an engine was left out because of failures that are its own", |engine| {
                engine.counts.opened.load(Relaxed)
            }),
        ];
        for (name, help, read) in counters {
            let mut family = describe(encoder, name, help, MetricType::Counter)?;
            for engine in engines.iter() {
                count_of(&mut family, &[("engine", &*engine.name)], read(engine))?;
            }
        }
        Ok(())
    }
}

impl Scrape {
    /// Writes the learnt costs of loading and pulling blocks, which `/workers` shows too.
    fn transfers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let learnt = self.0.places.transfers();
        type Getter = fn(&LearntTransfer) -> f64;
        let gauges: [(&str, &str, Getter); 3] = [
            (
                "transfer_floor_seconds",
                "Seconds that a transfer of an engine takes at least, as learnt: by kind (host, far or pull) and the source of pulls",
                |it| it.cost.line.floor,
            ),
            ("transfer_seconds_per_token", "Seconds more for each token, as learnt", |it| it.cost.line.token),
            (
                "transfer_out_seconds",
                "Seconds until an engine pulls from a source again after pulls that failed; 0 if it may",
                |it| it.cost.out,
            ),
        ];
        for (name, help, read) in gauges {
            let mut family = describe(encoder, name, help, MetricType::Gauge)?;
            for it in &learnt {
                let name =
                    |(engine, rank): (&str, u32)| if rank == 0 { engine.into() } else { format!("{engine}/{rank}") };
                let source = it.source.as_ref().map_or_else(String::new, |(source, rank)| name((source, *rank)));
                let labels = [("engine", &*name((&it.engine, it.rank))), ("kind", it.cost.kind), ("source", &source)];
                family.encode_family(&labels)?.encode_gauge(&read(it))?;
            }
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    metrics::gauge(encoder, name, help, i64::try_from(value).unwrap_or(i64::MAX))
}

fn histogram<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    histogram: &Histogram<N>,
) -> fmt::Result {
    let (buckets, sum) = histogram.read();
    let count = buckets.iter().map(|(_, count)| count).sum();
    let mut encoder = describe(encoder, name, help, MetricType::Histogram)?;
    encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}
