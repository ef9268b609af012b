//! Lists inside messages: borrowed wire bytes that were checked, or a slice of values to be encoded.

use std::fmt;

use crate::bytes::{Reader, put_count};
use crate::{DecodeError, EncodeError, Out};

/// An element type of a [`List`]. The trait is public in name only: no other crate adds elements to the protocols.
pub trait Item<'a>: Sized + Clone {
    /// The element's name in errors.
    const WHAT: &'static str;
    /// Bytes of an element, where so many bytes are always one.
    const BYTES: Option<usize> = None;

    /// Reads and checks one element.
    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
    /// Checks and passes over one element.
    #[inline]
    fn skip(r: &mut Reader<'a>) -> Result<(), DecodeError> {
        Self::read(r).map(drop)
    }
    /// Appends the element to a message.
    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError>;
}

/// The elements of a message, without allocation.
///
/// Made from a slice (to be encoded) or by parsing (every element is checked then).
#[derive(Clone)]
pub struct List<'a, T>(Repr<'a, T>);

#[derive(Clone)]
enum Repr<'a, T> {
    /// `len` elements, each of which has been read once without an error.
    Wire {
        bytes: &'a [u8],
        len: usize,
    },
    Items(&'a [T]),
}

impl<'a, T> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> Self {
        List(Repr::Items(items))
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for List<'a, T> {
    fn from(items: &'a [T; N]) -> Self {
        List(Repr::Items(items))
    }
}

impl<'a, T> List<'a, T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Wire { len, .. } => len,
            Repr::Items(items) => items.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, in order.
    pub fn iter(&self) -> Iter<'a, T> {
        Iter(match self.0 {
            Repr::Wire { bytes, len } => IterRepr::Wire { bytes: Reader::new(bytes), left: len },
            Repr::Items(items) => IterRepr::Items(items.iter()),
        })
    }
}

impl<'a, T: Item<'a>> List<'a, T> {
    /// Takes `len` elements from `r`, checking each.
    #[inline]
    pub(crate) fn read(r: &mut Reader<'a>, len: usize) -> Result<Self, DecodeError> {
        let start = r.rest();
        let unchecked = T::BYTES.filter(|bytes| len.saturating_mul(*bytes) <= start.len());
        if let Some(bytes) = unchecked {
            r.bytes(len * bytes, T::WHAT)?;
        } else {
            for index in 0..len {
                T::skip(r).map_err(|error| at(T::WHAT, index, error))?;
            }
        }
        let used = start.len() - r.left();
        Ok(List(Repr::Wire { bytes: start.get(..used).unwrap_or_default(), len }))
    }

    pub(crate) fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        match self.0 {
            Repr::Wire { bytes, .. } => out.put(bytes),
            Repr::Items(items) => items.iter().try_for_each(|item| item.write(out)),
        }
    }
}

impl List<'_, i64> {
    /// Copies the first numbers, as many as there is room for.
    #[inline]
    pub fn copy_to(&self, room: &mut [i64]) {
        match self.0 {
            Repr::Wire { bytes, .. } => {
                let (numbers, _) = bytes.as_chunks();
                room.iter_mut().zip(numbers).for_each(|(to, from)| *to = i64::from_le_bytes(*from));
            }
            Repr::Items(items) => room.iter_mut().zip(items).for_each(|(to, from)| *to = *from),
        }
    }
}

#[cold]
fn at(what: &'static str, index: usize, error: DecodeError) -> DecodeError {
    DecodeError::At { what, index, error: Box::new(error) }
}

/// Iterates over a [`List`].
#[derive(Clone)]
pub struct Iter<'a, T>(IterRepr<'a, T>);

#[derive(Clone)]
enum IterRepr<'a, T> {
    Wire { bytes: Reader<'a>, left: usize },
    Items(std::slice::Iter<'a, T>),
}

impl<'a, T: Item<'a>> Iterator for Iter<'a, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            IterRepr::Wire { bytes, left } => {
                *left = left.checked_sub(1)?;
                // Read before, when the list was parsed: never an error now.
                T::read(bytes).ok()
            }
            IterRepr::Items(items) => items.next().cloned(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            IterRepr::Wire { left, .. } => *left,
            IterRepr::Items(items) => items.len(),
        };
        (left, Some(left))
    }
}

impl<'a, T: Item<'a>> ExactSizeIterator for Iter<'a, T> {}

impl<'a, T: Item<'a>> IntoIterator for &List<'a, T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<'a, T: Item<'a> + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Item<'a> + Eq> Eq for List<'a, T> {}

impl<'a, T: Item<'a> + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Makes numbers of eight bytes elements, each read by the reader of its name.
macro_rules! values {
    ($($number:ident),*) => {
        $(impl<'a> Item<'a> for $number {
            const WHAT: &'static str = "value";
            const BYTES: Option<usize> = Some(8);

            fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                r.$number("value")
            }
            fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
                out.put(&self.to_le_bytes())
            }
        })*
    };
}

values!(u64, i64);

#[inline]
pub(crate) fn read_list<'a, T: Item<'a>>(
    r: &mut Reader<'a>,
    field: &'static str,
    limit: usize,
) -> Result<List<'a, T>, DecodeError> {
    let n = r.count(field, limit)?;
    List::read(r, n)
}

#[inline]
pub(crate) fn write_list<'a, T: Item<'a>>(
    out: &mut impl Out,
    field: &'static str,
    list: &List<'a, T>,
    limit: usize,
) -> Result<(), EncodeError> {
    put_count(out, field, list.len(), limit)?;
    list.write(out)
}
