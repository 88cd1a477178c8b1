//! The configuration of publishing to a log, or of reading one.

use std::path::PathBuf;
use std::time::Duration;

use kvatlas_settings::Secret;
use serde::Deserialize;

use crate::error::Error;

/// The configuration of publishing to a log, or of reading one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Servers that what streams bring is published to, `nats://HOST:PORT` or `tls://HOST:PORT`, separated by commas. Or,
    /// without NATS, where to listen for readers: `tcp://ADDRESS:PORT`.
    pub publish: Option<String>,
    /// True if publishing is all that the service is for: it is not ready before there is a log.
    pub dedicated: bool,
    /// Servers whose log brings the streams. Or, without NATS, relays: `tcp://HOST:PORT`, separated by commas.
    pub from: Option<String>,
    /// A file with the credentials for the servers.
    pub credentials: Option<PathBuf>,
    /// A file with certificates of the authorities that are trusted, instead of the system's.
    pub ca: Option<PathBuf>,
    /// 64 hexadecimal digits: the key that content hashes depend on.
    pub key: Option<Secret>,
    /// A file with that key instead.
    pub key_file: Option<PathBuf>,
    /// The key that readers show a relay without NATS.
    pub reader_key: Option<Secret>,
    /// A file with that key instead.
    pub reader_key_file: Option<PathBuf>,
    /// True if readers on other machines need no key.
    pub insecure_readers: bool,
    /// The JetStream stream.
    pub stream: String,
    /// Time for which messages are kept, if the stream is made here.
    #[serde(with = "kvatlas_settings::seconds")]
    pub max_age: Duration,
    /// Bytes that are kept, if the stream is made here.
    pub max_bytes: i64,
    /// True if messages are kept in memory instead of on disk, if the stream is made here.
    pub in_memory: bool,
    /// True if readers keep snapshots in the log's object store, and remove from the log what these do not need.
    pub snapshots: bool,
    /// Bytes in queues, of all streams together, before something is dropped. Without NATS: bytes that are kept for readers.
    pub buffer_bytes: usize,
    /// Time between two signs of life of a stream that has nothing to say.
    #[serde(with = "kvatlas_settings::seconds")]
    pub heartbeat: Duration,
    /// Silence of a relay after which its streams are not trusted any more.
    #[serde(with = "kvatlas_settings::seconds")]
    pub lost_after: Duration,
    /// Silence of a relay after which its streams are forgotten.
    #[serde(with = "kvatlas_settings::seconds")]
    pub forget_after: Duration,
}

impl RelayConfig {
    /// True if the log is without NATS, in the memory of a relay.
    pub(crate) fn is_ring(&self) -> bool {
        self.publish.as_ref().or(self.from.as_ref()).is_some_and(|url| url.trim_start().starts_with("tcp://"))
    }
}

impl RelayConfig {
    /// The key that readers show, if there is one.
    ///
    /// # Errors
    /// [`Error::Config`] if the file cannot be read, or the key cannot be shown.
    pub(crate) fn reader_key(&self) -> Result<Option<Secret>, Error> {
        let wrong = |what: &str| Error::config(format!("relay.reader_key_file: {what}"));
        let key = match (&self.reader_key, &self.reader_key_file) {
            (Some(_), Some(_)) => return Err(wrong("relay.reader_key is given as well")),
            (None, None) => return Ok(None),
            (Some(key), None) => key.clone(),
            (None, Some(file)) => Secret::read(file).map_err(|error| wrong(&error))?,
        };
        // The length is said in a byte.
        if key.reveal().len() > 255 { Err(wrong("a key has 255 characters at most")) } else { Ok(Some(key)) }
    }
}
