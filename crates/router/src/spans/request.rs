//! The span of a request at the router.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use hyper::header::{HeaderMap, HeaderName};
use hyper::{Method, StatusCode};
use kvatlas_prompt::Endpoint;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::Span;
use parking_lot::Mutex;

use super::Spans;

/// The span of a request, which ends when all who hold it have let go: the answer has passed, or there is none.
pub(crate) struct RequestSpan {
    pub(super) spans: Arc<Spans>,
    pub(super) context: SpanContext,
    /// Record of it; None for a request that is not sampled.
    pub(super) recorded: Option<RecordedRequest>,
}

pub(super) struct RecordedRequest {
    span: Mutex<Span>,
    pub(super) asked: OnceLock<AskedFacts>,
    /// Attempts that have failed, and the last one's fault.
    pub(super) failures: AtomicI64,
    pub(super) last_fault: Mutex<Option<&'static str>>,
}

/// Facts of a request, apart from its prompt.
pub(crate) struct AskedFacts {
    /// The operation, in the words of OpenTelemetry, if it is one of a model.
    pub(crate) operation: Option<&'static str>,
    pub(crate) model: Option<String>,
    pub(crate) max_tokens: Option<u32>,
    /// Tokens of the prompt, counted or estimated.
    pub(crate) prompt_tokens: u32,
    pub(crate) streams: bool,
}

/// The operation of a request at an endpoint, in the words of OpenTelemetry.
pub(crate) fn operation(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat | Endpoint::Responses | Endpoint::Messages | Endpoint::ChatTokens => "chat",
        Endpoint::Completions | Endpoint::Generate | Endpoint::Tokens => "text_completion",
        Endpoint::Embeddings => "embeddings",
    }
}

/// Headers of a request, to find the client's trace context in.
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
    /// Begins the span of a request, below the client's if it names one. `route`: the path's pattern.
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
    /// Notes what it asks. Made only if it is recorded.
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

    /// Notes the status that the client gets, and the code of the router's refusal, if it is one. No status: the client has
    /// left.
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

    /// Notes that an attempt has failed.
    pub(super) fn note_fault(&self, fault: &'static str) {
        if let Some(recorded) = &self.recorded {
            recorded.failures.fetch_add(1, Relaxed);
            *recorded.last_fault.lock() = Some(fault);
        }
    }
}

impl AskedFacts {
    /// The attributes of the request that its span has, and those of its attempts.
    pub(super) fn attributes(&self) -> impl Iterator<Item = KeyValue> {
        let operation = self.operation.map(|operation| KeyValue::new("gen_ai.operation.name", operation));
        let model = self.model.clone().map(|model| KeyValue::new("gen_ai.request.model", model));
        let most = self.max_tokens.map(|most| KeyValue::new("gen_ai.request.max_tokens", i64::from(most)));
        let streams = self.operation.map(|_| KeyValue::new("kvatlas.streamed", self.streams));
        [operation, model, most, streams].into_iter().flatten()
    }
}
