//! Certificates and keys from files, and the handshake of a connection.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::Decode;
use pkcs8::der::pem::decode_vec;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

use crate::config::{ClientVerify, Tls};

/// Largest file that is read, bytes; the bundles of public roots have a quarter of it.
const MAX_FILE: u64 = 1 << 20;

const ENCRYPTED: (&str, &str) = (
    "-----BEGIN ENCRYPTED PRIVATE KEY-----",
    "-----END ENCRYPTED PRIVATE KEY-----",
);

/// Why certificates and keys cannot be used. The message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, io::Error),
    #[error("{0} is larger than 1 MiB")]
    TooLarge(PathBuf),
    #[error("{0} holds no certificate in PEM form (BEGIN CERTIFICATE)")]
    NoCertificate(PathBuf),
    #[error("{0} holds a damaged certificate: {1}")]
    Certificate(PathBuf, String),
    #[error("{0} holds no private key in PEM form (BEGIN PRIVATE KEY)")]
    NoKey(PathBuf),
    #[error("{0} holds a private key that cannot be used: {1}")]
    Key(PathBuf, String),
    #[error(
        "the private key in {0} is encrypted; give its password with --ssl-keyfile-password-file or LLMRT_SSL_KEYFILE_PASSWORD"
    )]
    NoPassword(PathBuf),
    #[error(
        "the private key in {0} cannot be decrypted: wrong password, or a cipher that is not PBES2"
    )]
    Password(PathBuf),
    #[error(
        "the private key in {0} is encrypted in OpenSSL's old form; convert it with 'openssl pkcs8 -topk8'"
    )]
    OldEncryption(PathBuf),
    #[error("the key in {0} is not that of the certificate in {1}")]
    Mismatch(PathBuf, PathBuf),
    #[error("no certificate in {0} can be a root of clients' certificates")]
    NoRoot(PathBuf),
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("TLS: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Reads the files of `tls` and makes of them what handshakes need; with `http2` it is offered to clients (ALPN).
///
/// # Errors
/// A file cannot be read or used, or key and certificate do not belong together.
pub fn load(tls: &Tls, http2: bool) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let keyfile = tls.keyfile.as_ref().unwrap_or(&tls.certfile);
    let chain = certificates(&tls.certfile)?;
    let key = private_key(keyfile, tls)?;
    let clients = match &tls.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(roots) => client_verifier(roots, tls.client_verify, &provider)?,
    };
    let built = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS12, &TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key);
    let mut config = built.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::Mismatch(keyfile.clone(), tls.certfile.clone())
        }
        rustls::Error::InvalidCertificate(why) => {
            TlsError::Certificate(tls.certfile.clone(), format!("{why:?}"))
        }
        rustls::Error::General(why) => TlsError::Key(keyfile.clone(), why),
        other => other.into(),
    })?;
    let offered: &[&[u8]] = if http2 {
        &[b"h2", b"http/1.1"]
    } else {
        &[b"http/1.1"]
    };
    config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn client_verifier(
    file: &Path,
    verify: ClientVerify,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates(file)?);
    if taken == 0 {
        return Err(TlsError::NoRoot(file.to_owned()));
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(match verify {
        ClientVerify::Required => builder.build()?,
        ClientVerify::Optional => builder.allow_unauthenticated().build()?,
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(file)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|why| TlsError::Certificate(file.to_owned(), why.to_string()))?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate(file.to_owned()));
    }
    Ok(found)
}

fn private_key(file: &Path, tls: &Tls) -> Result<PrivateKeyDer<'static>, TlsError> {
    use rustls::pki_types::pem::Error::NoItemsFound;
    let pem = read(file)?;
    let text = String::from_utf8_lossy(&pem);
    if let Some(block) = encrypted_block(&text) {
        return decrypt(block, file, tls);
    }
    if text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::OldEncryption(file.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|why| match why {
        NoItemsFound => TlsError::NoKey(file.to_owned()),
        other => TlsError::Key(file.to_owned(), other.to_string()),
    })
}

/// The encrypted key of a PEM file that has one, other blocks around it left out.
fn encrypted_block(pem: &str) -> Option<&str> {
    let start = pem.find(ENCRYPTED.0)?;
    let length = pem[start..].find(ENCRYPTED.1)? + ENCRYPTED.1.len();
    Some(&pem[start..start + length])
}

fn decrypt(block: &str, file: &Path, tls: &Tls) -> Result<PrivateKeyDer<'static>, TlsError> {
    let password = password(tls)?.ok_or_else(|| TlsError::NoPassword(file.to_owned()))?;
    let damaged = |why: &dyn std::fmt::Display| TlsError::Key(file.to_owned(), why.to_string());
    let (_, der) = decode_vec(block.as_bytes()).map_err(|why| damaged(&why))?;
    let sealed = EncryptedPrivateKeyInfoRef::from_der(&der).map_err(|why| damaged(&why))?;
    let key = sealed
        .decrypt(password)
        .map_err(|_| TlsError::Password(file.to_owned()))?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

fn password(tls: &Tls) -> Result<Option<String>, TlsError> {
    if let Some(password) = &tls.key_password {
        return Ok(Some(password.0.clone()));
    }
    let Some(file) = &tls.key_password_file else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&read(file)?).into_owned();
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |error| TlsError::Read(path.to_owned(), error);
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(fail)?.take(MAX_FILE + 1);
    file.read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(TlsError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}
