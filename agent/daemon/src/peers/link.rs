//! What both protocols share: the way to one datapath, and the queue of what came from it.

use super::socket::{SendError, Socket};
use ccplane_contract::{DatapathError, Event};
use ccplane_wire::EncodeError;
use nix::sys::socket::UnixAddr;
use std::collections::VecDeque;
use std::sync::Arc;

/// Events of one datapath that wait for the agent; more are dropped, counted and reported as such.
const MAX_QUEUED_EVENTS: usize = 1 << 16;

/// The way to one datapath.
#[derive(Debug)]
pub(super) struct Link {
    socket: Arc<Socket>,
    to: UnixAddr,
    buffer: Vec<u8>,
    gone: bool,
}

impl Link {
    pub(super) fn new(socket: Arc<Socket>, to: UnixAddr) -> Link {
        Link { socket, to, buffer: Vec::new(), gone: false }
    }

    /// Sends what `encode` writes, as one datagram.
    pub(super) fn send(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), DatapathError> {
        self.buffer.clear();
        encode(&mut self.buffer).map_err(|e| DatapathError::Unsupported { feature: e.to_string() })?;
        let sent = self.socket.send(&self.buffer, &self.to);
        self.gone |= sent == Err(SendError::Gone);
        Ok(sent?)
    }

    /// Whether nobody listens at the other end any more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// The other end said goodbye.
    pub(super) fn set_gone(&mut self) {
        self.gone = true;
    }
}

/// What came from one datapath, oldest first.
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

    /// Moves at most `max` events over; returns how many.
    pub(super) fn drain(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        if max > 0 && self.dropped > 0 {
            events.push(Event::Dropped { count: std::mem::take(&mut self.dropped) });
        }
        let room = max - (events.len() - before);
        events.extend(self.events.drain(..room.min(self.events.len())));
        events.len() - before
    }
}
