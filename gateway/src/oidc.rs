//! Accounts of an OpenID Connect issuer: a JWT that one of its keys signed becomes an account, and the policy says what the values of
//! its roles mean.
//!
//! Each key verifies one algorithm. A token's header says by which key and algorithm it was signed, and a pair that the issuer does
//! not have is refused: no token chooses how it is verified.

mod served;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use effectd_actors::limits::ACCOUNT_BYTES_MAX;
use effectd_actors::services::tokens::{Claims, account};
use effectd_contracts::{Clock, Failure, OrgId, Timestamp, TokenKind};
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use parking_lot::Mutex;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::limits::{CLAIM_VALUES_MAX, JWKS_BYTES_MAX, JWT_SKEW_S_MAX};
use crate::settings::{OidcSettings, Stamp, stamp};
use served::Served;

/// The issuer's keys: as its file has them now, or as it serves them.
#[derive(Default)]
pub(crate) struct Issuer {
    file: Mutex<Option<Loaded>>,
    served: Arc<Served>,
}

struct Loaded {
    file: String,
    stamp: Option<Stamp>,
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: String,
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        // The same for all; whoever comes first in this process installs it.
        let _ = RING.install_default();
        Self::default()
    }

    /// The account that a JWT is for; `None` if it is not one of this issuer, for this audience and valid now. `fetch` asks a
    /// connection for the keys.
    pub(crate) async fn holder<F>(
        &self,
        settings: &OidcSettings,
        jwt: &str,
        clock: &dyn Clock,
        fetch: impl FnOnce(OrgId, String) -> F + Send,
    ) -> Option<Claims>
    where
        F: Future<Output = Result<Vec<u8>, Failure>> + Send + 'static,
    {
        if settings.issuer.is_empty() {
            return None;
        }
        let header = decode_header(jwt).ok()?;
        // What the issuer calls critical is not known here.
        if header.crit.is_some() {
            return None;
        }
        let (id, algorithm) = (header.kid?, header.alg);
        let org = OrgId::new(settings.org.as_str()).ok()?;
        let is_named = |key: &&Key| key.id == id && key.algorithm == algorithm;
        let key = if settings.jwks_source.is_empty() {
            self.key_of_file(&settings.jwks_file, is_named)?
        } else {
            let from = (org.clone(), settings.jwks_source.clone());
            self.served.key(from, is_named, clock.monotonic(), fetch).await?
        };
        let mut validation = Validation::new(key.algorithm);
        validation.set_issuer(&[&settings.issuer]);
        validation.set_audience(&[&settings.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // By our own clock, below.
        validation.validate_exp = false;
        let claims = decode::<Map<String, Value>>(jwt, &key.key, &validation).ok()?.claims;
        // A list of issuers would do for the library.
        claims.get("iss")?.as_str()?;
        let expires_at = check_times(&claims, clock.now())?;
        let name =
            claims.get(&settings.name_claim)?.as_str().filter(|name| name.len() <= ACCOUNT_BYTES_MAX)?;
        let principal = account(&org, name).ok()?;
        Some(Claims {
            token_id: principal.to_string(),
            account: principal.clone(),
            kind: TokenKind::User,
            org,
            principal,
            session: None,
            roles: claims.get(&settings.roles_claim).map(values).unwrap_or_default(),
            expires_at: Some(expires_at),
        })
    }

    /// Reads the file again if it has changed; without a readable file there is no key.
    fn key_of_file(&self, file: &str, is_named: impl Fn(&&Key) -> bool) -> Option<Key> {
        let mut loaded = self.file.lock();
        let stamp = stamp(file);
        if loaded.as_ref().is_none_or(|loaded| loaded.stamp != stamp || loaded.file != file) {
            let keys = read(Path::new(file)).unwrap_or_else(|error| {
                tracing::warn!(%error, file, "the issuer's keys cannot be read; no JWT is accepted");
                Vec::new()
            });
            *loaded = Some(Loaded { file: file.to_owned(), stamp, keys });
        }
        loaded.iter().flat_map(|loaded| &loaded.keys).find(is_named).cloned()
    }
}

fn read(file: &Path) -> io::Result<Vec<Key>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(JWKS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    parse(&bytes)
}

/// The keys of a set that can be used here. Others are left out, since an issuer may have any.
fn parse(bytes: &[u8]) -> io::Result<Vec<Key>> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    if bytes.len() as u64 > JWKS_BYTES_MAX {
        return Err(io::Error::other(format!("the set is longer than {JWKS_BYTES_MAX} bytes")));
    }
    let set: Set = serde_json::from_slice(bytes)?;
    Ok(set.keys.into_iter().filter_map(usable).collect())
}

/// A key with the one algorithm that it verifies.
fn usable(key: Value) -> Option<Key> {
    let named = key.get("alg").and_then(Value::as_str).map(str::to_owned);
    let jwk: Jwk = serde_json::from_value(key).ok()?;
    let (algorithm, name) = if matches!(jwk.algorithm, AlgorithmParameters::RSA(_)) {
        (Algorithm::RS256, "RS256")
    } else if matches!(&jwk.algorithm, AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256)
    {
        (Algorithm::ES256, "ES256")
    } else if matches!(&jwk.algorithm, AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519)
    {
        (Algorithm::EdDSA, "EdDSA")
    } else {
        return None;
    };
    let signs = jwk.common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
    let fits = signs && named.is_none_or(|named| named == name);
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| fits)?;
    Some(Key { id: jwk.common.key_id?, algorithm, key })
}

/// When the token expires, if it is valid now. Clocks may differ by the skew.
fn check_times(claims: &Map<String, Value>, now: Timestamp) -> Option<Timestamp> {
    let now = now.as_second();
    // Seconds, perhaps with a fraction; a claim that is no number is wrong.
    let seconds = |name: &str| claims.get(name).map(|value| value.as_f64().map(|value| value.floor() as i64));
    let is_past = |at: Option<i64>| at.is_some_and(|at| at <= now.saturating_add(JWT_SKEW_S_MAX));
    let expires = seconds("exp")??;
    let fits = now < expires.saturating_add(JWT_SKEW_S_MAX)
        && seconds("nbf").is_none_or(is_past)
        && seconds("iat").is_none_or(is_past);
    Timestamp::from_second(expires).ok().filter(|_| fits)
}

/// The values of a claim: one text, or a list of texts.
fn values(claim: &Value) -> Vec<String> {
    let one = claim.as_str().into_iter();
    let many = claim.as_array().into_iter().flatten().filter_map(Value::as_str);
    one.chain(many).take(CLAIM_VALUES_MAX).map(str::to_owned).collect()
}

/// Whether the JWT of this account has not expired, and its issuer still counts.
pub(crate) fn still_valid(settings: &OidcSettings, claims: &Claims, now: Timestamp) -> bool {
    let end = claims.expires_at.map(|end| end.as_second().saturating_add(JWT_SKEW_S_MAX));
    !settings.issuer.is_empty()
        && settings.org == claims.org.as_str()
        && end.is_some_and(|end| now.as_second() < end)
}

/// ring verifies, as it does for TLS: one implementation of these algorithms is enough.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(ByRing { algorithm: *algorithm, key: key.clone() })),
    key_utils: KeyUtils::new_unimplemented(),
};

struct ByRing {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for ByRing {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let verified = match (self.algorithm, self.key.kind()) {
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
            _ => return Err(SignatureError::new()),
        };
        verified.map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for ByRing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests;
