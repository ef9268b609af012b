//! Counters of a link, kept from its events.

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use crate::path::{Event, Path};

/// One direction's counters since the start. Bytes count 4 more a packet than its IP length, as in mahimahi's logs.
///
/// `offered = lost + delayed + arrived` and `arrived = delivered + dropped + queued` hold for packets at all times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectionStats {
    /// Packets that entered.
    pub offered_packets: u64,
    /// Packets lost at random.
    pub lost_packets: u64,
    /// Packets under propagation now.
    pub delayed_packets: u64,
    /// Packets that came to the bottleneck.
    pub arrived_packets: u64,
    /// Their bytes.
    pub arrived_bytes: u64,
    /// Packets that the queue had no room for.
    pub dropped_packets: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Packets that left the bottleneck.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets waiting at the bottleneck or in transmission now.
    pub queued_packets: u64,
    /// Their bytes not yet transmitted.
    pub queued_bytes: u64,
    /// Opportunities to deliver 1504 bytes that have passed; none count while unlimited.
    pub opportunities: u64,
    /// Time at the bottleneck of the packet that left last, microseconds.
    pub queueing_delay_us: u64,
    /// The longest of them.
    pub queueing_delay_max_us: u64,
    /// Their sum, over [`DirectionStats::delivered_packets`].
    pub queueing_delay_sum_us: u64,
    /// Packets refused before they entered: the buffer was full.
    pub refused_packets: u64,
    /// Packets that left and that the receiving stack did not take.
    pub undeliverable_packets: u64,
}

impl DirectionStats {
    /// Bytes that the opportunities passed could have carried.
    pub fn capacity_bytes(&self) -> u64 {
        self.opportunities * u64::from(OPPORTUNITY_BYTES)
    }

    /// Bytes delivered over [`DirectionStats::capacity_bytes`]; `None` before the first opportunity.
    pub fn utilisation(&self) -> Option<f64> {
        (self.opportunities > 0).then(|| self.delivered_bytes as f64 / self.capacity_bytes() as f64)
    }

    /// Mean time at the bottleneck, microseconds; `None` before the first delivery.
    pub fn queueing_delay_mean_us(&self) -> Option<u64> {
        self.queueing_delay_sum_us.checked_div(self.delivered_packets)
    }

    pub(crate) fn count<H>(&mut self, event: &Event<H>) {
        match event {
            Event::Loss { .. } => self.lost_packets += 1,
            Event::Arrival { size, .. } => {
                self.arrived_packets += 1;
                self.arrived_bytes += u64::from(*size);
            }
            Event::Opportunity { .. } => self.opportunities += 1,
            Event::Drop { packet, .. } => {
                self.dropped_packets += 1;
                self.dropped_bytes += u64::from(packet.size);
            }
            Event::Departure { at_ns, packet } => {
                self.delivered_packets += 1;
                self.delivered_bytes += u64::from(packet.size);
                self.queueing_delay_us = (at_ns - packet.arrived_ns) / 1000;
                self.queueing_delay_max_us = self.queueing_delay_max_us.max(self.queueing_delay_us);
                self.queueing_delay_sum_us += self.queueing_delay_us;
            }
        }
    }

    /// Reads what the path holds now.
    pub(crate) fn observe<H>(&mut self, path: &Path<H>) {
        self.delayed_packets = path.delayed_packets() as u64;
        self.queued_packets = path.queued_packets() as u64;
        self.queued_bytes = path.queued_bytes();
    }
}

/// A link's counters at one moment, at most 100 ms old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// When, nanoseconds since the link's start.
    pub at_ns: u64,
    /// From the sender to the receiver.
    pub up: DirectionStats,
    /// From the receiver to the sender.
    pub down: DirectionStats,
}
