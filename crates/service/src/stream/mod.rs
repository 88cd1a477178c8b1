//! One engine rank's events: in order, whole, once.
//!
//! `machine` decides, without sockets or clock; `task` runs it; `transport` is what it needs of sockets, and
//! `zmq_transport` has real ones; `holdings` brings batches into the index.

mod address;
mod block_limits;
mod contexts;
mod holdings;
mod machine;
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

use self::task::follow;
use self::zmq_transport::ZmqTransport;
use crate::config::StreamConfig;
use crate::state::{Keyspace, Stream};

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

/// Starts to follow a stream, whose blocks go into the keyspace's index.
pub(crate) fn spawn(
    runtime: &Handle,
    config: StreamConfig,
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
) -> StreamHandle {
    let (stop, stopped) = oneshot::channel();
    let (registration, pauses) = (stream.registration.clone(), config.clone());
    let transport = move || ZmqTransport::new(&registration, &pauses);
    let task = runtime.spawn(follow(keyspace, stream, config, transport, stopped));
    StreamHandle { stop, task }
}
