//! TLS as a client: whom to trust, and which protocol to ask for.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::ConfigError;

/// Trusts the authorities in `file`, or without one those of the system; asks for HTTP/2 or HTTP/1.1 (ALPN).
///
/// # Errors
/// There is no authority to trust.
pub fn connector(file: Option<&Path>, http2: bool) -> Result<TlsConnector, ConfigError> {
    let certificates = match file {
        Some(file) => of_file(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    let (trusted, _) = roots.add_parsable_certificates(certificates);
    if trusted == 0 {
        let message = match file {
            Some(file) => format!("--ssl-ca-certs: {} holds no certificate", file.display()),
            None => "this system has no certificate authorities; name a file with --ssl-ca-certs"
                .to_owned(),
        };
        return Err(ConfigError(message));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| ConfigError(format!("TLS: {e}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_owned()];
    Ok(Arc::new(config).into())
}

fn of_file(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read = |e| ConfigError(format!("--ssl-ca-certs: {}: {e}", file.display()));
    CertificateDer::pem_file_iter(file)
        .map_err(read)?
        .collect::<Result<_, _>>()
        .map_err(read)
}
