//! Checks of clients: keys, certificates, and names of hosts.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use kvatlas_settings::Secret;
use tokio_rustls::TlsAcceptor;

use crate::config::Config;
use crate::keys::{Access, Hosts, ShownKey};
use crate::origin::check_origin;
use crate::trust::Trust;
use crate::{Denial, Error};

/// Lets clients in, or not, as a configuration says.
pub struct Gate {
    trust: Arc<Trust>,
    config: Config,
}

impl Gate {
    /// Reads keys and certificates. `alpn`: the protocols that TLS may agree on, the preferred one first.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(config: &Config, alpn: &[&str]) -> Result<Self, Error> {
        Ok(Self { trust: Arc::new(Trust::new(config, alpn)?), config: config.clone() })
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

    /// True if there are connections of which it is not known who has made them.
    pub(crate) fn has_strangers(&self) -> bool {
        self.asks_for_key() || self.config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// True if a request shows one of the keys.
    pub(crate) fn is_shown_key<B>(&self, request: &Request<B>) -> bool {
        self.trust.keys().are_shown(request)
    }

    /// True if a text contains one of the keys, however it is encoded.
    #[must_use]
    pub fn has_key_in(&self, text: &[u8]) -> bool {
        self.trust.keys().are_in(text)
    }

    /// The names of the headers that contain one of the keys, in their values or in their names, however it is encoded.
    #[must_use]
    pub fn names_with_keys(&self, headers: &HeaderMap) -> Vec<HeaderName> {
        let keys = self.trust.keys();
        let has_key = |(name, value): &(&HeaderName, &HeaderValue)| {
            keys.are_in(value.as_bytes()) || keys.are_in_name(name.as_str().as_bytes())
        };
        headers.iter().filter(has_key).map(|(name, _)| name.clone()).collect()
    }

    /// The secret that routers of a fleet share: the admin key, else `engines`, the key that they show to engines, else the
    /// one key that there is.
    #[must_use]
    pub fn fleet_secret(&self, engines: Option<&Secret>) -> Option<Secret> {
        let keys = self.trust.keys();
        let admin = keys.for_changes().filter(|_| keys.have_admin());
        admin.or(engines).or_else(|| keys.for_changes()).cloned()
    }

    /// True if the name of a header contains one of the keys, or a list of such names does.
    #[must_use]
    pub fn has_key_in_name(&self, name: &[u8]) -> bool {
        self.trust.keys().are_in_name(name)
    }

    /// Refuses a request with a key in its path, query or method.
    ///
    /// # Errors
    /// [`Denial`] if there is one.
    pub fn check_target<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        self.trust.keys().check_target(request)
    }

    /// Checks that a request may do what it wants. True if it showed a key.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check<B>(&self, request: &Request<B>, wants: Access) -> Result<bool, Denial> {
        Ok(self.admit(request, wants)? != ShownKey::Nothing)
    }

    /// Checks that a request may do what it wants, and returns the key that it showed. Hosts are checked where
    /// they could be others than this machine's: on loopback without a key, and where the configuration names some. A
    /// request that changes something must not come from a page of an origin that the configuration does not name, nor
    /// must one with a body that shows no key.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admit<B>(&self, request: &Request<B>, wants: Access) -> Result<ShownKey, Denial> {
        let hosts = Hosts::at(self.config.bind, self.asks_for_key(), &self.config.hosts);
        hosts.check(request, &self.config.hosts)?;
        let shown = self.trust.keys().check(request, wants)?;
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if wants == Access::Admin || (shown == ShownKey::Nothing && !reads) {
            check_origin(request, &self.config.origins)?;
        }
        Ok(shown)
    }

    /// Refuses a request that names another machine, where nothing else keeps other people's web pages out.
    ///
    /// # Errors
    /// [`Denial`] if it does.
    pub fn check_admin_host<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        let is_loopback = self.config.admin_bind.is_some_and(|at| at.ip().is_loopback());
        let hosts = if is_loopback { Hosts::Own } else { Hosts::Any };
        hosts.check(request, &self.config.hosts)
    }

    /// The acceptor of TLS connections, if the configuration has a certificate.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsAcceptor>> {
        self.trust.tls()
    }

    /// Reads keys and certificates again.
    ///
    /// # Errors
    /// If one cannot be used: all stays as it was.
    pub fn reload(&self) -> Result<(), Error> {
        self.trust.reload()
    }

    /// Reads the files again whenever they have changed. To be run for as long as the server lives.
    pub async fn watch(&self) {
        self.trust.clone().watch().await;
    }
}
