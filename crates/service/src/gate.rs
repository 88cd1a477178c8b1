//! The service's checks of clients, for other servers in the same process: keys, certificates, and names of hosts.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use tokio_rustls::TlsAcceptor;

use crate::config::HttpConfig;
use crate::error::Error;
use crate::http::{Access, Content, Hosts, Refusal, Trust, check_origin};

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// What everybody may.
    Anything,
    /// To ask, for which the key is needed, if there is one.
    ToAsk,
    /// To change something, for which the admin key is needed, if there is one.
    ToChange,
}

/// A request that is not let in, or cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The status of the answer.
    pub status: StatusCode,
    /// A name for the reason that stays.
    pub code: &'static str,
    /// What would be right.
    pub message: Cow<'static, str>,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Self { status: refusal.status, code: refusal.code, message: refusal.message }
    }
}

/// True if a body is JSON, as its header says: a page of another origin cannot send that unasked.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    Content::of(headers) == Some(Content::Json)
}

/// Lets clients in, or not, as a configuration says.
pub struct Gate {
    trust: Arc<Trust>,
    config: HttpConfig,
}

impl Gate {
    /// Reads keys and certificates. `alpn`: the protocols that TLS may agree on, the preferred one first.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used.
    pub fn new(config: &HttpConfig, alpn: &[&str]) -> Result<Self, Error> {
        Ok(Self { trust: Arc::new(Trust::new(config, alpn)?), config: config.clone() })
    }

    /// Whether clients need a key.
    #[must_use]
    pub fn asks_for_key(&self) -> bool {
        self.trust.keys().asked_for()
    }

    /// Whether changes need a key.
    #[must_use]
    pub fn asks_for_key_to_change(&self) -> bool {
        self.trust.keys().asked_for_changes()
    }

    /// True if one of the words of a header is one of the keys.
    #[must_use]
    pub fn has_key_in(&self, value: &[u8]) -> bool {
        self.trust.keys().are_in(value)
    }

    /// Whether a request may do what it wants. True if it showed a key. Hosts are checked where they could be others
    /// than this machine's: on loopback without a key, and where the configuration names some. What changes something
    /// must not come from a page of an origin other than `origins`, nor any request with a body that shows no key.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check<B>(&self, request: &Request<B>, wants: Wants, origins: &[String]) -> Result<bool, Denied> {
        let hosts = Hosts::at(self.config.bind, self.asks_for_key(), &self.config.hosts);
        hosts.check(request, &self.config.hosts)?;
        let access = match wants {
            Wants::Anything => Access::Open,
            Wants::ToAsk => Access::Ask,
            Wants::ToChange => Access::Admin,
        };
        let is_known = self.trust.keys().check(request, access)?;
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if wants == Wants::ToChange || (!is_known && !reads) {
            check_origin(request, origins)?;
        }
        Ok(is_known)
    }

    /// What speaks TLS, if the configuration has a certificate.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsAcceptor>> {
        self.trust.tls()
    }

    /// Reads keys and certificates again.
    ///
    /// # Errors
    /// [`Error::Start`] if one cannot be used: all stays as it was.
    pub fn reload(&self) -> Result<(), Error> {
        self.trust.reload()
    }

    /// Reads the files again whenever they have changed. To be run for as long as the server lives.
    pub async fn watch(&self) {
        self.trust.clone().watch().await;
    }
}
