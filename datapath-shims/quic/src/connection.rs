//! One connection of an endpoint, as its application uses it.

use crate::admission::Stage;
use crate::bucket::Bucket;
use crate::budget::{Account, Buffer};
use crate::controller::{QuicController, QuicFlowState};
use crate::packets::{InFlight, PacketConnection};
use crate::revival::{Revival, Unanswered};
use crate::tls::{CertificateDer, Fingerprint};
use bytes::Bytes;
use quinn_proto::{
    ClosedStream, ConnectionError, ConnectionStats, Dir, FinishError, ReadError, ReadableError, StreamEvent,
    StreamId, VarInt, WriteError,
};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// The identifier of a connection, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnectionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// The handshake is done: streams may be opened.
    Connected,
    /// An event of its streams.
    Stream(StreamEvent),
    /// The peer, an error or the idle timeout ended the connection. No further event follows.
    Closed(ConnectionError),
}

/// The result of reading a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// The next bytes.
    Data(Bytes),
    /// No data now; [`StreamEvent::Readable`] announces more.
    Blocked,
    /// All data was read.
    End,
}

/// Reasons why a stream cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream is not open in this direction, or not any more.
    #[error("the stream is closed")]
    Closed,
    /// The peer stopped reading.
    #[error("the peer stopped the stream with code {code}")]
    Stopped {
        /// The application's error code.
        code: u64,
    },
    /// The peer gave up sending.
    #[error("the peer reset the stream with code {code}")]
    Reset {
        /// The application's error code.
        code: u64,
    },
}

impl From<ClosedStream> for StreamError {
    fn from(_: ClosedStream) -> StreamError {
        StreamError::Closed
    }
}

/// The driver's state of a connection.
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) quic: quinn_proto::Connection,
    pub(crate) bucket: Bucket,
    /// When its bucket lets it send again, while it waits for that.
    pub(crate) paced_until: Option<Instant>,
    /// Its next timer, as in the driver's queue.
    pub(crate) timer: Option<Instant>,
    /// Whether it is in the queue of connections with something to do.
    pub(crate) queued: bool,
    pub(crate) unanswered: Option<Unanswered>,
    /// Probes, while its path is back and its peer was not heard yet.
    pub(crate) revival: Option<Revival>,
    pub(crate) account: Arc<Account>,
    pub(crate) stage: Stage,
    /// The peer's first address.
    pub(crate) came_from: IpAddr,
    pub(crate) began: Instant,
    /// When the handshake is checked if it is not done.
    pub(crate) handshake_until: Option<Instant>,
    /// Bytes that were read from its streams.
    pub(crate) read_bytes: u64,
    /// Bytes that were written to its streams.
    pub(crate) written_bytes: u64,
    pub(crate) in_flight: InFlight,
    /// Decisions about its packets, once its handshake is done.
    pub(crate) packets: Option<Box<PacketConnection>>,
    /// Streams that wait for memory, each once in the endpoint's queue.
    pub(crate) starved: Vec<StreamId>,
}

/// Streams that wait for memory, the longest first.
pub(crate) type Starved = VecDeque<(ConnectionId, StreamId)>;

/// A connection, borrowed from its endpoint. Writes and closes take effect with the endpoint's next turn.
pub struct Connection<'a> {
    pub(crate) id: ConnectionId,
    pub(crate) slot: &'a mut Slot,
    pub(crate) ready: &'a mut VecDeque<u32>,
    pub(crate) starved: &'a mut Starved,
    pub(crate) most_window_bytes: u64,
    pub(crate) now: Instant,
}

impl Connection<'_> {
    /// The connection's identifier.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The peer's address, which may change.
    pub fn remote(&self) -> SocketAddr {
        canonical(self.slot.quic.remote_address())
    }

    /// Whether the handshake still goes on.
    pub fn is_handshaking(&self) -> bool {
        self.slot.quic.is_handshaking()
    }

    /// The fingerprint of the peer's certificate, if it showed one and the handshake is done; the peer has its key.
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        let identity = self.slot.quic.crypto_session().peer_identity()?;
        identity.downcast_ref::<Vec<CertificateDer<'static>>>()?.first().map(Fingerprint::of)
    }

    /// Derives bytes from this connection's secrets that only its two ends know; `None` while it is handshaking.
    pub fn export_key(&self, label: &[u8]) -> Option<[u8; 32]> {
        if self.is_handshaking() {
            return None;
        }
        let mut key = [0; 32];
        self.slot.quic.crypto_session().export_keying_material(&mut key, label, &[]).ok()?;
        Some(key)
    }

    /// quinn's counters of the connection.
    pub fn stats(&self) -> ConnectionStats {
        self.slot.quic.stats()
    }

    /// The flow after the last ACK: window, rate, who decided them, path statistics.
    ///
    /// `None` before the first ACK, and where a controller of quinn's is used.
    pub fn flow_state(&self) -> Option<QuicFlowState> {
        QuicController::of(&self.slot.quic)?.flow_state()
    }

    /// Opens a stream; `None` if the peer allows no more now ([`StreamEvent::Available`] announces more).
    pub fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.slot.quic.streams().open(dir)
    }

    /// Accepts a stream that the peer opened ([`StreamEvent::Opened`]).
    pub fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.slot.quic.streams().accept(dir)
    }

    /// Writes as much as there is room for and returns how much; 0 if there is none ([`StreamEvent::Writable`]
    /// announces room).
    ///
    /// # Errors
    /// `Closed`, `Stopped`.
    pub fn write(&mut self, stream: StreamId, data: &[u8]) -> Result<usize, StreamError> {
        let mut written = 0;
        while written < data.len() {
            let Some(mut buffer) = self.buffer(stream, data.len() - written) else { break };
            let size = buffer.len();
            buffer.copy_from_slice(&data[written..written + size]);
            let taken = self.write_bytes(stream, &mut buffer.into())?;
            written += taken;
            if taken < size {
                break;
            }
        }
        Ok(written)
    }

    /// Allocates a buffer for data to be written to this stream, at most `wanted_bytes` and
    /// [`PART_BYTES`](crate::PART_BYTES).
    ///
    /// `None` if there is no memory now ([`StreamEvent::Writable`] announces some).
    pub fn buffer(&mut self, stream: StreamId, wanted_bytes: usize) -> Option<Buffer> {
        let buffer = self.slot.account.buffer(wanted_bytes);
        if buffer.is_none() && !self.slot.starved.contains(&stream) {
            self.slot.starved.push(stream);
            self.starved.push_back((self.id, stream));
        }
        buffer
    }

    /// Writes without a copy: takes from the front of `data` what there is room for.
    ///
    /// Unless it is a [`buffer`](Connection::buffer), its memory is not counted.
    ///
    /// # Errors
    /// `Closed`, `Stopped`.
    pub fn write_bytes(&mut self, stream: StreamId, data: &mut Bytes) -> Result<usize, StreamError> {
        let written = self.slot.quic.send_stream(stream).write_chunks(std::slice::from_mut(data));
        self.written(written.map(|w| w.bytes))
    }

    fn written(&mut self, written: Result<usize, WriteError>) -> Result<usize, StreamError> {
        match written {
            Ok(bytes) => {
                self.slot.written_bytes += bytes as u64;
                self.wake();
                Ok(bytes)
            }
            Err(WriteError::Blocked) => Ok(0),
            Err(WriteError::Stopped(code)) => Err(StreamError::Stopped { code: code.into_inner() }),
            Err(WriteError::ClosedStream) => Err(StreamError::Closed),
        }
    }

    /// Ends the writing side. [`StreamEvent::Finished`] announces that the peer has it all.
    ///
    /// # Errors
    /// `Closed`, `Stopped`.
    pub fn finish(&mut self, stream: StreamId) -> Result<(), StreamError> {
        self.wake();
        self.slot.quic.send_stream(stream).finish().map_err(|e| match e {
            FinishError::Stopped(code) => StreamError::Stopped { code: code.into_inner() },
            FinishError::ClosedStream => StreamError::Closed,
        })
    }

    /// Gives up sending; data that was not acknowledged yet may be lost.
    ///
    /// # Errors
    /// `Closed`.
    pub fn reset(&mut self, stream: StreamId, code: u32) -> Result<(), StreamError> {
        self.wake();
        Ok(self.slot.quic.send_stream(stream).reset(code.into())?)
    }

    /// Reads at most `max_bytes`, in order.
    ///
    /// # Errors
    /// `Closed`, `Reset`.
    pub fn read(&mut self, stream: StreamId, max_bytes: usize) -> Result<Read, StreamError> {
        let mut receiving = self.slot.quic.recv_stream(stream);
        let mut chunks = receiving.read(true).map_err(|e| match e {
            ReadableError::ClosedStream | ReadableError::IllegalOrderedRead => StreamError::Closed,
        })?;
        let read = match chunks.next(max_bytes) {
            Ok(Some(chunk)) => Ok(Read::Data(chunk.bytes)),
            Ok(None) => Ok(Read::End),
            Err(ReadError::Blocked) => Ok(Read::Blocked),
            Err(ReadError::Reset(code)) => Err(StreamError::Reset { code: code.into_inner() }),
        };
        // The peer may have to be told that it may send more, even if nothing was read now.
        if chunks.finalize().should_transmit() && read != Ok(Read::Blocked) {
            self.wake();
        }
        if let Ok(Read::Data(data)) = &read {
            self.slot.read_bytes += data.len() as u64;
            self.widen();
        }
        read
    }

    /// Lets the peer send more before it is read, if there is memory for it.
    fn widen(&mut self) {
        let wider = self.slot.account.widen(self.slot.read_bytes, self.most_window_bytes);
        if let Some(wider) = wider.and_then(|bytes| VarInt::from_u64(bytes).ok()) {
            self.slot.quic.set_receive_window(wider);
            self.wake();
        }
    }

    /// Tells the peer to stop sending.
    ///
    /// # Errors
    /// `Closed`.
    pub fn stop(&mut self, stream: StreamId, code: u32) -> Result<(), StreamError> {
        self.wake();
        Ok(self.slot.quic.recv_stream(stream).stop(code.into())?)
    }

    /// Ends the connection at once; the peer gets `code` and `reason`. No event follows.
    pub fn close(&mut self, code: u32, reason: &str) {
        self.slot.quic.close(self.now, VarInt::from_u32(code), Bytes::copy_from_slice(reason.as_bytes()));
        self.wake();
    }

    /// Migrates after a change of the local address: the peer learns the new one, and a new connection ID is used
    /// there.
    pub fn migrate(&mut self) {
        self.slot.quic.local_address_changed();
        self.wake();
    }

    fn wake(&mut self) {
        self.slot.wake(self.id.index, self.ready);
    }
}

impl Slot {
    /// Queues the connection, which has something to do.
    pub(crate) fn wake(&mut self, index: u32, ready: &mut VecDeque<u32>) {
        if !std::mem::replace(&mut self.queued, true) {
            ready.push_back(index);
        }
    }

    /// Notes that the peer was heard.
    pub(crate) fn on_receive(&mut self, now: Instant) {
        let (unanswered, rtt) = (self.unanswered.take(), self.quic.rtt());
        if unanswered.is_some_and(|sent| sent.was_probed(rtt)) {
            // A request that got no answer may well be answered now.
            self.revival = Some(Revival::new(now));
        } else if self.revival.is_some_and(|revival| revival.is_answered(now, rtt)) {
            self.revival = None;
        }
    }

    /// Starts probing after the path has come up again; says whether a probe leaves at once.
    pub(crate) fn revive(&mut self, now: Instant) -> bool {
        let silent = self.unanswered.is_some_and(|sent| sent.is_long(now, self.quic.rtt()));
        if silent && !self.quic.is_closed() {
            self.revival = Some(Revival::new(now));
        }
        silent
    }

    /// Whether a probe is due. It is one datagram that neither window nor rate holds back.
    pub(crate) fn takes_probe(&mut self, now: Instant) -> bool {
        let due = self.revival.is_some_and(|revival| revival.at() <= now);
        if due {
            self.revival = self.revival.and_then(|revival| revival.after_one(now));
            self.quic.ping();
        }
        due
    }
}

/// An IPv4 address as one, also where a socket of both families shows it as IPv6: rules use this form.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
