//! Bulk flows over one link, in virtual time: a queue that drops at its tail, a fixed way back, nothing reordered.
//!
//! The simulator's transport is built on this engine, and an error of the engine's must not appear on both sides of its tests.

use super::{MS, MSS, info, manual};
use ccplane_contract::FlowId;
use ccplane_engine::{Ack, Engine, EngineConfig, FlowEngine, Handle, Sampled};
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Time that a segment takes at 12 Mb/s, microseconds.
const SEGMENT_US: u64 = 965;
const QUEUE: u64 = 50;
const BASE_RTT_US: u64 = 20 * MS;

/// A packet on its way to the receiver and back as an ACK. A dropped one keeps its place, where the sender detects
/// its loss.
struct Packet {
    flow: FlowId,
    seq: u64,
    sent_us: u64,
    acked_us: u64,
    lost: bool,
}

struct LinkFlow {
    engine: FlowEngine,
    next_seq: u64,
    in_flight: u64,
    send_at_us: u64,
    /// Losses before it belong to the last episode.
    recovery_end: u64,
    sampled: Sampled,
}

/// A link, its flows, and the engine that steers them.
pub struct Link {
    pub handle: Handle,
    engine: Engine,
    now_us: Arc<AtomicU64>,
    flows: Vec<LinkFlow>,
    packets: VecDeque<Packet>,
    free_at_us: u64,
}

impl Link {
    pub fn new(config: EngineConfig) -> Link {
        let (engine, handle, now_us) = manual(config);
        Link { handle, engine, now_us, flows: Vec::new(), packets: VecDeque::new(), free_at_us: 0 }
    }

    pub fn now_us(&self) -> u64 {
        self.now_us.load(Relaxed)
    }

    pub fn start(&mut self) -> FlowId {
        let engine = self.engine.flow(info(), self.now_us());
        let id = engine.id();
        let (send_at_us, sampled) = (self.now_us(), Sampled::default());
        self.flows.push(LinkFlow { engine, next_seq: 0, in_flight: 0, send_at_us, recovery_end: 0, sampled });
        id
    }

    pub fn stop(&mut self, flow: FlowId) {
        self.flows.retain(|f| f.engine.id() != flow);
    }

    pub fn pass(&mut self, us: u64) {
        let until_us = self.now_us() + us;
        loop {
            self.send();
            let acked_us = self.packets.front().map(|p| p.acked_us);
            let paced_us = self.flows.iter().filter(|f| f.has_room()).map(|f| f.send_at_us).min();
            let next_us = [acked_us, paced_us].into_iter().flatten().min();
            let Some(next_us) = next_us.filter(|us| *us <= until_us) else { break };
            self.now_us.store(next_us.max(self.now_us()), Relaxed);
            if acked_us.is_some_and(|us| us <= next_us)
                && let Some(packet) = self.packets.pop_front()
                && let Some(flow) = self.flows.iter_mut().find(|f| f.engine.id() == packet.flow)
            {
                flow.on_ack(&packet, next_us);
            }
        }
        self.now_us.store(until_us, Relaxed);
    }

    fn send(&mut self) {
        let now_us = self.now_us();
        for flow in &mut self.flows {
            while flow.has_room() && flow.send_at_us <= now_us {
                let begins_us = self.free_at_us.max(now_us);
                let lost = (begins_us - now_us) / SEGMENT_US >= QUEUE;
                self.free_at_us = if lost { begins_us } else { begins_us + SEGMENT_US };
                self.packets.push_back(Packet {
                    flow: flow.engine.id(),
                    seq: flow.next_seq,
                    sent_us: now_us,
                    acked_us: self.free_at_us + BASE_RTT_US,
                    lost,
                });
                flow.next_seq += 1;
                flow.in_flight += 1;
                let rate = flow.engine.limits().rate;
                flow.send_at_us = (now_us + (MSS * 1_000_000).checked_div(rate).unwrap_or(0)).max(now_us);
            }
        }
    }
}

impl LinkFlow {
    fn has_room(&self) -> bool {
        (self.in_flight + 1) * MSS <= self.engine.limits().cwnd_bytes
    }

    fn on_ack(&mut self, packet: &Packet, now_us: u64) {
        self.in_flight -= 1;
        let rtt_us = if packet.lost { 0 } else { (now_us - packet.sent_us) as u32 };
        let delivered = u64::from(!packet.lost);
        let sampled = &mut self.sampled;
        if packet.lost {
            sampled.lost += 1;
        } else {
            sampled.srtt_us = if sampled.srtt_us == 0 { rtt_us } else { (7 * sampled.srtt_us + rtt_us) / 8 };
            sampled.min_rtt_us =
                if sampled.min_rtt_us == 0 { rtt_us } else { sampled.min_rtt_us.min(rtt_us) };
            sampled.delivered += 1;
            sampled.bytes_acked += MSS;
        }
        sampled.unacked = self.in_flight as u32;
        let new_loss_episode = packet.lost && packet.seq >= self.recovery_end;
        if new_loss_episode {
            self.recovery_end = self.next_seq;
        }
        let mut prims = Prims::default();
        prims
            .set(Prim::AckBytesAcked, (delivered * MSS) as i64)
            .set(Prim::AckPacketsAcked, delivered as i64)
            .set(Prim::AckLostPktsSample, i64::from(packet.lost))
            .set(Prim::AckNow, now_us as i64)
            .set(Prim::FlowBytesInFlight, (self.in_flight * MSS) as i64)
            .set(Prim::FlowPacketsInFlight, self.in_flight as i64)
            .set(Prim::FlowBytesPending, 4 << 20)
            .set(Prim::FlowRttSampleUs, rtt_us.into());
        self.engine.on_ack(&Ack {
            prims,
            packets: delivered,
            new_loss_episode,
            timeout: false,
            window_limited: true,
            sampled: self.sampled,
        });
    }
}
