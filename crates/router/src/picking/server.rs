//! [`PickerServer`]: the gRPC server for gateways, on threads of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvatlas_epp::{Counts, Settings, serve};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::EnginePicker;
use crate::app::App;
use crate::error::Error;

/// A running server for gateways.
pub(crate) struct PickerServer {
    address: SocketAddr,
    runtime: Runtime,
    serving: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl PickerServer {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`Error::Start`] if the address cannot be listened at, or there are no threads to be had.
    pub(crate) fn start(app: &Arc<App>, address: SocketAddr) -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(app.front.threads())
            .thread_name("kvatlas-picker")
            .enable_all()
            .build()
            .map_err(|error| Error::start(format!("cannot start the threads for gateways: {error}")))?;
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .map_err(|error| Error::start(format!("cannot listen for gateways at {address}: {error}")))?;
        let address = listener.local_addr().map_err(|error| Error::start(error.to_string()))?;
        let (end, ended) = oneshot::channel::<()>();
        let counts: Arc<Counts> = app.picker_counts.get_or_init(Arc::default).clone();
        // Requests are at their engines until their answers have ended, so these are watched.
        let settings = Settings { max_body: app.config.http.max_body, answers: true };
        let picker = Arc::new(EnginePicker { app: app.clone() });
        let serving = runtime.spawn(async move {
            let ended = async { drop(ended.await) };
            if let Err(error) = serve(listener, picker, settings, counts, ended).await {
                tracing::error!("the server for gateways has ended: {error}");
            }
        });
        tracing::info!(%address, "picking engines for gateways");
        Ok(Self { address, runtime, serving, end })
    }

    /// Address at which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more streams, and answers the open ones. False if that took longer than `timeout`.
    pub(crate) fn drain(self, timeout: Duration, end: Duration) -> bool {
        self.end.send(()).ok();
        let waiting = async { tokio::time::timeout(timeout, self.serving).await.is_ok() };
        let in_time = self.runtime.block_on(waiting);
        self.runtime.shutdown_timeout(end);
        in_time
    }
}
