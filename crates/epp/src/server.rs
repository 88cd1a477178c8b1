//! The gRPC server: Envoy's external processing and gRPC's health service.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_prost::ProstCodec;

use crate::counts::Counts;
use crate::exchange::{NextStep, PickExchange};
use crate::messages::{ProcessingRequest, ProcessingResponse};
use crate::picker::Picker;

/// Name of the service.
const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// Path of its only method.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Names under which gateways ask for the server's health.
const HEALTH_NAMES: [&str; 3] = ["liveness", "readiness", SERVICE];

/// Bytes of a message beside the body in it.
const BESIDE_BODY: usize = 1 << 20;

/// Replies of one stream that may wait for the gateway.
const REPLIES: usize = 16;

/// Settings of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Limit of a request's body in bytes; a longer one is refused with 413.
    pub max_body: usize,
    /// True to show the answer to the pick's watcher. If not, each stream ends after the request's part, and the end of
    /// this server breaks no answer.
    pub answers: bool,
}

/// Serves at a listener until `end` is ready, then answers open streams to their end.
///
/// # Errors
/// The server cannot go on listening.
pub async fn serve<P: Picker>(
    listener: TcpListener,
    picker: Arc<P>,
    settings: Settings,
    counts: Arc<Counts>,
    end: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let leaving = async {
        end.await;
        for name in HEALTH_NAMES {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
    };
    let processor = ExternalProcessor { picker, settings, counts };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().add_service(health).add_service(processor).serve_with_incoming_shutdown(incoming, leaving).await
}

/// The service `envoy.service.ext_proc.v3.ExternalProcessor`.
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
            tokio::spawn(async move { processor.run(request.into_inner(), sender).await });
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}

impl<P: Picker> ExternalProcessor<P> {
    /// Answers one stream, which is one request.
    async fn run(
        &self,
        mut messages: Streaming<ProcessingRequest>,
        sender: mpsc::Sender<Result<ProcessingResponse, Status>>,
    ) {
        let mut exchange = PickExchange::new(self.settings.max_body);
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(status) => {
                    // Envoy resets each stream at its end, so this is a fault only before the pick.
                    tracing::debug!(code = ?status.code(), message = status.message(), "a stream of the gateway ended");
                    break;
                }
            };
            let mut has_picked = false;
            let replies = match exchange.take(message, &self.counts) {
                NextStep::Reply(replies) => replies,
                NextStep::Ask(request) => {
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
