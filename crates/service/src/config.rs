//! What a service is told when it starts. Its JSON form is what `kvatlas serve` hands over, already checked there;
//! durations are in seconds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvatlas_adopt::Scheme;
use kvatlas_http::{Secret, TlsConfig};
use kvatlas_wire::Identity;
use serde::Deserialize;

use crate::adopt::Desk;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::limits::{LimitsConfig, Shared};
use crate::log::LogConfig;
use crate::relay::{Relay, RelayConfig};
use crate::sites::SitesConfig;
use crate::snapshot::{SnapshotConfig, Snapshots};

/// Everything.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Queries.
    pub http: HttpConfig,
    /// Engines.
    pub streams: StreamConfig,
    /// What is learnt of blocks that were never announced.
    pub adopt: AdoptConfig,
    /// What is kept over a restart.
    pub snapshot: SnapshotConfig,
    /// A log between this service and others.
    pub relay: RelayConfig,
    /// How it goes together with other sites.
    pub sites: SitesConfig,
    /// What the service waits for, besides its streams, before it says that it is ready: names to be given to
    /// [`Fleet::release`](crate::fleet::Fleet::release).
    pub holds: Vec<String>,
    /// How much is logged. The first service of a process decides.
    pub log: LogConfig,
}

/// How queries come in.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Where to listen; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// Where to listen besides, for health, readiness and metrics only: without TLS and without a key.
    pub admin_bind: Option<SocketAddr>,
    /// Threads that answer; 0 for one a core.
    pub threads: usize,
    /// The bearer key that clients must show to ask; none for no check.
    pub key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub key_file: Option<PathBuf>,
    /// The bearer key that clients must show to register, unregister and dump; none if `key` is enough for that.
    pub admin_key: Option<Secret>,
    /// A file with that key instead, read again when it changes.
    pub admin_key_file: Option<PathBuf>,
    /// Host names that requests may name, besides this machine's own, where the service listens on loopback and asks
    /// for no key.
    pub hosts: Vec<String>,
    /// Certificate and key of the server; none for plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Bytes of a request's body at most.
    pub max_body: usize,
    /// Bytes of the bodies of all requests together; none for four times `max_body`, and 64 MiB at least.
    pub body_memory: Option<usize>,
    /// Connections at most; more wait to be accepted.
    pub max_connections: usize,
    /// From the first byte of a request's head to its last byte, and from there to the answer.
    #[serde(with = "seconds")]
    pub request_timeout: Duration,
    /// Without a request, until a connection is closed.
    #[serde(with = "seconds")]
    pub idle_timeout: Duration,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Whether answers leave out workers that are not trusted, or only list them.
    pub untrusted: UntrustedPolicy,
}

/// How blocks are adopted that engines announced before they were followed.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdoptConfig {
    /// Which share of one core it may take, from 0 (nothing is adopted) to 1.
    pub share: f64,
    /// What engines were started with as `PYTHONHASHSEED`.
    pub hash_seeds: Vec<String>,
}

/// What answers do with workers whose holdings may not be what the engine holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UntrustedPolicy {
    /// Their depths are left out, and the answer lists them.
    #[default]
    LeaveOut,
    /// Their depths are in, and the answer lists them.
    Flag,
}

/// How engines are followed.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamConfig {
    /// Networks, patterns of host names and of `ipc://` paths that may be registered over HTTP or by discovery. If empty:
    /// everything where registering needs a key, else loopback.
    pub allow: Vec<String>,
    /// Where engines may connect to that do not listen themselves.
    pub bind: Vec<SocketAddr>,
    /// Threads that apply events.
    pub threads: usize,
    /// Silence, without an answer from the replay socket either, after which a stream is not trusted any more.
    #[serde(with = "seconds")]
    pub stale_after: Duration,
    /// Silence after which an engine is asked whether anything is missing.
    #[serde(with = "seconds")]
    pub probe_interval: Duration,
    /// Within which a replay must bring its next batch.
    #[serde(with = "seconds")]
    pub replay_timeout: Duration,
    /// Within which all that is asked for one purpose must have come, however often something of it comes.
    #[serde(with = "seconds")]
    pub replay_total_timeout: Duration,
    /// Replays asked for one gap before it is given up.
    pub replay_attempts: u32,
    /// Without a replay socket: how long to wait for batches that arrive out of order.
    #[serde(with = "seconds")]
    pub reorder_grace: Duration,
    /// First wait before a connection is tried again; it doubles up to `reconnect_max`.
    #[serde(with = "seconds")]
    pub reconnect_min: Duration,
    /// Longest wait before a connection is tried again.
    #[serde(with = "seconds")]
    pub reconnect_max: Duration,
    /// How long an engine that was never heard holds back readiness.
    #[serde(with = "seconds")]
    pub settle_timeout: Duration,
    /// Batches kept while a replay runs, a stream.
    pub buffer_batches: usize,
    /// Bytes of them.
    pub buffer_bytes: usize,
    /// Whether blocks are called by words that depend on a key of this process, instead of their content hashes.
    pub keyed_identity: bool,
    /// On what others can make grow.
    pub limits: LimitsConfig,
    /// What all streams share that have this configuration.
    #[serde(skip)]
    pub shared: Arc<Shared>,
    /// What blocks are called in the indexes.
    #[serde(skip)]
    pub identity: Arc<Identity>,
    /// How engines may compute the names of blocks.
    #[serde(skip)]
    pub schemes: Arc<[Scheme]>,
    /// Where prompts are left that may tell what was never announced.
    #[serde(skip)]
    pub desk: Arc<Desk>,
    /// What was kept over a restart, and is to be kept over the next.
    #[serde(skip)]
    pub snapshots: Arc<Snapshots>,
    /// The log that streams are published to, or come by.
    #[serde(skip)]
    pub relay: Arc<Relay>,
}

/// Bytes and lines of a request's head at most.
const MAX_HEAD: (usize, usize) = (64 << 10, 100);

impl HttpConfig {
    /// What the HTTP server is told.
    pub(crate) fn front(&self) -> kvatlas_http::Config {
        let (max_head, max_headers) = MAX_HEAD;
        kvatlas_http::Config {
            bind: self.bind,
            admin_bind: self.admin_bind,
            threads: self.threads,
            key: self.key.clone(),
            key_file: self.key_file.clone(),
            admin_key: self.admin_key.clone(),
            admin_key_file: self.admin_key_file.clone(),
            hosts: self.hosts.clone(),
            tls: self.tls.clone(),
            max_body: self.max_body,
            body_memory: self.body_memory,
            max_head,
            max_headers,
            max_connections: self.max_connections,
            request_timeout: self.request_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.request_timeout,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 8090)),
            admin_bind: None,
            threads: 0,
            key: None,
            key_file: None,
            admin_key: None,
            admin_key_file: None,
            hosts: Vec::new(),
            tls: None,
            max_body: 8 << 20,
            body_memory: None,
            max_connections: 4096,
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            access_log: false,
            untrusted: UntrustedPolicy::LeaveOut,
        }
    }
}

impl Default for AdoptConfig {
    fn default() -> Self {
        Self { share: 0.1, hash_seeds: Vec::new() }
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            bind: Vec::new(),
            threads: 2,
            stale_after: Duration::from_secs(30),
            probe_interval: Duration::from_secs(5),
            replay_timeout: Duration::from_secs(2),
            replay_total_timeout: Duration::from_secs(300),
            replay_attempts: 3,
            reorder_grace: Duration::from_millis(100),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            settle_timeout: Duration::from_secs(30),
            buffer_batches: 100_000,
            buffer_bytes: 256 << 20,
            keyed_identity: false,
            limits: LimitsConfig::default(),
            identity: Arc::default(),
            shared: Arc::default(),
            schemes: Scheme::candidates(&[]).into(),
            desk: Arc::default(),
            snapshots: Arc::default(),
            relay: Arc::default(),
        }
    }
}

impl Config {
    /// From JSON. Missing fields have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let mut config: Self = serde_json::from_str(json).map_err(|error| Error::config(error.to_string()))?;
        if !(0.0..=1.0).contains(&config.adopt.share) {
            return Err(Error::config(format!("adopt.share must be from 0 to 1, got {}", config.adopt.share)));
        }
        let seeds: Vec<Arc<str>> = config.adopt.hash_seeds.iter().map(|seed| seed.as_str().into()).collect();
        config.streams.schemes = Scheme::candidates(&seeds).into();
        if config.streams.keyed_identity {
            // Its words mean nothing to another process, nor to this one once it has restarted.
            if config.snapshot.dir.is_some() || config.snapshot.from_peer {
                return Err(Error::config(
                    "streams.keyed_identity goes with no snapshot, as the key ends with the process: leave out \
                     snapshot.dir and snapshot.from_peer"
                        .into(),
                ));
            }
            config.streams.identity = Arc::new(Identity::keyed());
        }
        config.check_relay()?;
        for (name, zero) in [
            ("http.max_body", config.http.max_body == 0),
            ("http.max_connections", config.http.max_connections == 0),
            ("http.request_timeout", config.http.request_timeout.is_zero()),
            ("streams.threads", config.streams.threads == 0),
            ("streams.replay_attempts", config.streams.replay_attempts == 0),
            ("streams.replay_timeout", config.streams.replay_timeout.is_zero()),
            ("streams.replay_total_timeout", config.streams.replay_total_timeout.is_zero()),
            ("streams.probe_interval", config.streams.probe_interval.is_zero()),
            ("streams.buffer_batches", config.streams.buffer_batches == 0),
            ("sites.grain", config.sites.grain == 0),
            ("sites.unknown_after", config.sites.unknown_after.is_zero()),
            ("sites.forget_after", config.sites.forget_after.is_zero()),
            ("snapshot.every", config.snapshot.every.is_zero()),
            ("relay.max_age", config.relay.max_age.is_zero()),
            ("relay.heartbeat", config.relay.heartbeat.is_zero()),
            ("relay.buffer_bytes", config.relay.buffer_bytes == 0),
        ] {
            if zero {
                return Err(Error::config(format!("{name} must be above 0")));
            }
        }
        Ok(config)
    }

    fn check_relay(&mut self) -> Result<(), Error> {
        let RelayConfig { publish, from, key, key_file, .. } = &self.relay;
        if publish.is_some() && from.is_some() {
            let message = "relay.publish and relay.from are both set: what comes by a log is not published again";
            return Err(Error::config(message.into()));
        }
        if self.relay.snapshots && from.is_none() {
            let message = "relay.snapshots is for readers: it needs relay.from";
            return Err(Error::config(message.into()));
        }
        if self.relay.snapshots && self.relay.is_ring() {
            return Err(Error::config("relay.snapshots needs NATS's object store: relay.from has relays".into()));
        }
        if let (Some(relays), true) = (from, self.relay.is_ring()) {
            for relay in relays.split(',') {
                relay.trim().parse::<Endpoint>().map_err(|error| Error::config(format!("relay.from: {error}")))?;
            }
        }
        let is_used = publish.is_some() || from.is_some();
        if is_used && self.streams.keyed_identity {
            let message = "streams.keyed_identity has a key of this process alone: for a log that several read, give \
                           relay.key_file instead";
            return Err(Error::config(message.into()));
        }
        if !is_used {
            return Ok(());
        }
        self.relay.reader_key()?;
        let (name, key) = match (key, key_file) {
            (Some(_), Some(_)) => return Err(Error::config("relay.key and relay.key_file are both given".into())),
            (None, None) => return Ok(()),
            (Some(key), None) => ("relay.key".to_owned(), Ok(key.clone())),
            (None, Some(file)) => (format!("relay.key_file: {}", file.display()), Secret::read(file)),
        };
        let key = key.and_then(|key| {
            key_of(key.reveal()).ok_or_else(|| "a key has 64 hexadecimal digits: openssl rand -hex 32".to_owned())
        });
        let key = key.map_err(|error| Error::config(format!("{name}: {error}")))?;
        self.streams.identity = Arc::new(Identity::with_key(key));
        Ok(())
    }
}

fn key_of(text: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    let digits = text.as_bytes().as_chunks::<2>().0;
    if text.len() != 64 {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(digits) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(key)
}

pub(crate) mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| D::Error::custom(format!("a duration is a number of seconds from 0 on, got {seconds}")))
    }
}
