//! One flow: what happens on each of its ACKs.

use crate::core::Core;
use crate::desk::Shared;
use crate::events::Record;
use crate::helm::Helm;
use crate::native::MAX_CWND_PACKETS;
use crate::program::Loaded;
use crate::sample::Sample;
use crate::steering::Ready;
use arc_swap::{ArcSwap, Cache};
use ccplane_contract::{FlowId, Mode, ProgramUid, SlotTable, SnapshotUid};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::{Decision, Knobs, Policies, Prims};
use std::sync::Arc;

/// Between two samples of a flow, microseconds of its time; a report or a change of mode is sampled at once.
const SAMPLE_EVERY_US: u64 = 1000;

/// One ACK, after the transport has dealt with it.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// What a program sees. `Ack.now` is the engine's clock.
    pub prims: Prims,
    /// Packets delivered by it, in order or not.
    pub packets: u64,
    /// It found losses or marks of packets that were sent after the last such episode began: a window is cut once for each.
    pub new_loss_episode: bool,
    /// The first ACK after everything in flight was given up (TCP's retransmission timeout, QUIC's persistent congestion).
    pub timeout: bool,
    /// The window, not the application, kept the flow from sending more: it may grow.
    pub window_limited: bool,
    /// For the flow's statistics.
    pub sampled: Sampled,
}

/// What a transport counts of a flow, for [`ccplane_contract::FlowStats`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sampled {
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Smallest round-trip time, microseconds; 0 before the first sample.
    pub min_rtt_us: u32,
    /// Bytes acknowledged since the flow started.
    pub bytes_acked: u64,
    /// Packets delivered since the flow started.
    pub delivered: u64,
    /// Packets marked lost since the flow started.
    pub lost: u64,
    /// Packets in flight.
    pub unacked: u32,
}

/// What a transport is to apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steer {
    /// Congestion window, bytes: from one segment to [`MAX_CWND_PACKETS`] of them. As many whole segments may be in flight as
    /// fit.
    pub cwnd_bytes: u64,
    /// Pacing rate, bytes per second; 0 where none is set, and the transport paces as it does by itself.
    pub rate: u64,
}

/// What last decided, for traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decided {
    /// Who steers.
    pub mode: Mode,
    /// The program that runs, or ran until its policy had no answer.
    pub program: Option<ProgramUid>,
    /// The slot that was asked last.
    pub slot: Option<u8>,
    /// The snapshot that decided last, since the program started; none if it had no answer.
    pub snapshot: Option<SnapshotUid>,
    /// Its action, Q16.
    pub action_q16: i64,
    /// Decisions since the flow started.
    pub decisions: u32,
}

/// One flow. Belongs to its transport's controller; when it is dropped, the flow has ended.
pub struct FlowEngine {
    helm: Helm<Loaded>,
    steer: Steer,
    shared: Arc<Shared>,
    core: Arc<Core>,
    policies: Asked,
    next_sample_us: u64,
    /// Until then the native algorithm neither grows nor answers marks.
    recovery_until_us: u64,
    /// [`FlowEngine::on_timeout`] has said what the next ACK tells of.
    timeout_answered: bool,
    announced: bool,
    reports: u32,
    /// What the last report held.
    report: [i64; MAX_REGS],
}

/// The policies of one flow. Its copy of the current table is looked at with one load; what a thread needs to take another
/// one is allocated when its first flow starts.
struct Asked {
    flow: FlowId,
    slots: Cache<Arc<ArcSwap<SlotTable>>, Arc<SlotTable>>,
    state: FlowPolicy,
    last: Option<u8>,
}

impl Policies for Asked {
    #[inline]
    fn decide(&mut self, slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision {
        self.last = Some(slot);
        self.slots.load().policies(self.flow.0, &mut self.state).decide(slot, inputs, knobs)
    }
}

impl FlowEngine {
    pub(crate) fn new(core: Arc<Core>, shared: Arc<Shared>, announced: bool, now_us: u64) -> FlowEngine {
        let info = &shared.info;
        let helm = Helm::new(info.init_cwnd_bytes / u64::from(info.mss_bytes.max(1)), info.mss_bytes);
        let slots = Cache::new(Arc::clone(&core.slots));
        FlowEngine {
            steer: steer(&helm),
            helm,
            policies: Asked { flow: shared.id, slots, state: FlowPolicy::default(), last: None },
            shared,
            core,
            next_sample_us: now_us,
            recovery_until_us: 0,
            timeout_answered: false,
            announced,
            reports: 0,
            report: [0; MAX_REGS],
        }
    }

    /// Its name.
    pub fn id(&self) -> FlowId {
        self.shared.id
    }

    /// One ACK: what the agent staged takes effect, then program or native algorithm decides.
    pub fn on_ack(&mut self, ack: &Ack) -> Steer {
        let now = ack.prims.get(Prim::AckNow);
        let now_us = now.max(0) as u64;
        let before = self.helm.mode();
        let silent = self.core.is_silent(now_us);
        if self.shared.has_news() {
            self.shared.take(&mut self.helm, silent, now);
        } else {
            self.helm.choose(self.helm.mode_now(silent, false));
        }
        let (mut reported, mut is_row) = (false, false);
        if self.helm.mode() == Mode::Program {
            let outcome = self.helm.invoke(&ack.prims, &mut self.policies, &mut self.report);
            (reported, is_row) = (outcome.report, outcome.asked);
            self.timeout_answered &= !ack.timeout;
        } else {
            self.native(ack, now_us);
        }
        self.steer = steer(&self.helm);
        if reported || now_us >= self.next_sample_us || self.helm.mode() != before {
            self.reports = self.reports.wrapping_add(u32::from(reported));
            self.sample(&ack.sampled, now_us);
        }
        if reported {
            self.report(is_row, now_us);
        }
        self.steer
    }

    /// Everything in flight was given up: the native algorithm starts over, a program sees it at the next ACK.
    pub fn on_timeout(&mut self, in_flight_packets: u64) -> Steer {
        self.timeout_answered = true;
        if self.helm.mode() != Mode::Program {
            self.helm.reno.on_timeout(in_flight_packets);
            self.recovery_until_us = 0;
        }
        self.steer = steer(&self.helm);
        self.steer
    }

    /// The segment size from now on.
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.helm.set_mss(mss_bytes);
        self.steer = steer(&self.helm);
    }

    /// What is to be applied now.
    pub fn steer(&self) -> Steer {
        self.steer
    }

    /// What last decided.
    pub fn last_decision(&self) -> Decided {
        let steering = self.helm.steering();
        let snapshot = steering.flow().snapshot;
        Decided {
            mode: self.helm.mode(),
            program: steering.running().map(Ready::uid),
            slot: self.policies.last,
            snapshot: (snapshot != 0).then_some(SnapshotUid(snapshot)),
            action_q16: steering.flow().action_q16,
            decisions: self.policies.state.decisions,
        }
    }

    /// Growth rests for a round trip after a cut (RFC 6582; RFC 9002 section 7.3.2), marks are answered once in one
    /// (RFC 3168 section 6.1.2).
    #[inline(never)]
    fn native(&mut self, ack: &Ack, now_us: u64) {
        let count = |prim| ack.prims.get(prim).max(0) as u64;
        let in_recovery = now_us < self.recovery_until_us;
        let in_flight = || {
            let after = count(Prim::FlowPacketsInFlight);
            after.saturating_add(ack.packets).saturating_add(count(Prim::AckLostPktsSample))
        };
        let reno = &mut self.helm.reno;
        if ack.timeout && !std::mem::take(&mut self.timeout_answered) {
            reno.on_timeout(in_flight());
            self.recovery_until_us = 0;
        } else if ack.new_loss_episode || (count(Prim::AckEcnPackets) > 0 && !in_recovery) {
            reno.on_loss(in_flight());
            self.recovery_until_us = now_us.saturating_add(ack.sampled.srtt_us.into());
        } else if ack.window_limited && !in_recovery {
            reno.on_ack(ack.packets);
        }
    }

    fn report(&mut self, is_row: bool, at_us: u64) {
        let Some(running) = self.helm.steering().running() else { return };
        let record = Record::Report {
            flow: self.shared.id,
            program: running.uid(),
            seq: self.reports,
            at_us,
            len: running.program().report_len(),
            values: self.report,
        };
        if is_row {
            self.core.events.push_row(record, at_us);
        } else {
            self.core.events.push(record);
        }
    }

    fn sample(&mut self, sampled: &Sampled, now_us: u64) {
        self.next_sample_us = now_us.saturating_add(SAMPLE_EVERY_US);
        self.shared.samples.write(Sample {
            mode: self.helm.mode(),
            at_us: now_us,
            snd_cwnd: self.helm.wanted_packets(),
            snd_ssthresh: self.helm.reno.ssthresh_packets,
            mss_bytes: self.helm.mss_bytes() as u32,
            srtt_us: sampled.srtt_us,
            min_rtt_us: sampled.min_rtt_us,
            pacing_rate: self.steer.rate,
            bytes_acked: sampled.bytes_acked,
            delivered: sampled.delivered,
            lost: sampled.lost,
            unacked: sampled.unacked,
            faults: self.helm.steering().flow().faults,
            reports: self.reports,
            policy: self.policies.state,
        });
    }

    /// For [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn helm(&self) -> &Helm<Loaded> {
        &self.helm
    }

    /// For [`EngineExecutor`](crate::EngineExecutor): whether a policy was asked since this was called last.
    pub(crate) fn has_asked(&mut self) -> bool {
        self.policies.last.take().is_some()
    }

    /// For [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn policy(&self) -> &FlowPolicy {
        &self.policies.state
    }
}

/// Within the bounds that are applied; registers keep what the program set.
#[inline]
fn steer(helm: &Helm<Loaded>) -> Steer {
    let mss_bytes = helm.mss_bytes();
    let cwnd_bytes = helm.wanted_bytes().clamp(mss_bytes, MAX_CWND_PACKETS * mss_bytes);
    Steer { cwnd_bytes, rate: helm.program_rate() }
}

impl Drop for FlowEngine {
    fn drop(&mut self) {
        if self.announced {
            self.core.end(self.shared.id);
        }
    }
}
