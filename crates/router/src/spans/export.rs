//! The way of spans to the collector. Requests never wait for it: what cannot be queued or sent is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::Handle;
use tokio_rustls::rustls::ClientConfig;

use super::environment::SpanSettings;
use super::otlp::{encode_request, encode_resource, rejected};
use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::error::Error;
use crate::remote::service::{post_with, service_at};

/// Ends of spans: sent, not taken by the collector, or dropped as the queue was full.
pub(crate) const SPAN_RESULTS: [&str; 3] = ["sent", "not_taken", "queue_full"];

/// Counts of spans.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    /// Spans that have ended, by [`SPAN_RESULTS`].
    pub(crate) ended: [AtomicU64; SPAN_RESULTS.len()],
    /// Spans that wait to be sent, or are being sent.
    waiting: AtomicUsize,
    /// True if the last batch could not be sent.
    is_failing: AtomicBool,
}

/// Sends batches over the router's own connections, counts what comes of them, and logs when that stops and starts to work.
pub(super) struct OtlpExporter {
    at: Arc<Engine>,
    handle: Handle,
    endpoint: Uri,
    headers: HeaderMap,
    timeout: Duration,
    /// The resource, encoded.
    resource: Vec<u8>,
    counts: Arc<SpanCounts>,
}

impl OtlpExporter {
    /// `handle`: runtime of the connections; the thread that exports has none.
    pub(super) fn new(
        settings: &SpanSettings,
        config: &Config,
        tls: &Arc<ClientConfig>,
        handle: Handle,
        counts: Arc<SpanCounts>,
    ) -> Result<Self, Error> {
        let endpoint = settings.endpoint.clone();
        let (scheme, authority) = (endpoint.scheme_str().unwrap_or("http"), endpoint.authority());
        let url = format!("{scheme}://{}", authority.map_or("", |authority| authority.as_str()));
        let at = service_at("OTEL_EXPORTER_OTLP_ENDPOINT", EngineConfig::at(&url), config, 1, tls)?;
        let mut headers = settings.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let timeout = settings.timeout;
        Ok(Self { at: Arc::new(at), handle, endpoint, headers, timeout, resource: Vec::new(), counts })
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// The reason why the collector has not taken all of it, and how many spans it did not take.
    async fn send(&self, batch: &[SpanData]) -> Result<(), (usize, String)> {
        let body = encode_request(&self.resource, batch);
        let (at, timeout, headers, uri) = (self.at.clone(), self.timeout, self.headers.clone(), self.endpoint.clone());
        let sending = self.handle.spawn(async move {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            match tokio::time::timeout(timeout, post_with(&at, 0, path, &headers, &body)).await {
                Ok(sent) => sent.map_err(|fault| fault.to_string()),
                Err(_) => Err(format!("no answer within {timeout:?}")),
            }
        });
        let answered = sending.await.unwrap_or_else(|_| Err("the router ends".to_owned()));
        let (status, answer) = answered.map_err(|why| (batch.len(), why))?;
        if !status.is_success() {
            return Err((batch.len(), format!("it answers with status {status}")));
        }
        match rejected(&answer) {
            (0, _) => Ok(()),
            (spans, why) => Err((usize::try_from(spans).unwrap_or(usize::MAX).min(batch.len()), why)),
        }
    }

    fn note(&self, spans: usize, done: &Result<(), (usize, String)>) {
        let counts = &self.counts;
        let not_taken = done.as_ref().map_or_else(|(not_taken, _)| *not_taken, |()| 0);
        counts.waiting.fetch_sub(spans, Relaxed);
        counts.ended[0].fetch_add((spans - not_taken) as u64, Relaxed);
        counts.ended[1].fetch_add(not_taken as u64, Relaxed);
        let was_failing = counts.is_failing.swap(done.is_err(), Relaxed);
        let endpoint = &self.endpoint;
        match done {
            Err((_, why)) if !was_failing => tracing::warn!(
                %endpoint,
                reason = why,
                "spans cannot be sent to {endpoint}, and are lost until they can be; requests do not wait for them: {why}"
            ),
            Ok(()) if was_failing => tracing::info!(%endpoint, "spans are sent to {endpoint} again"),
            _ => {}
        }
    }
}

impl std::fmt::Debug for OtlpExporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OtlpExporter")
    }
}

impl SpanExporter for OtlpExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let done = self.send(&batch).await;
        self.note(batch.len(), &done);
        done.map_err(|(_, why)| OTelSdkError::InternalFailure(why))
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = encode_resource(resource);
    }
}

/// Hands spans on to be sent, as long as not too many wait.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    next: BatchSpanProcessor,
    most: usize,
    counts: Arc<SpanCounts>,
}

impl BoundedProcessor {
    /// `most`: spans that may wait, as many as the queue of `next` has room for.
    pub(super) fn new(next: BatchSpanProcessor, most: usize, counts: Arc<SpanCounts>) -> Self {
        Self { next, most, counts }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.next.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.counts.waiting.fetch_add(1, Relaxed) >= self.most {
            self.counts.waiting.fetch_sub(1, Relaxed);
            self.counts.ended[2].fetch_add(1, Relaxed);
        } else {
            self.next.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.next.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.next.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.next.set_resource(resource);
    }
}
