//! Reader of the line at the beginning of a stream.

use super::{FilesError, MAX_LINE_BYTES};
use crate::{Connection, Read, StreamId};
use bytes::Bytes;

/// The part of a line that was read so far.
#[derive(Default, Debug)]
pub(super) struct LineReader(Vec<u8>);

impl LineReader {
    /// Reads on; returns the line without its end, and the bytes read past it. `None` if the line is incomplete.
    pub(super) fn read(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
    ) -> Result<Option<(String, Bytes)>, FilesError> {
        loop {
            let mut data = match connection.read(stream, MAX_LINE_BYTES)? {
                Read::Data(data) => data,
                Read::Blocked => return Ok(None),
                Read::End => return Err(FilesError::Protocol { what: "it ended the stream within a line" }),
            };
            let end = data.iter().position(|byte| *byte == b'\n');
            let line = data.split_to(end.unwrap_or(data.len()));
            if self.0.len() + line.len() > MAX_LINE_BYTES {
                return Err(FilesError::Protocol { what: "it sent a line without an end" });
            }
            self.0.extend_from_slice(&line);
            if end.is_some() {
                let text = String::from_utf8(std::mem::take(&mut self.0))
                    .map_err(|_| FilesError::Protocol { what: "it sent a line that is not UTF-8" })?;
                return Ok(Some((text, data.slice(1..))));
            }
        }
    }
}
