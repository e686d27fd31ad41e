//! The device's signature: its form, and how to check one.

use ed25519_dalek::VerifyingKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::{Digest, unhex};
use crate::receipt::Receipt;

/// A signature with the device's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Always `ed25519`.
    pub algorithm: String,
    /// The key, by its [`key_id`].
    pub key_id: String,
    /// The signature, in hex.
    pub value: String,
}

/// Why a signature does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureInvalid {
    /// There is none.
    #[error("it is not signed")]
    Missing,
    /// It names another key, or something that is not a key.
    #[error("it was signed by another key")]
    OtherKey,
    /// It is not a signature over this content.
    #[error("it is not what was signed")]
    Wrong,
}

/// The name of a key: the first 16 hex digits of the SHA-256 of its public part.
pub fn key_id(public_key: &[u8; 32]) -> String {
    Digest::of(public_key).hex()[..16].to_owned()
}

/// The canonical JSON that is signed.
pub fn text_of(value: &impl Serialize) -> String {
    // Signed values are plain data with text keys, which serde_json always writes.
    canonical::of(value).unwrap_or_default()
}

/// Checks that the holder of this key signed this receipt.
pub fn verify(receipt: &Receipt, public_key: &[u8; 32]) -> Result<(), SignatureInvalid> {
    let signature = receipt.signature.as_ref().ok_or(SignatureInvalid::Missing)?;
    let unsigned = Receipt { signature: None, ..receipt.clone() };
    verify_text(&text_of(&unsigned), signature, public_key)
}

/// Checks that the holder of this key signed this text.
pub fn verify_text(text: &str, signature: &Signature, public_key: &[u8; 32]) -> Result<(), SignatureInvalid> {
    if signature.key_id != key_id(public_key) {
        return Err(SignatureInvalid::OtherKey);
    }
    let key = VerifyingKey::from_bytes(public_key).map_err(|_| SignatureInvalid::OtherKey)?;
    verify_by(&key, text, signature)
}

/// Checks that the holder of this key, which the signature names, signed this text.
pub(crate) fn verify_by(
    key: &VerifyingKey,
    text: &str,
    signature: &Signature,
) -> Result<(), SignatureInvalid> {
    if signature.algorithm != "ed25519" {
        return Err(SignatureInvalid::OtherKey);
    }
    let bytes = unhex(&signature.value).ok_or(SignatureInvalid::Wrong)?;
    let value = ed25519_dalek::Signature::from_slice(&bytes).map_err(|_| SignatureInvalid::Wrong)?;
    // Strict: refuses malleable signatures, which some implementations accept and others do not.
    key.verify_strict(text.as_bytes(), &value).map_err(|_| SignatureInvalid::Wrong)
}
