//! A picker for tests, and the server around it.

#![allow(dead_code, reason = "each file of tests uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use kvatlas_epp::{
    AnswerWatcher, BodyRoom, Counts, HealthStage, Pick, PickRefusal, Picker, PickerHealth, RequestToPick, Settings,
    serve,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

/// Observation of a picker or a watcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    Request(RequestToPick),
    Head(u16),
    Part(Bytes),
    End,
}

/// Picks all of its endpoints that the request's subset has, in order.
struct TestPicker {
    endpoints: Vec<String>,
    seen: mpsc::UnboundedSender<Observation>,
    used: Arc<AtomicUsize>,
}

struct TestWatcher(mpsc::UnboundedSender<Observation>);

impl AnswerWatcher for TestWatcher {
    fn head(&mut self, status: u16, _: &[(String, Bytes)]) {
        self.0.send(Observation::Head(status)).ok();
    }

    fn part(&mut self, part: &Bytes) {
        self.0.send(Observation::Part(part.clone())).ok();
    }

    fn end(&mut self) {
        self.0.send(Observation::End).ok();
    }
}

/// Room for all bodies together, in bytes.
pub(crate) const ROOM: usize = 32 << 20;

/// The part of [`ROOM`] that a body has taken.
struct TestRoom {
    taken: usize,
    used: Arc<AtomicUsize>,
    must_leave: bool,
}

impl Drop for TestRoom {
    fn drop(&mut self) {
        self.used.fetch_sub(self.taken, Relaxed);
    }
}

impl BodyRoom for TestRoom {
    async fn grow(&mut self, bytes: usize) -> Result<(), PickRefusal> {
        let more = bytes - self.taken;
        if self.used.fetch_add(more, Relaxed) + more > ROOM {
            self.used.fetch_sub(more, Relaxed);
            return Err(PickRefusal::new(503, "body_memory", "no room"));
        }
        self.taken = bytes;
        Ok(())
    }

    async fn must_leave(&self) -> PickRefusal {
        if !self.must_leave {
            std::future::pending::<()>().await;
        }
        PickRefusal::new(503, "body_memory", "the body does not arrive")
    }

    fn too_large(&self) -> PickRefusal {
        PickRefusal::new(413, "body_too_large", "the body is too large")
    }

    fn complete(&mut self) {
        self.must_leave = false;
    }
}

impl Picker for TestPicker {
    type Room = TestRoom;

    fn room(&self, request: &RequestToPick) -> TestRoom {
        TestRoom { taken: 0, used: self.used.clone(), must_leave: request.header("x-slow").is_some() }
    }

    async fn pick(&self, request: RequestToPick) -> Result<Pick, PickRefusal> {
        let endpoints: Vec<String> = self.endpoints.iter().filter(|it| request.allows(it)).cloned().collect();
        let is_changed = request.may_change_body && request.header("x-change").is_some();
        let body = request.body.as_ref().filter(|_| is_changed).map(|body| [b"more ", &body[..]].concat().into());
        self.seen.send(Observation::Request(request)).ok();
        if endpoints.is_empty() {
            let mut refused = PickRefusal::new(503, "no_worker", "no engine takes \"requests\"\nat present");
            refused.headers.push(("retry-after".to_owned(), "1".to_owned()));
            return Err(refused);
        }
        let headers = vec![("x-data-parallel-rank".to_owned(), "3".to_owned())];
        Ok(Pick { endpoints, headers, body, watcher: Some(Box::new(TestWatcher(self.seen.clone()))) })
    }
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) seen: mpsc::UnboundedReceiver<Observation>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) health: PickerHealth,
    /// Bytes that bodies hold now.
    pub(crate) used: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl TestServer {
    /// Ends the server, and returns the address, which is free then.
    pub(crate) async fn end(self) -> SocketAddr {
        self.end.send(()).ok();
        self.serving.await.unwrap();
        self.address
    }
}

/// Starts a server that picks among endpoints.
pub(crate) async fn start(endpoints: &[String], settings: Settings) -> TestServer {
    start_at(SocketAddr::from(([127, 0, 0, 1], 0)), endpoints, settings).await
}

/// Starts a server at an address.
pub(crate) async fn start_at(address: SocketAddr, endpoints: &[String], settings: Settings) -> TestServer {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, seen) = mpsc::unbounded_channel();
    let used: Arc<AtomicUsize> = Arc::default();
    let picker = Arc::new(TestPicker { endpoints: endpoints.to_vec(), seen: sender, used: used.clone() });
    let counts = Arc::new(Counts::default());
    let (end, ended) = oneshot::channel::<()>();
    let health = PickerHealth::new(HealthStage::Ready).await;
    let (its_counts, its_health) = (counts.clone(), health.clone());
    let serving = tokio::spawn(async move {
        let end = async {
            ended.await.ok();
        };
        let connections = TcpIncoming::from(listener);
        serve(connections, picker, settings, its_counts, &its_health, end).await.unwrap();
    });
    TestServer { address, seen, counts, health, used, serving, end }
}
