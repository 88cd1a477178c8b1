//! Keys and certificates in force, read again when their files change or somebody says so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Config;
use crate::keys::Keys;
use crate::{Error, tls};

/// The interval at which the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The keys and certificates by which connections and requests are let in.
pub(crate) struct Trust {
    config: Config,
    /// The protocols that TLS may agree on.
    alpn: Vec<Vec<u8>>,
    keys: ArcSwap<Keys>,
    tls: ArcSwapOption<TlsAcceptor>,
    /// Hashes of the files as they were last read.
    seen: Mutex<Vec<Option<u64>>>,
}

impl Trust {
    pub(crate) fn new(config: &Config, alpn: &[&str]) -> Result<Self, Error> {
        let trust = Self {
            config: config.clone(),
            alpn: alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect(),
            keys: ArcSwap::default(),
            tls: ArcSwapOption::empty(),
            seen: Mutex::default(),
        };
        trust.reload()?;
        Ok(trust)
    }

    pub(crate) fn keys(&self) -> arc_swap::Guard<Arc<Keys>> {
        self.keys.load()
    }

    pub(crate) fn tls(&self) -> Option<Arc<TlsAcceptor>> {
        self.tls.load_full()
    }

    /// Reads all files. If one cannot be used, all stays as it was.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let mut seen = self.seen.lock();
        *seen = self.prints();
        let keys = Keys::read(&self.config)?;
        let tls = self.config.tls.as_ref().map(|config| tls::acceptor(config, &self.alpn)).transpose()?;
        self.keys.store(Arc::new(keys));
        self.tls.store(tls.map(Arc::new));
        Ok(())
    }

    /// Reads the files again whenever they have changed. To be run for as long as the server lives.
    pub(crate) async fn watch(self: Arc<Self>) {
        if self.files().next().is_none() {
            return;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let trust = self.clone();
            let _ = tokio::task::spawn_blocking(move || trust.look()).await;
        }
    }

    fn look(&self) {
        if *self.seen.lock() == self.prints() {
            return;
        }
        match self.reload() {
            Ok(()) => tracing::info!("keys and certificates have changed and were read again"),
            Err(error) => {
                tracing::error!(%error, "changed keys and certificates cannot be used; the old ones stay in use")
            }
        }
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let Config { key_file, admin_key_file, tls, .. } = &self.config;
        let tls = tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
        [key_file.as_ref(), admin_key_file.as_ref()].into_iter().chain(tls).flatten()
    }

    fn prints(&self) -> Vec<Option<u64>> {
        self.files().map(|path| std::fs::read(path).ok().map(|bytes| xxh3_64(&bytes))).collect()
    }
}
