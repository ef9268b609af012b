//! Monitor intervals: the values that `aurora.fold`, and with it MOCC's program, reports of each, and its reward.

use crate::parameters::{bounded_rate, window_of};
use ccplane_alg::{Control, FlowInfo, Handover, Parameter, Report, RowBuilder};

/// The queueing delay that counts as none, unless configured otherwise: added to each RTT before they are compared,
/// microseconds.
pub(crate) const DEFAULT_SLACK_US: u32 = 2000;
/// The parameter of that.
pub(crate) const SLACK_US: Parameter = Parameter {
    name: "slack_us",
    about: "what counts as no queue: added to each RTT before they are compared",
    default: DEFAULT_SLACK_US as i64,
    min: 0,
    max: 1_000_000,
};
/// The parameter by which an algorithm has its published form.
pub(crate) const PUBLISHED: Parameter = Parameter {
    name: "published",
    about: "1: the settings of the paper; other parameters count beside them",
    default: 0,
    min: 0,
    max: 1,
};
/// The features of an interval, in the order of their history.
const FEATURES: &[&str] = &["inflation", "ratio", "sent"];
/// Intervals that a policy sees.
const DEPTH: usize = 10;

const US_PER_S: f64 = 1e6;
/// The shortest round trip and the longest that count, microseconds: keeps logarithms finite.
const RTT_US: (f64, f64) = (1.0, 1e9);

/// The measurements of one interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interval {
    /// Number of packets that arrived.
    pub(crate) acked: f64,
    /// Packets that were lost.
    pub(crate) lost: f64,
    /// Lost packets that are known not to have been dropped from a queue.
    pub(crate) lost_at_random: f64,
    /// The time that it took, seconds.
    pub(crate) took_s: f64,
    /// Mean RTT of its samples, microseconds.
    pub(crate) rtt_us: f64,
    /// Smallest such mean of late, microseconds.
    pub(crate) min_us: f64,
    /// The rate of the flow's bottleneck, packets per second; `None` unless the flow is simulated.
    pub(crate) link_pps: Option<f64>,
}

impl Interval {
    /// Reads a report of a flow with this segment size; `None` if it is none of an interval.
    pub(crate) fn of(report: &Report<'_>, mss_bytes: f64) -> Option<Interval> {
        let get = |name| report.get(name).map(|value| value.max(0) as f64);
        let rtt_us = get("rtt_us")?.clamp(RTT_US.0, RTT_US.1);
        Some(Interval {
            acked: get("acked")?,
            lost: get("lost")?,
            lost_at_random: report.truth.map_or(0.0, |t| t.random_losses.into()),
            took_s: get("took_us")?.max(1.0) / US_PER_S,
            rtt_us,
            min_us: get("min_us")?.clamp(RTT_US.0, rtt_us),
            link_pps: report.truth.map(|t| t.link_bytes_per_s / mss_bytes).filter(|pps| *pps > 0.0),
        })
    }

    /// Packets per second that arrived.
    pub(crate) fn throughput_pps(&self) -> f64 {
        self.acked / self.took_s
    }

    /// Lost share of what arrived or was lost. Known random losses are left out: no rate prevents them, so they shift
    /// any policy's reward by the same. Of ten packets their noise would hide what an action did.
    pub(crate) fn loss(&self) -> f64 {
        (self.lost - self.lost_at_random).max(0.0) / (self.acked + self.lost).max(1.0)
    }
}

/// The segment size that a flow's program is told of, bytes.
pub(crate) fn mss_bytes(info: &FlowInfo) -> f64 {
    f64::from(info.mss_bytes.clamp(1, crate::parameters::MAX_MSS_BYTES))
}

/// Starts the program at the rate, the smallest RTT and the window that another program hands over.
pub(crate) fn start_from(from: &Handover, info: &FlowInfo, control: &mut Control) {
    let min_us = from.min_rtt_us.into();
    control.update(&[
        ("start_rate", bounded_rate(from.rate_bytes_per_s)),
        ("min_is", min_us),
        ("min_was", min_us),
        ("Cwnd", window_of(from.window_bytes(info.mss_bytes))),
    ]);
}

/// Makes the rows that a flow's learner learns from: one for each decision, worth the mean since the one before it.
/// Several intervals make that mean where some passed that no policy decided.
pub(crate) struct Rows {
    builder: RowBuilder,
    /// The sum of the rewards since the last decision.
    sum: f64,
    count: f64,
}

impl Rows {
    /// Starts for a flow that asks `slot`; `constants` follow the histories in its policy's inputs.
    pub(crate) fn new(slot: u8, constants: Vec<i32>) -> Rows {
        Rows { builder: RowBuilder::new(slot, DEPTH, FEATURES, constants), sum: 0.0, count: 0.0 }
    }

    /// Adds an interval that was worth `reward`.
    pub(crate) fn add_interval(
        &mut self,
        now_us: u64,
        report: &Report<'_>,
        reward: f64,
        control: &mut Control,
    ) {
        self.sum += reward;
        self.count += 1.0;
        if let Some(row) = self.builder.row(now_us, report, (self.sum / self.count) as f32) {
            (self.sum, self.count) = (0.0, 0.0);
            control.learn(row);
        }
    }

    /// Notes that reports were lost.
    pub(crate) fn lost(&mut self) {
        self.builder.lost();
    }
}

/// Returns the form that `published` among these values selects: the paper's, our own, or the current one if it is not there.
pub(crate) fn selected_form<C: Clone + Default>(
    values: &[(&'static str, i64)],
    papers: impl FnOnce() -> C,
    current: &C,
) -> C {
    match values.iter().rev().find(|(name, _)| *name == PUBLISHED.name) {
        Some((_, 1)) => papers(),
        Some(_) => C::default(),
        None => current.clone(),
    }
}

/// Sets the field of each parameter to the value of its name.
pub(crate) fn set(values: &[(&'static str, i64)], fields: &mut [(&Parameter, &mut u32)]) {
    for (name, value) in values {
        for (_, field) in fields.iter_mut().filter(|(parameter, _)| parameter.name == *name) {
            **field = u32::try_from(*value).unwrap_or(0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{MSS, reported};
    use ccplane_alg::{Algorithm, Flow, Row, Truth};
    use ccplane_program::compile;
    use ccplane_program::ir::{MAX_REGS, Prim, Program};
    use ccplane_program::vm::{self, Decision, Knobs, Policies, Prims};

    /// Packets of an ACK.
    const BATCH: i64 = 2;

    /// A flow whose policy always does the same.
    pub(crate) struct Driver {
        program: Program,
        names: Vec<String>,
        flow: vm::ProgramState,
        agent: Box<dyn Flow>,
        now_us: i64,
        /// The policy's action, Q16.
        pub(crate) action_q16: i64,
        /// Whether the application has nothing to send.
        pub(crate) limited: bool,
        /// Times that the policy was asked, and with what.
        pub(crate) asked: usize,
        pub(crate) seen: Vec<Vec<i32>>,
        pub(crate) rows: Vec<Row>,
        /// The simulator's knowledge of the path.
        pub(crate) truth: Option<Truth>,
    }

    /// The conditions of an interval.
    #[derive(Clone, Copy)]
    pub(crate) struct Step {
        /// RTTs of the first and the second half.
        pub(crate) rtt_us: (i64, i64),
        pub(crate) bytes_per_s: i64,
        pub(crate) lost: i64,
    }

    impl Step {
        /// Everything that is sent arrives.
        pub(crate) fn of_rate(d: &Driver) -> Step {
            Step { rtt_us: (40_000, 40_000), bytes_per_s: d.rate().max(10 * MSS * 25), lost: 0 }
        }
    }

    struct Fixed<'a>(i64, &'a mut usize, &'a mut Vec<Vec<i32>>);

    impl Policies for Fixed<'_> {
        fn decide(&mut self, _slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision {
            *self.1 += 1;
            self.2.push(inputs.to_vec());
            let d = self.0.abs() / 20;
            let rate = knobs.rate_bytes_per_s;
            knobs.rate_bytes_per_s =
                if self.0 >= 0 { rate + rate * d / 65_536 } else { rate * 65_536 / (65_536 + d) };
            Decision::Action { action_q16: self.0, snapshot: 1 }
        }
    }

    impl Driver {
        pub(crate) fn new(algorithm: &dyn Algorithm, window: i64) -> Driver {
            let source = algorithm.programs().remove(0);
            let program = compile(source.source).unwrap_or_else(|d| panic!("{}: {d:#?}", source.name));
            let mut control = Control::default();
            let agent = algorithm.flow(&FlowInfo::example(MSS as u32, (window * MSS) as u64), &mut control);
            let mut flow = vm::ProgramState::new(&program, window * MSS, 1_000_000);
            for request in control.requests() {
                assert!(request.program.is_some());
                request.fields.iter().for_each(|(name, value)| {
                    flow.regs[usize::from(program.reg(name).unwrap())] = *value;
                });
            }
            let names = reported(&program);
            let now_us = 1_000_000;
            let (rows, seen) = (vec![], vec![]);
            let mut d = Driver {
                program,
                names,
                flow,
                agent,
                now_us,
                action_q16: 0,
                limited: false,
                asked: 0,
                seen,
                rows,
                truth: None,
            };
            // The first sample opens the first interval.
            d.ack(40_000, 1, 0, false);
            d
        }

        pub(crate) fn rate(&self) -> i64 {
            self.flow.rate_bytes_per_s
        }

        pub(crate) fn reg(&self, name: &str) -> i64 {
            self.flow.regs[usize::from(self.program.reg(name).unwrap())]
        }

        pub(crate) fn set(&mut self, name: &str, value: i64) {
            self.flow.regs[usize::from(self.program.reg(name).unwrap())] = value;
        }

        /// ACKs until an interval has been reported, or thrown away.
        pub(crate) fn interval(&mut self, step: Step) {
            let gap_us = (BATCH * MSS * 1_000_000 / step.bytes_per_s).max(1);
            let mut lost = step.lost;
            let begun = self.flow.micros_zero_us;
            while self.flow.micros_zero_us == begun {
                self.now_us += gap_us;
                let first = self.now_us - begun < self.reg("half_us");
                let rtt_us = if first { step.rtt_us.0 } else { step.rtt_us.1 };
                self.ack(rtt_us, BATCH, std::mem::take(&mut lost), false);
            }
        }

        pub(crate) fn timeout(&mut self) {
            self.now_us += 1;
            self.ack(40_000, 1, 1, true);
        }

        fn ack(&mut self, rtt_us: i64, packets: i64, lost: i64, timeout: bool) {
            let mut prims = Prims::default();
            let in_flight = 20;
            prims
                .set(Prim::AckPacketsAcked, packets)
                .set(Prim::AckBytesAcked, packets * MSS)
                .set(Prim::AckLostPktsSample, lost)
                .set(Prim::AckNow, self.now_us)
                .set(Prim::FlowRttSampleUs, rtt_us)
                .set(Prim::FlowPacketsInFlight, in_flight)
                .set(Prim::FlowBytesInFlight, if self.limited { 0 } else { in_flight * MSS })
                .set(Prim::FlowBytesPending, if self.limited { 0 } else { 1 << 20 })
                .set(Prim::FlowWasTimeout, timeout.into());
            let mut values = [0; MAX_REGS];
            let mut fixed = Fixed(self.action_q16, &mut self.asked, &mut self.seen);
            let outcome = self.flow.invoke_with(&self.program, &prims, &mut fixed, &mut values);
            assert_eq!(self.flow.faults, 0);
            if outcome.report {
                let values = &values[..self.names.len()];
                let report = Report { program: "p", names: &self.names, values, truth: self.truth };
                let mut control = Control::default();
                self.agent.on_report(self.now_us as u64, &report, &mut control);
                self.rows.extend(control.take_rows());
            }
        }
    }
}
