//! Access checks of requests: keys and certificates, read again when their files change or on demand; host names; and
//! requests that a web page makes a visitor's browser send.
//!
//! A browser lets any page send some requests to any server, with the visitor's access: from the visitor's network, and
//! with the visitor's certificate. Browsers mark requests made by pages with two headers, which pages cannot set.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, Request, StatusCode};
use kvatlas_settings::Secret;
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Config, LiveSettings};
use crate::keys::{Access, Hosts, Keys, ShownKey, named_host};
use crate::{Denial, Error, TlsConfig};

/// Access checks of requests, according to the configuration.
pub struct Gate {
    trust: Arc<Trust>,
    config: Config,
    live: ArcSwap<LiveSettings>,
}

impl Gate {
    /// Reads keys and certificates. `alpn`: protocols to offer in TLS, the preferred one first.
    ///
    /// # Errors
    /// A file that cannot be read or is not valid is an error.
    pub fn new(config: &Config, alpn: &[&str]) -> Result<Self, Error> {
        let trust = Arc::new(Trust::new(config, alpn)?);
        Ok(Self { trust, config: config.clone(), live: ArcSwap::from_pointee(config.into()) })
    }

    /// Returns the current values of the settings that can change without a restart: hosts, origins and access log.
    #[must_use]
    pub fn live(&self) -> Guard<Arc<LiveSettings>> {
        self.live.load()
    }

    /// Replaces the settings that can change without a restart.
    pub fn change(&self, settings: LiveSettings) {
        self.live.store(Arc::new(settings));
    }

    /// True if requests need a key.
    #[must_use]
    pub fn asks_for_key(&self) -> bool {
        self.trust.keys().need_key()
    }

    /// True if requests that make changes need a key.
    #[must_use]
    pub fn asks_for_key_to_change(&self) -> bool {
        self.trust.keys().changes_need_key()
    }

    /// True if clients are unknown before their first request, because a key or client certificates are configured.
    pub(crate) fn has_strangers(&self) -> bool {
        self.asks_for_key() || self.config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// True if a request carries one of the server's keys.
    pub(crate) fn is_shown_key<B>(&self, request: &Request<B>) -> bool {
        self.trust.keys().are_shown(request)
    }

    /// True if a text contains one of the server's keys, in any encoding.
    #[must_use]
    pub fn has_key_in(&self, text: &[u8]) -> bool {
        self.trust.keys().are_in(text)
    }

    /// Returns the names of headers that have one of the server's keys in their value or name, in any encoding.
    #[must_use]
    pub fn names_with_keys(&self, headers: &HeaderMap) -> Vec<HeaderName> {
        let keys = self.trust.keys();
        let has_key = |(name, value): &(&HeaderName, &HeaderValue)| {
            keys.are_in(value.as_bytes()) || keys.are_in_name(name.as_str().as_bytes())
        };
        headers.iter().filter(has_key).map(|(name, _)| name.clone()).collect()
    }

    /// Returns a secret shared by the routers of a fleet, which is the first configured one of these keys: the admin
    /// key, `engines` (the key sent to engines), the key for read access. None if no key is configured.
    #[must_use]
    pub fn fleet_secret(&self, engines: Option<&Secret>) -> Option<Secret> {
        let keys = self.trust.keys();
        let admin = keys.for_changes().filter(|_| keys.have_admin());
        admin.or(engines).or_else(|| keys.for_changes()).cloned()
    }

    /// True if a header name, or a list of header names, contains one of the server's keys.
    #[must_use]
    pub fn has_key_in_name(&self, name: &[u8]) -> bool {
        self.trust.keys().are_in_name(name)
    }

    /// Refuses a request that contains one of the server's keys in its path, query or method, which many programs log.
    ///
    /// # Errors
    /// [`Denial`] if the path, query or method contains a key.
    pub fn check_target<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        self.trust.keys().check_target(request)
    }

    /// Checks that a request has the required access. Returns true if the request contains a valid key.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn check<B>(&self, request: &Request<B>, wants: Access) -> Result<bool, Denial> {
        Ok(self.admit(request, wants)? != ShownKey::Nothing)
    }

    /// Checks that a request has the required access, and returns the key that the request contains. Host names are
    /// checked on loopback without a key, and if the configuration lists some. A request that makes a change, or a
    /// request with a body and without a key, must not come from a web page whose origin is not configured.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn admit<B>(&self, request: &Request<B>, wants: Access) -> Result<ShownKey, Denial> {
        let live = self.live();
        let hosts = Hosts::at(self.config.bind, self.asks_for_key(), &live.hosts);
        hosts.check(request, &live.hosts)?;
        let shown = self.trust.keys().check(request, wants)?;
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if wants == Access::Admin || (shown == ShownKey::Nothing && !reads) {
            check_origin(request, &live.origins)?;
        }
        Ok(shown)
    }

    /// Refuses a request, received at the listener for administrators, that names a host other than this machine.
    /// Without this check, foreign web pages could use the listener, as it requires no key.
    ///
    /// # Errors
    /// [`Denial`] if the request names another host.
    pub fn check_admin_host<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        let is_loopback = self.config.admin_bind.is_some_and(|at| at.ip().is_loopback());
        let hosts = if is_loopback { Hosts::Own } else { Hosts::Any };
        hosts.check(request, &self.live().hosts)
    }

    /// Returns the acceptor of TLS connections; None if no certificate is configured.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsAcceptor>> {
        self.trust.tls()
    }

    /// Returns the server's certificate with its private key; None if none is configured.
    #[must_use]
    pub fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.trust.certificate()
    }

    /// Reads keys and certificates from their files again.
    ///
    /// # Errors
    /// A file that cannot be used is an error; the previous keys and certificates stay in force.
    pub fn reload(&self) -> Result<(), Error> {
        self.trust.reload().inspect_err(
            |error| tracing::error!(%error, "keys and certificates cannot be read again; the old ones stay in use"),
        )?;
        tracing::info!("keys and certificates were read again");
        Ok(())
    }

    /// Reads the files with keys and certificates again whenever they change, in an endless loop; returns at once
    /// without files.
    pub async fn watch(&self) {
        self.trust.clone().watch().await;
    }
}

/// Interval at which the files with keys and certificates are checked for changes.
const LOOK: Duration = Duration::from_secs(2);

/// Keys and certificates that the server uses now.
pub(crate) struct Trust {
    config: Config,
    /// Protocols to offer in TLS, the preferred one first.
    alpn: Vec<Vec<u8>>,
    keys: ArcSwap<Keys>,
    tls: ArcSwapOption<TlsAcceptor>,
    certificate: ArcSwapOption<CertifiedKey>,
    /// Hashes of the contents of the files with keys and certificates at the last reading; None for an unreadable file.
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

    /// Reads all files with keys and certificates. If one cannot be used, the previous keys and certificates stay in
    /// force.
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

    /// Reads the files with keys and certificates again whenever they change, in an endless loop; returns at once
    /// without files.
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

/// Makes the acceptor of TLS connections from the PEM files, and returns it with the server's certificate. `alpn`:
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

/// Refuses a request sent by a web page of another origin, unless the origin is in `allowed`.
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

/// Makes the refusal of a request sent by a web page of another origin.
fn foreign_origin() -> Denial {
    let message = "the headers Origin and Sec-Fetch-Site say that a web page of another origin has sent this: pages may \
                   only ask the server that they come from, or the router if http.origins names their origin";
    Denial::new(StatusCode::FORBIDDEN, "foreign_origin", message)
}

/// True if an origin is the server itself, with the host name that the request uses.
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
