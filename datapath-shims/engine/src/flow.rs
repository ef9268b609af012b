//! One flow, and the work on each of its ACKs.

use crate::controller::FlowController;
use crate::core::Core;
use crate::events::Record;
use crate::mailbox::SharedFlow;
use crate::native::MAX_CWND_PACKETS;
use crate::policies::FlowPolicies;
use crate::program::Loaded;
use crate::runner::Runnable;
use crate::sample::Sample;
use ccplane_contract::{FlowId, FlowInfo, Mode, ProgramUid, SnapshotUid, TransportStats};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::Prims;
use std::sync::Arc;

/// Between two samples of a flow, microseconds of its time; a report or a change of mode is sampled at once.
const SAMPLE_EVERY_US: u64 = 1000;

/// One ACK, after the transport has dealt with it.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The primitives that a program sees. `Ack.now` is the engine's clock.
    pub prims: Prims,
    /// Packets delivered by it, in order or not.
    pub packets: u64,
    /// Whether a new congestion event began: losses or marks of packets sent after the last one. A window is cut once
    /// for each.
    pub new_loss_episode: bool,
    /// Whether this is the first ACK after all in flight was given up (TCP's timeout, QUIC's persistent congestion).
    pub timeout: bool,
    /// Whether the window, not the application, kept the flow from sending more, so that it may grow.
    pub window_limited: bool,
    /// The transport's counters for the flow's statistics.
    pub sampled: Sampled,
}

/// Counters and RTTs that a transport keeps of a flow, for [`ccplane_contract::FlowStats`].
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
    pub unacked: u32,
}

/// The congestion window and pacing rate that a transport applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendLimits {
    /// Congestion window, bytes: from one segment to [`MAX_CWND_PACKETS`] segments. Only whole segments within it
    /// may be in flight.
    pub cwnd_bytes: u64,
    /// Pacing rate, bytes per second; 0 where none is set, and the transport paces as it does by itself.
    pub rate: u64,
}

/// The latest decision on a flow, for traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastDecision {
    pub mode: Mode,
    /// The program that runs, or ran until its policy had no answer.
    pub program: Option<ProgramUid>,
    /// The slot that was asked last.
    pub slot: Option<u8>,
    /// The snapshot that decided last, since the program started; none if it had no answer.
    pub snapshot: Option<SnapshotUid>,
    /// The action of that snapshot, Q16.
    pub action_q16: i64,
    /// Decisions since the flow started.
    pub decisions: u32,
}

/// One flow, owned by its transport's controller. Dropping it ends the flow.
pub struct FlowEngine {
    controller: FlowController<Loaded>,
    limits: SendLimits,
    shared: Arc<SharedFlow>,
    core: Arc<Core>,
    policies: FlowPolicies,
    next_sample_us: u64,
    /// The time until which the native algorithm neither grows nor answers marks, microseconds.
    recovery_until_us: u64,
    /// Whether [`FlowEngine::on_timeout`] has handled the timeout that the next ACK reports.
    timeout_answered: bool,
    announced: bool,
    reports: u32,
    /// The registers of the last report.
    report: [i64; MAX_REGS],
}

impl FlowEngine {
    /// Starts a flow with an id that was never used before.
    pub(crate) fn start(core: &Arc<Core>, id: FlowId, info: FlowInfo, now_us: u64) -> FlowEngine {
        let shared = Arc::new(SharedFlow::new(id, info, now_us));
        let announced = core.announce(&shared);
        let info = &shared.info;
        let controller =
            FlowController::new(info.init_cwnd_bytes / u64::from(info.mss_bytes.max(1)), info.mss_bytes);
        FlowEngine {
            limits: limits(&controller),
            controller,
            policies: FlowPolicies::new(core, shared.id),
            shared,
            core: Arc::clone(core),
            next_sample_us: now_us,
            recovery_until_us: 0,
            timeout_answered: false,
            announced,
            reports: 0,
            report: [0; MAX_REGS],
        }
    }

    /// The flow's id in its datapath.
    pub fn id(&self) -> FlowId {
        self.shared.id
    }

    /// Processes one ACK: staged updates take effect, then the program or the native algorithm decides.
    pub fn on_ack(&mut self, ack: &Ack) -> SendLimits {
        let now = ack.prims.get(Prim::AckNow);
        let now_us = now.max(0) as u64;
        let before = self.controller.mode();
        let silent = self.core.is_silent(now_us);
        if self.shared.has_updates() {
            self.shared.take(&mut self.controller, silent, now);
        } else {
            self.controller.choose(self.controller.mode_now(silent, false));
        }
        let (mut reported, mut is_row) = (false, false);
        if self.controller.mode() == Mode::Program {
            let outcome = self.controller.invoke(&ack.prims, &mut self.policies, &mut self.report);
            (reported, is_row) = (outcome.report, outcome.asked);
            self.timeout_answered &= !ack.timeout;
        } else {
            self.native(ack, now_us);
        }
        self.limits = limits(&self.controller);
        if reported || now_us >= self.next_sample_us || self.controller.mode() != before {
            self.reports = self.reports.wrapping_add(u32::from(reported));
            self.sample(&ack.sampled, now_us);
        }
        if reported {
            self.report(is_row, now_us);
        }
        self.limits
    }

    /// Restarts the native algorithm after all in flight was given up; a program sees that at the next ACK.
    pub fn on_timeout(&mut self, in_flight_packets: u64) -> SendLimits {
        self.timeout_answered = true;
        if self.controller.mode() != Mode::Program {
            self.controller.reno.on_timeout(in_flight_packets);
            self.recovery_until_us = 0;
        }
        self.limits = limits(&self.controller);
        self.limits
    }

    /// Sets the segment size, bytes.
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.controller.set_mss(mss_bytes);
        self.limits = limits(&self.controller);
    }

    /// The window and rate to apply now.
    pub fn limits(&self) -> SendLimits {
        self.limits
    }

    /// The latest decision, for traces.
    pub fn last_decision(&self) -> LastDecision {
        let runner = self.controller.runner();
        let snapshot = runner.flow().snapshot;
        LastDecision {
            mode: self.controller.mode(),
            program: runner.running().map(Runnable::uid),
            slot: self.policies.last,
            snapshot: (snapshot != 0).then_some(SnapshotUid(snapshot)),
            action_q16: runner.flow().action_q16,
            decisions: self.policies.state.decisions,
        }
    }

    /// Runs Reno on one ACK: growth pauses for a round trip after a cut (RFC 6582; RFC 9002 section 7.3.2), and marks
    /// are answered once in one (RFC 3168 section 6.1.2).
    #[inline(never)]
    fn native(&mut self, ack: &Ack, now_us: u64) {
        let count = |prim| ack.prims.get(prim).max(0) as u64;
        let in_recovery = now_us < self.recovery_until_us;
        let in_flight = || {
            let after = count(Prim::FlowPacketsInFlight);
            after.saturating_add(ack.packets).saturating_add(count(Prim::AckLostPktsSample))
        };
        let reno = &mut self.controller.reno;
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
        let Some(running) = self.controller.runner().running() else { return };
        let record = Record::Report {
            flow: self.shared.id,
            program: running.uid(),
            seq: self.reports,
            at_us,
            len: running.program().report_len(),
            values: self.report,
        };
        self.core.events.push_report(record, is_row, at_us);
    }

    fn sample(&mut self, sampled: &Sampled, now_us: u64) {
        self.next_sample_us = now_us.saturating_add(SAMPLE_EVERY_US);
        let cwnd_packets = self.controller.wanted_packets();
        self.shared.samples.write(Sample {
            mode: self.controller.mode(),
            at_us: now_us,
            transport: TransportStats {
                snd_cwnd: u32::try_from(cwnd_packets).unwrap_or(u32::MAX),
                snd_ssthresh: TransportStats::ssthresh(self.controller.reno.ssthresh_packets),
                mss_bytes: self.controller.mss_bytes() as u32,
                srtt_us: sampled.srtt_us,
                min_rtt_us: sampled.min_rtt_us,
                pacing_rate: self.limits.rate,
                bytes_acked: sampled.bytes_acked,
                delivered: sampled.delivered,
                lost: sampled.lost,
                unacked: sampled.unacked,
                faults: self.controller.runner().flow().faults,
                reports: self.reports.into(),
            },
            policy: self.policies.state,
        });
    }

    /// Exposes the controller to [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn controller(&self) -> &FlowController<Loaded> {
        &self.controller
    }

    /// Whether a policy was asked since the last call, for [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn has_asked(&mut self) -> bool {
        self.policies.last.take().is_some()
    }

    /// Exposes the policy state to [`EngineExecutor`](crate::EngineExecutor).
    pub(crate) fn policy(&self) -> &FlowPolicy {
        &self.policies.state
    }
}

/// Clamps window and rate to the bounds that are applied; registers keep the program's values.
#[inline]
fn limits(controller: &FlowController<Loaded>) -> SendLimits {
    let mss_bytes = controller.mss_bytes();
    let cwnd_bytes = controller.wanted_bytes().clamp(mss_bytes, MAX_CWND_PACKETS * mss_bytes);
    SendLimits { cwnd_bytes, rate: controller.program_rate() }
}

impl Drop for FlowEngine {
    fn drop(&mut self) {
        if self.announced {
            self.core.end(self.shared.id);
        }
    }
}
