//! [`Service`]: everything started, and stopped again in order.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::config::Config;
use crate::error::Error;
use crate::fleet::{Fleet, Registering};
use crate::http::{self, App, Server};
use crate::log;

/// How long threads may take to end when a service is dropped.
const END: Duration = Duration::from_secs(2);

/// A running service. Its methods wait, so they are not for calls from inside an async runtime.
pub struct Service {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    running: Mutex<Option<Running>>,
}

struct Running {
    server: Server,
    ingest: Runtime,
}

impl Service {
    /// Starts to listen; engines can be registered as soon as this returns.
    ///
    /// # Errors
    /// [`Error::Start`] if the address cannot be listened at, the certificate cannot be read, or there are no
    /// threads to be had.
    pub fn start(config: Config) -> Result<Self, Error> {
        log::start(config.log);
        let ingest = Builder::new_multi_thread()
            .worker_threads(config.streams.threads)
            .thread_name("kvatlas-ingest")
            .enable_all()
            .build()
            .map_err(|error| Error::Start {
                message: format!("cannot start the threads that follow streams: {error}"),
            })?;
        let allow = config.streams.allow.clone();
        let fleet = Fleet::new(config.streams, &config.holds, ingest.handle().clone());
        let app = App::new(fleet, config.http, &allow)?;
        let beating = app.clone();
        ingest.spawn(async move { beating.pulses.ingest.beat().await });
        let server = http::start(&app)?;
        let address = server.address();
        let (tls, key) = (app.config.tls.is_some(), app.trust.keys().asked_for());
        let admin_key = app.trust.keys().asked_for_changes();
        tracing::info!(%address, tls, key, admin_key, threads = app.threads(), "listening");
        let admin_address = server.admin_address();
        if let Some(address) = admin_address {
            tracing::info!(%address, "listening for health, readiness and metrics");
        }
        Ok(Self { app, address, admin_address, running: Mutex::new(Some(Running { server, ingest })) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for administrators, if it does.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Who is registered.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.app.fleet
    }

    /// Registers what a body of `/register` says, which may name its `source` too. True if that is new.
    ///
    /// `announced_by`: the host of the engine that named the endpoints; they must be there or be allowed. None if the
    /// operator named them: that is fine.
    ///
    /// # Errors
    /// As `/register` has them.
    pub fn register(&self, json: &str, announced_by: Option<&str>) -> Result<bool, Error> {
        let registration = http::registration(json.as_bytes())
            .map_err(|refusal| Error::Invalid { code: refusal.code, message: refusal.message })?;
        if announced_by.is_some() {
            http::check_allowed(&self.app.allow, &registration, announced_by)?;
        }
        let fleet = self.app.fleet.clone();
        let registering = self.wait(async move { fleet.register(registration).await })??;
        Ok(registering == Registering::New)
    }

    /// Unregisters a worker, or one rank of it. Returns the number of streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not registered.
    pub fn unregister(&self, worker: &str, rank: Option<u32>) -> Result<usize, Error> {
        let fleet = self.app.fleet.clone();
        let worker = worker.to_owned();
        self.wait(async move { fleet.unregister(&worker, None, rank).await })?
    }

    /// Reads the keys and certificates from their files again, as it does by itself a few seconds after they change.
    ///
    /// # Errors
    /// [`Error::Start`] if one of them cannot be used: all stays as it was.
    pub fn reload(&self) -> Result<(), Error> {
        self.app.trust.reload().inspect_err(
            |error| tracing::error!(%error, "keys and certificates cannot be read again; the old ones stay"),
        )?;
        tracing::info!("keys and certificates are read again");
        Ok(())
    }

    /// What `/workers` says.
    #[must_use]
    pub fn workers(&self) -> Value {
        http::workers(&self.app.fleet, None, None)
    }

    /// What readiness waits for, as `/ready` says it; nothing if ready.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        http::waiting(&self.app.fleet)
    }

    /// Says from now on that it is not ready. All else goes on.
    pub fn leave(&self) {
        self.app.fleet.drain();
    }

    /// Says that it is not ready, goes on for `delay`, so that whoever looks at readiness stops asking; then accepts no
    /// more connections, answers what was asked, ends all streams and threads.
    ///
    /// False if that took longer than `timeout` and something was cut off. Does nothing the second time.
    pub fn drain(&self, timeout: Duration, delay: Duration) -> bool {
        let Some(Running { server, ingest }) = self.take() else { return true };
        self.leave();
        std::thread::sleep(delay);
        let until = Instant::now() + timeout;
        let fleet = self.app.fleet.clone();
        let in_time = ingest.block_on(async {
            let answered = server.drain(timeout).await;
            let ended = tokio::time::timeout_at(until.into(), fleet.stop()).await.is_ok();
            answered && ended
        });
        server.end();
        ingest.shutdown_timeout(END);
        tracing::info!(in_time, "ended");
        in_time
    }

    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(running) = running.as_ref() else { return Err(Error::Closed) };
            running.ingest.spawn(async move {
                let _ = sender.send(work.await);
            });
        }
        receiver.recv().map_err(|_| Error::Closed)
    }

    fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.drain(Duration::ZERO, Duration::ZERO);
    }
}
