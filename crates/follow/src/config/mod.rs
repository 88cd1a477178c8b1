//! Configuration of a follower, the part of a service or router that reads engines' KV events. `kvatlas serve` and
//! `kvatlas router` pass the configuration as JSON, already validated; durations are in seconds.

mod sections;

use std::sync::Arc;

use kvatlas_adopt::Scheme;
use kvatlas_settings::{Secret, merge};
use kvatlas_wire::Identity;
use serde::Deserialize;

pub use self::sections::{
    AdoptConfig, LoadingConfig, PoolConfig, RelayConfig, Resets, Role, SitesConfig, SnapshotConfig, StreamConfig,
};
use crate::error::Error;
use crate::log::LogConfig;

/// Configuration of a follower: settings for event streams, adoption, snapshots, the log in NATS, multiple sites and
/// log lines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Settings for reading engines' event streams.
    pub streams: StreamConfig,
    /// Settings for adoption: adding blocks to the index that engines announced before this service followed them.
    pub adopt: AdoptConfig,
    /// Settings for snapshots, in which the service saves the blocks held by each stream's engine.
    pub snapshot: SnapshotConfig,
    /// Settings for publishing changes of the index to a log in NATS, or for reading streams from that log.
    pub relay: RelayConfig,
    /// Settings for a deployment of several sites, each with its own index.
    pub sites: SitesConfig,
    /// Names of conditions, besides incomplete streams, that keep the service from being ready at first. Each condition
    /// ends when its name is passed to [`Fleet::release`](crate::fleet::Fleet::release).
    pub holds: Vec<String>,
    /// Settings for the process's log lines. If a process runs several services, only the settings of the first one
    /// take effect.
    pub log: LogConfig,
}

/// The default settings in JSON, generated from Python's settings by `tools/generate_defaults.py`.
const DEFAULTS: &str = include_str!("../../defaults.json");

impl Default for Config {
    /// Returns the default settings, for programs and tests in Rust: no engines, no snapshots on disk, and no other
    /// service.
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
    /// Reads the configuration from JSON. A missing setting has its default.
    ///
    /// # Errors
    /// [`Error::Config`] names the field that is unknown or wrong.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        Self::from_value(serde_json::from_str(json).map_err(|error| Error::config(error.to_string()))?)
    }

    /// Reads the configuration from a parsed JSON value. A missing setting has its default.
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
        for (name, servers) in [("relay.publish", publish), ("relay.from", from)] {
            let wrong = servers.iter().flat_map(|servers| servers.split(',')).find(|server| !is_server(server.trim()));
            if let Some(server) = wrong {
                let message =
                    format!("{name} must be servers of NATS, nats://HOST:PORT or tls://HOST:PORT, got {server:?}");
                return Err(Error::config(message));
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
        self.log_key().map(drop)
    }

    /// Creates the scheme by which indexes identify blocks: either content hashes, or 64-bit hashes that also depend on
    /// a secret key.
    ///
    /// # Errors
    /// [`Error::Config`] if the file with the log's key cannot be read.
    pub(crate) fn identity(&self) -> Result<Identity, Error> {
        if self.streams.keyed_identity {
            return Ok(Identity::keyed());
        }
        Ok(self.log_key()?.map_or_else(Identity::default, Identity::with_key))
    }

    /// Returns the hashing schemes by which engines may compute their block hashes.
    pub(crate) fn schemes(&self) -> Arc<[Scheme]> {
        let seeds: Vec<Arc<str>> = self.adopt.hash_seeds.iter().map(|seed| seed.as_str().into()).collect();
        Scheme::candidates(&seeds).into()
    }

    /// Returns the key that content hashes in the NATS log depend on; `None` if the log is not used or no key is
    /// configured.
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

/// True if the text is an address of a NATS server. An address without a scheme counts as `nats://`.
fn is_server(server: &str) -> bool {
    let scheme = server.split_once("://").map_or("nats", |(scheme, _)| scheme);
    matches!(scheme, "nats" | "tls") && !server.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_a_server_of_nats() {
        for (relay, name) in [
            (r#"{ "publish": "tcp://0.0.0.0:5560" }"#, "relay.publish"),
            (r#"{ "from": "nats://a:4222, tcp://b:5560" }"#, "relay.from"),
            (r#"{ "from": "nats://a:4222," }"#, "relay.from"),
        ] {
            let error = Config::from_json(&format!(r#"{{ "relay": {relay} }}"#)).expect_err("no server").to_string();
            assert!(error.contains(name) && error.contains("nats://HOST:PORT"), "{error}");
        }
        for servers in ["nats://a:4222", "tls://a:4222, tls://b:4222", "a:4222"] {
            assert!(Config::from_json(&format!(r#"{{ "relay": {{ "from": "{servers}" }} }}"#)).is_ok(), "{servers}");
        }
    }

    #[test]
    fn what_is_under_a_key_is_not_kept_for_another_process() {
        for kept in [r#"{ "dir": "/d" }"#, r#"{ "from_peer": true }"#] {
            let config = format!(r#"{{ "streams": {{ "keyed_identity": true }}, "snapshot": {kept} }}"#);
            let error = Config::from_json(&config).expect_err("both").to_string();
            assert!(error.contains("streams.keyed_identity goes with no snapshot"), "{error}");
        }
    }
}
