//! Start of all parts of a router, and their shutdown in order ([`Router`]).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvatlas_follow::Follower;
use kvatlas_follow::log;
use kvatlas_follow::page::Page;
use kvatlas_follow::sources::Sources;
use kvatlas_http::{Front, Server, Threads};
use kvatlas_routing::{BoxedPolicy, PolicyTable};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::answers::stored::AnswerEngines;
use crate::app::App;
use crate::config::{Config, EngineConfig};
use crate::counts::Counts;
use crate::engines::DrainedBy;
use crate::engines::fleet::{Adder, Fleet};
use crate::error::Error;
use crate::keeper::{FleetChanges, FleetKeeper};
use crate::picking::PickerServer;
use crate::placing::Places;
use crate::proxy::{Forwarder, Tokens};
use crate::remote::cache_reports::{self, CacheReporter};
use crate::remote::index::ExternalIndex;
use crate::remote::peer_requests;
use crate::remote::peers::Peers;
use crate::remote::sites;
use crate::reports::page;
use crate::requests::facts::Objectives;
use crate::requests::fleet_secret::FleetSecret;
use crate::requests::long_work::LongWork;
use crate::requests::prompts::Prompts;
use crate::requests::read_body::BodyReader;
use crate::requests::sessions::Sessions;
use crate::spans::Spans;
use crate::{control, reports};

/// Time limit for the router's threads to end.
const END: Duration = Duration::from_secs(2);

/// Time limit for writing the snapshot of the index at shutdown.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// Running router. Its methods block, so they must not be called inside an async runtime.
pub struct Router {
    pub(crate) app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    running: Mutex<Option<RouterThreads>>,
    /// Running gRPC server for gateways; None if it is not running.
    picker: Mutex<Option<PickerServer>>,
}

/// Settings of a router that can change without a restart.
#[derive(Deserialize)]
struct RouterChange {
    http: kvatlas_http::LiveSettings,
    log: log::LogConfig,
}

struct RouterThreads {
    server: Server,
    control: Runtime,
}

impl Router {
    /// Starts a router with the built-in policy that the configuration names.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting cannot be used, [`Error::Start`] if the address cannot be bound, the certificate
    /// cannot be read, or a thread cannot be started.
    pub fn start(config: Config) -> Result<Self, Error> {
        let policy = config.make_policy(&PolicyTable::own())?;
        Self::start_with(config, policy)
    }

    /// Starts a router with the routing policy `policy`.
    ///
    /// # Errors
    /// The errors of [`Router::start`].
    pub fn start_with(config: Config, policy: BoxedPolicy) -> Result<Self, Error> {
        Self::start_kept(config, policy, None)
    }

    /// Starts a router with the routing policy `policy`. The keeper, if given, makes and stores the changes of the
    /// fleet that clients request.
    ///
    /// # Errors
    /// The errors of [`Router::start`].
    pub fn start_kept(
        config: Config,
        policy: BoxedPolicy,
        keeper: Option<Arc<dyn FleetKeeper>>,
    ) -> Result<Self, Error> {
        log::start(config.log);
        let config = Arc::new(config);
        let front = Front::new(config.http.clone(), true)?;
        let (threads, gate) = (front.threads(), front.gate.clone());
        let secret = FleetSecret::new(&gate, &config);
        let fleet = Arc::new(Fleet::new(config.clone(), threads)?);
        let external_index = ExternalIndex::new(&config, threads, fleet.tls())?.map(Arc::new);
        let counts = Arc::new(Counts::new());
        let places = Places::new(&config, policy, fleet.clone(), external_index.clone(), counts.clone())?;
        let places = Arc::new(places);
        let cache_reporter = if places.wants().hashes { CacheReporter::new(&config, fleet.tls())? } else { None };
        let follower = match &config.service {
            Some(service) => {
                let config = kvatlas_follow::Config::from_json(&service.to_string())?;
                Some(Arc::new(Follower::start(config, gate.asks_for_key_to_change())?))
            }
            None => None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let prompts = Prompts::new(&config, places.wants(), cache_reporter.clone(), &secret, cores)?;
        let (memory, long_work) = (front.memory.clone(), LongWork::new(cores));
        let reader = BodyReader::new(prompts, fleet.clone(), follower.clone(), memory, long_work);
        let proxy = Arc::new(Forwarder {
            config: config.clone(),
            gate: gate.clone(),
            reader: reader.clone(),
            fleet: fleet.clone(),
            places: places.clone(),
            counts: counts.clone(),
            sessions: Sessions::new(&config, &secret)?,
            tokens: Tokens::default(),
            objectives: Objectives::default(),
            answer_engines: AnswerEngines::default(),
        });
        let peers = Arc::new(Peers::new(&config, fleet.tls(), &gate)?);
        let sources = follower.as_ref().map_or_else(Arc::default, |follower| follower.sources().clone());
        let control = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kvatlas-control")
            .enable_all()
            .build()
            .map_err(|error| Error::start(format!("cannot start the thread that looks after engines: {error}")))?;
        let spans = Spans::start(&config, fleet.tls(), control.handle())?;
        let app = Arc::new(App {
            fleet,
            places,
            counts,
            front,
            gate,
            reader,
            proxy,
            follower,
            sources,
            external_index,
            cache_reporter,
            changes: FleetChanges::new(keeper),
            peers,
            picker_counts: OnceLock::new(),
            spans,
            page: Page::default(),
            leaving: AtomicBool::new(false),
            config,
        });
        for engine in &app.config.engines {
            app.places.set_engine(engine.clone(), Adder::Operator)?;
        }
        let server = Server::start(&app, Threads::Own(threads))?;
        control.spawn(control::run(app.clone()));
        let places = app.places.clone();
        control.spawn(async move { places.bind().await });
        {
            let _entered = control.enter();
            peer_requests::run(&app.peers, &app.places, &app.config);
        }
        if let Some(global) = app.external_index.as_deref().and_then(ExternalIndex::global) {
            control.spawn(sites::run(global.clone()));
        }
        if let Some(cache_reporter) = &app.cache_reporter {
            control.spawn(cache_reports::run(cache_reporter.clone()));
        }
        control.spawn(page::run(app.clone()));
        let gate = app.gate.clone();
        control.spawn(async move { gate.watch().await });
        let (address, admin_address) = (server.address(), server.admin_address());
        let (tls, key) = (app.gate.tls().is_some(), app.gate.asks_for_key());
        tracing::info!(%address, tls, key, threads, policy = app.config.policy, "routing");
        let running = Mutex::new(Some(RouterThreads { server, control }));
        let gateways = app.config.gateway_bind;
        let router = Self { app, address, admin_address, running, picker: Mutex::new(None) };
        if let Some(address) = gateways {
            router.serve_gateways(address)?;
        }
        Ok(router)
    }

    /// Starts the gRPC server at which gateways ask for an engine (Envoy's external processing). Returns the server's
    /// address, with the port.
    ///
    /// # Errors
    /// [`Error::Start`] if the address cannot be bound, if the server is running already, or if the router has been
    /// stopped.
    pub fn serve_gateways(&self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let mut picker = self.picker.lock();
        if picker.is_some() || self.running.lock().is_none() {
            return Err(Error::start("the router picks engines for gateways already, or has ended".to_owned()));
        }
        let server = PickerServer::start(&self.app, address)?;
        let address = server.address();
        *picker = Some(server);
        Ok(address)
    }

    /// Returns the address of the router's main listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the follower of the engines' events in this process; None if the router does not follow events itself.
    #[must_use]
    pub fn service(&self) -> Option<&Follower> {
        self.app.follower.as_deref()
    }

    /// Returns up to `most` recent routing decisions as JSON, the newest first.
    #[must_use]
    pub fn decisions(&self, most: usize) -> Value {
        self.app.places.decisions.last(most).iter().map(|record| record.to_json()).collect()
    }

    /// Returns the address of the listener for administrators; None if not configured.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Adds an engine, given as an [`EngineConfig`] in JSON, or replaces the engine of the same name.
    ///
    /// # Errors
    /// [`Error::Config`] if the text is no valid configuration of an engine.
    pub fn set_engine(&self, engine: &str) -> Result<(), Error> {
        self.set(engine, Adder::Operator)
    }

    /// Adds an engine like [`Router::set_engine`], but on behalf of a client over HTTP, with a client's limits.
    ///
    /// # Errors
    /// The errors of [`Router::set_engine`]; [`Error::Taken`] if an engine at another URL has the name, [`Error::Full`]
    /// if clients may add no more engines.
    pub fn set_engine_for_client(&self, engine: &str) -> Result<(), Error> {
        self.set(engine, Adder::Client)
    }

    fn set(&self, engine: &str, adds: Adder) -> Result<(), Error> {
        let engine: EngineConfig = serde_json::from_str(engine).map_err(|error| Error::config(error.to_string()))?;
        self.app.places.set_engine(engine, adds).map(drop)
    }

    /// Removes an engine from the fleet. Requests that the engine is processing continue.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the fleet has no engine of this name.
    pub fn remove_engine(&self, name: &str) -> Result<(), Error> {
        self.app.places.remove_engine(name).map(drop)
    }

    /// Drains an engine on behalf of the party `by`, so that it gets no new requests, or ends this draining. The engine
    /// gets new requests again when no party drains it.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the fleet has no engine of this name.
    pub fn drain_engine(&self, name: &str, by: DrainedBy, drain: bool) -> Result<(), Error> {
        self.app.places.drain_engine(name, by, drain).map(drop)
    }

    /// Replaces the named priorities of requests (a cluster's objectives). `priorities`: JSON object with each
    /// objective's priority by name. A request that names an objective gets its priority.
    ///
    /// # Errors
    /// [`Error::Config`] if the text cannot be parsed.
    pub fn set_objectives(&self, priorities: &str) -> Result<(), Error> {
        let priorities = serde_json::from_str(priorities).map_err(|error| Error::config(error.to_string()))?;
        self.app.proxy.objectives.set(priorities);
        Ok(())
    }

    /// Returns the latest reports on the sources in which engines are discovered.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.app.sources
    }

    /// Returns the state of all engines, as in the answer to `GET /workers`.
    #[must_use]
    pub fn workers(&self) -> Value {
        reports::workers(&self.app.places)
    }

    /// Returns the reasons why the router is not ready, as in the answer to `GET /ready`; None if the router is ready.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        let (leaving, any) = (self.app.leaving.load(Relaxed), self.app.fleet.has_any_up());
        (leaving || !any).then(|| serde_json::json!({ "ready": false, "leaving": leaving, "engines_up": any }))
    }

    /// Reloads the keys and certificates from their files.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used; no key or certificate is changed in this case.
    pub fn reload(&self) -> Result<(), Error> {
        self.app.gate.reload()?;
        self.picker.lock().as_ref().map_or(Ok(()), PickerServer::reload)
    }

    /// Changes the settings that can change without a restart. `settings`: JSON object with the sections `http` and
    /// `log`.
    ///
    /// # Errors
    /// [`Error::Config`] if the text cannot be parsed; no setting is changed in this case.
    pub fn change(&self, settings: &str) -> Result<(), Error> {
        let settings: RouterChange =
            serde_json::from_str(settings).map_err(|error| Error::config(error.to_string()))?;
        self.app.gate.change(settings.http);
        log::change(settings.log.level);
        Ok(())
    }

    /// Makes `GET /ready` report "not ready" from now on, and closes each connection after its next answer. The router
    /// continues to serve requests.
    pub fn leave(&self) {
        self.app.leaving.store(true, Relaxed);
    }

    /// Shuts the router down: reports "not ready" for the time `delay`, so that load balancers stop sending requests;
    /// then accepts no more connections, finishes open requests, and ends all threads.
    ///
    /// False if open requests were cut off because they did not finish within `timeout`. Further calls do nothing.
    pub fn drain(&self, timeout: Duration, delay: Duration) -> bool {
        let Some(RouterThreads { server, control }) = self.running.lock().take() else { return true };
        self.leave();
        std::thread::sleep(delay);
        self.app.page.close();
        let until = Instant::now() + timeout;
        let picker = self.picker.lock().take();
        let picked = picker.is_none_or(|picker| picker.drain(timeout, END));
        let in_time = control.block_on(server.drain(until.saturating_duration_since(Instant::now()))) && picked;
        server.end();
        if let Some(spans) = &self.app.spans {
            spans.end(END);
        }
        control.shutdown_timeout(END);
        self.app.changes.end();
        if let Some(service) = &self.app.follower {
            // Who closes at once is not in a hurry to lose what it knows, but may be followed by kill -9.
            service.drain(if timeout.is_zero() { END } else { LAST_SNAPSHOT });
        }
        tracing::info!(in_time, "stopped");
        in_time
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.drain(Duration::ZERO, Duration::ZERO);
    }
}
