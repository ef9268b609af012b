//! Bounds-checked, unaligned, little-endian reading and writing.

use crate::{DecodeError, EncodeError};

/// Bytes of the longest number of variable length: 64 bits, 7 in each.
pub(crate) const MAX_VARINT_BYTES: usize = 10;
const BITS_A_BYTE: u32 = 7;
const LOW_BITS: u8 = 0x7f;

/// The unread rest of a message.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

/// Writes readers of little-endian numbers, each named after its type.
macro_rules! numbers {
    ($($number:ident),*) => {
        $(#[inline]
        pub(crate) fn $number(&mut self, field: &'static str) -> Result<$number, DecodeError> {
            self.array(field).map($number::from_le_bytes)
        })*
    };
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// The bytes not yet read.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub(crate) fn bytes(&mut self, need: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let Some((head, tail)) = self.0.split_at_checked(need) else {
            return Err(DecodeError::Short { field, need, have: self.0.len() });
        };
        self.0 = tail;
        Ok(head)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((head, tail)) = self.0.split_first_chunk::<N>() else {
            return Err(DecodeError::Short { field, need: N, have: self.0.len() });
        };
        self.0 = tail;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[b]| b)
    }

    numbers!(u16, u32, u64, i64);

    /// Reads a number of 7 bits a byte, the lowest first, with bit 7 set in all bytes but the last. Each number has one form.
    #[inline]
    pub(crate) fn varint(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (at, byte) in self.0.iter().copied().enumerate().take(MAX_VARINT_BYTES) {
            value |= u64::from(byte & LOW_BITS) << (BITS_A_BYTE * at as u32);
            if byte > LOW_BITS {
                continue;
            }
            let is_longer = byte == 0 && at > 0;
            let overflows = at + 1 == MAX_VARINT_BYTES && byte > 1;
            if is_longer || overflows {
                return Err(DecodeError::NotAllowed { field, found: "a number in too many bytes" });
            }
            self.bytes(at + 1, field)?;
            return Ok(value);
        }
        match self.0.len() {
            have @ ..MAX_VARINT_BYTES => Err(DecodeError::Short { field, need: have + 1, have }),
            _ => Err(DecodeError::NotAllowed { field, found: "a number in too many bytes" }),
        }
    }

    /// Reads a number of at most 32 bits, written as [`Reader::varint`] says.
    #[inline]
    pub(crate) fn varint_u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        let found = self.varint(field)?;
        let limit = u64::from(u32::MAX);
        u32::try_from(found).map_err(|_| DecodeError::TooLarge { field, found, limit })
    }

    #[inline]
    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(DecodeError::Unknown { field, found: u64::from(found) }),
        }
    }

    /// A count of at most `limit`, sent as u16.
    #[inline]
    pub(crate) fn count(&mut self, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
        let found = usize::from(self.u16(field)?);
        if found > limit { Err(DecodeError::TooMany { field, found, limit }) } else { Ok(found) }
    }

    /// UTF-8 of at most `limit` bytes behind its length as u16.
    pub(crate) fn text(&mut self, field: &'static str, limit: usize) -> Result<&'a str, DecodeError> {
        let len = self.count(field, limit)?;
        std::str::from_utf8(self.bytes(len, field)?).map_err(|_| DecodeError::Text { field })
    }
}

/// A place to which a message is written: a `Vec<u8>`, or a fixed buffer as [`SliceOut`].
pub trait Out {
    /// Bytes written so far.
    fn written(&self) -> usize;

    /// Appends `bytes` to the message.
    ///
    /// # Errors
    /// [`EncodeError::Full`]; nothing is written then.
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError>;

    /// Overwrites bytes already written, from offset `at`. What lies beyond [`Out::written`] is ignored.
    fn patch(&mut self, at: usize, bytes: &[u8]);

    /// Takes back everything after the first `written` bytes.
    fn truncate(&mut self, written: usize);
}

impl Out for Vec<u8> {
    #[inline]
    fn written(&self) -> usize {
        self.len()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn patch(&mut self, at: usize, bytes: &[u8]) {
        patch(self, at, bytes);
    }

    #[inline]
    fn truncate(&mut self, written: usize) {
        Vec::truncate(self, written);
    }
}

/// Writes into a caller's buffer, which never grows.
#[derive(Debug)]
pub struct SliceOut<'a> {
    buf: &'a mut [u8],
    written: usize,
}

impl<'a> SliceOut<'a> {
    /// Writes from the start of `buf`.
    pub fn new(buf: &'a mut [u8]) -> Self {
        SliceOut { buf, written: 0 }
    }

    /// Returns the bytes written so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.buf.get(..self.written).unwrap_or_default()
    }
}

impl Out for SliceOut<'_> {
    fn written(&self) -> usize {
        self.written
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let room = self.buf.len() - self.written;
        let end = self.written + bytes.len();
        let Some(to) = self.buf.get_mut(self.written..end) else {
            return Err(EncodeError::Full { need: bytes.len(), room });
        };
        to.copy_from_slice(bytes);
        self.written = end;
        Ok(())
    }

    fn patch(&mut self, at: usize, bytes: &[u8]) {
        patch(self.buf.get_mut(..self.written).unwrap_or_default(), at, bytes);
    }

    fn truncate(&mut self, written: usize) {
        self.written = self.written.min(written);
    }
}

#[inline]
fn patch(written: &mut [u8], at: usize, bytes: &[u8]) {
    let (_, to) = written.split_at_mut(at.min(written.len()));
    match to.split_at_mut_checked(bytes.len()) {
        Some((to, _)) => to.copy_from_slice(bytes),
        None => to.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from),
    }
}

/// Appends a count as u16.
#[inline]
pub(crate) fn put_count(
    out: &mut impl Out,
    field: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), EncodeError> {
    match u16::try_from(found) {
        Ok(n) if found <= limit => out.put(&n.to_le_bytes()),
        _ => Err(EncodeError::TooMany { field, found, limit }),
    }
}

/// Appends a number of variable length: see [`Reader::varint`].
#[inline]
pub(crate) fn put_varint(out: &mut impl Out, mut value: u64) -> Result<(), EncodeError> {
    let mut bytes = [0; MAX_VARINT_BYTES];
    let mut len = 0;
    for byte in &mut bytes {
        *byte = value as u8 & LOW_BITS;
        value >>= BITS_A_BYTE;
        len += 1;
        if value == 0 {
            break;
        }
        *byte |= !LOW_BITS;
    }
    out.put(bytes.get(..len).unwrap_or_default())
}

/// Appends UTF-8 behind its length as u16.
pub(crate) fn put_text(
    out: &mut impl Out,
    field: &'static str,
    text: &str,
    limit: usize,
) -> Result<(), EncodeError> {
    put_count(out, field, text.len(), limit)?;
    out.put(text.as_bytes())
}

/// Runs `body`, and takes back what it wrote if it fails.
#[inline]
pub(crate) fn all_or_nothing<O: Out, T>(
    out: &mut O,
    body: impl FnOnce(&mut O) -> Result<T, EncodeError>,
) -> Result<T, EncodeError> {
    let start = out.written();
    body(out).inspect_err(|_| out.truncate(start))
}
