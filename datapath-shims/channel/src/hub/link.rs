//! The part that both protocols share: the connection to one datapath with its backlog, and the queue of its events.

use super::carrier::{Carrier, SocketTo};
use super::socket::{SendError, Socket};
use crate::end::{End, Parts};
use crate::ring::RecordBuffer;
use crate::ring::{ReadError, WriteError};
use ccplane_contract::{DatapathError, Event, Values};
use ccplane_wire::EncodeError;
use ccplane_wire::v2::{Report, SingleReport, Varint};
use nix::errno::Errno;
use nix::sys::socket::UnixAddr;
use std::collections::VecDeque;
use std::sync::Arc;
use tracing::warn;

/// Events of one datapath that wait for the agent; more are dropped, counted and reported as such.
const MAX_QUEUED_EVENTS: usize = 1 << 16;
/// Bytes that wait for room in the datapath's socket or ring: a program and some fields for each of 2^16 flows. What does not
/// fit is refused.
const MAX_BACKLOG_BYTES: usize = 16 << 20;

/// The way to one datapath.
///
/// A socket or device, and perhaps rings beside it, over which all goes then. A socket's queue holds few datagrams (`net.unix.max_dgram_qlen`, often 10), fewer than the commands that a burst
/// of new flows takes. What must arrive waits here until there is room.
#[derive(Debug)]
pub(super) struct PeerLink {
    carrier: Box<dyn Carrier>,
    ring: Option<End>,
    /// The datagram in the making.
    buffer: Vec<u8>,
    gone: bool,
    /// Datagrams that found the socket full, oldest first.
    backlog: VecDeque<Box<[u8]>>,
    backlog_bytes: usize,
}

impl PeerLink {
    pub(super) fn new(socket: Arc<Socket>, to: UnixAddr) -> PeerLink {
        PeerLink::over(Box::new(SocketTo { socket, to }))
    }

    pub(super) fn over(carrier: Box<dyn Carrier>) -> PeerLink {
        PeerLink {
            carrier,
            ring: None,
            buffer: Vec::new(),
            gone: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
        }
    }

    /// Sends what `encode` writes over the socket, with the datapath's part of the rings if there are some, over which
    /// everything goes from then on.
    pub(super) fn introduce(
        &mut self,
        rings: Option<(End, Parts)>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.encode(encode)?;
        let fds = rings.as_ref().map(|(_, parts)| parts.fds());
        self.carrier.send_with(&self.buffer, fds.as_ref().map_or(&[], |fds| &fds[..]))?;
        self.ring = rings.map(|(end, _)| end);
        Ok(())
    }

    /// The rings, if there are some.
    pub(super) fn ring(&self) -> Option<&End> {
        self.ring.as_ref()
    }

    /// Takes the next frame from the ring; false if there is none.
    pub(super) fn receive(&mut self, record: &mut RecordBuffer) -> Result<bool, ReadError> {
        self.ring.as_mut().map_or(Ok(false), |ring| ring.receive(record))
    }

    /// Sends what `encode` writes over the socket, though there may be rings; now or not at all.
    pub(super) fn send_beside(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.encode(encode)?;
        Ok(self.send_datagram()?)
    }

    /// Sends the message that `encode` writes as one datagram, or drops it where there is no room or others wait.
    ///
    /// This is for messages that the next one of their kind replaces.
    pub(super) fn send(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.encode(encode)?;
        if self.flush() { Ok(self.send_buffer()?) } else { Err(SendError::Full.into()) }
    }

    /// Sends the message that `encode` writes as one datagram, at once or after those that wait for room.
    ///
    /// This is for messages that the datapath must not miss.
    pub(super) fn send_surely(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.encode(encode)?;
        let sent = if self.flush() { self.send_buffer() } else { Err(SendError::Full) };
        match sent {
            Err(SendError::Full) => Ok(self.keep_buffer()?),
            sent => Ok(sent?),
        }
    }

    fn encode(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.buffer.clear();
        encode(&mut self.buffer).map_err(|e| DatapathError::Unsupported { feature: e.to_string() })
    }

    fn send_buffer(&mut self) -> Result<(), SendError> {
        let sent = transmit(&mut self.ring, &*self.carrier, &self.buffer);
        self.gone |= sent == Err(SendError::Gone);
        sent
    }

    fn send_datagram(&mut self) -> Result<(), SendError> {
        let sent = self.carrier.send(&self.buffer);
        self.gone |= sent == Err(SendError::Gone);
        sent
    }

    fn keep_buffer(&mut self) -> Result<(), SendError> {
        if self.backlog_bytes + self.buffer.len() > MAX_BACKLOG_BYTES {
            return Err(SendError::Full);
        }
        self.backlog_bytes += self.buffer.len();
        self.backlog.push_back(self.buffer.as_slice().into());
        Ok(())
    }

    /// Sends waiting messages while there is room; returns true if none is left.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        self.backlog.is_empty() || self.flush_backlog()
    }

    fn flush_backlog(&mut self) -> bool {
        while let Some(datagram) = self.backlog.front() {
            let sent = transmit(&mut self.ring, &*self.carrier, datagram);
            if sent == Err(SendError::Full) {
                return false;
            }
            // Whatever else is wrong is not mended by waiting.
            self.gone |= sent == Err(SendError::Gone);
            self.backlog_bytes -= datagram.len();
            self.backlog.pop_front();
        }
        true
    }

    /// Whether something waits for room.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Drops the backlog, of which the datapath has no use any more.
    pub(super) fn drop_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
    }

    /// Checks that the datapath is there, which sending over a ring does not show.
    pub(super) fn check_alive(&mut self) {
        self.gone |= !self.carrier.is_there();
    }

    /// Whether the datapath is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Notes that the datapath is gone.
    pub(super) fn set_gone(&mut self) {
        self.gone = true;
    }
}

/// Over the ring if there is one, else over the carrier.
fn transmit(ring: &mut Option<End>, carrier: &dyn Carrier, bytes: &[u8]) -> Result<(), SendError> {
    let Some(end) = ring else { return carrier.send(bytes) };
    match end.send(bytes) {
        Ok(()) => Ok(()),
        Err(WriteError::Full) => Err(SendError::Full),
        Err(error @ WriteError::Corrupt { .. }) => {
            warn!(%error, "a datapath broke its ring");
            Err(SendError::Gone)
        }
        Err(WriteError::TooLong { .. }) => Err(SendError::Failed(Errno::EMSGSIZE)),
    }
}

/// Events of one datapath, oldest first.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: VecDeque<Event>,
    dropped: u64,
}

impl Inbox {
    /// Queues a report, unless the queue is full. A flow's start and end always find room: their number is bounded
    /// by the number of flows.
    pub(super) fn push(&mut self, event: Event) {
        match event {
            Event::Report { .. } if self.events.len() >= MAX_QUEUED_EVENTS => self.dropped += 1,
            Event::Dropped { count } => self.dropped = self.dropped.saturating_add(count),
            event => self.events.push_back(event),
        }
    }

    /// Queues a report as [`Inbox::push`] does.
    #[inline]
    pub(super) fn push_report(&mut self, report: &Report<'_>) {
        let Report { flow, program, seq, at_us, .. } = *report;
        self.push_filled(Event::Report { flow, program, seq, at_us, values: Values::new() }, |values| {
            values.resize(report.values.len(), 0);
            report.values.copy_to(values);
        });
    }

    /// Queues a report that was alone.
    #[inline]
    pub(super) fn push_single(&mut self, report: &SingleReport<'_>) {
        let SingleReport { flow, program, seq, at_us, .. } = *report;
        self.push_filled(Event::Report { flow, program, seq, at_us, values: Values::new() }, |values| {
            values.extend(report.values.iter().map(|Varint(value)| value));
        });
    }

    /// Queues a report whose values are still to be filled in.
    #[inline]
    fn push_filled(&mut self, report: Event, fill: impl FnOnce(&mut Values)) {
        if self.events.len() >= MAX_QUEUED_EVENTS {
            self.dropped += 1;
            return;
        }
        self.events.push_back(report);
        // Filled in where they wait: a copy of what was just written, at another width, waits until all of it is written.
        if let Some(Event::Report { values, .. }) = self.events.back_mut() {
            fill(values);
        }
    }

    /// Moves at most `max` events over; returns how many.
    pub(super) fn drain(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        if self.events.is_empty() && self.dropped == 0 {
            return 0;
        }
        if events.is_empty() && self.dropped == 0 && self.events.len() <= max {
            // All there are: no event is moved, and each side keeps the other's room.
            let queued = Vec::from(std::mem::take(&mut self.events));
            self.events = VecDeque::from(std::mem::replace(events, queued));
            return events.len();
        }
        let before = events.len();
        if max > 0 && self.dropped > 0 {
            events.push(Event::Dropped { count: std::mem::take(&mut self.dropped) });
        }
        let room = max - (events.len() - before);
        events.extend(self.events.drain(..room.min(self.events.len())));
        events.len() - before
    }
}
