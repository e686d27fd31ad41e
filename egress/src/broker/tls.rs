//! By what a server proves who it is.

use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::limits::AUTHORITY_BYTES_MAX;
use effectd_contracts::{Digest, Scheme, Trust};
use parking_lot::Mutex;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Names another file than the system's, as for other programs.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";
/// The system's authorities, where distributions have them.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's authorities; none if the system has no file of them. What this program cannot read is left out.
pub(super) fn system_roots() -> RootCertStore {
    let named = std::env::var_os(ROOTS_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
    let file = named.or_else(|| SYSTEM_ROOTS.map(PathBuf::from).into_iter().find(|file| file.is_file()));
    let pem = file.and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    roots
}

/// Makes the configurations of TLS.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    provider: Arc<CryptoProvider>,
    system: Option<Arc<dyn ServerCertVerifier>>,
}

impl Tls {
    pub(super) fn new(roots: RootCertStore) -> Self {
        let provider = Arc::new(crypto::ring::default_provider());
        let system = by_authorities(&provider, roots);
        Self { provider, system }
    }

    /// The configuration of one connection. The error says what is wrong with the connection's trust.
    pub(super) fn config(
        &self,
        trust: &Trust,
        scheme: Scheme,
    ) -> Result<(Arc<ClientConfig>, Arc<Witness>), &'static str> {
        let verifier = match trust {
            Trust::System => {
                let none = "this system has no authorities, so no server can prove who it is";
                self.system.clone().ok_or(none)?
            }
            Trust::Authority(pem) => {
                let invalid = "the connection's authority is not a certificate in PEM";
                if pem.len() > AUTHORITY_BYTES_MAX {
                    return Err(invalid);
                }
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let added = certificate.ok().and_then(|certificate| roots.add(certificate).ok());
                    added.ok_or(invalid)?;
                }
                by_authorities(&self.provider, roots).ok_or(invalid)?
            }
            Trust::Key(pin) => Arc::new(ByKey { pin: pin.clone(), provider: self.provider.clone() }),
        };
        let witness = Arc::new(Witness { verifier, shown: Mutex::default() });
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|_| "TLS cannot be used")?
            .dangerous()
            .with_custom_certificate_verifier(witness.clone())
            .with_no_client_auth();
        let protocol: &[u8] = if scheme.is_database() { b"postgresql" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        // Connections share nothing; a kept one needs no second handshake.
        config.resumption = Resumption::disabled();
        Ok((Arc::new(config), witness))
    }
}

/// `None` without any authority.
fn by_authorities(
    provider: &Arc<CryptoProvider>,
    roots: RootCertStore,
) -> Option<Arc<dyn ServerCertVerifier>> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    verifier.ok().map(|verifier| verifier as _)
}

/// Remembers the certificate that was shown, whatever the verifier says about it.
#[derive(Debug)]
pub(super) struct Witness {
    verifier: Arc<dyn ServerCertVerifier>,
    shown: Mutex<Option<CertificateDer<'static>>>,
}

impl Witness {
    pub(super) fn shown(&self) -> Option<CertificateDer<'static>> {
        self.shown.lock().clone()
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.shown.lock() = Some(certificate.clone().into_owned());
        self.verifier.verify_server_cert(certificate, others, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Trusts one key, whatever its certificate says.
#[derive(Debug)]
struct ByKey {
    pin: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ByKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        if Digest::of(&key).hex() == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Why a handshake failed, in effectd's words: those of rustls may quote the server's certificate.
pub(super) fn why(error: &std::io::Error) -> &'static str {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(Error::InvalidCertificate(error)) = error else {
        return "the server does not speak TLS as effectd does";
    };
    if matches!(error, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
        "the server's certificate has expired"
    } else if matches!(error, CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) {
        "the server's certificate is not valid yet"
    } else if matches!(
        error,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    ) {
        "the server's certificate is for another name"
    // An authority with the name of a trusted one has another key.
    } else if matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        "the server's certificate comes from an authority that the connection does not trust"
    } else if matches!(error, CertificateError::ApplicationVerificationFailure) {
        "the server has another key than the connection demands"
    } else {
        "the server's certificate cannot be used"
    }
}
