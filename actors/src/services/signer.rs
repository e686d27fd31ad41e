//! The device's identity: signs receipts, and turns sensitive values into digests from which nobody can guess them.
//!
//! The signing key can be replaced while the pipeline runs. A verifier of the log rejects what a key signed if it comes after the
//! entry of the key's successor, so everything signed must be on disk before that entry. [`Signing`] lends the key under this
//! rule; a running device signs in no other way.

use std::ops::Deref;
use std::sync::Arc;

use ed25519_dalek::{Signer, SigningKey};
use effectd_bus::LogStatus;
use effectd_contracts::digest::hex;
use effectd_contracts::signature::{key_id, text_of};
use effectd_contracts::{
    ActionId, AmendmentEntry, Digest, EffectMark, EntryKind, KeyEntry, LogHead, Receipt, Signature,
    Timestamp, canonical,
};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::RwLock;
use serde_json::Value;
use sha2::Sha256;
use tokio::sync::{Mutex, MutexGuard, RwLock as Turns, RwLockReadGuard, RwLockWriteGuard};
use zeroize::Zeroizing;

pub struct DeviceKey {
    key: SigningKey,
    /// The id of the key, which is in every signature.
    id: String,
}

pub struct Identity {
    key: RwLock<Arc<DeviceKey>>,
    turns: Turns<()>,
    heads: Mutex<()>,
    digest_key: Zeroizing<[u8; 32]>,
}

/// The signing key, held until everything that it signed is on disk.
pub struct Signing<'a> {
    key: Arc<DeviceKey>,
    _turn: RwLockReadGuard<'a, ()>,
}

/// While this is held, nobody signs, and everything signed is on disk: another key may take over.
pub struct Changing<'a> {
    identity: &'a Identity,
    _turn: RwLockWriteGuard<'a, ()>,
}

impl Deref for Signing<'_> {
    type Target = DeviceKey;

    fn deref(&self) -> &DeviceKey {
        &self.key
    }
}

impl Changing<'_> {
    /// Makes this the signing key from now on.
    pub fn set(&self, key: DeviceKey) {
        *self.identity.key.write() = Arc::new(key);
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.key_id())
    }
}

impl std::fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceKey({})", self.key_id())
    }
}

impl std::fmt::Debug for Signing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signing({})", self.key_id())
    }
}

impl std::fmt::Debug for Changing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Changing({})", self.identity.key_id())
    }
}

impl Identity {
    /// From two secrets of the device: one for signing, one for digests.
    pub fn new(signing_seed: &[u8; 32], digest_key: [u8; 32]) -> Self {
        Self {
            key: RwLock::new(Arc::new(DeviceKey::new(signing_seed))),
            turns: Turns::new(()),
            heads: Mutex::new(()),
            digest_key: Zeroizing::new(digest_key),
        }
    }

    /// The signing key, for a process that has the device to itself. In a running device, use [`Identity::signing`].
    pub fn key(&self) -> Arc<DeviceKey> {
        self.key.read().clone()
    }

    /// The id of the present signing key.
    pub fn key_id(&self) -> String {
        self.key().key_id()
    }

    /// The signing key. It is not replaced until the result is dropped, which must not be before everything it signed is on disk.
    pub async fn signing(&self) -> Signing<'_> {
        let turn = self.turns.read().await;
        Signing { key: self.key(), _turn: turn }
    }

    /// Held from reading the log until the new head is on disk. So the last head in the log is the newest, and never claims
    /// bodies that an earlier head gave up.
    pub(crate) async fn one_head(&self) -> MutexGuard<'_, ()> {
        self.heads.lock().await
    }

    /// Waits until everything signed is on disk; nobody signs until the result is dropped.
    pub async fn changing(&self) -> Changing<'_> {
        Changing { identity: self, _turn: self.turns.write().await }
    }

    /// A keyed digest of a value: equal values have equal digests, but without the key nobody can test guesses.
    pub fn digest(&self, value: &Value) -> String {
        hex(&self.mac(canonical::to_string(value).as_bytes()))
    }

    /// A digest under the device's key. Digests of whole requests are on disk and in receipts; without the key, anybody could
    /// test guesses of a short secret in them.
    pub fn keyed(&self, digest: &Digest) -> Digest {
        Digest::from_bytes(self.mac(digest.as_bytes()))
    }

    /// The id of the device, which outlives its signing keys: the `source` of events. A UUID of version 8 (RFC 9562).
    pub fn device(&self) -> String {
        format!("urn:uuid:{}", uuid(self.mac(b"effectd device id"), 8))
    }

    /// The mark of the effect of an action, which was accepted at that time.
    pub(crate) fn mark(&self, action: &ActionId, since: Timestamp) -> EffectMark {
        // Services refuse a UUID of another version than that of random ones.
        let id = uuid(self.mac(format!("effectd effect id\n{action}").as_bytes()), 4);
        EffectMark { id, since }
    }

    fn mac(&self, bytes: &[u8]) -> [u8; 32] {
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&*self.digest_key).expect("any key will do");
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }
}

/// A UUID of this version, from a digest.
fn uuid(mut id: [u8; 32], version: u8) -> String {
    (id[6], id[8]) = (id[6] & 0x0f | version << 4, id[8] & 0x3f | 0x80);
    let text = hex(&id[..16]);
    let (a, b, c, d, e) = (&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

impl DeviceKey {
    pub fn new(seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let id = key_id(key.verifying_key().as_bytes());
        Self { key, id }
    }

    /// The id of the key: the first part of the digest of its public key.
    pub fn key_id(&self) -> String {
        self.id.clone()
    }

    /// The public key, for verifiers of receipts.
    pub fn public_key(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// Signs the canonical form of the receipt without its signature. Returns the canonical form with it.
    pub fn sign(&self, receipt: &mut Receipt) -> String {
        receipt.signature = None;
        // A receipt is plain data with text keys, for which serde_json has no failure.
        let mut value = serde_json::to_value(&*receipt).unwrap_or_default();
        let signature = self.signature(&canonical::to_string(&value));
        if let Value::Object(members) = &mut value {
            members.insert("signature".to_owned(), serde_json::to_value(&signature).unwrap_or_default());
        }
        receipt.signature = Some(signature);
        canonical::to_string(&value)
    }

    /// Signs an amendment: something that was learned about a receipt later.
    pub fn sign_amendment(&self, amendment: &mut AmendmentEntry) {
        amendment.signature = None;
        amendment.signature = Some(self.signature(&text_of(amendment)));
    }

    /// A signed head: what the device states about its log.
    pub fn head(&self, standing: &LogStatus, at: Timestamp) -> LogHead {
        let mut head = LogHead {
            entry: EntryKind::Head,
            at,
            size: standing.size,
            root: standing.root,
            open: standing.open,
            kept_from: standing.kept_from,
            signature: None,
        };
        head.signature = Some(self.signature(&text_of(&head)));
        head
    }

    /// This key's entry in the log, signed by itself and by its predecessor.
    pub fn key_entry(&self, after: Option<&DeviceKey>, previous: Option<String>, at: Timestamp) -> KeyEntry {
        let mut entry = KeyEntry {
            entry: EntryKind::Key,
            at,
            key_id: self.key_id(),
            public_key: hex(&self.public_key()),
            previous,
            signatures: Vec::new(),
        };
        let text = text_of(&entry);
        entry.signatures.push(self.signature(&text));
        entry.signatures.extend(after.map(|old| old.signature(&text)));
        entry
    }

    fn signature(&self, text: &str) -> Signature {
        Signature {
            algorithm: "ed25519".to_owned(),
            key_id: self.key_id(),
            value: hex(&self.key.sign(text.as_bytes()).to_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::signature::{SignatureInvalid, verify};
    use serde_json::json;

    use super::*;

    fn receipt() -> Receipt {
        serde_json::from_str(include_str!("../../../contracts/tests/golden/receipt.json")).unwrap()
    }

    #[test]
    fn a_changed_receipt_is_noticed() {
        let identity = DeviceKey::new(&[7; 32]);
        let mut signed = receipt();
        let text = identity.sign(&mut signed);
        assert_eq!(text, canonical::of(&signed).unwrap());
        assert_eq!(verify(&signed, &identity.public_key()), Ok(()));
        let read_back: Receipt = serde_json::from_str(&canonical::of(&signed).unwrap()).unwrap();
        assert_eq!(verify(&read_back, &identity.public_key()), Ok(()));
        let mut forged = signed.clone();
        forged.outputs.insert("bytes_written".into(), json!(6));
        assert_eq!(verify(&forged, &identity.public_key()), Err(SignatureInvalid::Wrong));
        let other = DeviceKey::new(&[9; 32]);
        assert_eq!(verify(&signed, &other.public_key()), Err(SignatureInvalid::OtherKey));
        signed.signature = None;
        assert_eq!(verify(&signed, &identity.public_key()), Err(SignatureInvalid::Missing));
    }

    #[test]
    fn digests_depend_on_the_key() {
        let (a, b) = (Identity::new(&[7; 32], [1; 32]), Identity::new(&[7; 32], [2; 32]));
        assert_ne!(a.digest(&json!("1234")), b.digest(&json!("1234")));
        assert_eq!(a.digest(&json!("1234")), a.digest(&json!("1234")));
        assert_ne!(a.device(), b.device());
        assert_eq!(
            a.device(),
            Identity::new(&[9; 32], [1; 32]).device(),
            "a new signing key keeps the device"
        );
        assert_eq!((&a.device()[..9], a.device().len(), &a.device()[23..24]), ("urn:uuid:", 45, "8"));
    }

    #[tokio::test]
    async fn a_key_is_replaced_only_when_nobody_holds_what_it_signed() {
        let identity = Identity::new(&[7; 32], [8; 32]);
        let first = identity.signing().await;
        let mut changing = Box::pin(identity.changing());
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut changing).await.is_err());
        // From here on, signers wait for the new key.
        let mut second = Box::pin(identity.signing());
        assert!(tokio::time::timeout(soon, &mut second).await.is_err());
        let old = first.key_id();
        drop(first);
        let changing = changing.await;
        changing.set(DeviceKey::new(&[9; 32]));
        drop(changing);
        let second = second.await;
        assert_ne!(second.key_id(), old);
        assert_eq!(second.key_id(), identity.key_id());
    }
}
