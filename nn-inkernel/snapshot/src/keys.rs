//! Signatures that vouch for snapshots (ed25519, RFC 8032).

use crate::Hash;
use crate::hash::{from_hex, to_hex};
use ed25519_dalek as dalek;
use ed25519_dalek::Signer as _;
use std::fmt;

/// Prefix of the signed bytes, so that a signature is valid for nothing else.
const DOMAIN: &[u8] = b"ccplane snapshot 2\0";
/// Prefix of the bytes that earlier versions signed, without terms.
const DOMAIN_WITHOUT_TERMS: &[u8] = b"ccplane snapshot\0";
/// First words of a secret and of a public key's file: the digits alone do not tell them apart.
const SECRET_WORD: &str = "ccplane-secret-key";
const PUBLIC_WORD: &str = "ccplane-public-key";

/// A secret key that signs snapshots. As a file: `ccplane-secret-key`, 64 hexadecimal digits and a line feed.
pub struct SigningKey(dalek::SigningKey);

/// A public key that checks signatures. As a file: `ccplane-public-key`, 64 hexadecimal digits and a line feed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey(dalek::VerifyingKey);

/// The validity and order of a signature, which are part of the signed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Sequence number: later snapshots of an algorithm have larger ones.
    pub sequence: u64,
    /// The end of the validity, seconds since 1970.
    pub expires_s: u64,
}

/// A signature, and the key that it claims to be by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    pub(crate) key: [u8; 32],
    pub(crate) signature: [u8; 64],
    pub(crate) terms: Option<Terms>,
}

/// Reasons why a text is not a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key is public, but a secret one is needed.
    #[error("this is a public key: a secret one is needed to sign, the file without `.pub`")]
    Public,
    /// The key is secret, but a public one is needed.
    #[error("this is a secret key: its public one is needed, the file with `.pub`")]
    Secret,
    /// The text has digits alone, but a secret key is needed.
    #[error(
        "a secret key begins with `ccplane-secret-key`; digits alone, as earlier versions wrote, may be a public one"
    )]
    Untagged,
    /// The text is not 64 hexadecimal digits.
    #[error("a key is 64 hexadecimal digits, this has {found} characters")]
    Text {
        /// The number of characters.
        found: usize,
    },
    /// The key is not a point of the curve, or one of small order.
    #[error("no ed25519 key: {0}")]
    Point(String),
    /// The system gave no randomness.
    #[error("no randomness for a new key: {0}")]
    Random(String),
}

impl SigningKey {
    /// Generates a key from the system's randomness.
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

    /// The text of the key's file, which is secret.
    pub fn to_text(&self) -> String {
        format!("{SECRET_WORD} {}\n", to_hex(&self.0.to_bytes()))
    }

    /// The public key that checks this key's signatures.
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

    /// The text of the key's file.
    pub fn to_text(&self) -> String {
        format!("{PUBLIC_WORD} {}\n", self.to_hex())
    }

    /// The key in hexadecimal.
    pub fn to_hex(&self) -> String {
        to_hex(self.0.as_bytes())
    }

    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// Whether this key has made `signature` on this hash.
    pub(crate) fn has_signed(&self, hash: &Hash, signature: &Signature) -> bool {
        let message = message(hash, signature.terms);
        self.0.verify_strict(&message, &dalek::Signature::from_bytes(&signature.signature)).is_ok()
    }
}

impl Signature {
    /// The key that the signature claims to be by, in hexadecimal.
    pub fn key_hex(&self) -> String {
        to_hex(&self.key)
    }

    /// The signature's terms; `None` if an earlier version signed.
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
