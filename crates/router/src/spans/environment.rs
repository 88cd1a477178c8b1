//! Environment variables of OpenTelemetry's specification for the export of spans, and the exporter to the collector.
//! Variables on sampling, limits and batches are applied by the SDK; this file only checks them, so that no unsupported
//! value is silently ignored.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use percent_encoding::percent_decode_str;
use tokio::runtime::Handle;
use tokio_rustls::rustls::ClientConfig;

use super::otlp::{encode_request, encode_resource, rejected};
use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::error::Error;
use crate::remote::{post_with, service_at};

/// URL of OpenTelemetry's default collector, on the router's own machine.
const BESIDE: &str = "http://localhost:4318";

/// Default maximum number of spans that wait to be sent, as in OpenTelemetry's specification.
const QUEUE: usize = 2_048;
/// Default time limit for sending a batch of spans, as in OpenTelemetry's specification.
const TIMEOUT: Duration = Duration::from_secs(10);

const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// Settings of the export of spans, from environment variables.
#[derive(Debug, PartialEq)]
pub(super) struct SpanSettings {
    pub(super) endpoint: Uri,
    pub(super) timeout: Duration,
    /// Maximum number of spans that wait to be sent.
    pub(super) queue: usize,
    /// File of the certificate authorities that sign the collector's certificate; None for the router's own
    /// authorities.
    pub(super) certificate: Option<PathBuf>,
    /// Headers of each request with spans to the collector.
    pub(super) headers: HeaderMap,
    /// True if environment variables set a name for the service.
    pub(super) names_service: bool,
}

impl SpanSettings {
    /// Reads the settings from environment variables; None if no spans are to be sent. `said`: function that returns
    /// the value of a variable.
    ///
    /// # Errors
    /// [`Error::Config`] if a value is not supported.
    pub(super) fn read(said: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        // By the specification, an empty value is none.
        let said = |name: &str| said(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        if said("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let exporter = said("OTEL_TRACES_EXPORTER");
        match exporter.as_deref() {
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => return Err(refused("OTEL_TRACES_EXPORTER", other, "otlp or none")),
        }
        // Of each pair, the one about spans goes first.
        let either = |name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            said(&own).map(|value| (own, value)).or_else(|| {
                let general = format!("OTEL_EXPORTER_OTLP_{name}");
                said(&general).map(|value| (general, value))
            })
        };
        let (variable, endpoint) =
            match (said("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), said("OTEL_EXPORTER_OTLP_ENDPOINT")) {
                (Some(whole), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", whole),
                (None, Some(base)) => {
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{}/v1/traces", base.trim_end_matches('/')))
                }
                (None, None) if exporter.is_some() => ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{BESIDE}/v1/traces")),
                (None, None) => return Ok(None),
            };
        let uri = endpoint.parse::<Uri>().ok();
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
        let endpoint = uri.ok_or_else(|| refused(variable, &endpoint, "http://host:port or https://host:port"))?;
        if let Some((variable, protocol)) = either("PROTOCOL").filter(|(_, protocol)| protocol != "http/protobuf") {
            let wanted = "http/protobuf, at the collector's port for HTTP (4318 as a rule)";
            return Err(refused(&variable, &protocol, wanted));
        }
        if let Some((variable, kind)) = either("COMPRESSION").filter(|(_, kind)| kind != "none") {
            return Err(refused(&variable, &kind, "none"));
        }
        for name in ["CLIENT_KEY", "CLIENT_CERTIFICATE"] {
            if let Some((variable, path)) = either(name) {
                return Err(refused(
                    &variable,
                    &path,
                    "nothing: the router shows collectors no certificate of its own",
                ));
            }
        }
        let sampler = said("OTEL_TRACES_SAMPLER");
        if let Some(sampler) = sampler.as_deref().filter(|sampler| !SAMPLERS.contains(sampler)) {
            return Err(refused("OTEL_TRACES_SAMPLER", sampler, &SAMPLERS.join(", ")));
        }
        let share = said("OTEL_TRACES_SAMPLER_ARG").unwrap_or_default();
        let is_share = share.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share));
        if sampler.is_some_and(|sampler| sampler.ends_with("traceidratio")) && !is_share {
            return Err(refused("OTEL_TRACES_SAMPLER_ARG", &share, "a share from 0 to 1"));
        }
        if let Some(listed) = said("OTEL_PROPAGATORS") {
            let mut names = listed.split(',').map(str::trim);
            if !names.clone().any(|name| name == "tracecontext")
                || names.any(|name| !matches!(name, "tracecontext" | "baggage"))
            {
                return Err(refused("OTEL_PROPAGATORS", &listed, "tracecontext or tracecontext,baggage"));
            }
        }
        let number = |name: &str, default: u64| match said(name) {
            None => Ok(default),
            Some(text) => text
                .parse::<u64>()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| refused(name, &text, "a positive number")),
        };
        for name in ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] {
            number(name, 1)?;
        }
        let timeout = match either("TIMEOUT") {
            None => TIMEOUT,
            Some((variable, _)) => Duration::from_millis(number(&variable, 1)?),
        };
        let mut headers = HeaderMap::new();
        if let Some((variable, listed)) = either("HEADERS") {
            for pair in listed.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
                // Of the value, which may be a secret, nothing is shown.
                let shown = || pair.split_once('=').map_or("a part without =", |(name, _)| name);
                let (name, value) = read_header(pair)
                    .ok_or_else(|| refused(&variable, shown(), "name=value,… with values in percent-encoding"))?;
                headers.append(name, value);
            }
        }
        let attributes = said("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let is_name = |pair: &str| pair.split('=').next().is_some_and(|key| key.trim() == "service.name");
        Ok(Some(Self {
            endpoint,
            timeout,
            queue: usize::try_from(number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE as u64)?).unwrap_or(usize::MAX),
            headers,
            certificate: either("CERTIFICATE").map(|(_, path)| path.into()),
            names_service: said("OTEL_SERVICE_NAME").is_some() || attributes.split(',').any(is_name),
        }))
    }
}

/// Parses a header in the form that OpenTelemetry's variables use: `name=value`, with the value in percent-encoding;
/// None if malformed.
fn read_header(pair: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pair.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    let mut value = HeaderValue::from_str(&value).ok()?;
    value.set_sensitive(true);
    Some((name.trim().parse().ok()?, value))
}

fn refused(variable: &str, value: &str, wanted: &str) -> Error {
    Error::config(format!("{variable} is {value:?}, which the router cannot follow; wanted: {wanted}"))
}

/// Names, in the metrics, of the outcomes of exporting a span: sent, rejected by the collector, or dropped because the
/// queue was full.
pub(crate) const SPAN_RESULTS: [&str; 3] = ["sent", "not_taken", "queue_full"];

/// Counts of trace spans, by the outcome of their export.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    /// Number of ended spans, by the outcome of their export ([`SPAN_RESULTS`]).
    pub(crate) ended: [AtomicU64; SPAN_RESULTS.len()],
    /// Number of spans that wait to be sent or are being sent.
    waiting: AtomicUsize,
    /// True if the last batch of spans could not be sent to the collector.
    is_failing: AtomicBool,
}

/// Exporter of batches of spans over the router's own HTTP client. The exporter counts the outcomes, and logs when
/// sending begins to fail and when it succeeds again.
pub(super) struct OtlpExporter {
    at: Arc<Engine>,
    handle: Handle,
    endpoint: Uri,
    headers: HeaderMap,
    timeout: Duration,
    /// Description of the router (OpenTelemetry's resource), encoded for OTLP.
    resource: Vec<u8>,
    counts: Arc<SpanCounts>,
}

impl OtlpExporter {
    /// Makes the exporter of spans. `handle`: runtime on which connections run, as the exporting thread has no runtime.
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

    /// Sends a batch of spans to the collector.
    ///
    /// # Errors
    /// The number of spans that the collector rejected, and the reason.
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

/// Span processor that queues ended spans for export, and drops them if too many are waiting.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    next: BatchSpanProcessor,
    most: usize,
    counts: Arc<SpanCounts>,
}

impl BoundedProcessor {
    /// Makes the span processor. `next`: processor that exports the spans; `most`: maximum number of waiting spans,
    /// equal to the length of the queue of `next`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<SpanSettings>, String> {
        let said =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        SpanSettings::read(said).map_err(|error| error.to_string())
    }

    #[test]
    fn where_spans_are_sent() {
        let endpoint = |variables: &[(&str, &str)]| {
            let read = read(variables).expect("good variables");
            read.map(|settings| settings.endpoint.to_string())
        };
        const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318/");
        assert_eq!(endpoint(&[]), None);
        assert_eq!(endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        assert_eq!(endpoint(&[BASE]).as_deref(), Some("http://otel:4318/v1/traces"));
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://otel/in");
        assert_eq!(endpoint(&[BASE, whole]).as_deref(), Some("https://otel/in"));
        let beside = endpoint(&[("OTEL_TRACES_EXPORTER", "otlp")]);
        assert_eq!(beside.as_deref(), Some("http://localhost:4318/v1/traces"));
        assert_eq!(endpoint(&[BASE, ("OTEL_TRACES_EXPORTER", "none")]), None);
        assert_eq!(endpoint(&[BASE, ("OTEL_SDK_DISABLED", "TRUE")]), None);
        let settings = read(&[
            BASE,
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "7"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=x"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_PROPAGATORS", "tracecontext, baggage"),
        ]);
        let settings = settings.expect("good variables").expect("an endpoint");
        let known = (settings.timeout, settings.queue, settings.names_service);
        assert_eq!(known, (Duration::from_millis(500), 7, true));
    }

    #[test]
    fn headers_are_read_and_secrets_not_shown() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318");
        let headers = |listed: &str| read(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", listed)]);
        let read = headers("x-tenant=blue, authorization=Basic%20YTpi").expect("good").expect("an endpoint").headers;
        let found = ["x-tenant", "authorization"].map(|name| read.get(name).map(HeaderValue::as_bytes));
        assert_eq!(found, [Some(&b"blue"[..]), Some(b"Basic YTpi")]);
        for (listed, shown) in [("x y=secret", "x y"), ("secret", "a part without ="), ("x=secret%0a", "x")] {
            let error = headers(listed).expect_err(listed);
            assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS") && error.contains(shown), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn no_value_is_passed_over() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318");
        for (variable, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "otel:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
            ("OTEL_TRACES_EXPORTER", "jaeger"),
            ("OTEL_TRACES_SAMPLER", "xray"),
            ("OTEL_PROPAGATORS", "b3"),
            ("OTEL_PROPAGATORS", "baggage"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1s"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ] {
            let error = read(&[(variable, value), base]).expect_err(variable);
            assert!(error.contains(variable) && error.contains(value), "{error}");
        }
        let error = read(&[base, ("OTEL_TRACES_SAMPLER", "traceidratio")]).expect_err("it has no share");
        assert!(error.contains("OTEL_TRACES_SAMPLER_ARG"), "{error}");
    }
}
