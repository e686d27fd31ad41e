//! JWTs of an issuer with three keys, by the clock of the test.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests write the issuer's file")]

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use effectd_contracts::{Code, ManualClock, Phase};
use futures_util::FutureExt;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use super::*;

/// The time of all tests, long before the tokens expire.
const NOW: i64 = 1_900_000_000;
/// The public part of an RSA key, whose private part is gone, and a token that it signed.
const RSA: &str = "pxnLufcgzkwqWXjFuzHzbvfPhqZFvAWevBa2iAwnnKhM5MEMUGrJkOJZxIdF5z7zuuVxSe-tLrKqyEsMakAT4RZOmcA1js6WrBeO\
    hkBNg0Rc_fZEWVd_WHR_IEtzqKAUxxrQ07zUsHby3ce5yDDbrjnpuWIY5ahh0AKh8pPBfzadYJncKaswW9Y5_87WdMbcKpDODp47\
    r6JLQ9ADnBIumP4J4VgsK1waPAjjIxTVEBXUsf8ejA8M6qjpWq8VSZdPDj-X8BafdZIWsNCNVR-r9KaEXZ-teefHJY6bIudyZvtb\
    rVGBK251kIh8UKeP9L-YyuQKIEML7arscAc9wUfFWw";
const BY_RSA: &str = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6InJzYS0xIn0.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwi\
    YXVkIjoiZWZmZWN0ZCIsInN1YiI6ImFkYSIsImV4cCI6MjAwMDAwMDAwMCwicm9sZXMiOlsiZGVjaWRlcnMiXX0.mIPW8agL2AMC\
    FFz3t82Oxaae3YzeK7CWO9bhDLkNrGjvIjjQeYxjrWwEKIuI9MPVemP6ROXFzsU4YdRdpp83ULvF8AUDBFIDirpqskuaOQ8AUoDM\
    rl6wxlmsqK0TblsTSNPx8n6a3Lc2i7Lv3TowpWFZHJj_UDrUy6hDjBbyJjkMr4jT7e9A80BktkCA4qRFvU6n68E4A0TFLha-19KP\
    YEKR0Tvb4_PuUTfdC1Az70KIR5ms1xkpYgrze-PJ2NaV8fJb9hHdslcvOUgLiiCi7KA0Lqf_8dH8oudMvNtDhJqSqSy_7A9zU7kL\
    c4UZYe9no0jCVG3kP_RMZSNmYkiLuw";

struct Place {
    folder: TempDir,
    issuer: Issuer,
    settings: OidcSettings,
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
}

/// Bytes in the base 64 of JWTs.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, at| (number << 8) | usize::from(*three.get(at).unwrap_or(&0)));
        let digits = (0..=three.len()).map(|at| DIGITS[(number >> (18 - 6 * at)) & 63]);
        text.extend(digits.map(char::from));
    }
    text
}

fn message(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| base64(value.to_string().as_bytes());
    format!("{}.{}", part(header), part(claims))
}

/// Claims that are valid.
fn claims() -> Value {
    json!({
        "iss": "https://issuer.example", "aud": ["other", "effectd"], "sub": "ada", "exp": NOW + 600,
        "roles": ["deciders", 7, "others"],
    })
}

/// [`claims`] with one of them replaced; `null` removes it.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

impl Place {
    fn new() -> Self {
        let (folder, random) = (tempfile::tempdir().unwrap(), SystemRandom::new());
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
        let ed = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let settings = OidcSettings {
            issuer: "https://issuer.example".to_owned(),
            audience: "effectd".to_owned(),
            jwks_file: folder.path().join("jwks.json").to_str().unwrap().to_owned(),
            org: "office".to_owned(),
            ..OidcSettings::default()
        };
        let place = Self { folder, issuer: Issuer::new(), settings, ed, ec };
        place.write(&place.keys());
        place
    }

    fn keys(&self) -> Vec<Value> {
        let point = self.ec.public_key().as_ref();
        let curve = ["P", "256"].join("-");
        vec![
            json!({ "kty": "RSA", "kid": "rsa-1", "alg": "RS256", "use": "sig", "n": RSA, "e": "AQAB" }),
            json!({ "kty": "EC", "kid": "ec-1", "crv": curve, "x": base64(&point[1..33]), "y": base64(&point[33..]) }),
            json!({ "kty": "OKP", "kid": "ed-1", "crv": "Ed25519", "x": base64(self.ed.public_key().as_ref()) }),
            // Of other kinds, or for other uses.
            json!({ "kty": "oct", "kid": "oct-1", "alg": "HS256", "k": base64(b"secret") }),
            json!({ "kty": "OKP", "kid": "enc-1", "crv": "Ed25519", "use": "enc", "x": base64(self.ed.public_key().as_ref()) }),
            json!({ "kty": "RSA", "kid": "rsa-2", "alg": "RS512", "n": RSA, "e": "AQAB" }),
            json!({ "kty": "new", "kid": "new-1" }),
            json!("no key"),
        ]
    }

    fn write(&self, keys: &[Value]) {
        // Another file each time, as a careful issuer's script does it.
        let next = self.folder.path().join("next");
        std::fs::write(&next, json!({ "keys": keys }).to_string()).unwrap();
        std::fs::rename(next, &self.settings.jwks_file).unwrap();
    }

    /// A token by the Ed25519 key.
    fn by_ed(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = base64(self.ed.sign(message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }

    fn plain(&self, claims: &Value) -> String {
        self.by_ed(&json!({ "alg": "EdDSA", "kid": "ed-1" }), claims)
    }

    fn holder(&self, jwt: &str) -> Option<Claims> {
        self.holder_by(&self.settings, jwt)
    }

    fn holder_by(&self, settings: &OidcSettings, jwt: &str) -> Option<Claims> {
        let clock = ManualClock::at(Timestamp::from_second(NOW).unwrap());
        let nobody = |_, _| std::future::pending();
        self.issuer.holder(settings, jwt, &clock, nobody).now_or_never().unwrap()
    }
}

#[test]
fn each_key_verifies_its_own_algorithm() {
    let place = Place::new();
    let found = place.holder(&place.plain(&claims())).unwrap();
    assert_eq!(found.principal.as_str(), "account://office/ada");
    assert_eq!((found.kind, found.org.as_str(), &found.session), (TokenKind::User, "office", &None));
    assert_eq!(found.roles, ["deciders", "others"]);
    assert_eq!(found.expires_at, Timestamp::from_second(NOW + 600).ok());
    assert_eq!(found.token_id, found.principal.as_str(), "all JWTs of an account share its rate");
    let message = message(&json!({ "alg": "ES256", "kid": "ec-1" }), &claims());
    let signature = place.ec.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
    let by_ec = place.holder(&format!("{message}.{}", base64(signature.as_ref())));
    assert_eq!(by_ec, Some(found));
    assert_eq!(place.holder(BY_RSA).unwrap().roles, ["deciders"]);
    assert_eq!(place.holder_by(&OidcSettings::default(), BY_RSA), None);
}

#[test]
fn no_token_chooses_how_it_is_verified() {
    let place = Place::new();
    let payload = BY_RSA.split('.').nth(1).unwrap();
    let header = |value: Value| base64(value.to_string().as_bytes());
    // The signature is an HMAC by the public key, which everybody has.
    let confused = format!("{}.{payload}", header(json!({ "alg": "HS256", "kid": "rsa-1" })));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, RSA.as_bytes()), confused.as_bytes());
    let confused = format!("{confused}.{}", base64(tag.as_ref()));
    let by_secret = format!("{}.{payload}", header(json!({ "alg": "HS256", "kid": "oct-1" })));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"secret"), by_secret.as_bytes());
    let by_secret = format!("{by_secret}.{}", base64(tag.as_ref()));
    let none = header(json!({ "alg": "none", "kid": "rsa-1" }));
    let signed = |header: Value| place.by_ed(&header, &claims());
    let mut flipped = place.plain(&claims()).into_bytes();
    let last = flipped.len() - 10;
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    for (what, jwt) in [
        ("alg none", format!("{none}.{payload}.")),
        ("alg None", format!("{}.{payload}.", header(json!({ "alg": "None", "kid": "rsa-1" })))),
        ("HS256 by the RSA key", confused),
        ("HS256 by a secret of the file", by_secret),
        ("unknown kid", signed(json!({ "alg": "EdDSA", "kid": "ed-2" }))),
        ("no kid", signed(json!({ "alg": "EdDSA" }))),
        ("another key's kid", signed(json!({ "alg": "EdDSA", "kid": "ec-1" }))),
        ("another key's algorithm", signed(json!({ "alg": "ES256", "kid": "ed-1" }))),
        ("a key for encryption", signed(json!({ "alg": "EdDSA", "kid": "enc-1" }))),
        ("a key for another algorithm", BY_RSA.replacen("InJzYS0xIn0", "InJzYS0yIn0", 1)),
        ("critical extension", signed(json!({ "alg": "EdDSA", "kid": "ed-1", "crit": ["x"], "x": 1 }))),
        ("flipped", String::from_utf8(flipped).unwrap()),
        ("no signature", place.plain(&claims()).rsplit_once('.').unwrap().0.to_owned() + "."),
        ("two parts", payload.to_owned() + ".x"),
        ("nothing", String::new()),
        ("noise", "a.b.c.d".to_owned()),
    ] {
        assert_eq!(place.holder(&jwt), None, "{what}: {jwt}");
    }
    // An own key in the header counts for nothing.
    let own = json!({ "alg": "EdDSA", "kid": "own", "jwk": place.keys()[2], "jku": "https://evil.example" });
    assert_eq!(place.holder(&place.by_ed(&own, &claims())), None);
}

#[test]
fn claims_are_for_us_and_for_now() {
    let place = Place::new();
    let accepted = |name: &str, value: Value| place.holder(&place.plain(&with(name, value))).is_some();
    for (name, value, expected) in [
        ("iss", json!("https://other.example"), false),
        ("iss", json!(["https://issuer.example"]), false),
        ("iss", Value::Null, false),
        ("aud", json!("effectd"), true),
        ("aud", json!("other"), false),
        ("aud", json!([]), false),
        ("aud", Value::Null, false),
        ("exp", json!(NOW - 59), true),
        ("exp", json!(NOW - 60), false),
        ("exp", json!(NOW - 61), false),
        ("exp", json!(NOW as f64 + 0.5), true),
        ("exp", json!("soon"), false),
        ("exp", json!(1e300), false),
        ("exp", Value::Null, false),
        ("nbf", json!(NOW + 60), true),
        ("nbf", json!(NOW + 61), false),
        ("nbf", json!("now"), false),
        ("iat", json!(NOW + 60), true),
        ("iat", json!(NOW + 61), false),
        ("sub", json!("a/b"), false),
        ("sub", json!("*"), false),
        ("sub", json!(""), false),
        ("sub", json!(7), false),
        ("sub", json!("x".repeat(ACCOUNT_BYTES_MAX + 1)), false),
        ("sub", Value::Null, false),
        ("roles", Value::Null, true),
        ("roles", json!({ "deciders": true }), true),
    ] {
        assert_eq!(accepted(name, value.clone()), expected, "{name}: {value}");
    }
    let roles = |value: Value| place.holder(&place.plain(&with("roles", value))).unwrap().roles;
    assert_eq!(roles(json!("deciders")), ["deciders"]);
    assert_eq!(roles(json!({ "deciders": true })), Vec::<String>::new());
    assert_eq!(roles(json!(vec!["x"; 1_000])).len(), CLAIM_VALUES_MAX);
}

#[test]
fn keys_change_with_their_file_and_without_one_none_counts() {
    let mut place = Place::new();
    let jwt = place.plain(&claims());
    let holder = place.holder(&jwt).unwrap();
    let keys = place.keys();
    place.write(&keys[..2]);
    assert_eq!(place.holder(&jwt), None);
    place.write(&keys[2..]);
    assert_eq!(place.holder(&jwt), Some(holder.clone()));
    std::fs::write(&place.settings.jwks_file, "{ not JSON").unwrap();
    assert_eq!(place.holder(&jwt), None);
    std::fs::write(&place.settings.jwks_file, " ".repeat(300_000)).unwrap();
    assert_eq!(place.holder(&jwt), None);
    std::fs::remove_file(&place.settings.jwks_file).unwrap();
    assert_eq!(place.holder(&jwt), None);
    place.write(&keys);
    assert!(place.holder(&jwt).is_some());
    // Written in place, with as many bytes and the time of before, as by a copy that keeps times.
    let file = place.settings.jwks_file.clone();
    let (before, text) = (metadata(&file).unwrap(), std::fs::read_to_string(&file).unwrap());
    // The kernel's clock may tick slowly.
    while metadata(&file).unwrap().ctime_nsec() == before.ctime_nsec() {
        std::fs::write(&file, text.replace("ed-1", "ed-2")).unwrap();
        let written = File::options().write(true).open(&file).unwrap();
        written.set_modified(before.modified().unwrap()).unwrap();
    }
    assert_eq!(place.holder(&jwt), None);
    place.write(&keys);
    // A stream stays open until the token expires, or its issuer does not count any more.
    let at = |seconds| Timestamp::from_second(NOW + seconds).unwrap();
    assert!(still_valid(&place.settings, &holder, at(600 + JWT_SKEW_S_MAX - 1)));
    assert!(!still_valid(&place.settings, &holder, at(600 + JWT_SKEW_S_MAX)));
    place.settings.issuer.clear();
    assert!(!still_valid(&place.settings, &holder, at(0)));
}

/// An issuer that serves its keys, with the clock that decides when it is asked.
struct Serving {
    place: Place,
    clock: ManualClock,
    /// What it answers; `None` if it is down.
    answer: Mutex<Option<Vec<u8>>>,
    asked: AtomicUsize,
}

impl Serving {
    fn new() -> Self {
        let mut place = Place::new();
        place.settings.jwks_file.clear();
        place.settings.jwks_source = "http.idp".to_owned();
        let clock = ManualClock::at(Timestamp::from_second(NOW).unwrap());
        let serving = Self { place, clock, answer: Mutex::default(), asked: AtomicUsize::new(0) };
        serving.serve(&serving.place.keys());
        serving
    }

    fn serve(&self, keys: &[Value]) {
        *self.answer.lock() = Some(json!({ "keys": keys }).to_string().into_bytes());
    }

    async fn accepts(&self, jwt: &str) -> bool {
        let fetch = |org: OrgId, source: String| {
            assert_eq!((org.as_str(), source.as_str()), ("office", "http.idp"));
            self.asked.fetch_add(1, Ordering::Relaxed);
            let down = || Failure::new(Code::EgressFailed, Phase::Dispatch, "down");
            let answer = self.answer.lock().clone().ok_or_else(down);
            async { answer }
        };
        self.place.issuer.holder(&self.place.settings, jwt, &self.clock, fetch).await.is_some()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn later(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        // The tokens of the tests are valid for ten minutes.
        self.clock.jump_to(Timestamp::from_second(NOW).unwrap());
    }
}

#[tokio::test]
async fn served_keys_are_fetched_when_they_are_old() {
    let issuer = Serving::new();
    let jwt = issuer.place.plain(&claims());
    for _ in 0..3 {
        assert!(issuer.accepts(&jwt).await && issuer.accepts(BY_RSA).await);
    }
    assert_eq!(issuer.asked(), 1);
    // The issuer takes the key away: for as long as its keys are fresh, nobody knows.
    issuer.serve(&issuer.place.keys()[..2]);
    issuer.later(299);
    assert!(issuer.accepts(&jwt).await);
    issuer.later(1);
    assert!(!issuer.accepts(&jwt).await && issuer.accepts(BY_RSA).await);
    assert_eq!(issuer.asked(), 2);
    let mut issuer = issuer;
    issuer.place.settings.issuer = "https://other.example".to_owned();
    assert!(!issuer.accepts(BY_RSA).await, "the claims are checked as with a file");
}

#[tokio::test]
async fn a_key_that_nobody_knows_does_not_hammer_the_issuer() {
    let issuer = Serving::new();
    issuer.serve(&issuer.place.keys()[..2]);
    let jwt = issuer.place.plain(&claims());
    for _ in 0..100 {
        assert!(!issuer.accepts(&jwt).await);
    }
    assert_eq!(issuer.asked(), 1);
    // The issuer begins to sign with another key: it is known after a minute at most.
    issuer.serve(&issuer.place.keys());
    issuer.later(59);
    assert!(!issuer.accepts(&jwt).await && issuer.accepts(BY_RSA).await);
    issuer.later(1);
    assert!(issuer.accepts(&jwt).await);
    assert_eq!(issuer.asked(), 2);
}

#[tokio::test]
async fn the_last_keys_count_for_an_hour_without_the_issuer() {
    let issuer = Serving::new();
    assert!(issuer.accepts(BY_RSA).await);
    for broken in [None, Some(b"{ not JSON".to_vec()), Some(vec![b' '; 300_000])] {
        *issuer.answer.lock() = broken;
        issuer.later(1_000);
        assert!(issuer.accepts(BY_RSA).await);
    }
    assert_eq!(issuer.asked(), 4);
    issuer.later(599);
    assert!(issuer.accepts(BY_RSA).await);
    issuer.later(1);
    assert!(!issuer.accepts(BY_RSA).await, "an hour is over");
    issuer.serve(&issuer.place.keys());
    issuer.later(60);
    assert!(issuer.accepts(BY_RSA).await);
}

#[tokio::test(start_paused = true)]
async fn a_slow_issuer_holds_a_token_for_a_moment() {
    let issuer = Serving::new();
    assert!(issuer.accepts(BY_RSA).await);
    issuer.later(300);
    let slow = |_, _| std::future::pending();
    let begun = tokio::time::Instant::now();
    let (place, clock) = (&issuer.place, &issuer.clock);
    // Everybody waits for the same fetch, and no longer than that.
    for _ in 0..2 {
        assert!(place.issuer.holder(&place.settings, BY_RSA, clock, slow).await.is_some());
    }
    assert_eq!(begun.elapsed(), 2 * crate::limits::JWKS_WAIT_MAX);
    assert_eq!(issuer.asked(), 1, "the fetch under way is the only one");
}
