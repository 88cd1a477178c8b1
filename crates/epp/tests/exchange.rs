//! Answers to a gateway, which a gRPC client plays here.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use kvatlas_epp::messages::{
    BodyMode, CommonResponse, GatewayMessage, HeaderMap, HeaderMutation, HeaderValue, HttpBody, HttpHeaders,
    HttpTrailers, Kind, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, ReplyKind, RequestMetadata,
    Struct, Value,
};
use kvatlas_epp::{HealthStage, PickerHealth, RequestToPick, Settings, serve_health};
use support::{Observation, ROOM, TestServer, start};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

const DESTINATION: &str = "x-gateway-destination-endpoint";
const SETTINGS: Settings = Settings { max_body: 16 << 20, answers: true, conformance: false };

/// One stream of a gateway.
struct Gateway {
    to: mpsc::UnboundedSender<ProcessingRequest>,
    from: Streaming<ProcessingResponse>,
}

impl Gateway {
    async fn open(server: &TestServer) -> Self {
        let channel = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
        let mut grpc = Grpc::new(channel).max_encoding_message_size(64 << 20);
        grpc.ready().await.unwrap();
        let (to, messages) = mpsc::unbounded_channel();
        let path = PathAndQuery::from_static("/envoy.service.ext_proc.v3.ExternalProcessor/Process");
        let messages = tonic::Request::new(UnboundedReceiverStream::new(messages));
        let answered = grpc.streaming(messages, path, ProstCodec::default()).await.unwrap();
        Self { to, from: answered.into_inner() }
    }

    fn send(&self, request: GatewayMessage) {
        self.to.send(ProcessingRequest { request: Some(request), ..Default::default() }).unwrap();
    }

    /// Sends a request's head in a mode, with a hint of a subset if there is one.
    fn send_head(&self, request: BodyMode, response: BodyMode, subset: Option<Value>, is_all: bool) {
        self.send_head_with(&[], request, response, subset, is_all);
    }

    /// Sends a request's head with more headers.
    fn send_head_with(
        &self,
        more: &[(&str, &str)],
        request: BodyMode,
        response: BodyMode,
        subset: Option<Value>,
        is_all: bool,
    ) {
        let mut headers = vec![
            HeaderValue { key: ":path".into(), raw_value: "/v1/chat/completions".into(), ..Default::default() },
            HeaderValue { key: "x-old".into(), value: "text".into(), ..Default::default() },
        ];
        headers.extend(more.iter().map(|(key, value)| HeaderValue {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            ..Default::default()
        }));
        let fields = |subset| BTreeMap::from([(format!("{DESTINATION}-subset"), subset)]);
        let metadata = |subset| HashMap::from([("envoy.lb.subset_hint".to_owned(), Struct { fields: fields(subset) })]);
        self.to
            .send(ProcessingRequest {
                request: Some(GatewayMessage::RequestHeaders(HttpHeaders {
                    headers: Some(HeaderMap { headers }),
                    end_of_stream: is_all,
                })),
                metadata_context: subset.map(|subset| RequestMetadata { filter_metadata: metadata(subset) }),
                protocol_config: Some(ProtocolConfiguration {
                    request_body_mode: request as i32,
                    response_body_mode: response as i32,
                    send_body_without_waiting_for_header_response: false,
                }),
            })
            .unwrap();
    }

    /// Sends the head of a request whose body is taken to arrive too slowly.
    fn send_slow_head(&self) {
        let slow = HeaderValue { key: "x-slow".into(), value: "1".into(), ..Default::default() };
        let mode = BodyMode::FullDuplexStreamed as i32;
        self.to
            .send(ProcessingRequest {
                request: Some(GatewayMessage::RequestHeaders(HttpHeaders {
                    headers: Some(HeaderMap { headers: vec![slow] }),
                    end_of_stream: false,
                })),
                metadata_context: None,
                protocol_config: Some(ProtocolConfiguration { request_body_mode: mode, ..Default::default() }),
            })
            .unwrap();
    }

    fn send_body(&self, body: &Bytes, is_end: bool) {
        self.send(GatewayMessage::RequestBody(HttpBody { body: body.clone(), end_of_stream: is_end }));
    }

    async fn next(&mut self) -> Option<ProcessingResponse> {
        self.from.message().await.unwrap()
    }

    /// Reads the parts of a body that are sent back, until the one marked as the last.
    async fn read_back(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let part = match self.next().await.unwrap().response.unwrap() {
                ReplyKind::RequestBody(part) | ReplyKind::ResponseBody(part) => part,
                other => panic!("not a part of a body: {other:?}"),
            };
            let part = part.response.unwrap().body_mutation.unwrap().streamed_response.unwrap();
            assert!(part.body.len() <= 64 << 10);
            body.extend_from_slice(&part.body);
            if part.end_of_stream {
                return body;
            }
        }
    }
}

fn endpoints() -> Vec<String> {
    vec!["10.0.0.1:8000".to_owned(), "[fd00::5]:8000".to_owned()]
}

fn value_of(changes: &HeaderMutation, name: &str) -> Option<String> {
    let mut headers = changes.set_headers.iter().filter_map(|it| it.header.as_ref());
    headers.find(|it| it.key == name).map(|it| String::from_utf8(it.raw_value.to_vec()).unwrap())
}

/// Checks that a reply names endpoints in the header and in the metadata.
fn check_pick(reply: &ProcessingResponse, changes: Option<&CommonResponse>, to: &str) {
    let changes = changes.unwrap();
    assert!(changes.clear_route_cache);
    let headers = changes.header_mutation.as_ref().unwrap();
    assert_eq!(value_of(headers, DESTINATION).as_deref(), Some(to));
    assert_eq!(value_of(headers, "x-data-parallel-rank").as_deref(), Some("3"));
    let metadata = &reply.dynamic_metadata.as_ref().unwrap().fields["envoy.lb"];
    let Some(Kind::StructValue(lb)) = &metadata.kind else { panic!("no metadata: {metadata:?}") };
    assert_eq!(lb.fields[DESTINATION].kind, Some(Kind::StringValue(to.to_owned())));
}

fn check_head_reply(reply: &ProcessingResponse, to: &str) {
    let Some(ReplyKind::RequestHeaders(head)) = &reply.response else { panic!("not the head's reply: {reply:?}") };
    check_pick(reply, head.response.as_ref(), to);
}

async fn request(server: &mut TestServer) -> RequestToPick {
    match server.seen.recv().await {
        Some(Observation::Request(request)) => request,
        other => panic!("not a request: {other:?}"),
    }
}

const ALL: &str = "10.0.0.1:8000,[fd00::5]:8000";

#[tokio::test]
async fn full_duplex_sends_the_pick_and_then_the_body_back() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed, None, false);
    let body: Bytes = (0..3_000_000_u32).map(|at| at as u8).collect::<Vec<_>>().into();
    for part in body.chunks(100_000) {
        gateway.send_body(&Bytes::copy_from_slice(part), false);
    }
    gateway.send_body(&Bytes::new(), true);
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    assert!(gateway.read_back().await == body);
    let seen = request(&mut server).await;
    assert_eq!((seen.header(":path"), seen.header("x-old")), (Some("/v1/chat/completions"), Some("text")));
    assert!(seen.body == Some(body) && seen.subset.is_none());

    let status = HeaderValue { key: ":status".into(), raw_value: "200".into(), ..Default::default() };
    let headers = Some(HeaderMap { headers: vec![status] });
    gateway.send(GatewayMessage::ResponseHeaders(HttpHeaders { headers, end_of_stream: false }));
    assert!(matches!(gateway.next().await.unwrap().response, Some(ReplyKind::ResponseHeaders(_))));
    let event = Bytes::from_static(b"data: {}\n\n");
    gateway.send(GatewayMessage::ResponseBody(HttpBody { body: event.clone(), end_of_stream: true }));
    assert_eq!(gateway.read_back().await, event);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(server.seen.recv().await.unwrap());
    }
    assert_eq!(seen, [Observation::Head(200), Observation::Part(event), Observation::End]);
    assert_eq!(server.counts.picked.load(Relaxed), 1);
}

#[tokio::test]
async fn trailers_end_a_body_in_full_duplex() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, None, false);
    gateway.send_body(&Bytes::from_static(b"{}"), false);
    gateway.send(GatewayMessage::RequestTrailers(HttpTrailers {}));
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    let part = gateway.next().await.unwrap().response.unwrap();
    let ReplyKind::RequestBody(part) = part else { panic!("not a part: {part:?}") };
    let part = part.response.unwrap().body_mutation.unwrap().streamed_response.unwrap();
    assert_eq!((&*part.body, part.end_of_stream), (&b"{}"[..], false));
    assert!(matches!(gateway.next().await.unwrap().response, Some(ReplyKind::RequestTrailers(_))));
    assert_eq!(request(&mut server).await.body.as_deref(), Some(&b"{}"[..]));
}

#[tokio::test]
async fn a_buffered_body_gets_the_pick_in_its_reply() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::Buffered, BodyMode::None, None, false);
    let head = gateway.next().await.unwrap();
    assert!(matches!(&head.response, Some(ReplyKind::RequestHeaders(reply)) if reply.response.is_none()));
    // More than what tonic takes by default.
    let body = Bytes::from(vec![b' '; 5 << 20]);
    gateway.send_body(&body, true);
    let reply = gateway.next().await.unwrap();
    let Some(ReplyKind::RequestBody(part)) = &reply.response else { panic!("not the body's reply: {reply:?}") };
    check_pick(&reply, part.response.as_ref(), ALL);
    assert!(part.response.as_ref().unwrap().body_mutation.is_none());
    assert!(request(&mut server).await.body == Some(body));
}

const CHANGED: [(&str, &str); 2] = [("x-change", "1"), ("content-length", "4")];

#[tokio::test]
async fn a_changed_body_is_sent_on_with_its_length() {
    let server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head_with(&CHANGED, BodyMode::FullDuplexStreamed, BodyMode::None, None, false);
    for part in ["bo", "dy"] {
        gateway.send_body(&Bytes::from_static(part.as_bytes()), part == "dy");
    }
    let reply = gateway.next().await.unwrap();
    let Some(ReplyKind::RequestHeaders(head)) = reply.response else { panic!("not the head's reply") };
    let changes = head.response.unwrap().header_mutation.unwrap();
    assert_eq!(value_of(&changes, "content-length").as_deref(), Some("9"));
    assert_eq!(gateway.read_back().await, b"more body");

    let mut gateway = Gateway::open(&server).await;
    gateway.send_head_with(&CHANGED, BodyMode::Buffered, BodyMode::None, None, false);
    gateway.next().await.unwrap();
    gateway.send_body(&Bytes::from_static(b"body"), true);
    let Some(ReplyKind::RequestBody(part)) = gateway.next().await.unwrap().response else { panic!("not the body's") };
    let changes = part.response.unwrap();
    assert_eq!(value_of(&changes.header_mutation.unwrap(), "content-length").as_deref(), Some("9"));
    assert_eq!(changes.body_mutation.unwrap().body.as_deref(), Some(&b"more body"[..]));
}

#[tokio::test]
async fn a_body_that_is_not_sent_on_from_here_is_not_changed() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head_with(&CHANGED, BodyMode::Streamed, BodyMode::None, None, false);
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    assert!(!request(&mut server).await.may_change_body);
}

#[tokio::test]
async fn a_body_that_comes_after_the_reply_to_the_head_is_not_waited_for() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::Streamed, BodyMode::None, None, false);
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    for is_end in [false, true] {
        gateway.send_body(&Bytes::from_static(b"{}"), is_end);
        let reply = gateway.next().await.unwrap().response;
        assert!(matches!(reply, Some(ReplyKind::RequestBody(reply)) if reply.response.is_none()));
    }
    assert_eq!(request(&mut server).await.body, None);
    assert_eq!(server.counts.without_body.load(Relaxed), 1);
}

#[tokio::test]
async fn a_request_without_a_body_is_answered_at_once() {
    let mut server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, None, true);
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    assert_eq!(request(&mut server).await.body, Some(Bytes::new()));
}

#[tokio::test]
async fn a_subset_limits_the_pick() {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let list = |of: Vec<Value>| Value { kind: Some(Kind::ListValue(prost_types::ListValue { values: of })) };
    let server = start(&endpoints(), SETTINGS).await;
    for (subset, to) in [
        (text("10.0.0.1"), Some("10.0.0.1:8000")),
        (text("10.0.0.9:1, [fd00::5]:8000"), Some("[fd00::5]:8000")),
        (list(vec![text("fd00::5")]), Some("[fd00::5]:8000")),
        (list(vec![text("10.0.0.1:8000"), text("[fd00::5]:8000")]), Some(ALL)),
        (text("10.0.0.1:8001"), None),
        (text(""), None),
        (list(vec![]), None),
    ] {
        let mut gateway = Gateway::open(&server).await;
        gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, Some(subset), true);
        let reply = gateway.next().await.unwrap();
        match to {
            Some(to) => check_head_reply(&reply, to),
            None => {
                let Some(ReplyKind::Immediate(said)) = reply.response else { panic!("not refused: {reply:?}") };
                assert_eq!(said.status.unwrap().code, 503);
                let headers = said.headers.unwrap();
                assert_eq!(value_of(&headers, "retry-after").as_deref(), Some("1"));
                assert_eq!(value_of(&headers, "content-type").as_deref(), Some("application/json"));
                let message = r#""message":"no engine takes \"requests\" at present""#;
                assert!(std::str::from_utf8(&said.body).unwrap().contains(message));
                assert!(gateway.next().await.is_none());
            }
        }
    }
    assert_eq!((server.counts.picked.load(Relaxed), server.counts.refused.load(Relaxed)), (4, 3));
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let server = start(&endpoints(), Settings { max_body: 10, answers: true, conformance: false }).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, None, false);
    gateway.send_body(&Bytes::from_static(b"0123456789"), false);
    gateway.send_body(&Bytes::from_static(b"0"), true);
    let reply = gateway.next().await.unwrap();
    let Some(ReplyKind::Immediate(said)) = reply.response else { panic!("not refused: {reply:?}") };
    assert_eq!(said.status.unwrap().code, 413);
    assert!(std::str::from_utf8(&said.body).unwrap().contains("body_too_large"));
    assert_eq!(server.counts.too_large.load(Relaxed), 1);
}

/// The code of a refusal.
fn refused(reply: Option<ProcessingResponse>) -> String {
    let Some(ReplyKind::Immediate(said)) = reply.unwrap().response else { panic!("not refused") };
    let body: serde_json::Value = serde_json::from_slice(&said.body).unwrap();
    body["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn bodies_share_the_memory_and_give_it_back() {
    let server = start(&endpoints(), Settings { max_body: ROOM, answers: true, conformance: false }).await;
    let (mut one, mut other) = (Gateway::open(&server).await, Gateway::open(&server).await);
    let most = Bytes::from(vec![0; 3 << 20]);
    one.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, None, false);
    for _ in 0..10 {
        one.send_body(&most, false);
    }
    while server.used.load(Relaxed) < 30 << 20 {
        tokio::task::yield_now().await;
    }
    other.send_head(BodyMode::FullDuplexStreamed, BodyMode::None, None, false);
    other.send_body(&most, false);
    assert_eq!(refused(other.next().await), "body_memory");
    one.send_body(&Bytes::new(), true);
    check_head_reply(&one.next().await.unwrap(), ALL);
    assert_eq!(one.read_back().await.len(), 30 << 20);
    while server.used.load(Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((server.counts.no_room.load(Relaxed), server.counts.picked.load(Relaxed)), (1, 1));
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_refused() {
    let server = start(&endpoints(), SETTINGS).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_slow_head();
    gateway.send_body(&Bytes::from_static(b"{"), false);
    assert_eq!(refused(gateway.next().await), "body_memory");
    assert_eq!(server.counts.no_room.load(Relaxed), 1);
}

#[tokio::test]
async fn without_answers_the_stream_ends_after_the_request() {
    let server = start(&endpoints(), Settings { answers: false, ..SETTINGS }).await;
    let mut gateway = Gateway::open(&server).await;
    gateway.send_head(BodyMode::FullDuplexStreamed, BodyMode::FullDuplexStreamed, None, false);
    gateway.send_body(&Bytes::from_static(b"{}"), true);
    check_head_reply(&gateway.next().await.unwrap(), ALL);
    assert_eq!(gateway.read_back().await, b"{}");
    assert!(gateway.next().await.is_none());
}

#[tokio::test]
async fn the_health_service_knows_the_names_that_gateways_ask_for() {
    let server = start(&endpoints(), SETTINGS).await;
    let channel = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let own = "envoy.service.ext_proc.v3.ExternalProcessor";
    for (stage, serving) in [
        (HealthStage::Ready, &["", "liveness", own, "readiness"][..]),
        (HealthStage::Picking, &["", "liveness", own]),
        (HealthStage::Starting, &["", "liveness"]),
        (HealthStage::Leaving, &["", "liveness"]),
    ] {
        server.health.set(stage).await;
        for service in ["", "liveness", own, "readiness"] {
            let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
            let is_serving = answer.into_inner().status() == ServingStatus::Serving;
            assert_eq!(is_serving, serving.contains(&service), "{service:?} at {stage:?}");
        }
    }
}

#[tokio::test]
async fn the_health_service_has_an_address_of_its_own_as_well() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = PickerHealth::new(HealthStage::Starting).await;
    let serving = tokio::spawn(serve_health(listener, health.clone(), std::future::pending()));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let ready = HealthCheckRequest { service: "readiness".to_owned() };
    assert_eq!(client.check(ready.clone()).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    health.set(HealthStage::Ready).await;
    assert_eq!(client.check(ready).await.unwrap().into_inner().status(), ServingStatus::Serving);
    let unknown = HealthCheckRequest { service: "other".to_owned() };
    assert_eq!(client.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
    serving.abort();
}
