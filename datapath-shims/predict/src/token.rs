//! Tokens: what a server has to know again when feedback arrives, sealed by a keyed tag, so that it keeps nothing itself.

use siphasher::sip::SipHasher24;

/// Bytes of a sealed token.
pub const TOKEN_BYTES: usize = 32;
/// Bytes that the tag covers.
const SEALED_BYTES: usize = TOKEN_BYTES - 8;
/// Bits of the third word that are in use; the others are 0.
const USED_BITS: u32 = 48;

/// The secret that tags are made with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

/// Shows nothing of the secret.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Draws a key from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn random() -> Result<Key, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Key(bytes))
    }

    /// The tag of a token's first words: SipHash-2-4.
    pub fn tag(&self, words: [u64; 3]) -> u64 {
        let mut bytes = [0; SEALED_BYTES];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        SipHasher24::new_with_key(&self.0).hash(&bytes)
    }
}

/// The content of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The number of the request, which is never used again under the same key.
    pub sequence: u64,
    /// The probability that the class was drawn with, Q32, 2^32 - 1 at most.
    pub probability: u32,
    /// The predictors that gave the class, one bit each; with Exp3 the drawn one alone.
    pub agreed: u16,
    /// The window that the sequence number belongs to.
    pub stream: u8,
    /// The class that was answered.
    pub class: u8,
    /// The number of the key and the predictors.
    pub epoch: u32,
    pub slot: u8,
    /// The predictor that was drawn.
    pub arm: u8,
}

impl Token {
    /// The three words that the tag covers.
    pub fn words(&self) -> [u64; 3] {
        [
            self.sequence,
            u64::from(self.probability)
                | u64::from(self.agreed) << 32
                | u64::from(self.stream) << 48
                | u64::from(self.class) << 56,
            u64::from(self.epoch) | u64::from(self.slot) << 32 | u64::from(self.arm) << 40,
        ]
    }

    /// The token's bytes with its tag.
    pub fn seal(&self, key: &Key) -> [u8; TOKEN_BYTES] {
        let [sequence, drawn, place] = self.words();
        let mut bytes = [0; TOKEN_BYTES];
        let words = [sequence, drawn, place, key.tag([sequence, drawn, place])];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Opens a token's bytes; `None` unless the tag is the key's.
    pub fn open(bytes: &[u8; TOKEN_BYTES], key: &Key) -> Option<Token> {
        let [sequence, drawn, place, tag] = words(bytes);
        if key.tag([sequence, drawn, place]) != tag || place >> USED_BITS != 0 {
            return None;
        }
        Some(Token {
            sequence,
            probability: drawn as u32,
            agreed: (drawn >> 32) as u16,
            stream: (drawn >> 48) as u8,
            class: (drawn >> 56) as u8,
            epoch: place as u32,
            slot: (place >> 32) as u8,
            arm: (place >> 40) as u8,
        })
    }

    /// The epoch that a token's bytes name, whoever has written them.
    pub fn claimed_epoch(bytes: &[u8; TOKEN_BYTES]) -> u32 {
        words(bytes)[2] as u32
    }
}

fn words(bytes: &[u8; TOKEN_BYTES]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of SipHash's authors (Aumasson and Bernstein, appendix A, and their `vectors.h`): key 00 to 0f, message 00 to 17.
    #[test]
    fn tags_are_siphash_2_4() {
        let key = Key(std::array::from_fn(|n| n as u8));
        let bytes: [u8; SEALED_BYTES] = std::array::from_fn(|n| n as u8);
        let word = |n: usize| u64::from_le_bytes(*bytes[8 * n..].first_chunk().unwrap());
        let expected = u64::from_le_bytes([0x94, 0xaf, 0x49, 0xf6, 0xc6, 0x50, 0xad, 0xb8]);
        assert_eq!(key.tag([word(0), word(1), word(2)]), expected);
    }

    #[test]
    fn opens_what_was_sealed_and_nothing_else() {
        let key = Key([7; 16]);
        let token = Token {
            sequence: 0x0102_0304_0506_0708,
            probability: 0x1112_1314,
            agreed: 0x2122,
            stream: 0x31,
            class: 0x32,
            epoch: 0x4142_4344,
            slot: 0x51,
            arm: 0x52,
        };
        let sealed = token.seal(&key);
        assert_eq!(Token::open(&sealed, &key), Some(token));
        assert_eq!(Token::claimed_epoch(&sealed), token.epoch);
        assert_eq!(Token::open(&sealed, &Key([8; 16])), None);
        for bit in 0..8 * TOKEN_BYTES {
            let mut other = sealed;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Token::open(&other, &key), None, "bit {bit}");
        }
        let [sequence, drawn, place] = token.words();
        let place = place | 1 << 60;
        let mut reserved = sealed;
        reserved[16..24].copy_from_slice(&place.to_le_bytes());
        reserved[24..].copy_from_slice(&key.tag([sequence, drawn, place]).to_le_bytes());
        assert_eq!(Token::open(&reserved, &key), None, "reserved bits are 0");
    }
}
