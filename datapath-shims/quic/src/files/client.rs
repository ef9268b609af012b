//! The client's side of a file transfer.

use super::body::{Incoming, Moved, Outgoing};
use super::line::LineReader;
use super::{FilesError, MAX_LINE_BYTES, READ_FAILED, Sha256Sum, Token};
use crate::{Connection, Dir, StreamError, StreamId};
use bytes::Bytes;
use std::io;

/// A file transfer. [`advance`](Transfer::advance) it whenever an event of its connection arrives.
pub struct Transfer {
    stream: StreamId,
    state: ClientState,
    total_bytes: Option<u64>,
}

enum ClientState {
    Asking {
        request: Bytes,
        sink: Box<dyn io::Write + Send>,
    },
    Promised {
        line: LineReader,
        sink: Box<dyn io::Write + Send>,
    },
    Receiving {
        content: Incoming,
        sink: Box<dyn io::Write + Send>,
    },
    Sending(Outgoing),
    /// All was sent; `None` if the server did not want all of it.
    Answer {
        line: LineReader,
        sum: Option<Sha256Sum>,
    },
    Ended,
}

/// The progress of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Content read or written here, bytes.
    pub done_bytes: u64,
    /// Length of the content, bytes, once it is known.
    pub total_bytes: Option<u64>,
}

/// The next step of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferStep {
    /// The transfer waits for an event of the connection.
    Waits,
    /// More can be done at once.
    More,
    /// The transfer is over.
    Done(Done),
}

/// A file that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The length of the content.
    pub bytes: u64,
    /// The hash that both ends computed.
    pub sum: Sha256Sum,
}

impl Transfer {
    /// Requests a file; its content goes to `sink`, which is to be thrown away if the transfer fails.
    ///
    /// # Errors
    /// The server allows no stream, or the name is too long or has a line feed.
    pub fn get(
        connection: &mut Connection<'_>,
        name: &str,
        sink: impl io::Write + Send + 'static,
    ) -> Result<Transfer, FilesError> {
        let request = line(format!("get {name}"))?.into();
        let state = ClientState::Asking { request, sink: Box::new(sink) };
        Ok(Transfer { stream: open(connection)?, state, total_bytes: None })
    }

    /// Sends `length_bytes` of `source` as a file, with a proof of the token if there is one.
    ///
    /// # Errors
    /// As [`Transfer::get`].
    pub fn put(
        connection: &mut Connection<'_>,
        name: &str,
        source: impl io::Read + Send + 'static,
        length_bytes: u64,
        token: Option<&Token>,
    ) -> Result<Transfer, FilesError> {
        let proof = token.and_then(|token| token.prove(connection)).map(Sha256Sum);
        let request = line(match proof {
            Some(proof) => format!("put-with {proof} {length_bytes} {name}"),
            None => format!("put {length_bytes} {name}"),
        })?;
        let state = ClientState::Sending(Outgoing::new(request, Box::new(source), length_bytes));
        Ok(Transfer { stream: open(connection)?, state, total_bytes: Some(length_bytes) })
    }

    /// Returns the amount of content that was moved.
    pub fn progress(&self) -> Progress {
        let left_bytes = match &self.state {
            ClientState::Asking { .. } | ClientState::Promised { .. } => self.total_bytes.unwrap_or(0),
            ClientState::Receiving { content, .. } => content.left_bytes(),
            ClientState::Sending(content) => content.left_bytes(),
            ClientState::Answer { .. } | ClientState::Ended => 0,
        };
        let total_bytes = self.total_bytes;
        Progress { done_bytes: total_bytes.unwrap_or(0).saturating_sub(left_bytes), total_bytes }
    }

    /// Continues as far as the connection allows, or until others should have their turn.
    ///
    /// # Errors
    /// It failed, and is over.
    pub fn advance(&mut self, connection: &mut Connection<'_>) -> Result<TransferStep, FilesError> {
        loop {
            let state = std::mem::replace(&mut self.state, ClientState::Ended);
            let (next, step) = self.step(state, connection)?;
            self.state = next;
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Computes the next state, and the step for the caller, if there is one.
    fn step(
        &mut self,
        state: ClientState,
        connection: &mut Connection<'_>,
    ) -> Result<(ClientState, Option<TransferStep>), FilesError> {
        let stream = self.stream;
        let told = |moved: Moved| if moved == Moved::Some { TransferStep::More } else { TransferStep::Waits };
        Ok(match state {
            ClientState::Asking { mut request, sink } => {
                connection.write_bytes(stream, &mut request)?;
                if !request.is_empty() {
                    return Ok((ClientState::Asking { request, sink }, Some(TransferStep::Waits)));
                }
                connection.finish(stream)?;
                (ClientState::Promised { line: LineReader::default(), sink }, None)
            }
            ClientState::Promised { mut line, sink } => match line.read(connection, stream)? {
                None => (ClientState::Promised { line, sink }, Some(TransferStep::Waits)),
                Some((line, first)) => {
                    let length = answer(&line)?;
                    let length_bytes = length
                        .and_then(|length| length.parse().ok())
                        .ok_or(FilesError::Protocol { what: "it said no length" })?;
                    self.total_bytes = Some(length_bytes);
                    (ClientState::Receiving { content: Incoming::new(length_bytes, first), sink }, None)
                }
            },
            ClientState::Receiving { mut content, mut sink } => {
                match content.receive(connection, stream, &mut sink).map_err(unreadable)? {
                    Moved::All(sum) => {
                        sink.flush().map_err(FilesError::Write)?;
                        (ClientState::Ended, Some(TransferStep::Done(self.done(sum))))
                    }
                    moved => (ClientState::Receiving { content, sink }, Some(told(moved))),
                }
            }
            ClientState::Sending(mut content) => match content.send(connection, stream) {
                Ok(Moved::All(sum)) => {
                    (ClientState::Answer { line: LineReader::default(), sum: Some(sum) }, None)
                }
                Ok(moved) => (ClientState::Sending(content), Some(told(moved))),
                // The answer has the reason.
                Err(FilesError::Stream(StreamError::Stopped { .. })) => {
                    (ClientState::Answer { line: LineReader::default(), sum: None }, None)
                }
                Err(e) => return Err(e),
            },
            ClientState::Answer { mut line, sum } => match line.read(connection, stream)? {
                None => (ClientState::Answer { line, sum }, Some(TransferStep::Waits)),
                Some((line, _)) => match (answer(&line)?, sum) {
                    (None, Some(sum)) => (ClientState::Ended, Some(TransferStep::Done(self.done(sum)))),
                    _ => return Err(FilesError::Protocol { what: "it took a file that it has not got" }),
                },
            },
            ClientState::Ended => return Err(FilesError::Stream(StreamError::Closed)),
        })
    }

    fn done(&self, sum: Sha256Sum) -> Done {
        Done { bytes: self.total_bytes.unwrap_or(0), sum }
    }
}

fn open(connection: &mut Connection<'_>) -> Result<StreamId, FilesError> {
    connection.open(Dir::Bi).ok_or(FilesError::Protocol { what: "it allows no stream" })
}

fn line(text: String) -> Result<String, FilesError> {
    if text.len() >= MAX_LINE_BYTES || text.contains('\n') {
        return Err(FilesError::Refused { reason: "the name is too long, or has a line feed".to_owned() });
    }
    Ok(text + "\n")
}

/// Converts a server's reset to the error that it means.
fn unreadable(error: FilesError) -> FilesError {
    match error {
        FilesError::Stream(StreamError::Reset { code }) if code == u64::from(READ_FAILED) => {
            FilesError::Unreadable
        }
        error => error,
    }
}

/// Parses an answer: what follows `ok`.
fn answer(line: &str) -> Result<Option<&str>, FilesError> {
    match line.split_once(' ') {
        None if line == "ok" => Ok(None),
        Some(("ok", rest)) => Ok(Some(rest)),
        Some(("no", reason)) => Err(FilesError::Refused { reason: reason.to_owned() }),
        _ => Err(FilesError::Protocol { what: "it answered neither ok nor no" }),
    }
}
