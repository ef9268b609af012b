//! The hash that names a snapshot.

use ccplane_infer::image;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// SHA-256 of a snapshot's content without its signature, shown in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash(pub [u8; 32]);

/// The text is not a hash.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found:?} is no hash: 64 hexadecimal digits")]
pub struct HashError {
    pub found: String,
}

impl Hash {
    /// The name in an image's head ([`ccplane_infer::image::NAME`]); `None` if the image has none.
    pub fn from_words(words: [u64; image::NAME_WORDS]) -> Option<Hash> {
        let mut hash = [0; 32];
        for (bytes, word) in hash.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        (words != [0; image::NAME_WORDS]).then_some(Hash(hash))
    }

    /// The first 12 digits, for display.
    pub fn short(&self) -> String {
        to_hex(&self.0[..6])
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Hash, HashError> {
        from_hex(text).map(Hash).ok_or_else(|| HashError { found: text.to_owned() })
    }
}

impl TryFrom<String> for Hash {
    type Error = HashError;

    fn try_from(text: String) -> Result<Hash, HashError> {
        text.parse()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        hash.to_string()
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).map(|n| n as u8);
    let mut bytes = [0; N];
    for (to, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *to = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}
