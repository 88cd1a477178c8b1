//! Keys and certificates in force, read again when their files change or on request.
//!
//! Requests that a web page makes a visitor's browser send.
//!
//! A browser lets any page send some requests to any server, with the visitor's access: from the visitor's network, and
//! with the visitor's certificate. It marks them with two headers, which pages cannot set.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::header::{HeaderValue, ORIGIN};
use hyper::{Request, StatusCode};
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Config;
use crate::keys::{Keys, named_host};
use crate::{Denial, Error, TlsConfig};

/// The interval at which the files are checked.
const LOOK: Duration = Duration::from_secs(2);

/// The keys and certificates in force.
pub(crate) struct Trust {
    config: Config,
    /// Protocols to offer in TLS.
    alpn: Vec<Vec<u8>>,
    keys: ArcSwap<Keys>,
    tls: ArcSwapOption<TlsAcceptor>,
    certificate: ArcSwapOption<CertifiedKey>,
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
            certificate: ArcSwapOption::empty(),
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

    pub(crate) fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.certificate.load_full()
    }

    /// Reads all files. If one cannot be used, the old keys and certificates stay in force.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let mut seen = self.seen.lock();
        *seen = self.prints();
        let keys = Keys::read(&self.config)?;
        let tls = self.config.tls.as_ref().map(|config| acceptor(config, &self.alpn)).transpose()?;
        let (acceptor, certificate) = tls.unzip();
        self.keys.store(Arc::new(keys));
        self.tls.store(acceptor.map(Arc::new));
        self.certificate.store(certificate);
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

/// Makes the acceptor of TLS connections from the PEM files, and returns it with the certificate that it shows. `alpn`:
/// protocols to offer.
fn acceptor(config: &TlsConfig, alpn: &[Vec<u8>]) -> Result<(TlsAcceptor, Arc<CertifiedKey>), Error> {
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
    let certificate = CertifiedKey::from_der(certificates, key, builder.crypto_provider())
        .map_err(|error| failed("certificate and key", &config.cert, &error))?;
    let certificate = Arc::new(certificate);
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.clone())));
    config.alpn_protocols = alpn.to_vec();
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

/// Refuses a request made by a page of another origin. `allowed`: permitted origins.
pub(crate) fn check_origin<B>(request: &Request<B>, allowed: &[String]) -> Result<(), Denial> {
    let headers = request.headers();
    let is_allowed = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) || is_own(request, origin)
    };
    let mut origins = headers.get_all(ORIGIN).iter().peekable();
    let names_any = origins.peek().is_some();
    if !origins.all(is_allowed) {
        return Err(foreign_origin());
    }
    // A page of a permitted origin is cross-site nevertheless.
    let is_fine = |site: &HeaderValue| names_any || matches!(site.as_bytes(), b"same-origin" | b"none");
    if headers.get_all("sec-fetch-site").iter().all(is_fine) { Ok(()) } else { Err(foreign_origin()) }
}

/// The refusal of a request made by a web page.
fn foreign_origin() -> Denial {
    let message = "the headers Origin and Sec-Fetch-Site say that a web page of another origin has sent this: pages may \
                   only ask the server that they come from, or the router if http.origins names their origin";
    Denial::new(StatusCode::FORBIDDEN, "foreign_origin", message)
}

/// True if an origin is the server itself, under the host name of the request.
fn is_own<B>(request: &Request<B>, origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let without_port = |authority: &'_ str| authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
    let host = named_host(request).and_then(|host| std::str::from_utf8(host).ok());
    host.is_some_and(|host| without_port(host) == without_port(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others() {
        for (host, headers, passes) in [
            ("a:8080", &[][..], true),
            ("a:8080", &[("origin", "http://a:8080")], true),
            ("a:8080", &[("origin", "https://A:8080"), ("sec-fetch-site", "same-origin")], true),
            ("a", &[("origin", "https://a:443")], true),
            ("a:443", &[("origin", "https://a")], true),
            ("a", &[("origin", "https://friend.example"), ("sec-fetch-site", "cross-site")], true),
            ("a", &[("sec-fetch-site", "none")], true),
            ("a", &[("sec-fetch-site", "same-origin")], true),
            ("a:8080", &[("origin", "http://a")], false),
            ("a:8080", &[("origin", "http://a:80")], false),
            ("a:8080", &[("origin", "http://a:8080.evil.example")], false),
            ("a", &[("origin", "null")], false),
            ("a", &[("origin", "")], false),
            ("a", &[("origin", "file://a")], false),
            ("a", &[("origin", "https://evil.example")], false),
            ("a", &[("origin", "https://friend.example.evil.example")], false),
            ("a", &[("origin", "https://friend.example"), ("origin", "https://evil.example")], false),
            ("a", &[("sec-fetch-site", "cross-site")], false),
            ("a", &[("sec-fetch-site", "same-site")], false),
            ("a", &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], false),
            ("a", &[("sec-fetch-site", "else")], false),
            ("", &[("origin", "http://")], false),
        ] {
            let mut request = Request::builder();
            if !host.is_empty() {
                request = request.header("host", host);
            }
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(()).expect("a request");
            let checked = check_origin(&request, &["https://friend.example".to_owned()]);
            assert_eq!(checked.is_ok(), passes, "{host} {headers:?}");
        }
    }
}
