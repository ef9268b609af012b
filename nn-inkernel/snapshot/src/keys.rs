//! Signatures: who vouches for a snapshot (ed25519, RFC 8032).

use crate::hash::{from_hex, to_hex};
use crate::{Hash, Snapshot, SnapshotError};
use ed25519_dalek as dalek;
use ed25519_dalek::Signer as _;
use std::fmt;

/// Goes before the hash in what is signed, so that a signature means nothing elsewhere.
const DOMAIN: &[u8] = b"ccplane snapshot\0";

/// Signs snapshots. As a file: 64 hexadecimal digits and a line feed.
pub struct SigningKey(dalek::SigningKey);

/// Checks signatures. As a file: 64 hexadecimal digits and a line feed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey(dalek::VerifyingKey);

/// A signature, and the key that it claims to be by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    pub(crate) key: [u8; 32],
    pub(crate) signature: [u8; 64],
}

/// Text that is no key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Not 64 hexadecimal digits.
    #[error("a key is 64 hexadecimal digits, this has {found} characters")]
    Text {
        /// How many characters there were.
        found: usize,
    },
    /// Not a point of the curve, or one of small order.
    #[error("no ed25519 key: {0}")]
    Point(String),
    /// The system gave no randomness.
    #[error("no randomness for a new key: {0}")]
    Random(String),
}

/// Whose snapshots are taken.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Trust {
    /// Anyone's, signed or not.
    #[default]
    Any,
    /// Only those that one of these keys has signed.
    SignedBy(Vec<VerifyingKey>),
}

impl SigningKey {
    /// A new key, from the system's randomness.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<SigningKey, KeyError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| KeyError::Random(e.to_string()))?;
        Ok(SigningKey(dalek::SigningKey::from_bytes(&secret)))
    }

    /// Reads a key file's text.
    ///
    /// # Errors
    /// [`KeyError::Text`].
    pub fn from_hex(text: &str) -> Result<SigningKey, KeyError> {
        key_bytes(text).map(|bytes| SigningKey(dalek::SigningKey::from_bytes(&bytes)))
    }

    /// A key file's text. Secret.
    pub fn to_hex(&self) -> String {
        to_hex(&self.0.to_bytes()) + "\n"
    }

    /// What others check its signatures with.
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, hash: &Hash) -> Signature {
        let signature = self.0.sign(&message(hash)).to_bytes();
        Signature { key: self.0.verifying_key().to_bytes(), signature }
    }
}

impl VerifyingKey {
    /// Reads a key file's text.
    ///
    /// # Errors
    /// [`KeyError::Text`], [`KeyError::Point`].
    pub fn from_hex(text: &str) -> Result<VerifyingKey, KeyError> {
        let key = dalek::VerifyingKey::from_bytes(&key_bytes(text)?);
        let key = key.map_err(|e| KeyError::Point(e.to_string()))?;
        if key.is_weak() { Err(KeyError::Point("of small order".to_owned())) } else { Ok(VerifyingKey(key)) }
    }

    /// A key file's text.
    pub fn to_hex(&self) -> String {
        to_hex(self.0.as_bytes()) + "\n"
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Whether `signature` is this key's, on this hash.
    pub(crate) fn has_signed(&self, hash: &Hash, signature: &Signature) -> bool {
        let signature = dalek::Signature::from_bytes(&signature.signature);
        self.0.verify_strict(&message(hash), &signature).is_ok()
    }
}

impl Signature {
    /// The key that it claims to be by, in hexadecimal.
    pub fn key_hex(&self) -> String {
        to_hex(&self.key)
    }
}

impl Trust {
    /// Whether `snapshot` is taken.
    ///
    /// # Errors
    /// [`SnapshotError::Unsigned`], [`SnapshotError::UnknownSigner`], [`SnapshotError::Signature`].
    pub fn admit(&self, snapshot: &Snapshot) -> Result<(), SnapshotError> {
        let Trust::SignedBy(keys) = self else { return Ok(()) };
        let signature = snapshot.signature().ok_or(SnapshotError::Unsigned)?;
        match keys.iter().find(|key| key.bytes() == signature.key) {
            Some(key) => snapshot.verify(key),
            None => Err(SnapshotError::UnknownSigner { key: signature.key_hex() }),
        }
    }
}

fn message(hash: &Hash) -> Vec<u8> {
    [DOMAIN, &hash.0].concat()
}

fn key_bytes(text: &str) -> Result<[u8; 32], KeyError> {
    let text = text.trim_end();
    from_hex(text).ok_or(KeyError::Text { found: text.chars().count() })
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {:?})", self.verifying_key())
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", to_hex(self.0.as_bytes()))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature(by {})", self.key_hex())
    }
}
