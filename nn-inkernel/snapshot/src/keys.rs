//! Signatures: who vouches for a snapshot (ed25519, RFC 8032).

use crate::Hash;
use crate::hash::{from_hex, to_hex};
use ed25519_dalek as dalek;
use ed25519_dalek::Signer as _;
use std::fmt;

/// Goes before what is signed, so that a signature means nothing elsewhere.
const DOMAIN: &[u8] = b"ccplane snapshot 2\0";
/// The same of signatures without terms, which earlier versions made.
const DOMAIN_WITHOUT_TERMS: &[u8] = b"ccplane snapshot\0";
/// The first word of a secret key's file, and of a public one's: the digits alone do not tell them apart.
const SECRET_WORD: &str = "ccplane-secret-key";
const PUBLIC_WORD: &str = "ccplane-public-key";

/// Signs snapshots. As a file: `ccplane-secret-key`, 64 hexadecimal digits and a line feed.
pub struct SigningKey(dalek::SigningKey);

/// Checks signatures. As a file: `ccplane-public-key`, 64 hexadecimal digits and a line feed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey(dalek::VerifyingKey);

/// For how long a signature holds, and which snapshots it comes after. Part of what is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Later snapshots of an algorithm have larger numbers.
    pub sequence: u64,
    /// The end of its validity, seconds since 1970.
    pub expires_s: u64,
}

/// A signature, and the key that it claims to be by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    pub(crate) key: [u8; 32],
    pub(crate) signature: [u8; 64],
    pub(crate) terms: Option<Terms>,
}

/// Text that is no key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// A public key where a secret one is needed.
    #[error("this is a public key: a secret one is needed to sign, the file without `.pub`")]
    Public,
    /// A secret key where a public one is needed.
    #[error("this is a secret key: its public one is needed, the file with `.pub`")]
    Secret,
    /// Digits alone where a secret key is needed.
    #[error(
        "a secret key begins with `ccplane-secret-key`; digits alone, as earlier versions wrote, may be a public one"
    )]
    Untagged,
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
    /// [`KeyError::Public`], [`KeyError::Untagged`], [`KeyError::Text`].
    pub fn from_text(text: &str) -> Result<SigningKey, KeyError> {
        if text.starts_with(PUBLIC_WORD) {
            return Err(KeyError::Public);
        }
        let digits = text.strip_prefix(SECRET_WORD).ok_or(KeyError::Untagged)?;
        key_bytes(digits).map(|bytes| SigningKey(dalek::SigningKey::from_bytes(&bytes)))
    }

    /// A key file's text. Secret.
    pub fn to_text(&self) -> String {
        format!("{SECRET_WORD} {}\n", to_hex(&self.0.to_bytes()))
    }

    /// What others check its signatures with.
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, hash: &Hash, terms: Terms) -> Signature {
        let terms = Some(terms);
        let signature = self.0.sign(&message(hash, terms)).to_bytes();
        Signature { key: self.0.verifying_key().to_bytes(), signature, terms }
    }
}

impl VerifyingKey {
    /// Reads a key file's text, or its digits alone.
    ///
    /// # Errors
    /// [`KeyError::Secret`], [`KeyError::Text`], [`KeyError::Point`].
    pub fn from_text(text: &str) -> Result<VerifyingKey, KeyError> {
        if text.starts_with(SECRET_WORD) {
            return Err(KeyError::Secret);
        }
        VerifyingKey::from_bytes(&key_bytes(text.strip_prefix(PUBLIC_WORD).unwrap_or(text))?)
    }

    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Result<VerifyingKey, KeyError> {
        let key = dalek::VerifyingKey::from_bytes(bytes).map_err(|e| KeyError::Point(e.to_string()))?;
        if key.is_weak() { Err(KeyError::Point("of small order".to_owned())) } else { Ok(VerifyingKey(key)) }
    }

    /// A key file's text.
    pub fn to_text(&self) -> String {
        format!("{PUBLIC_WORD} {}\n", self.to_hex())
    }

    /// Its digits.
    pub fn to_hex(&self) -> String {
        to_hex(self.0.as_bytes())
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Whether `signature` is this key's, on this hash.
    pub(crate) fn has_signed(&self, hash: &Hash, signature: &Signature) -> bool {
        let message = message(hash, signature.terms);
        self.0.verify_strict(&message, &dalek::Signature::from_bytes(&signature.signature)).is_ok()
    }
}

impl Signature {
    /// The key that it claims to be by, in hexadecimal.
    pub fn key_hex(&self) -> String {
        to_hex(&self.key)
    }

    /// Its terms; none where an earlier version signed.
    pub fn terms(&self) -> Option<Terms> {
        self.terms
    }
}

fn message(hash: &Hash, terms: Option<Terms>) -> Vec<u8> {
    match terms {
        Some(Terms { sequence, expires_s }) => {
            [DOMAIN, &hash.0, &sequence.to_le_bytes(), &expires_s.to_le_bytes()].concat()
        }
        None => [DOMAIN_WITHOUT_TERMS, &hash.0].concat(),
    }
}

fn key_bytes(text: &str) -> Result<[u8; 32], KeyError> {
    let text = text.trim();
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
