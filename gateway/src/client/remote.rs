//! A daemon at a URL: HTTP on this machine, HTTPS anywhere, and a token that says who asks.
#![expect(clippy::disallowed_types, reason = "connects to the daemon")]

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::HeaderValue;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error as TlsError, RootCertStore, crypto};

use super::{ClientError, begin};

/// How long a connection may take, with its TLS handshake.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Names another file than the system's, as for other programs.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";
/// The system's authorities, where distributions have them.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A daemon at a URL, and the token for it.
pub struct Remote {
    /// What the user calls it, such as a context.
    pub name: String,
    pub url: String,
    pub(super) host: HeaderValue,
    pub(super) authorization: HeaderValue,
    address: (String, u16),
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Remote {
    /// The error says what is wrong with the URL, the token or the file of authorities. It never quotes the token.
    pub fn new((name, url): (String, &str), token: &str, authorities: Option<&Path>) -> Result<Self, String> {
        // A password must not be quoted below.
        if url.contains('@') {
            return Err("the URL has a user or a password; a token has a file of its own".to_owned());
        }
        let invalid = |why: &str| format!("{url:?} is not the URL of a daemon: {why}");
        let uri: Uri = url.parse().map_err(|_| invalid("it cannot be read"))?;
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_this_machine(host) => false,
            Some("http") => {
                return Err(invalid(
                    "over http a token could be read on the way; use https beyond this machine",
                ));
            }
            Some(_) | None => return Err(invalid("it begins with https://, or http:// on this machine")),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(invalid("it has a path; name only host and port"));
        }
        let tls = if is_tls {
            let name = ServerName::try_from(host.to_owned()).map_err(|error| invalid(&error.to_string()))?;
            Some((connector(authorities)?, name))
        } else {
            None
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut authorization = bearer
            .ok()
            .filter(|_| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()))
            .ok_or_else(|| format!("the token of {name} is not one line of printable characters"))?;
        authorization.set_sensitive(true);
        Ok(Self {
            host: HeaderValue::from_str(authority).map_err(|_| invalid("its host cannot be sent"))?,
            authorization,
            address: (host.to_owned(), port),
            tls,
            name,
            url: url.trim_end_matches('/').to_owned(),
        })
    }

    pub(super) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let late = |_| self.unreachable(&"no answer in time");
        timeout(CONNECT_TIME_MAX, self.dial()).await.map_err(late)?
    }

    async fn dial(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let (host, port) = (self.address.0.as_str(), self.address.1);
        let connected = TcpStream::connect((host, port)).await;
        let stream = connected.map_err(|error| self.unreachable(&error))?;
        // A request goes out whole; waiting to send more with it only costs time.
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error))?;
        let Some((connector, name)) = &self.tls else {
            let peer = stream.peer_addr().map_err(|error| self.unreachable(&error))?;
            if !peer.ip().is_loopback() {
                return Err(self.unreachable(&format!("{host} is {peer} here, which is not this machine")));
            }
            return begin(stream).await;
        };
        begin(connector.connect(name.clone(), stream).await.map_err(|error| self.tls_failed(&error))?).await
    }

    fn unreachable(&self, why: &dyn fmt::Display) -> ClientError {
        ClientError::Unreachable { name: self.name.clone(), url: self.url.clone(), why: why.to_string() }
    }

    fn tls_failed(&self, error: &io::Error) -> ClientError {
        if error.get_ref().is_some_and(|inner| inner.is::<TlsError>()) {
            let (name, url) = (self.name.clone(), self.url.clone());
            return ClientError::Untrusted { name, url, why: error.to_string() };
        }
        self.unreachable(error)
    }
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// TLS 1.2 and newer, with the authorities of a file or of the system.
fn connector(authorities: Option<&Path>) -> Result<TlsConnector, String> {
    let file = match authorities {
        Some(file) => file.to_owned(),
        None => system_roots().ok_or("this system has no file of authorities; name one with --ca")?,
    };
    let cannot =
        |why: &dyn fmt::Display| format!("the authorities in {} cannot be used: {why}", file.display());
    let pem = std::fs::read(&file).map_err(|error| cannot(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let added = roots.add(certificate.map_err(|error| cannot(&error))?);
        // A system may have authorities that this program cannot read; the others still count.
        if authorities.is_some() {
            added.map_err(|error| cannot(&error))?;
        }
    }
    if roots.is_empty() {
        return Err(cannot(&"there are none in it"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_roots() -> Option<PathBuf> {
    let named = std::env::var_os(ROOTS_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
    named.or_else(|| SYSTEM_ROOTS.map(PathBuf::from).into_iter().find(|file| file.is_file()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::client::Client;

    fn remote(url: &str, token: &str) -> Result<Remote, String> {
        Remote::new(("context \"x\"".to_owned(), url), token, None)
    }

    #[test]
    fn a_token_goes_to_this_machine_or_by_tls_only() {
        for url in ["http://127.0.0.1:7070", "http://localhost", "http://[::1]:7070/", "http://127.9.9.9"] {
            let found = remote(url, "t").unwrap();
            assert_eq!(found.url, url.trim_end_matches('/'));
            assert!(found.tls.is_none());
        }
        assert_eq!(remote("http://[::1]:7070", "t").unwrap().address, ("::1".to_owned(), 7_070));
        for (url, why) in [
            ("http://effectd.example.org", "use https"),
            ("http://127.0.0.1.example.org", "use https"),
            ("http://0.0.0.0:7070", "use https"),
            ("ftp://127.0.0.1", "begins with https://"),
            ("127.0.0.1:7070", "begins with https://"),
            ("http://me:secret@127.0.0.1", "a user or a password"),
            ("http://me:secret @127.0.0.1", "a user or a password"),
            ("http://127.0.0.1/v1", "it has a path"),
            ("http://127.0.0.1/?a=b", "it has a path"),
            ("http://", "cannot be read"),
            ("", "cannot be read"),
        ] {
            let refused = remote(url, "t").unwrap_err();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
        for token in ["", "two words", "two\nlines", "ümlaut"] {
            let refused = remote("http://127.0.0.1", token).unwrap_err();
            assert!(refused.contains("the token of context \"x\""), "{refused}");
            assert!(token.is_empty() || !refused.contains(token), "{refused}");
        }
        let client = Client::remote(Arc::new(remote("http://127.0.0.1", "canary").unwrap()));
        assert!(!format!("{client:?}").contains("canary"));
    }
}
