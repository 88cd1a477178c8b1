//! Trace spans of requests at the router, and of the attempts to serve them at engines.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName};
use hyper::{Method, StatusCode};
use kvatlas_prompt::Endpoint;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::Span;
use parking_lot::Mutex;

use super::Spans;
use crate::config::Handover;
use crate::engines::Engine;

/// Trace span of a request. The span ends when the last reference to it is dropped, after the answer was forwarded or
/// the request failed.
pub(crate) struct RequestSpan {
    pub(super) spans: Arc<Spans>,
    pub(super) context: SpanContext,
    /// Recorded data of the request; None if the request is not sampled.
    pub(super) recorded: Option<RecordedRequest>,
}

pub(super) struct RecordedRequest {
    span: Mutex<Span>,
    pub(super) asked: OnceLock<AskedFacts>,
    /// Number of failed attempts to serve the request.
    pub(super) failures: AtomicI64,
    /// Name of the fault of the last failed attempt; None if no attempt failed.
    pub(super) last_fault: Mutex<Option<&'static str>>,
}

/// Facts about a request for its trace span, without the text of the prompt.
pub(crate) struct AskedFacts {
    /// Name of the operation in OpenTelemetry's terms; None for a request that is not to a model.
    pub(crate) operation: Option<&'static str>,
    pub(crate) model: Option<String>,
    pub(crate) max_tokens: Option<u32>,
    /// Number of prompt tokens, counted or estimated.
    pub(crate) prompt_tokens: u32,
    pub(crate) streams: bool,
}

/// Returns the name of the operation of requests at an endpoint, in OpenTelemetry's terms.
pub(crate) fn operation(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat | Endpoint::Responses | Endpoint::Messages | Endpoint::ChatTokens => "chat",
        Endpoint::Completions | Endpoint::Generate | Endpoint::Tokens => "text_completion",
        Endpoint::Embeddings => "embeddings",
    }
}

/// Headers of a request, from which the client's trace context is extracted.
struct RequestHeaders<'a>(&'a HeaderMap);

impl Extractor for RequestHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

impl Spans {
    /// Starts the span of a request, as a child of the client's span if the headers identify one. `route`: pattern of
    /// the path.
    pub(crate) fn begin(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        route: &'static str,
        headers: &HeaderMap,
    ) -> Arc<RequestSpan> {
        let mut parent = Context::new();
        if headers.contains_key("traceparent") {
            parent = TraceContextPropagator::new().extract_with_context(&parent, &RequestHeaders(headers));
        }
        let builder = SpanBuilder::from_name(route).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &parent);
        let context = span.span_context().clone();
        let recorded = span.is_recording().then(|| {
            let method = method.as_str().to_owned();
            span.update_name(format!("{method} {route}"));
            span.set_attribute(KeyValue::new("http.request.method", method));
            span.set_attribute(KeyValue::new("http.route", route));
            span.set_attribute(KeyValue::new("url.path", path.to_owned()));
            RecordedRequest {
                span: Mutex::new(span),
                asked: OnceLock::new(),
                failures: AtomicI64::new(0),
                last_fault: Mutex::new(None),
            }
        });
        Arc::new(RequestSpan { spans: self.clone(), context, recorded })
    }
}

impl RequestSpan {
    /// Adds facts about the request to its trace span. `asked`: function that makes the facts, called only if the span
    /// is recorded.
    pub(crate) fn asks(&self, asked: impl FnOnce() -> AskedFacts) {
        let Some(recorded) = &self.recorded else { return };
        let asked = asked();
        let mut span = recorded.span.lock();
        for attribute in asked.attributes() {
            span.set_attribute(attribute);
        }
        span.set_attribute(KeyValue::new("kvatlas.prompt_tokens", i64::from(asked.prompt_tokens)));
        let _ = recorded.asked.set(asked);
    }

    /// Records the status sent to the client, and the error code if the router refused the request. `status` is None if
    /// the client has left.
    pub(crate) fn answered(&self, status: Option<StatusCode>, refusal: Option<&'static str>) {
        let Some(recorded) = &self.recorded else { return };
        let mut span = recorded.span.lock();
        let Some(status) = status else {
            span.set_attribute(KeyValue::new("error.type", "client_left"));
            return;
        };
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        let kind = refusal.map(str::to_owned).or_else(|| status.is_server_error().then(|| status.as_str().to_owned()));
        if let Some(kind) = kind {
            span.set_attribute(KeyValue::new("error.type", kind));
        }
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
    }

    /// Records that an attempt to serve the request has failed, with the fault's name.
    pub(super) fn note_fault(&self, fault: &'static str) {
        if let Some(recorded) = &self.recorded {
            recorded.failures.fetch_add(1, Relaxed);
            *recorded.last_fault.lock() = Some(fault);
        }
    }
}

impl AskedFacts {
    /// Returns the span attributes for the request, which its attempts' spans have too.
    pub(super) fn attributes(&self) -> impl Iterator<Item = KeyValue> {
        let operation = self.operation.map(|operation| KeyValue::new("gen_ai.operation.name", operation));
        let model = self.model.clone().map(|model| KeyValue::new("gen_ai.request.model", model));
        let most = self.max_tokens.map(|most| KeyValue::new("gen_ai.request.max_tokens", i64::from(most)));
        let streams = self.operation.map(|_| KeyValue::new("kvatlas.streamed", self.streams));
        [operation, model, most, streams].into_iter().flatten()
    }
}

/// Request that is about to be sent to an engine, with the decision for this engine.
pub(crate) struct DecidedAttempt<'a> {
    pub(crate) engine: &'a Engine,
    /// Value of the request header that selects the engine's data-parallel rank; None if the engine has only one rank.
    pub(crate) rank: Option<u32>,
    pub(crate) policy: &'a str,
    /// Name of the reason for the choice of the engine.
    pub(crate) why: &'static str,
    /// Duration of the routing decision, including the time for which the request waited for the decision.
    pub(crate) took: Duration,
    /// Number of prompt tokens expected in the engine's cache.
    pub(crate) cached: u32,
}

/// Trace span of an attempt to serve a request at an engine. If dropped before its end is recorded, the attempt is
/// counted as cancelled by the client.
pub(crate) struct AttemptSpan {
    request: Arc<RequestSpan>,
    /// Recorded data of the attempt; None if the request is not sampled.
    span: Option<Box<Span>>,
    has_status: bool,
    has_token: bool,
}

impl RequestSpan {
    /// Starts the span of an attempt to serve the request at an engine.
    pub(crate) fn attempt(self: &Arc<Self>, sent: &DecidedAttempt<'_>) -> AttemptSpan {
        let span = self.begin_attempt(sent).map(Box::new);
        AttemptSpan { request: self.clone(), span, has_status: false, has_token: false }
    }

    fn begin_attempt(&self, sent: &DecidedAttempt<'_>) -> Option<Span> {
        let recorded = self.recorded.as_ref()?;
        let asked = recorded.asked.get();
        let name = match asked.map(|asked| (asked.operation, &asked.model)) {
            Some((Some(operation), Some(model))) => format!("{operation} {model}").into(),
            Some((Some(operation), None)) => operation.into(),
            _ => std::borrow::Cow::Borrowed("forward"),
        };
        let engine = sent.engine;
        let mut attributes = Vec::with_capacity(20);
        attributes.extend(asked.into_iter().flat_map(|asked| asked.attributes()));
        if let Some(asked) = asked {
            attributes.push(KeyValue::new("kvatlas.prompt_tokens", i64::from(asked.prompt_tokens)));
        }
        if let Some(handover) = engine.handover() {
            let kind = match handover {
                Handover::Vllm => "vllm",
                Handover::Sglang => "sglang",
            };
            attributes.push(KeyValue::new("gen_ai.provider.name", kind));
        }
        attributes.extend([
            KeyValue::new("server.address", engine.address.host.clone()),
            KeyValue::new("server.port", i64::from(engine.address.port)),
            KeyValue::new("kvatlas.engine", engine.name.clone()),
            KeyValue::new("kvatlas.policy", sent.policy.to_owned()),
            KeyValue::new("kvatlas.reason", sent.why),
            KeyValue::new("kvatlas.decision_seconds", sent.took.as_secs_f64()),
            KeyValue::new("kvatlas.predicted_cached_tokens", i64::from(sent.cached)),
        ]);
        attributes.extend(sent.rank.map(|rank| KeyValue::new("kvatlas.rank", i64::from(rank))));
        if let Some(fault) = *recorded.last_fault.lock() {
            attributes.push(KeyValue::new("kvatlas.retry_reason", fault));
            attributes.push(KeyValue::new("http.request.resend_count", recorded.failures.load(Relaxed)));
        }
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Client).with_attributes(attributes);
        let parent = Context::new().with_remote_span_context(self.context.clone());
        Some(self.spans.tracer.build_with_context(builder, &parent)).filter(|span| span.is_recording())
    }
}

impl AttemptSpan {
    /// Returns header lines with the span's W3C trace context, for the request to the engine.
    pub(crate) fn headers(&self) -> String {
        head_lines(self.span.as_ref().map_or(&self.request.context, |span| span.span_context()))
    }

    /// Records the status of the engine's answer; only the first status is recorded.
    pub(crate) fn answered(&mut self, status: u16) {
        if let Some(span) = self.span.as_mut().filter(|_| !self.has_status) {
            self.has_status = true;
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
            if status >= 400 {
                span.set_attribute(KeyValue::new("error.type", status.to_string()));
                span.set_status(Status::error(""));
            }
        }
    }

    /// Records that the first token of the answer has arrived.
    pub(crate) fn first_token(&mut self) {
        if let Some(span) = self.span.as_mut().filter(|_| !self.has_token) {
            self.has_token = true;
            span.add_event("first_token", Vec::new());
        }
    }

    /// Ends the span after a complete answer. `prompt`, `cached`, `output`: numbers of prompt tokens, cached prompt
    /// tokens and generated tokens as reported by the engine, None if not reported.
    pub(crate) fn end(&mut self, prompt: Option<u32>, cached: Option<u32>, output: Option<u32>) {
        let Some(mut span) = self.span.take() else { return };
        for (name, tokens) in [
            ("gen_ai.usage.input_tokens", prompt),
            ("gen_ai.usage.cache_read.input_tokens", cached),
            ("gen_ai.usage.output_tokens", output),
        ] {
            if let Some(tokens) = tokens {
                span.set_attribute(KeyValue::new(name, i64::from(tokens)));
            }
        }
        span.end();
    }

    /// Ends the span of an attempt without a complete answer. `fault`: name of the fault in metrics.
    pub(crate) fn fail(&mut self, fault: &'static str) {
        self.request.note_fault(fault);
        self.end_by(fault);
    }

    fn end_by(&mut self, kind: &'static str) {
        let Some(mut span) = self.span.take() else { return };
        span.set_attribute(KeyValue::new("error.type", kind));
        span.set_status(Status::error(""));
        span.end();
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        self.end_by("cancelled");
    }
}

/// Makes header lines with a W3C trace context.
fn head_lines(context: &SpanContext) -> String {
    let mut line = *b"traceparent: 00-________________________________-________________-00\r\n";
    put_hex(&mut line[16..48], &context.trace_id().to_bytes());
    put_hex(&mut line[49..65], &context.span_id().to_bytes());
    line[67] = if context.is_sampled() { b'1' } else { b'0' };
    let mut lines = String::from_utf8_lossy(&line).into_owned();
    let state = context.trace_state().header();
    if !state.is_empty() {
        lines.extend(["tracestate: ", &state, "\r\n"]);
    }
    lines
}

/// Writes bytes as hexadecimal digits, faster than general formatting, as every request, sampled or not, needs these
/// digits.
fn put_hex(to: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in to.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

    use super::*;

    #[test]
    fn a_trace_context_is_written_as_w3c_says() {
        let (trace, span) =
            (TraceId::from(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736), SpanId::from(0x00f0_67aa_0ba9_02b7));
        let lines = |flags, state| head_lines(&SpanContext::new(trace, span, flags, false, state));
        let known = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        assert_eq!(lines(TraceFlags::SAMPLED, TraceState::NONE), format!("{known}-01\r\n"));
        let state = TraceState::from_key_value([("vendor", "1")]).expect("a good state");
        assert_eq!(lines(TraceFlags::default(), state), format!("{known}-00\r\ntracestate: vendor=1\r\n"));
    }
}
