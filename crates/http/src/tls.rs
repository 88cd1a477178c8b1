//! The TLS acceptor, from the server's certificate and key.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::{Error, TlsConfig};

/// Makes the acceptor of TLS connections from the PEM files. `alpn`: protocols to offer.
pub(crate) fn acceptor(config: &TlsConfig, alpn: &[Vec<u8>]) -> Result<TlsAcceptor, Error> {
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
