//! One engine rank's events: in order, whole, once.
//!
//! [`kvatlas_stream::machine`] decides, without sockets or clock; `task` runs it, and `report` tells how it does; `transport`
//! is what it needs of sockets, and `zmq_transport` has real ones, which speak [`kvatlas_stream::zmtp`]; `publishers` are
//! engines that connect to us; `holdings` brings batches into the index. `relayed` has the task of a stream that comes by a
//! relay's log.

mod address;
mod block_limits;
mod claimed_ranks;
mod copier;
mod files;
mod frames;
mod holdings;
#[cfg(test)]
mod holdings_tests;
mod inbound;
mod outbound;
mod pending_counts;
mod publishers;
mod relayed;
mod replay;
mod report;
mod restore;
mod state_copier;
mod task;
#[cfg(test)]
mod task_tests;
mod topics;
mod transport;
mod zmq_transport;
#[cfg(test)]
mod zmq_transport_tests;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::address::Address;
pub(crate) use self::publishers::Publishers;
use self::task::follow;
use self::zmq_transport::ZmqTransport;
use crate::context::StreamContext;
use crate::relay::Subject;
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
    context: StreamContext,
    publishers: Arc<Publishers>,
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
) -> StreamHandle {
    let (stop, stopped) = oneshot::channel();
    if let Some(subject) = stream.registration.endpoint.log_subject() {
        let inbox = context.relay.take_inbox(subject);
        let task = runtime.spawn(relayed::follow(keyspace, stream, context, inbox, stopped));
        return StreamHandle { stop, task };
    }
    files::allow_many();
    if context.relay.publishes() {
        let registration = &stream.registration;
        let subject = Subject {
            routing_group: registration.routing_group.clone(),
            model: registration.model.clone(),
            worker: registration.worker.clone(),
            rank: registration.rank,
        };
        let _runtime = runtime.enter();
        let key = keyspace.identity().key_check();
        stream.set_outlet(context.relay.outlet(&subject, registration.block_size, key));
    }
    let (registration, pauses) = (stream.registration.clone(), context.clone());
    let route = move || Some(publishers.route(registration.endpoint.bound_port()?, &registration.topic));
    // Now, and not when the task runs: what an engine sends meanwhile would be of a topic that nobody has registered.
    let first = Mutex::new(route());
    let registration = stream.registration.clone();
    let transport = move || ZmqTransport::new(&registration, &pauses, first.lock().take().or_else(&route));
    let task = runtime.spawn(follow(keyspace, stream, context, transport, stopped));
    StreamHandle { stop, task }
}
