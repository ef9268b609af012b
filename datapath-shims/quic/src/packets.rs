//! Decisions about connections' packets on their way out, by programs of `(hook connect)` and `(hook send)`.
//!
//! How such programs see a QUIC flow:
//!
//! - A flow starts when its handshake is done, which is when a connect program runs; what was sent before does not count.
//! - A packet is what the wire is given in one call: one datagram, or the train that it cuts into datagrams. Sizes are those of UDP
//!   payloads, repeats included.
//! - quinn does not tell what waits to be sent: `Flow.bytes_waiting` is what the application wrote, less what was sent.
//! - There is one path. Its RTT is quinn's; packets sent since the sample before stand for those delivered.
//!
//! A priority leaves as a code point (DSCP). Each call of the wire writes it, so that it belongs to the packets and not to the socket.

use ccplane_contract::{CodePoints, FlowInfo};
use ccplane_engine::Engine;
use ccplane_engine::packets::{HostMemory, Outbound, PacketFlowEngine, PathSample};
use quinn_proto::ConnectionStats;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Paths of a connection that programs can choose from.
const PATHS: u8 = 1;

/// The engine that decides about packets, and the code points of its priorities.
#[derive(Clone)]
pub struct Packets {
    /// An engine with [`EngineConfig::packets`](ccplane_engine::EngineConfig::packets).
    pub engine: Engine,
    pub code_points: CodePoints,
}

/// The bytes in flight of a connection, as its congestion controller knows them.
pub(crate) type InFlight = Arc<AtomicU64>;

/// An endpoint's decisions about packets.
pub(crate) struct Decisions {
    packets: Packets,
    memory: HostMemory,
}

/// A connection whose packets are decided about.
pub(crate) struct PacketConnection {
    flow: PacketFlowEngine,
    in_flight: InFlight,
    /// quinn's counters at the last sample of the path.
    sampled: PathCounters,
}

/// quinn's counters of a path.
#[derive(Clone, Copy, Default)]
struct PathCounters {
    ack_frames: u64,
    sent_packets: u64,
    lost_packets: u64,
    congestion_events: u64,
}

impl PathCounters {
    fn of(stats: &ConnectionStats) -> PathCounters {
        PathCounters {
            ack_frames: stats.frame_rx.acks,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            congestion_events: stats.path.congestion_events,
        }
    }
}

impl Decisions {
    pub(crate) fn new(packets: Packets) -> Decisions {
        let memory = packets.engine.host_memory();
        Decisions { packets, memory }
    }

    /// Starts the flow of a connection whose handshake is done.
    pub(crate) fn start(
        &mut self,
        (local, remote): (SocketAddr, SocketAddr),
        stats: &ConnectionStats,
        in_flight: InFlight,
        now: Instant,
    ) -> PacketConnection {
        let mss_bytes = u32::from(stats.path.current_mtu.max(1));
        let info = FlowInfo {
            mss_bytes,
            init_cwnd_bytes: stats.path.cwnd,
            local,
            remote,
            cgroup: None,
            min_rtt_us: u32::try_from(stats.path.min_rtt.as_micros()).ok(),
        };
        let engine = &self.packets.engine;
        let flow = engine.packet_flow(info, PATHS, &mut self.memory, engine.now_us(now));
        PacketConnection { flow, in_flight, sampled: PathCounters::of(stats) }
    }

    /// Decides about a packet that is about to leave and returns its code point. The bytes are the packet's, those in flight before it
    /// and those that the application has written so far.
    pub(crate) fn code_point(
        &mut self,
        connection: &mut PacketConnection,
        (packet_bytes, in_flight_bytes, written_bytes): (usize, u64, u64),
        now: Instant,
    ) -> u8 {
        let (bytes_sent, payload_bytes) = (connection.flow.bytes_sent(), packet_bytes as u64);
        let packet = Outbound {
            now_ns: self.packets.engine.now_ns(now),
            payload_bytes,
            bytes_sent,
            new_bytes: payload_bytes,
            bytes_waiting: written_bytes.saturating_sub(bytes_sent + payload_bytes),
            bytes_in_flight: in_flight_bytes,
            tx: 0,
        };
        connection.flow.set_in_flight(in_flight_bytes, &mut self.memory);
        let steering = connection.flow.on_packet(&packet, &mut self.memory);
        steering.map_or(0, |steering| self.packets.code_points.of(steering.priority))
    }

    /// Measures the path, if the peer has acknowledged something since the last time.
    pub(crate) fn measure(
        &mut self,
        connection: &mut PacketConnection,
        stats: &ConnectionStats,
        now: Instant,
    ) {
        let (before, seen) = (connection.sampled, PathCounters::of(stats));
        if seen.ack_frames == before.ack_frames {
            return;
        }
        connection.sampled = seen;
        let lost = seen.lost_packets.saturating_sub(before.lost_packets);
        let events = seen.congestion_events.saturating_sub(before.congestion_events);
        let sample = PathSample {
            rtt_us: u64::try_from(stats.path.rtt.as_micros()).ok(),
            packets: seen.sent_packets.saturating_sub(before.sent_packets).saturating_sub(lost),
            // Losses and marks are both congestion events.
            marked: if lost == 0 { events } else { 0 },
            lost,
        };
        let now_us = self.packets.engine.now_us(now);
        connection.flow.set_mss(stats.path.current_mtu.into());
        connection.flow.on_sample(now_us, seen.lost_packets, sample, &mut self.memory);
        connection.flow.set_in_flight(connection.in_flight.load(Relaxed), &mut self.memory);
    }

    /// Ends a flow; its size is remembered for the next ones to its peer.
    pub(crate) fn end(&mut self, connection: PacketConnection, now: Instant) {
        connection.flow.end(self.packets.engine.now_ns(now), &mut self.memory);
    }
}
