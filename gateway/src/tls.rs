//! TLS for the door on the network. The certificate and its key are read again when their files change, so that a renewed one is
//! in force without a restart.

use std::fs;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, version};

use crate::error::GatewayError;
use crate::settings::{Settings, Stamp, stamp};

pub(crate) struct Tls {
    /// For new connections.
    pub(crate) acceptor: TlsAcceptor,
    /// The files of the certificate and of its key.
    files: [String; 2],
    /// How these files were when they were last read.
    seen: [Option<Stamp>; 2],
}

impl Tls {
    /// TLS with the files of these settings; `None` if they name none.
    pub(crate) fn open(settings: &Settings) -> Result<Option<Self>, GatewayError> {
        if settings.tls_cert.is_empty() {
            return Ok(None);
        }
        let files = [settings.tls_cert.clone(), settings.tls_key.clone()];
        let seen = files.each_ref().map(|file| stamp(file));
        let acceptor = acceptor(&files).map_err(GatewayError::Certificate)?;
        Ok(Some(Self { acceptor, files, seen }))
    }

    /// Reads the files again if they have changed. If they cannot be used, the current certificate stays.
    pub(crate) fn reload(&mut self) {
        let now = self.files.each_ref().map(|file| stamp(file));
        if now == self.seen {
            return;
        }
        self.seen = now;
        match acceptor(&self.files) {
            Ok(acceptor) => {
                self.acceptor = acceptor;
                tracing::info!("the changed certificate is in force");
            }
            Err(error) => tracing::error!(error, "the certificate cannot be used; the current one stays"),
        }
    }
}

/// TLS 1.2 and 1.3 with these files; a key that does not belong to the certificate is an error.
fn acceptor([cert, key]: &[String; 2]) -> Result<TlsAcceptor, String> {
    let bytes = |file: &String| fs::read(file).map_err(|error| format!("{file} cannot be read: {error}"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(cert)?).collect();
    let chain = chain.map_err(|error| format!("{cert} is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err(format!("{cert} has no certificate in PEM"));
    }
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?);
    let private = private.map_err(|error| format!("{key} has no key in PEM: {error}"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private));
    let unfit = |error: rustls::Error| format!("{cert} and {key} cannot be used together: {error}");
    let mut config = config.map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}
