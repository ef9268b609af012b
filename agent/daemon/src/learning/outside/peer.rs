//! The process at the other end, which is never waited for.

use ccplane_learn::PolicyError;
use serde::Serialize;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Messages to the process.
pub(super) const POLICY: u8 = b'P';
pub(super) const ROWS: u8 = b'R';
pub(super) const DECISION: u8 = b'D';
/// The message from it.
pub(super) const OFFER: u8 = b'O';
/// Bytes of one message, at most: a policy file and its head.
const MAX_MESSAGE_BYTES: usize = (64 << 20) + 16;
/// Bytes that wait for a process that does not read; with more it is given up.
const MAX_WAITING_BYTES: usize = 128 << 20;
/// Bytes that are taken in one turn.
const MAX_TURN_BYTES: usize = 4 << 20;
const LENGTH_BYTES: usize = 4;

/// A fault on the connection to a process, after which the agent closes it.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it has left")]
    Left,
    #[error("a message of {found} bytes; at most {MAX_MESSAGE_BYTES} are allowed")]
    Long { found: usize },
    #[error("a message of kind {found}; offers are `O`")]
    Kind { found: u8 },
    #[error("it does not read: {found} bytes wait")]
    Hung { found: usize },
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// A process that is connected to the agent's socket.
pub(super) struct Peer {
    stream: UnixStream,
    /// Bytes to send, and how many of them the socket has taken.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes that were read and are no whole message yet.
    incoming: Vec<u8>,
}

impl Peer {
    pub(super) fn new(stream: UnixStream) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        Ok(Peer { stream, outgoing: Vec::new(), sent: 0, incoming: Vec::new() })
    }

    /// Whether the process's socket has taken all that was queued.
    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(super) fn queue_json(&mut self, kind: u8, content: &impl Serialize) -> Result<(), PeerError> {
        self.queue(kind, &serde_json::to_vec(content)?)
    }

    /// Puts a message behind those that wait.
    pub(super) fn queue(&mut self, kind: u8, content: &[u8]) -> Result<(), PeerError> {
        let found = self.outgoing.len() + content.len();
        if found > MAX_WAITING_BYTES {
            return Err(PeerError::Hung { found });
        }
        let length = u32::try_from(content.len() + 1).map_err(|_| PeerError::Long { found })?;
        self.outgoing.extend_from_slice(&length.to_le_bytes());
        self.outgoing.push(kind);
        self.outgoing.extend_from_slice(content);
        Ok(())
    }

    /// Sends what the socket takes now.
    pub(super) fn write(&mut self) -> Result<(), PeerError> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(PeerError::Left),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// The content of the next offer; `None` while none is whole.
    pub(super) fn read(&mut self) -> Result<Option<Vec<u8>>, PeerError> {
        let mut piece = [0; 1 << 16];
        let mut turn = 0;
        while turn < MAX_TURN_BYTES {
            if let Some(content) = self.whole()? {
                return Ok(Some(content));
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(PeerError::Left),
                Ok(count) => {
                    self.incoming.extend_from_slice(&piece[..count]);
                    turn += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.whole()
    }

    /// Takes the first message, where all of it is there.
    fn whole(&mut self) -> Result<Option<Vec<u8>>, PeerError> {
        let Some(length) = self.incoming.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let found = u32::from_le_bytes(*length) as usize;
        if !(1..=MAX_MESSAGE_BYTES).contains(&found) {
            return Err(PeerError::Long { found });
        }
        if self.incoming.len() < LENGTH_BYTES + found {
            return Ok(None);
        }
        let mut message = self.incoming.drain(..LENGTH_BYTES + found).skip(LENGTH_BYTES);
        match message.next() {
            Some(OFFER) => Ok(Some(message.collect())),
            Some(kind) => Err(PeerError::Kind { found: kind }),
            None => Ok(None),
        }
    }
}
