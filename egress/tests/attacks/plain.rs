//! A plain client, as many programs have one: it believes what it is told.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use flate2::read::GzDecoder;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use crate::server::Server;
use crate::world::SECRET;

/// Connects to a host by whatever the C library takes it for.
pub(crate) fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match connect_to(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(crate) fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Sends these bytes and reads all that comes, until the server closes or has sent what it announces.
pub(crate) fn say(host: &str, server: &Server, bytes: &[u8]) -> io::Result<Vec<u8>> {
    exchange(connect(host, server.port)?, bytes)
}

pub(crate) fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(bytes)?;
    stream.flush()?;
    let (mut answer, mut piece) = (Vec::new(), [0; 65_536]);
    loop {
        let count = match stream.read(&mut piece) {
            Ok(0) | Err(_) => return Ok(answer),
            Ok(count) => count,
        };
        answer.extend_from_slice(&piece[..count]);
        if is_whole(&answer) {
            return Ok(answer);
        }
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(65_536)]).into_owned();
    let Some(end) = text.find("\r\n\r\n") else {
        return false;
    };
    let length =
        text[..end].lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

/// A request with these lines of headers, with the secret.
pub(crate) fn request(method: &str, target: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {target} HTTP/1.1\r\nhost: api.test\r\nauthorization: Bearer {SECRET}\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Reads a page.
pub(crate) fn get(host: &str, server: &Server) -> Vec<u8> {
    say(host, server, &request("GET", "/", "", "")).unwrap_or_default()
}

pub(crate) fn body(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    end.map_or(&[], |end| &answer[end + 4..])
}

pub(crate) fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// How many bytes a body has when it is uncompressed, counted up to this.
pub(crate) fn unzipped(body: &[u8], count_max: u64) -> u64 {
    io::copy(&mut GzDecoder::new(body).take(count_max), &mut io::sink()).unwrap_or(0)
}

/// A page by TLS without looking at the certificate.
pub(crate) fn get_unverified(host: &str, server: &Server) -> Vec<u8> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = StreamOwned::new(connection, connect(host, server.port).unwrap());
    exchange(stream, &request("GET", "/", "", "")).unwrap_or_default()
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
