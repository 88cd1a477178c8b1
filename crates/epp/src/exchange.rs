//! State of one request in the exchange with a gateway, with the replies in each mode ([`PickExchange`]). The module
//! uses no sockets.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};

use crate::messages::{
    BodyMode, BodyMutation, CommonResponse, GatewayMessage, HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption,
    HttpBody, HttpStatus, ImmediateResponse, Kind, PhaseReply, ProcessingRequest, ProcessingResponse, ReplyKind,
    RequestMetadata, Struct, TrailersReply, Value,
};
use crate::{AnswerWatcher, Counts, Pick, PickRefusal, RequestToPick};

/// Name of the header, and key of the metadata, with the picked endpoints for the gateway.
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Namespace and key of the metadata in which a gateway lists the endpoints among which to pick.
const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

/// Header by which a gateway's conformance tests choose the endpoints to pick.
const CHOSEN: &str = "test-epp-endpoint-selection";
/// Header that reports to a gateway's conformance tests which endpoint answered.
const SERVED: &str = "x-conformance-test-served-endpoint";

/// Namespace and key of the metadata in which a gateway names the endpoint to which it sent the request.
const SERVED_BY: (&str, &str) = ("envoy.lb", "x-gateway-destination-endpoint-served");

/// Maximum number of bytes of a body in one message to the gateway; Envoy's limit is 64 KB.
const PART: usize = 62_000;

/// Value of the field `append_action` that replaces a header if present, and else adds it.
const OVERWRITE: i32 = 2;

/// Action that the server takes after a message of the gateway.
pub(crate) enum NextStep {
    /// Send these replies to the gateway.
    Reply(Vec<ProcessingResponse>),
    /// Call the picker for an engine, and then [`PickExchange::picked`] or [`PickExchange::refused`].
    Ask(RequestToPick),
}

/// Message of the gateway that is answered with the pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PickAt {
    /// Head of the request, before any part of its body.
    Head,
    /// End of a body that the gateway sends without waiting for replies, or the trailers after the body.
    End { trailers: bool },
    /// Whole body of the request, buffered by the gateway.
    Body,
}

/// State of one request in the exchange of messages with a gateway.
pub(crate) struct PickExchange {
    conformance: bool,
    request_mode: BodyMode,
    response_mode: BodyMode,
    /// True if the gateway sends the body without waiting for a reply to the head.
    does_not_wait: bool,
    request: RequestToPick,
    parts: Vec<Bytes>,
    size: usize,
    at: PickAt,
    has_asked: bool,
    /// True if the picker got the whole request.
    is_whole: bool,
    /// True if the head of the request states the length of the body.
    has_length: bool,
    watcher: Option<Box<dyn AnswerWatcher>>,
    is_over: bool,
}

impl PickExchange {
    /// Makes the state of a new stream. `conformance`: the setting of this name in [`crate::Settings`].
    pub(crate) fn new(conformance: bool) -> Self {
        Self {
            conformance,
            request_mode: BodyMode::None,
            response_mode: BodyMode::None,
            does_not_wait: false,
            request: RequestToPick::default(),
            parts: Vec::new(),
            size: 0,
            at: PickAt::Head,
            has_asked: false,
            is_whole: false,
            has_length: false,
            watcher: None,
            is_over: false,
        }
    }

    /// True if the picker has been called for this request.
    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// Returns the parts of the request received so far.
    pub(crate) fn request(&self) -> &RequestToPick {
        &self.request
    }

    /// Returns the size in bytes of the request's body with the part in `message` included; None if the message has no
    /// part of the body, or the picker has been called.
    pub(crate) fn size_with(&self, message: &ProcessingRequest) -> Option<usize> {
        match &message.request {
            Some(GatewayMessage::RequestBody(body)) if !self.has_asked => Some(self.size + body.body.len()),
            _ => None,
        }
    }

    /// True if no more replies will be sent on this stream.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// True if the picker got the whole request, so that no part of it arrives after the pick.
    pub(crate) fn has_whole_request(&self) -> bool {
        self.is_whole
    }

    /// Processes a message of the gateway, and returns the server's next action.
    pub(crate) fn take(&mut self, message: ProcessingRequest, counts: &Counts) -> NextStep {
        if let Some(config) = message.protocol_config {
            self.request_mode = config.request_body_mode();
            self.response_mode = config.response_body_mode();
            self.does_not_wait = self.request_mode == BodyMode::FullDuplexStreamed
                || config.send_body_without_waiting_for_header_response;
        }
        if !self.has_asked
            && let Some(metadata) = &message.metadata_context
            && let Some(hint) = metadata.filter_metadata.get(SUBSET.0).and_then(|hint| hint.fields.get(SUBSET.1))
        {
            let mut entries = Vec::new();
            read_entries(hint, &mut entries);
            self.request.subset = Some(entries);
        }
        let served = self.conformance.then(|| served_by(message.metadata_context.as_ref())).flatten();
        match message.request {
            Some(GatewayMessage::RequestHeaders(head)) => self.take_head(head.headers, head.end_of_stream, counts),
            Some(GatewayMessage::RequestBody(body)) if self.has_asked => {
                // The pick has been made from the head alone.
                self.parts = vec![body.body];
                NextStep::Reply(self.send_back(body.end_of_stream))
            }
            Some(GatewayMessage::RequestBody(body)) => self.take_body(body, counts),
            Some(GatewayMessage::RequestTrailers(_)) if self.has_asked => {
                NextStep::Reply(vec![reply(ReplyKind::RequestTrailers(TrailersReply {}))])
            }
            Some(GatewayMessage::RequestTrailers(_)) => self.ask(PickAt::End { trailers: true }, true),
            Some(GatewayMessage::ResponseHeaders(head)) => {
                let headers = read_headers(head.headers);
                let status = headers.iter().find(|(name, _)| name == ":status");
                let status = status.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok()).unwrap_or(0);
                if let Some(watcher) = &mut self.watcher {
                    watcher.head(status, &headers);
                    if head.end_of_stream {
                        watcher.end();
                    }
                }
                let told = served.map(|endpoint| CommonResponse {
                    header_mutation: Some(HeaderMutation { set_headers: vec![header(SERVED, &endpoint)] }),
                    ..CommonResponse::default()
                });
                NextStep::Reply(vec![reply(ReplyKind::ResponseHeaders(PhaseReply { response: told }))])
            }
            Some(GatewayMessage::ResponseBody(body)) => {
                if let Some(watcher) = &mut self.watcher {
                    watcher.part(&body.body);
                    if body.end_of_stream {
                        watcher.end();
                    }
                }
                let replies = if self.response_mode == BodyMode::FullDuplexStreamed {
                    parts(&[body.body], body.end_of_stream).map(ReplyKind::ResponseBody).map(reply).collect()
                } else {
                    vec![reply(ReplyKind::ResponseBody(PhaseReply::default()))]
                };
                NextStep::Reply(replies)
            }
            Some(GatewayMessage::ResponseTrailers(_)) => {
                if let Some(watcher) = &mut self.watcher {
                    watcher.end();
                }
                NextStep::Reply(vec![reply(ReplyKind::ResponseTrailers(TrailersReply {}))])
            }
            // A part of the protocol that is newer than this.
            None => NextStep::Reply(Vec::new()),
        }
    }

    fn take_head(&mut self, headers: Option<HeaderMap>, is_all: bool, counts: &Counts) -> NextStep {
        self.request.headers = read_headers(headers);
        self.has_length = self.request.header("content-length").is_some();
        if self.conformance
            && let Some(chosen) = self.request.header(CHOSEN).filter(|chosen| !chosen.is_empty())
        {
            let entries = chosen.split(',').map(|entry| entry.trim().to_owned()).collect();
            self.request.subset = Some(entries);
        }
        match self.request_mode {
            _ if is_all => self.ask(PickAt::Head, true),
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                NextStep::Reply(vec![reply(ReplyKind::RequestHeaders(PhaseReply::default()))])
            }
            BodyMode::FullDuplexStreamed | BodyMode::Streamed if self.does_not_wait => NextStep::Reply(Vec::new()),
            // With the reply to the head the gateway chooses the engine, and shows the body only after that.
            _ => {
                counts.without_body.fetch_add(1, Relaxed);
                self.ask(PickAt::Head, false)
            }
        }
    }

    fn take_body(&mut self, body: HttpBody, counts: &Counts) -> NextStep {
        self.size += body.body.len();
        self.parts.push(body.body);
        match self.request_mode {
            BodyMode::Buffered | BodyMode::BufferedPartial => {
                if !body.end_of_stream {
                    counts.without_body.fetch_add(1, Relaxed);
                }
                self.ask(PickAt::Body, body.end_of_stream)
            }
            _ if body.end_of_stream => self.ask(PickAt::End { trailers: false }, true),
            _ => NextStep::Reply(Vec::new()),
        }
    }

    /// Returns the action that calls the picker. `is_whole`: true if the whole body has arrived.
    fn ask(&mut self, at: PickAt, is_whole: bool) -> NextStep {
        (self.at, self.has_asked, self.is_whole) = (at, true, is_whole);
        let mut request = std::mem::take(&mut self.request);
        request.may_change_body = match at {
            PickAt::Head => false,
            PickAt::End { .. } => self.request_mode == BodyMode::FullDuplexStreamed,
            PickAt::Body => is_whole,
        };
        request.body = match &*self.parts {
            _ if !is_whole => None,
            [] => Some(Bytes::new()),
            [only] => Some(only.clone()),
            several => {
                let mut whole = BytesMut::with_capacity(self.size);
                several.iter().for_each(|part| whole.extend_from_slice(part));
                let whole = whole.freeze();
                if self.request_mode == BodyMode::FullDuplexStreamed {
                    // It goes back from here: kept once, and cut anew.
                    self.parts = vec![whole.clone()];
                }
                Some(whole)
            }
        };
        NextStep::Ask(request)
    }

    /// Makes the replies that tell the gateway the picked endpoints. `watches`: true if the pick's watcher receives the
    /// engine's answer.
    pub(crate) fn picked(&mut self, pick: Pick, watches: bool) -> Vec<ProcessingResponse> {
        let to = pick.endpoints.join(",");
        let mut set = vec![header(DESTINATION, &to)];
        set.extend(pick.headers.iter().map(|(name, value)| header(name, value)));
        let mut body_mutation = None;
        if let Some(body) = pick.body {
            // In full duplex the gateway may leave the length out, in the other mode it trusts this one.
            if self.has_length {
                set.push(header("content-length", &body.len().to_string()));
            }
            if self.at == PickAt::Body {
                body_mutation = Some(BodyMutation { body: Some(body), streamed_response: None });
            } else {
                self.parts = vec![body];
            }
        }
        let changes = CommonResponse {
            header_mutation: Some(HeaderMutation { set_headers: set }),
            body_mutation,
            clear_route_cache: true,
        };
        let changes = PhaseReply { response: Some(changes) };
        let metadata = Some(structure("envoy.lb", Kind::StructValue(structure(DESTINATION, Kind::StringValue(to)))));
        let with = |response| ProcessingResponse { response: Some(response), dynamic_metadata: metadata };
        let replies = match self.at {
            PickAt::Head => vec![with(ReplyKind::RequestHeaders(changes))],
            PickAt::Body => vec![with(ReplyKind::RequestBody(changes))],
            PickAt::End { trailers } => {
                let mut replies = vec![with(ReplyKind::RequestHeaders(changes))];
                replies.extend(self.send_back(!trailers));
                if trailers {
                    replies.push(reply(ReplyKind::RequestTrailers(TrailersReply {})));
                }
                replies
            }
        };
        self.watcher = pick.watcher.filter(|_| watches);
        replies
    }

    /// Makes the replies that return the received parts of the request's body to the gateway.
    fn send_back(&mut self, is_end: bool) -> Vec<ProcessingResponse> {
        let received = std::mem::take(&mut self.parts);
        if self.request_mode == BodyMode::FullDuplexStreamed {
            return parts(&received, is_end).map(ReplyKind::RequestBody).map(reply).collect();
        }
        received.iter().map(|_| reply(ReplyKind::RequestBody(PhaseReply::default()))).collect()
    }

    /// Makes the replies with a refusal for the client, which end the exchange.
    pub(crate) fn refused(&mut self, refused: PickRefusal) -> Vec<ProcessingResponse> {
        (self.is_over, self.has_asked) = (true, true);
        let mut set = vec![header("content-type", "application/json")];
        set.extend(refused.headers.iter().map(|(name, value)| header(name, value)));
        vec![reply(ReplyKind::Immediate(ImmediateResponse {
            status: Some(HttpStatus { code: i32::from(refused.status) }),
            headers: Some(HeaderMutation { set_headers: set }),
            body: refused.body.into(),
            details: "kvatlas".to_owned(),
        }))]
    }
}

fn reply(response: ReplyKind) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

fn header(name: &str, value: &str) -> HeaderValueOption {
    let raw_value = Bytes::copy_from_slice(value.as_bytes());
    let header = HeaderValue { key: name.to_owned(), value: String::new(), raw_value };
    HeaderValueOption { header: Some(header), append_action: OVERWRITE }
}

fn structure(key: &str, kind: Kind) -> Struct {
    Struct { fields: BTreeMap::from([(key.to_owned(), Value { kind: Some(kind) })]) }
}

/// Splits a body into parts that fit into one message each. The last part is marked if `is_end` is true.
fn parts(body: &[Bytes], is_end: bool) -> impl Iterator<Item = PhaseReply> {
    let mut cut: Vec<Bytes> = Vec::new();
    for part in body {
        cut.extend((0..part.len()).step_by(PART).map(|from| part.slice(from..part.len().min(from + PART))));
    }
    if cut.is_empty() {
        cut.push(Bytes::new());
    }
    let last = cut.len() - 1;
    cut.into_iter().enumerate().map(move |(at, body)| {
        let streamed_response = Some(HttpBody { body, end_of_stream: is_end && at == last });
        let body_mutation = Some(BodyMutation { body: None, streamed_response });
        PhaseReply { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) }
    })
}

/// Returns the endpoint to which the gateway sent the request, according to its metadata; None if not stated.
fn served_by(metadata: Option<&RequestMetadata>) -> Option<String> {
    match &metadata?.filter_metadata.get(SERVED_BY.0)?.fields.get(SERVED_BY.1)?.kind {
        Some(Kind::StringValue(endpoint)) => Some(endpoint.clone()),
        _ => None,
    }
}

fn read_headers(headers: Option<HeaderMap>) -> Vec<(String, Bytes)> {
    let headers = headers.map(|map| map.headers).unwrap_or_default();
    let value = |value: String, raw: Bytes| if raw.is_empty() { value.into() } else { raw };
    headers.into_iter().map(|it| (it.key, value(it.value, it.raw_value))).collect()
}

/// Appends the endpoints in a list, or in a text separated by commas, to `into`.
fn read_entries(value: &Value, into: &mut Vec<String>) {
    match &value.kind {
        Some(Kind::StringValue(text)) => {
            into.extend(text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned));
        }
        Some(Kind::ListValue(list)) => list.values.iter().for_each(|value| read_entries(value, into)),
        _ => {}
    }
}
