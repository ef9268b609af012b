//! A trace file that ends: no trace that somebody forgot fills a disk.

use std::io::{self, Write};

/// The most bytes of a trace file: hours of a busy flow.
pub const MAX_TRACE_BYTES: u64 = 1 << 30;

/// Writes whole records up to a bound, and counts those that do not fit.
pub struct Bounded<W> {
    to: W,
    /// Bytes that may still be written; 0 once a record has not fitted, so that no later one follows a gap.
    left: u64,
    left_out: u64,
}

impl<W: Write> Bounded<W> {
    /// Wraps `to`, which is to take `bytes` bytes at most.
    pub fn new(to: W, bytes: u64) -> Bounded<W> {
        Bounded { to, left: bytes, left_out: 0 }
    }

    /// Writes a record if it fits; whether it did.
    pub fn put(&mut self, record: &[u8]) -> io::Result<bool> {
        match self.left.checked_sub(record.len() as u64) {
            Some(left) => {
                self.left = left;
                self.to.write_all(record).map(|()| true)
            }
            None => {
                self.left = 0;
                self.left_out += 1;
                Ok(false)
            }
        }
    }

    /// Flushes the writer below.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Records that did not fit.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_ends_with_the_last_record_that_fits() {
        let mut file = Vec::new();
        let mut bounded = Bounded::new(&mut file, 10);
        let put: Vec<bool> =
            ["first\n", "second\n", "3\n"].map(|r| bounded.put(r.as_bytes()).unwrap()).into();
        assert_eq!((put, bounded.left_out()), (vec![true, false, false], 2));
        assert_eq!(file, b"first\n");
    }
}
