//! [`Router`]: everything started, and stopped again in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_follow::Follower;
use kvatlas_follow::log;
use kvatlas_follow::shown::Page;
use kvatlas_http::{Front, Server, Threads};
use kvatlas_routing::{BoxedPolicy, PolicyTable};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::answers::stored::AnswerEngines;
use crate::app::App;
use crate::config::{Config, EngineConfig};
use crate::control;
use crate::engines::Engine;
use crate::engines::fleet::{Adder, Fleet};
use crate::error::Error;
use crate::placing::Places;
use crate::proxy::Tokens;
use crate::proxy::counts::Counts;
use crate::remote::cache_reports::{self, CacheReporter};
use crate::remote::external_index::ExternalIndex;
use crate::remote::peer_requests;
use crate::remote::peers::Peers;
use crate::remote::sites;
use crate::reports::page;
use crate::reports::state;
use crate::requests::fleet_secret::FleetSecret;
use crate::requests::prompts::Prompts;
use crate::requests::sessions::Sessions;

/// The longest time that threads may take to end.
const END: Duration = Duration::from_secs(2);

/// The longest time that the index of this router may take for its last snapshot.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// A running router. Its methods wait, so they are not for calls from inside an async runtime.
pub struct Router {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    running: Mutex<Option<RouterThreads>>,
}

struct RouterThreads {
    server: Server,
    control: Runtime,
}

impl Router {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting cannot be used, [`Error::Start`] if the address cannot be listened at, the
    /// certificate cannot be read, or there are no threads to be had.
    pub fn start(config: Config) -> Result<Self, Error> {
        let policy = config.make_policy(&PolicyTable::own())?;
        Self::start_with(config, policy)
    }

    /// Starts to listen, with a policy that the caller has made.
    ///
    /// # Errors
    /// As [`Router::start`].
    pub fn start_with(config: Config, policy: BoxedPolicy) -> Result<Self, Error> {
        log::start(config.log);
        let config = Arc::new(config);
        let front = Front::new(config.http.clone(), true)?;
        let (threads, gate) = (front.threads(), front.gate.clone());
        let secret = FleetSecret::new(&gate, &config);
        let fleet = Fleet::new(config.clone(), threads)?;
        let places = Arc::new(Places::new(&config, policy)?);
        let external_index = ExternalIndex::new(&config, threads, fleet.tls())?;
        let cache_reporter = if places.wants().hashes { CacheReporter::new(&config, fleet.tls())? } else { None };
        let service = match &config.service {
            Some(service) => {
                let config = kvatlas_follow::Config::from_json(&service.to_string())?;
                Some(Follower::start(config, gate.asks_for_key_to_change())?)
            }
            None => None,
        };
        let app = Arc::new(App {
            fleet,
            prompts: Prompts::new(&config, places.wants(), cache_reporter.clone(), &secret)?,
            places,
            service,
            external_index,
            cache_reporter,
            counts: Counts::new(),
            front,
            gate,
            tokens: Tokens::default(),
            sessions: Sessions::new(&config, &secret)?,
            answer_engines: AnswerEngines::default(),
            peers: Arc::new(Peers::new(&config)?),
            page: Page::default(),
            leaving: AtomicBool::new(false),
            config,
        });
        for engine in &app.config.engines {
            app.set_engine(engine.clone(), Adder::Operator)?;
        }
        let control = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kvatlas-control")
            .enable_all()
            .build()
            .map_err(|error| Error::start(format!("cannot start the thread that looks after engines: {error}")))?;
        let server = Server::start(&app, Threads::Own(threads))?;
        control.spawn(control::run(app.clone()));
        let binding = app.clone();
        control.spawn(async move { binding.places.bind(&binding).await });
        {
            let _entered = control.enter();
            peer_requests::run(&app.peers, &app.places, &app.config);
        }
        if let Some(global) = app.external_index.as_ref().and_then(ExternalIndex::global) {
            control.spawn(sites::run(global.clone()));
        }
        if let Some(cache_reporter) = &app.cache_reporter {
            control.spawn(cache_reports::run(cache_reporter.clone()));
        }
        control.spawn(page::run(app.clone()));
        let watching = app.clone();
        control.spawn(async move { watching.gate.watch().await });
        let (address, admin_address) = (server.address(), server.admin_address());
        let (tls, key) = (app.gate.tls().is_some(), app.gate.asks_for_key());
        tracing::info!(%address, tls, key, threads, policy = app.config.policy, "routing");
        Ok(Self { app, address, admin_address, running: Mutex::new(Some(RouterThreads { server, control })) })
    }

    /// Address at which the router listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The service in this process, which follows the engines' events; none if there is none.
    #[must_use]
    pub fn service(&self) -> Option<&Follower> {
        self.app.service.as_ref()
    }

    /// The last decisions, the newest first.
    #[must_use]
    pub fn decisions(&self, most: usize) -> Value {
        self.app.places.decisions.last(most).iter().map(|record| record.to_json()).collect()
    }

    /// Address at which the router listens for administrators, if it does.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Takes an engine in, in the place of the one of its name if there is one: an [`EngineConfig`] in JSON.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none, or cannot be used.
    pub fn set_engine(&self, engine: &str) -> Result<(), Error> {
        let engine: EngineConfig = serde_json::from_str(engine).map_err(|error| Error::config(error.to_string()))?;
        self.app.set_engine(engine, Adder::Operator).map(drop)
    }

    /// Takes an engine out. What runs there goes on.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none of that name.
    pub fn remove_engine(&self, name: &str) -> Result<(), Error> {
        self.app.remove_engine(name).map(drop)
    }

    /// Sends an engine nothing new from now on, or again.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none of that name.
    pub fn drain_engine(&self, name: &str, drain: bool) -> Result<(), Error> {
        self.app.drain_engine(name, drain).map(drop)
    }

    /// Returns what `/workers` says.
    #[must_use]
    pub fn workers(&self) -> Value {
        state::workers(&self.app)
    }

    /// Returns what requests wait for, as `/ready` says it; nothing if they can come.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        let (leaving, any) = (self.app.leaving.load(Relaxed), self.app.fleet.has_any_up());
        (leaving || !any).then(|| serde_json::json!({ "ready": false, "leaving": leaving, "engines_up": any }))
    }

    /// Reads the keys and certificates from their files again.
    ///
    /// # Errors
    /// [`Error::Start`] if one of them cannot be used: all stays as it was.
    pub fn reload(&self) -> Result<(), Error> {
        Ok(self.app.gate.reload()?)
    }

    /// Says from now on that it is not ready, and closes connections with the next answer. All else goes on.
    pub fn leave(&self) {
        self.app.leaving.store(true, Relaxed);
    }

    /// Says that it is not ready, goes on for `delay`, so that whoever looks at readiness stops asking; then accepts no
    /// more connections, answers what was asked, ends all threads.
    ///
    /// False if that took longer than `timeout` and something was cut off. Does nothing the second time.
    pub fn drain(&self, timeout: Duration, delay: Duration) -> bool {
        let Some(RouterThreads { server, control }) = self.running.lock().take() else { return true };
        self.leave();
        std::thread::sleep(delay);
        self.app.page.close();
        let in_time = control.block_on(server.drain(timeout));
        server.end();
        control.shutdown_timeout(END);
        if let Some(service) = &self.app.service {
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

impl App {
    pub(crate) fn set_engine(&self, config: EngineConfig, adds: Adder) -> Result<Arc<Engine>, Error> {
        // The decision core knows it before requests can find it: at no moment is there nobody of its name.
        let changed = self.fleet.set(config, adds, |replaced, added| self.places.add(replaced, added))?;
        self.places.is_back();
        if let Some(replaced) = changed.replaced {
            replaced.pool.clear();
        }
        Ok(changed.added)
    }

    pub(crate) fn remove_engine(&self, name: &str) -> Result<Arc<Engine>, Error> {
        let removed = self.fleet.remove(name)?;
        self.places.remove(&removed);
        Ok(removed)
    }

    pub(crate) fn drain_engine(&self, name: &str, drain: bool) -> Result<Arc<Engine>, Error> {
        let engine = self.fleet.engine(name).ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        engine.health.set_draining(drain);
        self.places.drain(&engine, drain);
        tracing::info!(engine = name, drain, "an engine was drained, or taken back");
        Ok(engine)
    }
}
