//! Content and its hash, sent and received in bounded parts.

use super::FilesError;
use crate::{Buffer, Connection, PART_BYTES, Read, StreamId};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::io;

/// Parts that one call moves, at most, so that other transfers and packets have their turn.
const PARTS_AT_ONCE: usize = 16;

/// A SHA-256 sum of content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sha256Sum(pub [u8; 32]);

impl std::fmt::Display for Sha256Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The progress of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// More can be done at once.
    Some,
    /// The stream is blocked.
    Blocked,
    /// All content was moved.
    All(Sha256Sum),
}

/// Content that is being sent.
pub(super) struct Outgoing {
    source: Box<dyn io::Read + Send>,
    left_bytes: u64,
    hasher: Sha256,
    /// The part that the stream has not taken yet.
    part: Bytes,
    sum: Option<Sha256Sum>,
}

impl Outgoing {
    /// Sends a line, then `length_bytes` of `source`.
    pub(super) fn new(line: String, source: Box<dyn io::Read + Send>, length_bytes: u64) -> Outgoing {
        Outgoing { source, left_bytes: length_bytes, hasher: Sha256::new(), part: line.into(), sum: None }
    }

    /// Bytes of the content that were not read yet.
    pub(super) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    pub(super) fn send(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
    ) -> Result<Moved, FilesError> {
        for _ in 0..PARTS_AT_ONCE {
            if self.part.is_empty() {
                if let Some(sum) = self.sum {
                    connection.finish(stream)?;
                    return Ok(Moved::All(sum));
                }
                self.part = if self.left_bytes == 0 {
                    self.end()
                } else {
                    let wanted = usize::try_from(self.left_bytes).unwrap_or(PART_BYTES);
                    // The file is read as far as there is memory, and no further.
                    let Some(buffer) = connection.buffer(stream, wanted) else { return Ok(Moved::Blocked) };
                    self.next(buffer).map_err(FilesError::Read)?
                };
            }
            if connection.write_bytes(stream, &mut self.part)? == 0 {
                return Ok(Moved::Blocked);
            }
        }
        Ok(Moved::Some)
    }

    fn end(&mut self) -> Bytes {
        let sum = Sha256Sum(self.hasher.finalize_reset().into());
        self.sum = Some(sum);
        Bytes::copy_from_slice(&sum.0)
    }

    fn next(&mut self, mut part: Buffer) -> io::Result<Bytes> {
        self.source.read_exact(&mut part)?;
        self.hasher.update(&part[..]);
        self.left_bytes -= part.len() as u64;
        Ok(part.into())
    }
}

/// Content that is being received.
pub(super) struct Incoming {
    left_bytes: u64,
    hasher: Sha256,
    /// Bytes that were read together with the line before.
    first: Bytes,
    sent_sum: Vec<u8>,
}

impl Incoming {
    pub(super) fn new(length_bytes: u64, first: Bytes) -> Incoming {
        Incoming { left_bytes: length_bytes, hasher: Sha256::new(), first, sent_sum: Vec::new() }
    }

    /// Bytes of the content that were not written yet.
    pub(super) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    pub(super) fn receive(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
        sink: &mut dyn io::Write,
    ) -> Result<Moved, FilesError> {
        let mut budget = PARTS_AT_ONCE * PART_BYTES;
        while budget > 0 {
            let mut data = std::mem::take(&mut self.first);
            if data.is_empty() {
                data = match connection.read(stream, PART_BYTES)? {
                    Read::Data(data) => data,
                    Read::Blocked => return Ok(Moved::Blocked),
                    Read::End => return self.verify(),
                };
            }
            budget = budget.saturating_sub(data.len());
            let content =
                data.split_to(data.len().min(usize::try_from(self.left_bytes).unwrap_or(usize::MAX)));
            self.left_bytes -= content.len() as u64;
            self.hasher.update(&content);
            sink.write_all(&content).map_err(FilesError::Write)?;
            self.sent_sum.extend_from_slice(&data);
            if self.sent_sum.len() > size_of::<Sha256Sum>() {
                return Err(FilesError::Protocol { what: "it sent more than it said" });
            }
        }
        Ok(Moved::Some)
    }

    fn verify(&mut self) -> Result<Moved, FilesError> {
        let found = Sha256Sum(self.hasher.finalize_reset().into());
        match <[u8; 32]>::try_from(self.sent_sum.as_slice()).map(Sha256Sum) {
            Ok(sent) if sent == found && self.left_bytes == 0 => Ok(Moved::All(found)),
            Ok(sent) if self.left_bytes == 0 => Err(FilesError::Hash { sent, found }),
            _ => Err(FilesError::Protocol { what: "it sent less than it said" }),
        }
    }
}
