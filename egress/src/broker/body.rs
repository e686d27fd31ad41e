//! Bodies of answers: read within a bound, and uncompressed within the same one.

use std::io::Read;

use effectd_contracts::ExchangeFault;
use flate2::bufread::GzDecoder;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};

use super::courier::Fault;
use super::places::{Place, Places};
use crate::limits::SMALL_ANSWER_BYTES_MAX;

/// A whole body, and its share of the broker's memory if it is large.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) share: Option<Place>,
}

fn too_large() -> Fault {
    Fault::new(ExchangeFault::TooLarge, "the answer is larger than allowed")
}

/// How the server encoded the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    Gzip,
}

/// The encoding by the headers of an answer. What two programs could read as two different bodies is refused.
pub(super) fn encoding(headers: &HeaderMap) -> Result<Encoding, Fault> {
    let broken = |why: &str| Err(Fault::new(ExchangeFault::Broken, why));
    let all = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
    match (all(CONTENT_LENGTH).as_slice(), all(TRANSFER_ENCODING).as_slice()) {
        ([], []) => {}
        ([length], []) if length.iter().all(u8::is_ascii_digit) => {}
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => {}
        (_, _) => return broken("the answer has two lengths, or one that some programs read otherwise"),
    }
    let mut named = headers.get_all(CONTENT_ENCODING).iter();
    let encoding = match named.next().map(|value| value.as_bytes().to_ascii_lowercase()) {
        None => Encoding::Plain,
        Some(name) if name == b"identity" => Encoding::Plain,
        Some(name) if name == b"gzip" => Encoding::Gzip,
        Some(_) => return broken("the answer is encoded in a way that nobody asked for"),
    };
    match named.next() {
        None => Ok(encoding),
        Some(_) => broken("the answer is encoded twice"),
    }
}

/// Reads the body to its end. What is larger than small waits for a share of the memory, of which it takes all that it may need, so
/// that no two wait for each other.
pub(super) async fn read(
    mut body: Incoming,
    (encoding, bytes_max): (Encoding, usize),
    (large, connection): (&Places, &str),
) -> Result<Whole, Fault> {
    let broken = || Fault::new(ExchangeFault::Broken, "the answer broke off, or is not HTTP");
    let mut whole = Whole::default();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| broken())?.into_data() else {
            continue;
        };
        let length = whole.bytes.len() + piece.len();
        if length > bytes_max {
            return Err(too_large());
        }
        if length > SMALL_ANSWER_BYTES_MAX && whole.share.is_none() {
            whole.share = large.take(connection).await;
            // All at once: a buffer that doubles would take more than its share.
            whole.bytes.reserve_exact(bytes_max - whole.bytes.len());
        }
        whole.bytes.extend_from_slice(&piece);
    }
    if encoding == Encoding::Gzip && !whole.bytes.is_empty() {
        if whole.share.is_none() {
            whole.share = large.take(connection).await;
        }
        whole.bytes = uncompressed(&whole.bytes, bytes_max)?;
        if whole.bytes.len() <= SMALL_ANSWER_BYTES_MAX {
            whole.share = None;
        }
    }
    Ok(whole)
}

/// One stream and nothing behind it: some programs read a second one, and others do not.
fn uncompressed(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, Fault> {
    let broken = |why: &str| Err(Fault::new(ExchangeFault::Broken, why));
    let mut plain = Vec::new();
    if bytes.len() > SMALL_ANSWER_BYTES_MAX {
        plain.reserve_exact(bytes_max + 1);
    }
    let mut decoder = GzDecoder::new(bytes).take(bytes_max as u64 + 1);
    let read = decoder.read_to_end(&mut plain);
    if plain.len() > bytes_max {
        return Err(too_large());
    }
    match read {
        Ok(_) if decoder.into_inner().into_inner().is_empty() => Ok(plain),
        Ok(_) => broken("the answer has something behind what is compressed"),
        Err(_) => broken("the answer cannot be uncompressed"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bomb_ends_at_the_bound() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(uncompressed(&bomb, 1 << 20).unwrap_err().fault, ExchangeFault::TooLarge);
        let many = gzip(b"").repeat(10_000);
        assert_eq!(uncompressed(&many, 10).unwrap_err().fault, ExchangeFault::Broken);
        assert_eq!(uncompressed(&gzip(&[7; 100]), 100).unwrap(), [7; 100]);
        assert_eq!(uncompressed(&gzip(&[7; 101]), 100).unwrap_err().fault, ExchangeFault::TooLarge);
        let cut = gzip(&[7; 100]);
        assert_eq!(uncompressed(&cut[..cut.len() - 4], 100).unwrap_err().fault, ExchangeFault::Broken);
        assert_eq!(uncompressed(b"plain", 100).unwrap_err().fault, ExchangeFault::Broken);
    }

    #[test]
    fn one_encoding_and_one_length() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            encoding(&headers).map_err(|fault| fault.fault)
        };
        assert_eq!(with(&[]), Ok(Encoding::Plain));
        assert_eq!(with(&[("content-encoding", "GZIP")]), Ok(Encoding::Gzip));
        assert_eq!(with(&[("transfer-encoding", "Chunked")]), Ok(Encoding::Plain));
        assert_eq!(with(&[("content-length", "3"), ("content-encoding", "identity")]), Ok(Encoding::Plain));
        for pairs in [
            &[("content-encoding", "br")] as &[_],
            &[("content-encoding", "gzip, gzip")],
            &[("content-encoding", "gzip"), ("content-encoding", "gzip")],
            &[("content-length", "3"), ("transfer-encoding", "chunked")],
            &[("content-length", "3"), ("content-length", "3")],
            &[("content-length", "3, 3")],
            &[("content-length", "+3")],
            &[("transfer-encoding", "gzip")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ] {
            assert_eq!(with(pairs), Err(ExchangeFault::Broken), "{pairs:?}");
        }
    }
}
