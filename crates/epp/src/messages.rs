//! Messages of Envoy's external processing (`envoy.service.ext_proc.v3`), with the fields that are used, by their
//! public numbers. Other fields are skipped by protobuf's rules.

use std::collections::HashMap;

use bytes::Bytes;
pub use prost_types::{Struct, Value, value::Kind};

/// Mode in which the gateway sends a body (`ProcessingMode.BodySendMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum BodyMode {
    /// The gateway sends no body.
    None = 0,
    /// The body is sent in chunks, each of which waits for a reply.
    Streamed = 1,
    /// The whole body is sent at once.
    Buffered = 2,
    /// The body is sent up to the gateway's buffer limit; a larger one in part.
    BufferedPartial = 3,
    /// The body is sent in chunks without waiting for replies, and the replies return the chunks.
    FullDuplexStreamed = 4,
    /// The body is sent as gRPC messages.
    Grpc = 5,
}

/// Message from the gateway, with a part of a request or of its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingRequest {
    /// Part of the request or of its answer in this message.
    #[prost(oneof = "GatewayMessage", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<GatewayMessage>,
    /// Metadata of the request, by namespace.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<RequestMetadata>,
    /// Modes in which bodies are sent; only in the first message of a stream.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// Part of a request or of its answer in a message from the gateway.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum GatewayMessage {
    /// Head of the request.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// Head of the answer.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// Part of the request's body.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// Part of the answer's body.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// Trailers of the request.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// Trailers of the answer.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// Modes in which the gateway sends bodies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProtocolConfiguration {
    /// Mode for the request's body, a [`BodyMode`].
    #[prost(enumeration = "BodyMode", tag = "1")]
    pub request_body_mode: i32,
    /// Mode for the answer's body, a [`BodyMode`].
    #[prost(enumeration = "BodyMode", tag = "2")]
    pub response_body_mode: i32,
    /// True if the body is sent without waiting for the reply to the head.
    #[prost(bool, tag = "3")]
    pub send_body_without_waiting_for_header_response: bool,
}

/// Metadata of a request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestMetadata {
    /// Metadata values by namespace.
    #[prost(map = "string, message", tag = "1")]
    pub filter_metadata: HashMap<String, Struct>,
}

/// Head of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpHeaders {
    /// Headers of the request or answer.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// True if no body follows the head.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// Message with a part of the body of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpBody {
    /// Bytes of the part.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// True for the last part of the body.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// Trailers of a request or an answer; their contents are not read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpTrailers {}

/// Headers of a request or an answer, in the order sent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMap {
    /// The headers, one entry for each value.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// A header of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// Name of the header in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value of the header, if the gateway sends text.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Value of the header, if the gateway sends bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

/// Reply to a message of the gateway.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingResponse {
    /// Contents of the reply, by the kind of the gateway's message.
    #[prost(oneof = "ReplyKind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<ReplyKind>,
    /// Metadata for the gateway, by namespace.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// Contents of a reply, by the part of the request or answer in the gateway's message.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ReplyKind {
    /// Reply to the request's head.
    #[prost(message, tag = "1")]
    RequestHeaders(PhaseReply),
    /// Reply to the answer's head.
    #[prost(message, tag = "2")]
    ResponseHeaders(PhaseReply),
    /// Reply to a part of the request's body.
    #[prost(message, tag = "3")]
    RequestBody(PhaseReply),
    /// Reply to a part of the answer's body.
    #[prost(message, tag = "4")]
    ResponseBody(PhaseReply),
    /// Reply to the request's trailers.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersReply),
    /// Reply to the answer's trailers.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersReply),
    /// Answer to the client by the gateway itself, without an engine.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// Reply to a head or a part of a body (`HeadersResponse`, `BodyResponse`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PhaseReply {
    /// Changes to the head or the part of the body; None for no changes.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// Reply to the trailers of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrailersReply {}

/// Changes to the head and the body of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommonResponse {
    /// Changes to the headers of the request or answer; None for no changes.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Changes to the body of the request or answer; None for no changes.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// True if the gateway must choose the route again.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

/// Changes to the headers of a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMutation {
    /// Headers to set in the request or answer.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
}

/// A header to set in a request or an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValueOption {
    /// The header, with its name and new value.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Action if the header is present already: 2 overwrites the present value.
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

/// Change to a body; at most one of the fields is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BodyMutation {
    /// Whole body that the gateway forwards, if it has buffered the body.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub body: Option<Bytes>,
    /// Part of the body that the gateway forwards, in the full duplex mode.
    #[prost(message, optional, tag = "3")]
    pub streamed_response: Option<HttpBody>,
}

/// Answer to the client by the gateway itself, without an engine.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImmediateResponse {
    /// HTTP status of the answer.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers to set in the answer.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// Body of the answer.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Text about the answer for the gateway's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// HTTP status of an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpStatus {
    /// HTTP status as a number, such as 503.
    #[prost(int32, tag = "1")]
    pub code: i32,
}
