//! Trace spans for OpenTelemetry: one for each request at the router, and below it one for each attempt at an engine.
//!
//! | file | contents |
//! |---|---|
//! | `environment.rs` | OpenTelemetry's own variables, which determine whether and where spans are sent, and the exporter to the collector, which never delays a request |
//! | `attempt.rs` | the spans of a request and of an attempt at an engine |
//! | `otlp.rs` | the encoding of spans |
//!
//! Spans contain no text of prompts or answers.

mod attempt;
mod environment;
mod otlp;

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tokio_rustls::rustls::ClientConfig;

use self::environment::{BoundedProcessor, OtlpExporter, SpanSettings};
use crate::config::Config;
use crate::engines::fleet::client_tls;
use crate::error::Error;

pub(crate) use self::attempt::{AskedFacts, AttemptSpan, DecidedAttempt, RequestSpan, operation};
pub(crate) use self::environment::{SPAN_RESULTS, SpanCounts};

/// Recorder of trace spans, which are exported to a collector.
pub(crate) struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    pub(crate) counts: Arc<SpanCounts>,
    /// URL of the collector to which spans are sent.
    pub(crate) endpoint: Uri,
}

impl Spans {
    /// Starts the recording of spans; None if the environment variables do not configure an export. `handle`: runtime
    /// that sends the spans.
    ///
    /// # Errors
    /// [`Error::Config`] if a variable has an unsupported value.
    pub(crate) fn start(config: &Config, tls: &Arc<ClientConfig>, handle: &Handle) -> Result<Option<Arc<Self>>, Error> {
        let said = |name: &str| std::env::var(name).ok();
        let Some(settings) = SpanSettings::read(said)? else { return Ok(None) };
        let tls = match &settings.certificate {
            Some(path) => Arc::new(client_tls("OTEL_EXPORTER_OTLP_CERTIFICATE", Some(path))?),
            None => tls.clone(),
        };
        let counts = Arc::new(SpanCounts::default());
        let exporter = OtlpExporter::new(&settings, config, &tls, handle.clone(), counts.clone())?;
        let SpanSettings { endpoint, queue, names_service, .. } = settings;
        let processor = BoundedProcessor::new(BatchSpanProcessor::builder(exporter).build(), queue, counts.clone());
        let mut resource = Resource::builder();
        if !names_service {
            resource = resource.with_service_name("kvatlas-router");
        }
        let provider =
            SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(processor).build();
        let tracer = provider.tracer("kvatlas");
        tracing::info!(endpoint = %endpoint, "spans of requests are sent to {endpoint}");
        Ok(Some(Arc::new(Self { provider, tracer, counts, endpoint })))
    }

    /// Sends the remaining spans to the collector, within the time limit `timeout`.
    pub(crate) fn end(&self, timeout: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(timeout) {
            tracing::warn!(endpoint = %self.endpoint, "the last spans may not have been sent: {error}");
        }
    }
}
