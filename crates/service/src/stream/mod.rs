//! One engine rank's events: in order, whole, once.
//!
//! `machine` decides, without sockets or clock; `task` runs it; `transport` is what it needs of sockets, and
//! `zmq_transport` has real ones; `holdings` brings batches into the index.

mod address;
mod contexts;
mod holdings;
mod machine;
#[cfg(test)]
mod machine_model;
#[cfg(test)]
mod machine_tests;
mod monitor;
#[allow(unsafe_code, reason = "a socket is polled by its file descriptor; the file says why that is sound")]
mod polled;
mod task;
#[cfg(test)]
mod task_tests;
mod transport;
mod window;
mod zmq_transport;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fleet::{Fleet, Stream};

/// A stream's task.
pub(crate) struct StreamHandle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl StreamHandle {
    /// Ends the task; when this returns, nothing of the stream will be applied any more.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Starts to follow a stream.
pub(crate) fn spawn(runtime: &Handle, fleet: Arc<Fleet>, stream: Arc<Stream>) -> StreamHandle {
    let (stop, stopped) = oneshot::channel();
    let settings = fleet.settings().clone();
    let registration = stream.registration.clone();
    let transport = move || zmq_transport::ZmqTransport::new(&registration, &settings);
    let task = runtime.spawn(task::follow(fleet, stream, transport, stopped));
    StreamHandle { stop, task }
}
