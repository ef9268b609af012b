//! Streams of ACKs as a live flow would see them, from what happens to the flow.

use super::executor::{START_MSS_BYTES, ScriptStep};
use crate::command::{Field, Part};
use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;

/// An event in a flow's life; each makes one step, or none where it only changes what later ACKs carry.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// An ACK of this many packets in order.
    Ack {
        packets: u32,
        /// The RTT sample, microseconds; 0 for none.
        rtt_us: u32,
    },
    /// An ACK out of order, by which packets were marked lost.
    Loss { misordered: u32, lost: u32 },
    /// An ACK of packets that all carried a congestion mark.
    Ecn { packets: u32 },
    /// The first ACK after a retransmission timeout: one packet, everything else that was in flight is lost.
    Timeout,
    /// Virtual time passes without an ACK.
    TimePasses { us: u32 },
    /// The segment size changes from here on.
    MtuChange {
        /// Payload bytes of a segment.
        mss_bytes: u16,
    },
    /// The application offers only this much from here on.
    AppLimited {
        /// Bytes in the send buffer.
        pending_bytes: u32,
    },
    /// Everything in flight is acknowledged, and the flow rests.
    Idle { us: u32 },
    /// An ACK with any primitives at all.
    Raw(Prims),
    /// The agent updates fields.
    UpdateField(Vec<(Field, i64)>),
    /// The agent changes the program.
    SetProgram {
        /// Index into the script's programs.
        program: usize,
        /// Fields of the new program.
        fields: Vec<(Field, i64)>,
    },
    /// The agent pushes a snapshot.
    Push {
        slot: u8,
        /// Index into the script's images.
        image: usize,
        part: Part,
    },
    /// The agent makes a slot's canary active.
    Promote(u8),
    /// The agent drops a slot's canary, or makes its last good snapshot active.
    Rollback(u8),
}

/// A flow's side of the stream: what operations accumulate to.
#[derive(Clone, Debug)]
pub struct AckStream {
    now_us: i64,
    mss_bytes: i64,
    in_flight: i64,
    pending_bytes: i64,
}

impl Default for AckStream {
    /// Ten packets of `START_MSS_BYTES` in flight at one second, and a full send buffer.
    fn default() -> Self {
        AckStream {
            now_us: 1_000_000,
            mss_bytes: START_MSS_BYTES.into(),
            in_flight: 10,
            pending_bytes: 1 << 20,
        }
    }
}

impl AckStream {
    /// The steps of a whole stream.
    pub fn steps(operations: &[Operation]) -> Vec<ScriptStep> {
        let mut stream = AckStream::default();
        operations.iter().filter_map(|op| stream.step(op)).collect()
    }

    /// The step of one operation, if it has one.
    pub fn step(&mut self, operation: &Operation) -> Option<ScriptStep> {
        let mut prims = Prims::default();
        match operation {
            Operation::Ack { packets, rtt_us } => {
                let packets = i64::from(*packets);
                self.acked(&mut prims, packets);
                prims.set(Prim::FlowRttSampleUs, (*rtt_us).into());
                self.in_flight = (self.in_flight - packets).max(0) + packets + 1;
            }
            Operation::Loss { misordered, lost } => {
                let (misordered, lost) = (i64::from(*misordered), i64::from(*lost));
                prims.set(Prim::AckPacketsMisordered, misordered);
                prims.set(Prim::AckBytesMisordered, misordered * self.mss_bytes);
                prims.set(Prim::AckLostPktsSample, lost);
                self.in_flight = (self.in_flight - misordered - lost).max(0);
            }
            Operation::Ecn { packets } => {
                let packets = i64::from(*packets);
                self.acked(&mut prims, packets);
                prims.set(Prim::AckEcnPackets, packets);
                prims.set(Prim::AckEcnBytes, packets * self.mss_bytes);
            }
            Operation::Timeout => {
                self.acked(&mut prims, 1);
                prims.set(Prim::FlowWasTimeout, 1);
                prims.set(Prim::AckLostPktsSample, (self.in_flight - 1).max(0));
                self.in_flight = 1;
            }
            Operation::Idle { us } => {
                self.acked(&mut prims, self.in_flight);
                self.in_flight = 0;
                let step = self.invoke(prims);
                self.now_us += i64::from(*us);
                return Some(step);
            }
            Operation::TimePasses { us } => {
                self.now_us += i64::from(*us);
                return None;
            }
            Operation::MtuChange { mss_bytes } => {
                self.mss_bytes = i64::from(*mss_bytes);
                return Some(ScriptStep::SegmentSize { mss_bytes: (*mss_bytes).into() });
            }
            Operation::AppLimited { pending_bytes } => {
                self.pending_bytes = i64::from(*pending_bytes);
                return None;
            }
            Operation::Raw(prims) => return Some(ScriptStep::Invoke(*prims)),
            Operation::UpdateField(fields) => return Some(ScriptStep::Update(fields.clone())),
            Operation::SetProgram { program, fields } => {
                return Some(ScriptStep::SetProgram { program: *program, fields: fields.clone() });
            }
            Operation::Push { slot, image, part } => {
                return Some(ScriptStep::Push { slot: *slot, image: *image, part: *part });
            }
            Operation::Promote(slot) => return Some(ScriptStep::Promote(*slot)),
            Operation::Rollback(slot) => return Some(ScriptStep::Rollback(*slot)),
        }
        Some(self.invoke(prims))
    }

    fn acked(&self, prims: &mut Prims, packets: i64) {
        prims.set(Prim::AckPacketsAcked, packets);
        prims.set(Prim::AckBytesAcked, packets * self.mss_bytes);
    }

    fn invoke(&mut self, mut prims: Prims) -> ScriptStep {
        /// Between the ACKs of packets that a 12 Mb/s link sends.
        const ACK_SPACING_US: i64 = 1000;
        self.now_us += ACK_SPACING_US;
        let delivered = prims.get(Prim::AckBytesAcked) + prims.get(Prim::AckBytesMisordered);
        prims.set(Prim::AckNow, self.now_us);
        prims.set(Prim::FlowPacketsInFlight, self.in_flight);
        prims.set(Prim::FlowBytesInFlight, self.in_flight * self.mss_bytes);
        prims.set(Prim::FlowBytesPending, self.pending_bytes);
        prims.set(Prim::FlowRateIncoming, delivered * (1_000_000 / ACK_SPACING_US));
        prims.set(Prim::FlowRateOutgoing, delivered * (1_000_000 / ACK_SPACING_US));
        ScriptStep::Invoke(prims)
    }
}
