//! Encoding of spans in OTLP with protobuf (`opentelemetry/proto/collector/trace/v1/trace_service.proto` and its
//! imports), by the public field numbers. Spans are encoded directly, without intermediate message objects, which would
//! cost as many instructions as a whole request.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Event, SpanId, SpanKind, Status};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use prost::encoding::{WireType, encoded_len_varint};

/// Bit in the flags of an OTLP span. If it is set, the bit [`PARENT_IS_REMOTE`] has a meaning.
const KNOWS_PARENT: u32 = 0x100;
/// Bit in the flags of an OTLP span. If it is set, the parent span is in another process.
const PARENT_IS_REMOTE: u32 = 0x200;

/// Encodes the description of the router as an OTLP [`Resource`], for [`encode_request`].
pub(super) fn encode_resource(resource: &Resource) -> Vec<u8> {
    let mut attributes = Vec::new();
    for (key, value) in resource {
        put_attribute(&mut attributes, 1, key.as_str(), value);
    }
    let mut encoded = Vec::with_capacity(attributes.len() + 8);
    put_bytes(&mut encoded, 1, &attributes);
    encoded
}

/// Encodes an `ExportTraceServiceRequest` with the spans of `batch`, which all belong to one scope. `resource`: result
/// of [`encode_resource`].
pub(super) fn encode_request(resource: &[u8], batch: &[SpanData]) -> Vec<u8> {
    let mut spans = Vec::with_capacity(batch.len() * 640);
    if let Some(first) = batch.first() {
        let mut scope = Vec::new();
        put_bytes(&mut scope, 1, first.instrumentation_scope.name().as_bytes());
        put_bytes(&mut spans, 1, &scope);
    }
    let mut span = Vec::with_capacity(1_024);
    for data in batch {
        span.clear();
        put_span(&mut span, data);
        put_bytes(&mut spans, 2, &span);
    }
    let in_resource = resource.len() + 1 + encoded_len_varint(spans.len() as u64) + spans.len();
    let mut request = Vec::with_capacity(in_resource + 8);
    put_length(&mut request, 1, in_resource);
    request.extend_from_slice(resource);
    put_bytes(&mut request, 2, &spans);
    request
}

/// Parses a collector's successful answer to a batch: the number of spans rejected in spite of the success, and the
/// reason.
pub(super) fn rejected(answer: &[u8]) -> (u64, String) {
    let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or((0, String::new()), |partial| {
        (u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message)
    })
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

fn put_span(to: &mut Vec<u8>, span: &SpanData) {
    let context = &span.span_context;
    put_bytes(to, 1, &context.trace_id().to_bytes());
    put_bytes(to, 2, &context.span_id().to_bytes());
    let state = context.trace_state().header();
    if !state.is_empty() {
        put_bytes(to, 3, state.as_bytes());
    }
    if span.parent_span_id != SpanId::INVALID {
        put_bytes(to, 4, &span.parent_span_id.to_bytes());
    }
    put_bytes(to, 5, span.name.as_bytes());
    let kind = match span.span_kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    };
    put_number(to, 6, kind);
    put_time(to, 7, span.start_time);
    put_time(to, 8, span.end_time);
    for KeyValue { key, value, .. } in &span.attributes {
        put_attribute(to, 9, key.as_str(), value);
    }
    put_count(to, 10, span.dropped_attributes_count);
    for event in &span.events.events {
        put_event(to, event);
    }
    put_count(to, 12, span.events.dropped_count);
    if let Status::Error { description } = &span.status {
        let mut status = Vec::new();
        if !description.is_empty() {
            put_bytes(&mut status, 2, description.as_bytes());
        }
        put_number(&mut status, 3, 2);
        put_bytes(to, 15, &status);
    } else if span.status == Status::Ok {
        put_bytes(to, 15, &[3 << 3, 1]);
    }
    let remote = if span.parent_span_is_remote { PARENT_IS_REMOTE } else { 0 };
    put_key(to, 16, WireType::ThirtyTwoBit);
    to.extend_from_slice(&(u32::from(context.trace_flags().to_u8()) | KNOWS_PARENT | remote).to_le_bytes());
}

fn put_event(to: &mut Vec<u8>, event: &Event) {
    let mut encoded = Vec::with_capacity(32);
    put_time(&mut encoded, 1, event.timestamp);
    put_bytes(&mut encoded, 2, event.name.as_bytes());
    for KeyValue { key, value, .. } in &event.attributes {
        put_attribute(&mut encoded, 3, key.as_str(), value);
    }
    put_count(&mut encoded, 4, event.dropped_attributes_count);
    put_bytes(to, 11, &encoded);
}

/// Writes an attribute as a `KeyValue` with its `AnyValue`. A list would be written as text, but no attribute is a
/// list.
fn put_attribute(to: &mut Vec<u8>, field: u32, key: &str, value: &Value) {
    let text = match value {
        Value::Bool(_) | Value::I64(_) | Value::F64(_) => None,
        other => Some(other.as_str()),
    };
    let length = match (value, &text) {
        (_, Some(text)) => 1 + encoded_len_varint(text.len() as u64) + text.len(),
        (Value::I64(number), _) => 1 + encoded_len_varint(number.cast_unsigned()),
        (Value::F64(_), _) => 9,
        _ => 2,
    };
    let key_length = 1 + encoded_len_varint(key.len() as u64) + key.len();
    put_length(to, field, key_length + 1 + encoded_len_varint(length as u64) + length);
    put_bytes(to, 1, key.as_bytes());
    put_length(to, 2, length);
    match (value, &text) {
        (_, Some(text)) => put_bytes(to, 1, text.as_bytes()),
        (Value::I64(number), _) => put_number(to, 3, number.cast_unsigned()),
        (Value::F64(number), _) => put_fixed(to, 4, number.to_bits()),
        (Value::Bool(is_true), _) => put_number(to, 2, u64::from(*is_true)),
        _ => unreachable!("every other value has a text"),
    }
}

/// Writes a number as a varint. Numbers below 128, which are nearly all, are handled separately, as prost's own loop
/// needs six times as many instructions for them.
fn put_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_key(to: &mut Vec<u8>, field: u32, kind: WireType) {
    put_varint(to, u64::from(field << 3 | kind as u32));
}

fn put_length(to: &mut Vec<u8>, field: u32, length: usize) {
    put_key(to, field, WireType::LengthDelimited);
    put_varint(to, length as u64);
}

fn put_bytes(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_length(to, field, bytes.len());
    to.extend_from_slice(bytes);
}

fn put_number(to: &mut Vec<u8>, field: u32, number: u64) {
    put_key(to, field, WireType::Varint);
    put_varint(to, number);
}

/// Writes a count as the field number `field` of an OTLP message; the default 0 is omitted.
fn put_count(to: &mut Vec<u8>, field: u32, count: u32) {
    if count != 0 {
        put_number(to, field, u64::from(count));
    }
}

fn put_fixed(to: &mut Vec<u8>, field: u32, bits: u64) {
    put_key(to, field, WireType::SixtyFourBit);
    to.extend_from_slice(&bits.to_le_bytes());
}

/// Writes a time, in nanoseconds since 1970, as the field number `field` of an OTLP message.
fn put_time(to: &mut Vec<u8>, field: u32, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    put_fixed(to, field, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::time::Duration;

    use opentelemetry::InstrumentationScope;
    use opentelemetry::trace::{SpanContext, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

    use super::*;

    /// Decoded message of the `.proto` files, with only the fields that the tests check.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Request {
        #[prost(message, repeated, tag = "1")]
        resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        resource: Option<Attributes>,
        #[prost(message, repeated, tag = "2")]
        scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Attributes {
        #[prost(message, repeated, tag = "1")]
        attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct ScopeSpans {
        #[prost(message, optional, tag = "1")]
        scope: Option<Scope>,
        #[prost(message, repeated, tag = "2")]
        spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Scope {
        #[prost(string, tag = "1")]
        name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Attribute {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(message, optional, tag = "2")]
        value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct AnyValue {
        #[prost(oneof = "OneValue", tags = "1, 2, 3, 4")]
        value: Option<OneValue>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    enum OneValue {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
        #[prost(double, tag = "4")]
        Double(f64),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Span {
        #[prost(bytes, tag = "1")]
        trace_id: Vec<u8>,
        #[prost(bytes, tag = "2")]
        span_id: Vec<u8>,
        #[prost(string, tag = "3")]
        trace_state: String,
        #[prost(bytes, tag = "4")]
        parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        name: String,
        #[prost(int32, tag = "6")]
        kind: i32,
        #[prost(fixed64, tag = "7")]
        start: u64,
        #[prost(fixed64, tag = "8")]
        end: u64,
        #[prost(message, repeated, tag = "9")]
        attributes: Vec<Attribute>,
        #[prost(uint32, tag = "10")]
        dropped_attributes: u32,
        #[prost(message, repeated, tag = "11")]
        events: Vec<SpanEvent>,
        #[prost(message, optional, tag = "15")]
        status: Option<SpanStatus>,
        #[prost(fixed32, tag = "16")]
        flags: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct SpanEvent {
        #[prost(fixed64, tag = "1")]
        time: u64,
        #[prost(string, tag = "2")]
        name: String,
        #[prost(message, repeated, tag = "3")]
        attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct SpanStatus {
        #[prost(string, tag = "2")]
        message: String,
        #[prost(int32, tag = "3")]
        code: i32,
    }

    fn at(nanos: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(nanos)
    }

    fn span(number: u64, attributes: Vec<KeyValue>) -> SpanData {
        let state = TraceState::from_key_value([("vendor", "1")]).expect("a good state");
        let flags = TraceFlags::SAMPLED;
        SpanData {
            span_context: SpanContext::new(TraceId::from(7), SpanId::from(number), flags, false, state),
            parent_span_id: SpanId::from(number - 1),
            parent_span_is_remote: number == 1,
            span_kind: SpanKind::Client,
            name: Cow::Borrowed("chat m"),
            start_time: at(1_000_000_007),
            end_time: at(2_000_000_009),
            attributes,
            dropped_attributes_count: 3,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::error("down"),
            instrumentation_scope: InstrumentationScope::builder("kvatlas").build(),
        }
    }

    fn attribute(key: &str, value: OneValue) -> Attribute {
        Attribute { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }

    #[test]
    fn a_request_says_what_its_spans_say() {
        let long = "x".repeat(300);
        let attributes = vec![
            KeyValue::new("text", long.clone()),
            KeyValue::new("empty", ""),
            KeyValue::new("yes", true),
            KeyValue::new("no", false),
            KeyValue::new("less", -1_i64),
            KeyValue::new("nought", 0_i64),
            KeyValue::new("most", i64::MAX),
            KeyValue::new("part", 0.25),
        ];
        let resource = Resource::builder_empty().with_service_name("front").build();
        let encoded = encode_request(&encode_resource(&resource), &[span(1, attributes), span(2, Vec::new())]);
        let request = Request::decode(&*encoded).expect("a message");
        assert_eq!(request.encode_to_vec(), encoded, "as short as protobuf's own encoding");
        let [of] = &request.resource_spans[..] else { panic!("one resource") };
        let resource = of.resource.as_ref().expect("a resource");
        assert_eq!(resource.attributes, [attribute("service.name", OneValue::Text("front".to_owned()))]);
        let [scope] = &of.scope_spans[..] else { panic!("one scope") };
        assert_eq!(scope.scope.as_ref().map(|scope| &*scope.name), Some("kvatlas"));
        let [first, second] = &scope.spans[..] else { panic!("two spans") };
        assert_eq!(first.trace_id, TraceId::from(7).to_bytes());
        assert_eq!(first.span_id, SpanId::from(1).to_bytes());
        assert!(first.parent_span_id.is_empty(), "it has none");
        assert_eq!(second.parent_span_id, SpanId::from(1).to_bytes());
        assert_eq!((&*first.trace_state, &*first.name, first.kind), ("vendor=1", "chat m", 3));
        assert_eq!((first.start, first.end, first.dropped_attributes), (1_000_000_007, 2_000_000_009, 3));
        assert_eq!((first.flags, second.flags), (0x301, 0x101));
        assert_eq!(first.status, Some(SpanStatus { message: "down".to_owned(), code: 2 }));
        let expected = [
            attribute("text", OneValue::Text(long)),
            attribute("empty", OneValue::Text(String::new())),
            attribute("yes", OneValue::Bool(true)),
            attribute("no", OneValue::Bool(false)),
            attribute("less", OneValue::Int(-1)),
            attribute("nought", OneValue::Int(0)),
            attribute("most", OneValue::Int(i64::MAX)),
            attribute("part", OneValue::Double(0.25)),
        ];
        assert_eq!(first.attributes, expected);
    }

    #[test]
    fn what_a_collector_rejects_is_told() {
        let partial = ExportTracePartialSuccess { rejected_spans: 2, error_message: "too old".to_owned() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
        assert_eq!(rejected(&answer.encode_to_vec()), (2, "too old".to_owned()));
        assert_eq!(rejected(b""), (0, String::new()));
        assert_eq!(rejected(b"\xff\xff"), (0, String::new()));
    }
}
