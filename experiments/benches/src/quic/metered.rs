//! A wire that counts the datagrams that leave over it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ccplane_quic::quinn_proto::Transmit;
use ccplane_quic::{Forward, Wire};

/// A datagram that leaves within this time of the one before belongs to the same burst.
const SAME_BURST: Duration = Duration::from_micros(20);

/// A wire that counts sent bytes and bursts.
pub struct Metered<'a, W> {
    wire: W,
    /// UDP payloads, bytes; also read by others.
    sent_bytes: &'a AtomicU64,
    last: Instant,
    /// Lengths of bursts, datagrams; the last goes on.
    bursts: Vec<u32>,
}

impl<'a, W> Metered<'a, W> {
    /// Wraps a wire; sent bytes are added to the counter.
    pub fn new(wire: W, sent_bytes: &'a AtomicU64) -> Metered<'a, W> {
        Metered { wire, sent_bytes, last: Instant::now(), bursts: Vec::new() }
    }

    /// Every burst's length, datagrams.
    pub fn bursts(&self) -> &[u32] {
        &self.bursts
    }
}

impl<W: Wire> Forward for Metered<'_, W> {
    type Inner = W;

    fn inner(&self) -> &W {
        &self.wire
    }

    fn inner_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    fn forward_send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        let sent = self.wire.send(to, payload)?;
        if sent {
            let now = Instant::now();
            let datagrams = payload.len().div_ceil(to.segment_size.unwrap_or(payload.len()).max(1)) as u32;
            match self.bursts.last_mut() {
                Some(burst) if now.duration_since(self.last) < SAME_BURST => *burst += datagrams,
                _ => self.bursts.push(datagrams),
            }
            self.last = now;
            self.sent_bytes.fetch_add(payload.len() as u64, Relaxed);
        }
        Ok(sent)
    }
}
