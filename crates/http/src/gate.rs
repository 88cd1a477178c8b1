//! Access checks: keys, certificates, and host names.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use kvatlas_settings::Secret;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::config::{Config, LiveSettings};
use crate::keys::{Access, Hosts, ShownKey};
use crate::trust::{Trust, check_origin};
use crate::{Denial, Error};

/// Access checks as configured.
pub struct Gate {
    trust: Arc<Trust>,
    config: Config,
    live: ArcSwap<LiveSettings>,
}

impl Gate {
    /// Reads keys and certificates. `alpn`: protocols to offer in TLS, the preferred one first.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid.
    pub fn new(config: &Config, alpn: &[&str]) -> Result<Self, Error> {
        let trust = Arc::new(Trust::new(config, alpn)?);
        Ok(Self { trust, config: config.clone(), live: ArcSwap::from_pointee(config.into()) })
    }

    /// The settings that can change, as they are now.
    #[must_use]
    pub fn live(&self) -> Guard<Arc<LiveSettings>> {
        self.live.load()
    }

    /// Changes the settings that can change.
    pub fn change(&self, settings: LiveSettings) {
        self.live.store(Arc::new(settings));
    }

    /// True if clients need a key.
    #[must_use]
    pub fn asks_for_key(&self) -> bool {
        self.trust.keys().need_key()
    }

    /// True if changes need a key.
    #[must_use]
    pub fn asks_for_key_to_change(&self) -> bool {
        self.trust.keys().changes_need_key()
    }

    /// True if clients are unknown at first: a key, or certificates of clients, are configured.
    pub(crate) fn has_strangers(&self) -> bool {
        self.asks_for_key() || self.config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// True if a request carries one of the keys.
    pub(crate) fn is_shown_key<B>(&self, request: &Request<B>) -> bool {
        self.trust.keys().are_shown(request)
    }

    /// True if a text contains one of the keys, in any encoding.
    #[must_use]
    pub fn has_key_in(&self, text: &[u8]) -> bool {
        self.trust.keys().are_in(text)
    }

    /// The names of headers with one of the keys in their value or name, in any encoding.
    #[must_use]
    pub fn names_with_keys(&self, headers: &HeaderMap) -> Vec<HeaderName> {
        let keys = self.trust.keys();
        let has_key = |(name, value): &(&HeaderName, &HeaderValue)| {
            keys.are_in(value.as_bytes()) || keys.are_in_name(name.as_str().as_bytes())
        };
        headers.iter().filter(has_key).map(|(name, _)| name.clone()).collect()
    }

    /// The secret shared by the routers of a fleet: the admin key, else `engines`, the key sent to engines, else the
    /// query key.
    #[must_use]
    pub fn fleet_secret(&self, engines: Option<&Secret>) -> Option<Secret> {
        let keys = self.trust.keys();
        let admin = keys.for_changes().filter(|_| keys.have_admin());
        admin.or(engines).or_else(|| keys.for_changes()).cloned()
    }

    /// True if a header name, or a list of header names, contains one of the keys.
    #[must_use]
    pub fn has_key_in_name(&self, name: &[u8]) -> bool {
        self.trust.keys().are_in_name(name)
    }

    /// Refuses a request with a key in its path, query or method.
    ///
    /// # Errors
    /// [`Denial`] if it has one.
    pub fn check_target<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        self.trust.keys().check_target(request)
    }

    /// Checks that a request has the access it needs. True if it carries a key.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn check<B>(&self, request: &Request<B>, wants: Access) -> Result<bool, Denial> {
        Ok(self.admit(request, wants)? != ShownKey::Nothing)
    }

    /// Checks that a request has the access it needs, and returns the key it carries. Hosts are checked on loopback
    /// without a key, and where the configuration lists some. A request that changes something, or one with a body and
    /// without a key, must not come from a web page whose origin is not configured.
    ///
    /// # Errors
    /// The reason of the refusal.
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

    /// Refuses a request for another host at the listener for administrators, which has no key to keep foreign web
    /// pages out.
    ///
    /// # Errors
    /// [`Denial`] if the host is another one.
    pub fn check_admin_host<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        let is_loopback = self.config.admin_bind.is_some_and(|at| at.ip().is_loopback());
        let hosts = if is_loopback { Hosts::Own } else { Hosts::Any };
        hosts.check(request, &self.live().hosts)
    }

    /// The acceptor of TLS connections, if a certificate is configured.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsAcceptor>> {
        self.trust.tls()
    }

    /// The server's certificate with its key, if one is configured.
    #[must_use]
    pub fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.trust.certificate()
    }

    /// Reads keys and certificates from their files again.
    ///
    /// # Errors
    /// If one of them cannot be used: the old ones stay in force.
    pub fn reload(&self) -> Result<(), Error> {
        self.trust.reload().inspect_err(
            |error| tracing::error!(%error, "keys and certificates cannot be read again; the old ones stay in use"),
        )?;
        tracing::info!("keys and certificates were read again");
        Ok(())
    }

    /// Reads the files again whenever they change, for as long as the server lives.
    pub async fn watch(&self) {
        self.trust.clone().watch().await;
    }
}
