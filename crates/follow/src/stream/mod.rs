//! Task of one stream, which applies the batches of one engine rank to the index, each once and in order.
//!
//! `task` has the main loop of every stream. `engine` reads batches from an engine: it runs
//! [`kvatlas_stream::machine`], which makes decisions without sockets or clock, and keeps the stream's status up to
//! date. `transport` has the sockets, which use [`kvatlas_stream::zmtp`]: `outbound` has those that connect to an
//! engine, `publishers` those of engines that connect to the service. `holdings` applies batches to the index, `copier`
//! copies the held blocks, `restore` restores them from a snapshot. `relayed` reads batches from a NATS log instead of
//! from an engine.

mod batch_reports;
mod copier;
mod engine;
mod holdings;
#[cfg(test)]
mod holdings_tests;
mod limits;
mod outbound;
mod publishers;
mod relayed;
mod restore;
mod task;
#[cfg(test)]
mod task_tests;
mod topics;
mod transport;

use std::sync::{Arc, Once};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::outbound::OutboundStream;
pub(crate) use self::publishers::Publishers;
pub(crate) use self::transport::TransportEvent;
use self::transport::ZmqTransport;
use crate::context::StreamContext;
use crate::relay::Subject;
use crate::state::{Keyspace, Stream};

/// Handle of the task that follows a stream, by which the task can be ended.
pub(crate) struct StreamHandle {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl StreamHandle {
    /// Ends the stream's task. After the call, no further batch of the stream is applied.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Starts the task that follows a stream and stores its blocks in the index of the keyspace (model and routing group).
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
    allow_many_files();
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
    // Now, and not when the task runs: until there is a route, batches of the engine are of an unregistered topic.
    let first = Mutex::new(route());
    let registration = stream.registration.clone();
    let transport = move || ZmqTransport::new(&registration, &pauses, first.lock().take().or_else(&route));
    let task = runtime.spawn(engine::follow(keyspace, stream, context, transport, stopped));
    StreamHandle { stop, task }
}

/// Raises the process's limit on open files. A stream has two sockets, so the usual limit of 1,024 would allow only a
/// few hundred streams.
fn allow_many_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match rlimit::increase_nofile_limit(1 << 20) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    });
}
