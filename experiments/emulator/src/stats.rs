//! Counters of a link, kept from its events.

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

use crate::event::Event;
use crate::histogram::DelayHistogram;
use crate::path::Path;

/// One direction's counters since the start, or of a window ([`DirectionStats::since`]). Bytes count 4 more a packet than its
/// IP length, as in mahimahi's logs.
///
/// For packets since the start these hold at all times: `offered + duplicated = lost + policed + delayed + arrived` and
/// `arrived = delivered + dropped + queued`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DirectionStats {
    /// Packets that entered the path.
    pub offered_packets: u64,
    /// Packets lost at random, in a burst or in an outage.
    pub lost_packets: u64,
    /// Packets that the policer dropped.
    pub policed_packets: u64,
    /// Copies made of packets.
    pub duplicated_packets: u64,
    /// Packets under propagation now.
    pub delayed_packets: u64,
    /// Packets that came to the bottleneck.
    pub arrived_packets: u64,
    pub arrived_bytes: u64,
    /// Packets that the queue dropped: no room, or its control law.
    pub dropped_packets: u64,
    pub dropped_bytes: u64,
    /// Packets that left the bottleneck.
    pub delivered_packets: u64,
    pub delivered_bytes: u64,
    /// Packets waiting at the bottleneck or in transmission now.
    pub queued_packets: u64,
    /// Their bytes not yet transmitted.
    pub queued_bytes: u64,
    /// Opportunities to deliver 1504 bytes that have passed; none count while unlimited.
    pub opportunities: u64,
    /// Time at the bottleneck of the packet that left last, microseconds.
    pub queueing_delay_us: u64,
    /// The longest of them since the start.
    pub queueing_delay_max_us: u64,
    /// Their sum, over [`DirectionStats::delivered_packets`].
    pub queueing_delay_sum_us: u64,
    /// All of them: each delivered packet's time from its arrival at the bottleneck to its departure.
    pub queueing_delay: DelayHistogram,
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

    /// The counters of the window from `earlier`, a snapshot of this same direction, to this one. What is a state and no count
    /// (`delayed`, `queued`, the last and the longest delay) stays this one's.
    ///
    /// ```no_run
    /// # use ccplane_emulator::{Emulator, LinkConfig, Shape};
    /// # let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(12), 20_000))?;
    /// let before = emulator.stats();
    /// // ... traffic ...
    /// let window = emulator.stats().up.since(&before.up);
    /// println!("{:?} used, p95 {:?} us", window.utilisation(), window.queueing_delay.percentile(0.95));
    /// # Ok::<(), ccplane_emulator::Error>(())
    /// ```
    pub fn since(&self, earlier: &DirectionStats) -> DirectionStats {
        let mut window = self.clone();
        for (count, before) in [
            (&mut window.offered_packets, earlier.offered_packets),
            (&mut window.lost_packets, earlier.lost_packets),
            (&mut window.policed_packets, earlier.policed_packets),
            (&mut window.duplicated_packets, earlier.duplicated_packets),
            (&mut window.arrived_packets, earlier.arrived_packets),
            (&mut window.arrived_bytes, earlier.arrived_bytes),
            (&mut window.dropped_packets, earlier.dropped_packets),
            (&mut window.dropped_bytes, earlier.dropped_bytes),
            (&mut window.delivered_packets, earlier.delivered_packets),
            (&mut window.delivered_bytes, earlier.delivered_bytes),
            (&mut window.opportunities, earlier.opportunities),
            (&mut window.queueing_delay_sum_us, earlier.queueing_delay_sum_us),
            (&mut window.refused_packets, earlier.refused_packets),
            (&mut window.undeliverable_packets, earlier.undeliverable_packets),
        ] {
            *count = count.saturating_sub(before);
        }
        window.queueing_delay = self.queueing_delay.since(&earlier.queueing_delay);
        window
    }

    pub(crate) fn count<H>(&mut self, event: &Event<H>) {
        match event {
            Event::Loss { .. } => self.lost_packets += 1,
            Event::Policed { .. } => self.policed_packets += 1,
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
                self.queueing_delay.record(self.queueing_delay_us);
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
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LinkStats {
    /// When, nanoseconds since the link's start.
    pub at_ns: u64,
    /// From the sender to the receiver.
    pub up: DirectionStats,
    /// From the receiver to the sender.
    pub down: DirectionStats,
}
