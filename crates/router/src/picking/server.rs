//! The gRPC servers for gateways and for their health probes ([`PickerServer`]), on separate threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvatlas_epp::{Counts, HealthStage, PickerHealth, Settings, serve, serve_health};
use kvatlas_follow::Follower;
use kvatlas_http::server::listen;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::EnginePicker;
use super::connections::{GatewayTls, NewConnection, ServingThread, accept, open_all};
use crate::app::App;
use crate::error::Error;

/// Time after the start from which the picker is reported as ready even if not all engines are known, as failed health
/// probes would otherwise restart the router.
const LATE: Duration = Duration::from_secs(20);

/// Interval between updates of the gRPC health service's state.
const LOOK: Duration = Duration::from_millis(100);

/// Maximum number of accepted connections that wait to be served by one thread.
const CONNECTIONS: usize = 16;

/// Running gRPC server for gateways.
pub(crate) struct PickerServer {
    address: SocketAddr,
    tls: Option<Arc<GatewayTls>>,
    /// Separate runtime that accepts connections and answers health probes.
    aside: Runtime,
    /// Threads that serve gateways, each with its own runtime, so that a request never wakes another thread.
    threads: Vec<JoinHandle<()>>,
    /// Channel that is disconnected when all threads that serve gateways have ended.
    ended: Receiver<()>,
    stage: watch::Sender<ServingStage>,
}

/// Instruction to the threads that serve gateways: continue, finish or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ServingStage {
    Serve,
    /// Serve no new streams, but finish the open ones.
    Finish,
    /// End at once, even with streams still open.
    End,
}

impl PickerServer {
    /// Starts the gRPC servers for gateways and for health probes.
    ///
    /// # Errors
    /// [`Error::Start`] if an address cannot be bound, a certificate cannot be used, or a thread cannot be started.
    pub(crate) fn start(app: &Arc<App>, address: SocketAddr) -> Result<Self, Error> {
        let no_thread = |error: std::io::Error| Error::start(format!("cannot start the threads for gateways: {error}"));
        let aside = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kvatlas-picker-aside")
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let tls = GatewayTls::new(&app.config)?.map(Arc::new);
        let open = |address: SocketAddr, whom: &str| {
            let failed = |error: &dyn std::fmt::Display| Error::start(format!("for {whom}: {error}"));
            let listening = listen(address).map_err(|error| failed(&error))?;
            let _entered = aside.enter();
            let listener = TcpListener::from_std(listening.socket).map_err(|error| failed(&error))?;
            Ok::<_, Error>((listener, listening.address))
        };
        let (listener, address) = open(address, "gateways (gateway_bind)")?;
        let probes =
            app.config.gateway_health_bind.map(|at| open(at, "probes of health (gateway_health_bind)")).transpose()?;
        let health_address = probes.as_ref().map(|(_, address)| *address);
        let health = aside.block_on(PickerHealth::new(HealthStage::Starting));
        aside.spawn(report(app.clone(), health.clone()));
        if let Some((listener, _)) = probes {
            let health = health.clone();
            aside.spawn(async move {
                if let Err(error) = serve_health(listener, health, std::future::pending()).await {
                    tracing::error!("the server for probes of health has ended: {error}");
                }
            });
        }
        if let Some(tls) = tls.clone() {
            aside.spawn(async move { tls.watch().await });
        }
        let counts: Arc<Counts> = app.picker_counts.get_or_init(Arc::default).clone();
        let picker = Arc::new(EnginePicker::new(app.clone()));
        let (stage, stages) = watch::channel(ServingStage::Serve);
        let (alive, ended) = std::sync::mpsc::channel();
        let (mut threads, mut serving) = (Vec::new(), Vec::new());
        for number in 0..app.front.threads() {
            let (thread, incoming) = ServingThread::new();
            let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
            // Requests are at their engines until their answers have ended, so these are watched.
            let settings = Settings {
                max_body: app.config.http.max_body,
                answers: true,
                conformance: app.config.gateway_conformance,
            };
            let work = ServingWork {
                incoming,
                tls: tls.clone(),
                picker: picker.clone(),
                settings,
                counts: counts.clone(),
                health: health.clone(),
                stages: stages.clone(),
            };
            let alive = alive.clone();
            let run = move || {
                let _alive: Sender<()> = alive;
                runtime.block_on(work.run());
                runtime.shutdown_background();
            };
            let named = std::thread::Builder::new().name(format!("kvatlas-picker-{number}"));
            threads.push(named.spawn(run).map_err(no_thread)?);
            serving.push(thread);
        }
        let mut finish = stages;
        let stop = async move { drop(finish.wait_for(|stage| *stage >= ServingStage::Finish).await) };
        aside.spawn(accept(listener, app.config.http.max_connections, serving, stop));
        tracing::info!(%address, tls = tls.is_some(), health = ?health_address, "picking engines for gateways");
        Ok(Self { address, tls, aside, threads, ended, stage })
    }

    /// Returns the address at which the server for gateways listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the TLS certificate's files again.
    ///
    /// # Errors
    /// [`Error::Start`] if the certificate cannot be used; the previous one stays in use.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// Shuts the server down: accepts no more streams of gateways, and finishes the open ones. Returns false if the
    /// open streams did not finish within `timeout`. `end`: time limit for stopping the runtime.
    pub(crate) fn drain(self, timeout: Duration, end: Duration) -> bool {
        self.stage.send_replace(ServingStage::Finish);
        let in_time = matches!(self.ended.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected));
        self.stage.send_replace(ServingStage::End);
        for thread in self.threads {
            thread.join().ok();
        }
        self.aside.shutdown_timeout(end);
        in_time
    }
}

/// State that a thread serving gateways needs: the picker, settings, and the thread's new connections.
struct ServingWork {
    incoming: mpsc::UnboundedReceiver<NewConnection>,
    tls: Option<Arc<GatewayTls>>,
    picker: Arc<EnginePicker>,
    settings: Settings,
    counts: Arc<Counts>,
    health: PickerHealth,
    stages: watch::Receiver<ServingStage>,
}

impl ServingWork {
    /// Serves the gateways' connections of this thread until all connections have ended.
    async fn run(self) {
        let (mut finish, mut end) = (self.stages.clone(), self.stages);
        let (sender, connections) = mpsc::channel(CONNECTIONS);
        drop(tokio::spawn(open_all(self.incoming, self.tls, sender)));
        let finished = async { drop(finish.wait_for(|stage| *stage >= ServingStage::Finish).await) };
        let connections = ReceiverStream::new(connections);
        let serving = serve(connections, self.picker, self.settings, self.counts, &self.health, finished);
        tokio::select! {
            served = serving => {
                if let Err(error) = served {
                    tracing::error!("the server for gateways has ended: {error}");
                }
            }
            _ = end.wait_for(|stage| *stage == ServingStage::End) => {}
        }
    }
}

/// Updates the gRPC health service from the router's state. Once ready, the service stays ready when engines come or
/// go, as requests wait for engines.
async fn report(app: Arc<App>, health: PickerHealth) {
    let began = Instant::now();
    let mut stage = HealthStage::Starting;
    while stage != HealthStage::Leaving {
        let knows_all = || app.fleet.has_any_up() && app.follower.as_deref().and_then(Follower::waiting).is_none();
        let next = match stage {
            _ if app.leaving.load(Relaxed) => HealthStage::Leaving,
            HealthStage::Starting | HealthStage::Picking if knows_all() => HealthStage::Ready,
            HealthStage::Starting if began.elapsed() >= LATE => {
                tracing::warn!("takes requests of gateways, though not all engines are known after {LATE:?}");
                HealthStage::Picking
            }
            same => same,
        };
        if next != stage {
            stage = next;
            health.set(stage).await;
        }
        tokio::time::sleep(LOOK).await;
    }
}
