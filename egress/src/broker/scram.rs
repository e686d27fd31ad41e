//! SCRAM-SHA-256 (RFC 5802, RFC 7677), by which PostgreSQL and its client prove to each other that they know the password.
//!
//! Written here because the crates that have it keep copies of the password that nobody wipes. The primitives are ring's.

use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use zeroize::Zeroizing;

/// Fewer would let a server guess the password soon from one proof; PostgreSQL has 4,096.
const ITERATIONS_MIN: u32 = 4_096;
/// More would let a server keep the broker busy: this is some 50 ms.
const ITERATIONS_MAX: u32 = 100_000;
const NONSENSE: &str = "the server's proof of the password is not SCRAM-SHA-256";

/// One login.
pub(super) struct Scram {
    nonce: String,
    /// What the server has to prove.
    expected: Option<(hmac::Key, String)>,
    is_proven: bool,
}

impl Scram {
    pub(super) fn new() -> Self {
        let mut random = [0; 18];
        // Without random numbers there is no TLS and no connection, either.
        let nonce =
            SystemRandom::new().fill(&mut random).map(|()| STANDARD.encode(random)).unwrap_or_default();
        Self { nonce, expected: None, is_proven: false }
    }

    /// Whether the server knows the password, too.
    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// PostgreSQL takes the user from the message that begins the connection.
    fn first_bare(&self) -> String {
        format!("n=,r={}", self.nonce)
    }

    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.first_bare())
    }

    /// The proof for the server's first message.
    pub(super) fn answer(&mut self, password: &str, said: &[u8]) -> Result<String, &'static str> {
        let said = str::from_utf8(said).map_err(|_| NONSENSE)?;
        let mut parts = said.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or(NONSENSE);
        let (nonce, salt, iterations) = (part("r=")?, part("s=")?, part("i=")?);
        let salt = STANDARD.decode(salt).map_err(|_| NONSENSE)?;
        let iterations: u32 = iterations.parse().map_err(|_| NONSENSE)?;
        let is_own =
            self.nonce.len() >= 8 && nonce.len() > self.nonce.len() && nonce.starts_with(&self.nonce);
        if !is_own || parts.next().is_some() || self.expected.is_some() {
            return Err(NONSENSE);
        }
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err("the server hashes the password fewer than 4,096 or more than 100,000 times");
        }
        let iterations = NonZeroU32::new(iterations).ok_or(NONSENSE)?;
        let mut salted = Zeroizing::new([0; 32]);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, &salt, password.as_bytes(), &mut *salted);
        let salted = hmac::Key::new(hmac::HMAC_SHA256, &*salted);
        let without_proof = format!("c=biws,r={nonce}");
        let all = format!("{},{said},{without_proof}", self.first_bare());
        let client = hmac::sign(&salted, b"Client Key");
        let stored = digest::digest(&digest::SHA256, client.as_ref());
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, stored.as_ref()), all.as_bytes());
        let proof: Vec<u8> =
            client.as_ref().iter().zip(signature.as_ref()).map(|(one, other)| one ^ other).collect();
        let server = hmac::sign(&salted, b"Server Key");
        self.expected = Some((hmac::Key::new(hmac::HMAC_SHA256, server.as_ref()), all));
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// Whether the server's last message proves that it knows the password.
    pub(super) fn verify(&mut self, said: &[u8]) -> Result<(), &'static str> {
        let (key, all) = self.expected.as_ref().ok_or(NONSENSE)?;
        let said = said.strip_prefix(b"v=").and_then(|proof| STANDARD.decode(proof).ok()).ok_or(NONSENSE)?;
        let verified = hmac::verify(key, all.as_bytes(), &said);
        verified.map_err(|_| "the server does not prove that it knows the password")?;
        self.is_proven = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const FIRST: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn scram() -> Scram {
        Scram { nonce: NONCE.to_owned(), expected: None, is_proven: false }
    }

    /// The example of RFC 7677, but for the name of the user, which PostgreSQL leaves out; the values are those of another program
    /// (Python's hashlib and hmac).
    #[test]
    fn the_proofs_are_those_of_the_standard() {
        let mut scram = scram();
        let last = scram.answer("pencil", FIRST.as_bytes()).unwrap();
        assert_eq!(
            last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=qvT2SWdEH5Q06albL+hjSYuUhCG7VndFyzIb7CK4n9k="
        );
        assert_eq!(scram.verify(b"v=3HO6Qt1M4MKJrmlKaoOqLAI0/0TV0HZe7J9H3MBtSOg="), Ok(()));
        assert!(scram.is_proven());
        assert_ne!(Scram::new().first(), Scram::new().first());
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_refused() {
        for said in [
            FIRST.replace("r=rOpr", "r=xOpr"),
            FIRST.replace("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
            FIRST.replace("4096", "4095"),
            FIRST.replace("4096", "4294967295"),
            FIRST.replace("4096", "-1"),
            FIRST.replace("W22Z", "?"),
            format!("{FIRST},m=1"),
            format!("m=1,{FIRST}"),
            String::new(),
        ] {
            assert!(scram().answer("pencil", said.as_bytes()).is_err(), "{said}");
        }
        let mut scram = scram();
        assert!(scram.verify(b"v=").is_err());
        scram.answer("pencil", FIRST.as_bytes()).unwrap();
        for said in [&b"v="[..], b"e=other-error", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G8=", b"\xff"]
        {
            assert!(scram.verify(said).is_err() && !scram.is_proven());
        }
        assert!(scram.answer("pencil", FIRST.as_bytes()).is_err(), "a second time");
    }
}
