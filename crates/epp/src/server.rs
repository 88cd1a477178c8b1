//! The gRPC server: Envoy's external processing and gRPC's health service ([`PickerHealth`]).

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_prost::ProstCodec;

use crate::exchange::{NextStep, PickExchange};
use crate::messages::{ProcessingRequest, ProcessingResponse};
use crate::{BodyRoom, Counts, PickRefusal, Picker};

/// Full name of the gRPC service for external processing.
pub(crate) const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// Path of the only method of the gRPC service for external processing.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Maximum size of a message without the body in it, in bytes.
const BESIDE_BODY: usize = 1 << 20;

/// Maximum number of replies of a stream that the gateway has not yet received.
const REPLIES: usize = 16;

/// Settings of the gRPC server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Maximum size of a request's body in bytes; a larger one is refused with 413.
    pub max_body: usize,
    /// True to pass engines' answers to the pick's watcher. If false, each stream with the gateway ends once the
    /// request has been handled, so that stopping this server breaks no answer.
    pub answers: bool,
    /// True to enable functions for conformance tests of gateways: the client chooses endpoints by a header, and
    /// another header reports which endpoint answered. Not for untrusted clients.
    pub conformance: bool,
}

/// Serves the connections from `connections` until `end` is ready, and then finishes open streams.
///
/// # Errors
/// The server fails if no more connections can be accepted.
pub async fn serve<P: Picker, C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static>(
    connections: impl Stream<Item = std::io::Result<C>>,
    picker: Arc<P>,
    settings: Settings,
    counts: Arc<Counts>,
    health: &PickerHealth,
    end: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let processor = ExternalProcessor { picker, settings, counts };
    Server::builder()
        .add_service(health.service())
        .add_service(processor)
        .serve_with_incoming_shutdown(connections, end)
        .await
}

/// Implementation of the gRPC service `envoy.service.ext_proc.v3.ExternalProcessor`.
struct ExternalProcessor<P> {
    picker: Arc<P>,
    settings: Settings,
    counts: Arc<Counts>,
}

impl<P> Clone for ExternalProcessor<P> {
    fn clone(&self) -> Self {
        Self { picker: self.picker.clone(), settings: self.settings, counts: self.counts.clone() }
    }
}

impl<P> NamedService for ExternalProcessor<P> {
    const NAME: &'static str = SERVICE;
}

impl<P: Picker> Service<http::Request<Body>> for ExternalProcessor<P> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let processor = self.clone();
        Box::pin(async move {
            if request.uri().path() != PROCESS {
                let status = Status::unimplemented("the only method of this service is Process");
                return Ok(status.into_http());
            }
            let most = processor.settings.max_body.saturating_add(BESIDE_BODY);
            // Tonic takes 4 MB otherwise: a gateway that buffers sends the whole body in one message.
            let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(most);
            Ok(grpc.streaming(processor, request).await)
        })
    }
}

impl<P: Picker> StreamingService<ProcessingRequest> for ExternalProcessor<P> {
    type Response = ProcessingResponse;
    type ResponseStream = ReceiverStream<Result<ProcessingResponse, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let processor = self.clone();
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel(REPLIES);
            let mut run = Box::pin(async move { processor.run(request.into_inner(), sender).await });
            // A short request has arrived whole. It is answered before the head of the answer is sent, so that both go in
            // one write: the head alone would wake the gateway for nothing.
            let is_over = poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_ready())).await;
            if !is_over {
                drop(tokio::spawn(run));
            }
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}

impl<P: Picker> ExternalProcessor<P> {
    /// Handles one stream of the gateway, which concerns one request.
    async fn run(
        &self,
        mut messages: Streaming<ProcessingRequest>,
        sender: mpsc::Sender<Result<ProcessingResponse, Status>>,
    ) {
        let mut exchange = PickExchange::new(self.settings.conformance);
        // For the body, from its first part until all of it has gone back.
        let mut room: Option<P::Room> = None;
        loop {
            let message = tokio::select! {
                biased;
                message = messages.message() => message,
                refused = must_leave(room.as_ref()) => {
                    self.counts.no_room.fetch_add(1, Relaxed);
                    return send(&sender, exchange.refused(refused)).await;
                }
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(status) => {
                    // Envoy resets each stream at its end, so this is a fault only before the pick.
                    tracing::debug!(code = ?status.code(), message = status.message(), "a stream of the gateway ended");
                    break;
                }
            };
            if let Some(size) = exchange.size_with(&message) {
                let room = room.get_or_insert_with(|| self.picker.room(exchange.request()));
                let refused = if size > self.settings.max_body {
                    self.counts.too_large.fetch_add(1, Relaxed);
                    Some(room.too_large())
                } else {
                    let refused = room.grow(size).await.err();
                    self.counts.no_room.fetch_add(u64::from(refused.is_some()), Relaxed);
                    refused
                };
                if let Some(refused) = refused {
                    return send(&sender, exchange.refused(refused)).await;
                }
            }
            let mut has_picked = false;
            let replies = match exchange.take(message, &self.counts) {
                NextStep::Reply(replies) => replies,
                NextStep::Ask(request) => {
                    if let Some(room) = &mut room {
                        room.complete();
                    }
                    let picked = tokio::select! {
                        picked = self.picker.pick(request) => picked,
                        // The client has left.
                        () = sender.closed() => {
                            self.counts.left.fetch_add(1, Relaxed);
                            return;
                        }
                    };
                    match picked {
                        Ok(pick) => {
                            has_picked = true;
                            self.counts.picked.fetch_add(1, Relaxed);
                            exchange.picked(pick, self.settings.answers)
                        }
                        Err(refused) => {
                            self.counts.refused.fetch_add(1, Relaxed);
                            exchange.refused(refused)
                        }
                    }
                }
            };
            for reply in replies {
                if sender.send(Ok(reply)).await.is_err() {
                    return;
                }
            }
            if exchange.has_asked() {
                room = None;
            }
            let is_done = has_picked && !self.settings.answers && exchange.has_whole_request();
            if exchange.is_over() || is_done {
                return;
            }
        }
        if !exchange.has_asked() {
            self.counts.left.fetch_add(1, Relaxed);
        }
    }
}

/// Sends the last replies of a stream; stops if the stream has ended in the meantime.
async fn send(sender: &mpsc::Sender<Result<ProcessingResponse, Status>>, replies: Vec<ProcessingResponse>) {
    for reply in replies {
        if sender.send(Ok(reply)).await.is_err() {
            return;
        }
    }
}

/// Waits until a body that is arriving must give its memory to others, and returns the refusal; never returns without a
/// body.
async fn must_leave(room: Option<&impl BodyRoom>) -> PickRefusal {
    match room {
        Some(room) => room.must_leave().await,
        None => std::future::pending().await,
    }
}

/// Stage of the server between start and end, which determines the services that [`PickerHealth`] reports as serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthStage {
    /// Started, but without the data needed to pick well: only `liveness` is reported as serving.
    Starting,
    /// Open for requests, though some data are still missing: the picker's own service is reported as serving, too.
    Picking,
    /// Open for requests, with all data: `readiness` is reported as serving as well.
    Ready,
    /// About to end: only `liveness` is reported as serving.
    Leaving,
}

/// State of gRPC's health service, which reports on the services `liveness` and the empty name, `readiness`, and
/// `envoy.service.ext_proc.v3.ExternalProcessor`.
#[derive(Debug, Clone)]
pub struct PickerHealth {
    reporter: HealthReporter,
}

impl PickerHealth {
    /// Makes the state of the health service at the stage `stage`.
    pub async fn new(stage: HealthStage) -> Self {
        let health = Self { reporter: HealthReporter::new() };
        health.reporter.set_service_status("liveness", ServingStatus::Serving).await;
        health.set(stage).await;
        health
    }

    /// Changes the stage, and notifies clients that watch the health service.
    pub async fn set(&self, stage: HealthStage) {
        let picks = matches!(stage, HealthStage::Picking | HealthStage::Ready);
        for (name, serves) in [("readiness", stage == HealthStage::Ready), (SERVICE, picks)] {
            let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Makes a gRPC health service from the state; several servers can each have one.
    pub(crate) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}

/// Serves only the health service, until `end` is ready. TLS is not used, as health probes do not support it.
///
/// # Errors
/// The server fails if it cannot continue to listen.
pub async fn serve_health(
    listener: TcpListener,
    health: PickerHealth,
    end: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().add_service(health.service()).serve_with_incoming_shutdown(incoming, end).await
}
