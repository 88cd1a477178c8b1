//! [`GatewayTls`]: the certificate that gateways are shown.
//!
//! Gateways speak TLS with a picker unless told otherwise, and mostly do not check who it is: so a certificate made at the
//! start will do where no file is given.

use std::sync::Arc;

use kvatlas_http::{Gate, TlsConfig};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::config::Config;
use crate::error::Error;

/// The protocol that gRPC is spoken in.
const ALPN: &str = "h2";

/// The certificate that gateways are shown.
pub(super) enum GatewayTls {
    /// One made at the start.
    Own(Arc<TlsAcceptor>),
    /// Files, read again when they change.
    Files(Arc<Gate>),
}

impl GatewayTls {
    /// Reads or makes the certificate; None if gateways speak without TLS.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used.
    pub(super) fn new(config: &Config) -> Result<Option<Self>, Error> {
        if !config.gateway_tls {
            return Ok(None);
        }
        let (Some(cert), Some(key)) = (&config.gateway_tls_cert, &config.gateway_tls_key) else {
            return own().map(|acceptor| Some(Self::Own(Arc::new(acceptor))));
        };
        let tls = Some(TlsConfig { cert: cert.clone(), key: key.clone(), client_ca: None });
        // Keys of clients are checked request by request, not here.
        let files = kvatlas_http::Config {
            tls,
            key: None,
            key_file: None,
            admin_key: None,
            admin_key_file: None,
            ..config.http.clone()
        };
        Ok(Some(Self::Files(Arc::new(Gate::new(&files, &[ALPN])?))))
    }

    /// The acceptor of connections that are made now.
    pub(super) fn acceptor(&self) -> Option<Arc<TlsAcceptor>> {
        match self {
            Self::Own(acceptor) => Some(acceptor.clone()),
            Self::Files(gate) => gate.tls(),
        }
    }

    /// Reads the files again whenever they change, for as long as the server lives.
    pub(super) async fn watch(&self) {
        if let Self::Files(gate) = self {
            gate.watch().await;
        }
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// [`Error::Start`] if one of them cannot be used: the old ones stay in force.
    pub(super) fn reload(&self) -> Result<(), Error> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Files(gate) => Ok(gate.reload()?),
        }
    }
}

/// Makes a certificate signed by itself, and its key, both kept in memory alone.
fn own() -> Result<TlsAcceptor, Error> {
    let failed =
        |error: &dyn std::fmt::Display| Error::start(format!("cannot make a certificate for gateways: {error}"));
    let made = rcgen::generate_simple_self_signed(["kvatlas-epp".to_owned()]).map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|error| failed(&error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![ALPN.as_bytes().to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
