//! A picker for tests, and the server around it.

#![allow(dead_code, reason = "each file of tests uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use kvatlas_epp::{AnswerWatcher, Counts, Pick, PickRefusal, Picker, RequestToPick, Settings, serve};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

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

impl Picker for TestPicker {
    async fn pick(&self, request: RequestToPick) -> Result<Pick, PickRefusal> {
        let endpoints: Vec<String> = self.endpoints.iter().filter(|it| request.allows(it)).cloned().collect();
        self.seen.send(Observation::Request(request)).ok();
        if endpoints.is_empty() {
            let mut refused = PickRefusal::new(503, "no_worker", "no engine takes \"requests\"\nat present");
            refused.headers.push(("retry-after".to_owned(), "1".to_owned()));
            return Err(refused);
        }
        let headers = vec![("x-data-parallel-rank".to_owned(), "3".to_owned())];
        Ok(Pick { endpoints, headers, watcher: Some(Box::new(TestWatcher(self.seen.clone()))) })
    }
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) seen: mpsc::UnboundedReceiver<Observation>,
    pub(crate) counts: Arc<Counts>,
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
    let picker = Arc::new(TestPicker { endpoints: endpoints.to_vec(), seen: sender });
    let counts = Arc::new(Counts::default());
    let (end, ended) = oneshot::channel::<()>();
    let serving = serve(listener, picker, settings, counts.clone(), async {
        ended.await.ok();
    });
    let serving = tokio::spawn(async move { serving.await.unwrap() });
    TestServer { address, seen, counts, serving, end }
}
