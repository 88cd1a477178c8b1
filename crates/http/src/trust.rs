//! Keys and certificates in force, read again when their files change or on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Config;
use crate::keys::Keys;
use crate::{Error, TlsConfig};

/// The interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(2);

/// The keys and certificates in force.
pub(crate) struct Trust {
    config: Config,
    /// Protocols to offer in TLS.
    alpn: Vec<Vec<u8>>,
    keys: ArcSwap<Keys>,
    tls: ArcSwapOption<TlsAcceptor>,
    /// Hashes of the files as last read.
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

    /// Reads all files. If one cannot be used, the old keys and certificates stay in force.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let mut seen = self.seen.lock();
        *seen = self.prints();
        let keys = Keys::read(&self.config)?;
        let tls = self.config.tls.as_ref().map(|config| acceptor(config, &self.alpn)).transpose()?;
        self.keys.store(Arc::new(keys));
        self.tls.store(tls.map(Arc::new));
        Ok(())
    }

    /// Reads the files again whenever they change, for as long as the server lives.
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

/// Makes the acceptor of TLS connections from the PEM files. `alpn`: protocols to offer.
fn acceptor(config: &TlsConfig, alpn: &[Vec<u8>]) -> Result<TlsAcceptor, Error> {
    let failed =
        |what: &str, path: &Path, why: &dyn std::fmt::Display| Error(format!("TLS {what} {}: {why}", path.display()));
    let certificates = CertificateDer::pem_file_iter(&config.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed("certificate", &config.cert, &error))?;
    if certificates.is_empty() {
        return Err(failed("certificate", &config.cert, &"the file holds no certificate in PEM"));
    }
    kvatlas_settings::warn_if_others_read(&config.key);
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| failed("key", &config.key, &error))?;
    // The provider is named, because a process may have several and no default.
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed("certificate", &config.cert, &error))?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| failed("client authorities", path, error);
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                roots.add(root.map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| failed(&error))?)
        }
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| failed("certificate and key", &config.cert, &error))?;
    config.alpn_protocols = alpn.to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
