//! The configuration of a follower. Its JSON form is what `kvatlas serve` and `kvatlas router` hand over, already
//! checked there; durations are in seconds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvatlas_adopt::Scheme;
use kvatlas_settings::{Secret, merge};
use kvatlas_wire::Identity;
use serde::Deserialize;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::log::LogConfig;
use crate::relay::RelayConfig;
use crate::sites::SitesConfig;
use crate::snapshot::SnapshotConfig;
use kvatlas_stream::limits::LimitsConfig;
use kvatlas_stream::machine::MachineConfig;

/// The configuration of a follower: how engines are followed, and what goes with it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Engines.
    pub streams: StreamConfig,
    /// Settings for learning blocks that were never announced.
    pub adopt: AdoptConfig,
    /// Settings for what is kept over a restart.
    pub snapshot: SnapshotConfig,
    /// A log between this service and others.
    pub relay: RelayConfig,
    /// Settings for going together with other sites.
    pub sites: SitesConfig,
    /// Names of what the service waits for, besides its streams, before it says that it is ready; each is given to
    /// [`Fleet::release`](crate::fleet::Fleet::release) when its wait is over.
    pub holds: Vec<String>,
    /// Settings of the log of this process: how much is logged, and how. The first service of a process decides.
    pub log: LogConfig,
}

/// Settings for adopting blocks that engines announced before they were followed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptConfig {
    /// The share of one core that adopting may take, from 0 (nothing is adopted) to 1.
    pub share: f64,
    /// Values of `PYTHONHASHSEED` that engines were started with.
    pub hash_seeds: Vec<String>,
}

/// Settings for following engines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Networks, patterns of host names and of `ipc://` paths that may be registered over HTTP or by discovery. If empty:
    /// everything where registering needs a key, else loopback.
    pub allow: Vec<String>,
    /// Addresses that engines may connect to that do not listen themselves.
    pub bind: Vec<SocketAddr>,
    /// Threads that apply events.
    pub threads: usize,
    /// Silence, without an answer from the replay socket either, after which a stream is not trusted any more.
    #[serde(with = "kvatlas_settings::seconds")]
    pub stale_after: Duration,
    /// Silence after which an engine is asked whether anything is missing.
    #[serde(with = "kvatlas_settings::seconds")]
    pub probe_interval: Duration,
    /// Time within which a replay must bring its next batch.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_timeout: Duration,
    /// Within which all that is asked for one purpose must have come, however often something of it comes.
    #[serde(with = "kvatlas_settings::seconds")]
    pub replay_total_timeout: Duration,
    /// Replays asked for one gap before it is given up.
    pub replay_attempts: u32,
    /// Without a replay socket: how long to wait for batches that arrive out of order.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reorder_grace: Duration,
    /// First wait before a connection is tried again; it doubles up to `reconnect_max`.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_min: Duration,
    /// Longest wait before a connection is tried again.
    #[serde(with = "kvatlas_settings::seconds")]
    pub reconnect_max: Duration,
    /// Time for which an engine that was never heard holds back readiness.
    #[serde(with = "kvatlas_settings::seconds")]
    pub settle_timeout: Duration,
    /// Batches kept while a replay runs, a stream.
    pub buffer_batches: usize,
    /// Bytes of them.
    pub buffer_bytes: usize,
    /// True if blocks are called by words that depend on a key of this process, instead of their content hashes.
    pub keyed_identity: bool,
    /// Limits on what others can make grow.
    pub limits: LimitsConfig,
}

/// The defaults, which Python's settings declare: `tools/generate_defaults.py` writes the file.
const DEFAULTS: &str = include_str!("../defaults.json");

impl Default for Config {
    /// The defaults, for programs and tests in Rust: no engines, nothing kept, and no other service.
    fn default() -> Self {
        kvatlas_settings::defaults(DEFAULTS)
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Config::default().streams
    }
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        Config::default().snapshot
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        Config::default().relay
    }
}

impl Config {
    /// Reads the configuration from JSON. What is missing has its default.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        Self::from_value(serde_json::from_str(json).map_err(|error| Error::config(error.to_string()))?)
    }

    /// The same from JSON that is read already.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_value(value: serde_json::Value) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| Error::config(error.to_string());
        let mut settings = serde_json::from_str(DEFAULTS).map_err(wrong)?;
        merge(&mut settings, value);
        Self::checked(serde_json::from_value(settings).map_err(wrong)?)
    }

    fn checked(config: Self) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&config.adopt.share) {
            return Err(Error::config(format!("adopt.share must be from 0 to 1, got {}", config.adopt.share)));
        }
        if config.streams.keyed_identity {
            // Its words mean nothing to another process, nor to this one once it has restarted.
            if config.snapshot.dir.is_some() || config.snapshot.from_peer {
                return Err(Error::config(
                    "streams.keyed_identity goes with no snapshot, as the key ends with the process: leave out \
                     snapshot.dir and snapshot.from_peer"
                        .into(),
                ));
            }
        }
        config.check_relay()?;
        for (name, zero) in [
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

    fn check_relay(&self) -> Result<(), Error> {
        let RelayConfig { publish, from, .. } = &self.relay;
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
        self.log_key().map(drop)
    }

    /// The words that blocks are called by in the indexes.
    ///
    /// # Errors
    /// [`Error::Config`] if the key of the log cannot be read.
    pub(crate) fn identity(&self) -> Result<Identity, Error> {
        if self.streams.keyed_identity {
            return Ok(Identity::keyed());
        }
        Ok(self.log_key()?.map_or_else(Identity::default, Identity::with_key))
    }

    /// The schemes by which engines may compute the names of blocks.
    pub(crate) fn schemes(&self) -> Arc<[Scheme]> {
        let seeds: Vec<Arc<str>> = self.adopt.hash_seeds.iter().map(|seed| seed.as_str().into()).collect();
        Scheme::candidates(&seeds).into()
    }

    /// The key of the words in a log that several read, if there is one.
    fn log_key(&self) -> Result<Option<[u8; 32]>, Error> {
        let RelayConfig { publish, from, key, key_file, .. } = &self.relay;
        let is_used = publish.is_some() || from.is_some();
        let (name, key) = match (key, key_file) {
            _ if !is_used => return Ok(None),
            (Some(_), Some(_)) => return Err(Error::config("relay.key and relay.key_file are both given".into())),
            (None, None) => return Ok(None),
            (Some(key), None) => ("relay.key".to_owned(), Ok(key.clone())),
            (None, Some(file)) => (format!("relay.key_file: {}", file.display()), Secret::read(file)),
        };
        let key = key.and_then(|key| {
            key_of(key.reveal()).ok_or_else(|| "a key has 64 hexadecimal digits: openssl rand -hex 32".to_owned())
        });
        key.map(Some).map_err(|error| Error::config(format!("{name}: {error}")))
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

impl From<&StreamConfig> for MachineConfig {
    fn from(config: &StreamConfig) -> Self {
        Self {
            stale_after: config.stale_after,
            probe_interval: config.probe_interval,
            replay_timeout: config.replay_timeout,
            replay_total_timeout: config.replay_total_timeout,
            replay_attempts: config.replay_attempts,
            reorder_grace: config.reorder_grace,
            reconnect_min: config.reconnect_min,
            reconnect_max: config.reconnect_max,
            buffer_batches: config.buffer_batches,
            buffer_bytes: config.buffer_bytes,
            all_buffer_bytes: config.limits.buffer_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_a_key_is_not_kept_for_another_process() {
        for kept in [r#"{ "dir": "/d" }"#, r#"{ "from_peer": true }"#] {
            let config = format!(r#"{{ "streams": {{ "keyed_identity": true }}, "snapshot": {kept} }}"#);
            let error = Config::from_json(&config).expect_err("both").to_string();
            assert!(error.contains("streams.keyed_identity goes with no snapshot"), "{error}");
        }
    }
}
