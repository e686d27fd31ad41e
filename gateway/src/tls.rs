//! TLS for the door on the network. The certificate and its key are read again when their files change, so that a renewed one is
//! in force without a restart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig, version};

use crate::error::GatewayError;
use crate::settings::Settings;

pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// The files of the certificate and of its key.
    files: [String; 2],
    /// How these files were when they were last read.
    seen: Seen,
    current: Arc<Current>,
    provider: Arc<CryptoProvider>,
}

/// Inode, size and time of change of both files; `None` for one that is missing.
type Seen = [Option<(u64, u64, i64, i64)>; 2];

/// The certificate and key for new connections.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl Tls {
    /// TLS 1.2 and 1.3 with the files of these settings; `None` if they name none.
    pub(crate) fn open(settings: &Settings) -> Result<Option<Self>, GatewayError> {
        if settings.tls_cert.is_empty() {
            return Ok(None);
        }
        let files = [settings.tls_cert.clone(), settings.tls_key.clone()];
        let provider = Arc::new(ring::default_provider());
        let seen = seen(&files);
        let key = read(&files, &provider).map_err(GatewayError::Certificate)?;
        let current = Arc::new(Current(RwLock::new(Arc::new(key))));
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|error| GatewayError::Certificate(error.to_string()))?;
        let mut config = config.with_no_client_auth().with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(Self { acceptor: Arc::new(config).into(), files, seen, current, provider }))
    }

    /// Reads the files again if they have changed. If they cannot be used, the current certificate stays.
    pub(crate) fn reload(&mut self) {
        let now = seen(&self.files);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match read(&self.files, &self.provider) {
            Ok(key) => {
                *self.current.0.write() = Arc::new(key);
                tracing::info!("the changed certificate is in force");
            }
            Err(error) => tracing::error!(error, "the certificate cannot be used; the current one stays"),
        }
    }
}

fn seen(files: &[String; 2]) -> Seen {
    files.each_ref().map(|file| {
        let found = fs::metadata(file).ok()?;
        Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    })
}

/// Reads both files; a key that does not belong to the certificate is an error.
fn read([cert, key]: &[String; 2], provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let bytes = |file: &String| fs::read(file).map_err(|error| format!("{file} cannot be read: {error}"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(cert)?).collect();
    let chain = chain.map_err(|error| format!("{cert} is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err(format!("{cert} has no certificate in PEM"));
    }
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?);
    let private = private.map_err(|error| format!("{key} has no key in PEM: {error}"))?;
    let both = CertifiedKey::from_der(chain, private, provider);
    both.map_err(|error: rustls::Error| format!("{cert} and {key} cannot be used together: {error}"))
}
