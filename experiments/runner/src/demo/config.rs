//! What the demo runs.

use std::time::Duration;

use ccplane_emulator::{LinkConfig, Queue, Shape};
use ccplane_report::{Datapath, Phase};

use crate::error::{Error, Result};
use crate::traffic::{MAX_DURATION, MIN_SAMPLE_EVERY};

/// Losses of all links: the same sequence.
pub(super) const LOSS_SEED: u64 = 1;
/// Flows at once, at most: each has a link of its own, with its thread and two namespaces.
pub const MAX_FLOWS: usize = 32;

/// What the learning demo's links become: Mb/s, milliseconds each way, share of data packets lost: twice the loss that
/// policies are trained on. Frozen by a test beside the plans' links (`plan/tests.rs`): no tuning of the twin changes them unseen.
const LEARNED_CHANGE: (u32, u64, f64) = (12, 30, 0.1);

/// One stretch of the links' behaviour.
#[derive(Clone, PartialEq, Debug)]
pub struct PhasePlan {
    /// A few words, for the report.
    pub label: String,
    /// How long it lasts.
    pub duration: Duration,
    /// How fast the uplink, which carries the data, delivers. A trace starts at its beginning.
    pub shape: Shape,
    /// Propagation delay of each direction; `None`: as before.
    pub one_way_delay: Option<Duration>,
    /// Probability that a data packet is lost; `None`: as before, at first 0.
    pub loss: Option<f64>,
}

impl PhasePlan {
    /// A stretch in which only the shape is another.
    #[must_use]
    pub fn new(label: String, duration: Duration, shape: Shape) -> PhasePlan {
        PhasePlan { label, duration, shape, one_way_delay: None, loss: None }
    }
}

/// One flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowPlan {
    /// Unique in the demo.
    pub label: String,
    /// "reno", "cubic" ...: flows of the same algorithm are compared.
    pub algorithm: String,
    /// What decides its window.
    pub datapath: Datapath,
    /// TCP_CONGESTION: the kernel's name.
    pub congestion: String,
    /// Destination port, by which the agent's rules choose the algorithm. Unique in the demo.
    pub port: u16,
}

/// The whole demo.
#[derive(Clone, PartialEq, Debug)]
pub struct DemoConfig {
    /// The report's title.
    pub title: String,
    /// The command line that runs this again, for the report.
    pub command: String,
    /// Propagation delay of each direction.
    pub one_way_delay: Duration,
    /// Packets that wait at the bottleneck, at most.
    pub queue_packets: u32,
    /// At least one.
    pub phases: Vec<PhasePlan>,
    /// At most [`MAX_FLOWS`].
    pub flows: Vec<FlowPlan>,
    /// Time between samples.
    pub sample_every: Duration,
}

impl DemoConfig {
    /// Reno and Cubic, each the kernel's and ccplane's: 12 s at 24 Mb/s, then 12 s of `cellular`; 20 ms each way and a queue
    /// of 120 packets, one and a half times what 24 Mb/s hold in 40 ms. ccplane's flows go to ports 5201 (reno) and 5202 (cubic).
    #[must_use]
    pub fn standard(command: String, cellular: Shape, cellular_label: &str) -> Self {
        let flow = |algorithm: &str, datapath: Datapath, port| FlowPlan {
            label: format!("{algorithm} {}", datapath.label()),
            algorithm: algorithm.into(),
            datapath,
            congestion: if datapath == Datapath::CcplaneEbpf { "ccplane".into() } else { algorithm.into() },
            port,
        };
        Self {
            title: "Reno and Cubic as fold programs in the running kernel".into(),
            command,
            one_way_delay: Duration::from_millis(20),
            queue_packets: 120,
            phases: vec![
                PhasePlan::new("fixed 24 Mb/s".into(), Duration::from_secs(12), Shape::mbit(24)),
                PhasePlan::new(cellular_label.into(), Duration::from_secs(12), cellular),
            ],
            flows: vec![
                flow("reno", Datapath::KernelNative, 5101),
                flow("reno", Datapath::CcplaneEbpf, 5201),
                flow("cubic", Datapath::KernelNative, 5102),
                flow("cubic", Datapath::CcplaneEbpf, 5202),
            ],
            sample_every: Duration::from_millis(100),
        }
    }

    /// Aurora that learns, Aurora as it comes, and the kernel's CUBIC and BBR, each on a link of its own: 24 Mb/s and
    /// 20 ms each way, that become [`LEARNED_CHANGE`]. ccplane's flows go to ports 5301 (learning) and 5302.
    #[must_use]
    pub fn learned(command: String, before: Duration, after: Duration) -> Self {
        let flow = |label: &str, algorithm: &str, congestion: &str, port| FlowPlan {
            label: label.into(),
            algorithm: algorithm.into(),
            datapath: if congestion == "ccplane" { Datapath::CcplaneEbpf } else { Datapath::KernelNative },
            congestion: congestion.into(),
            port,
        };
        let (mbit, delay_ms, loss) = LEARNED_CHANGE;
        let changed = format!("{mbit} Mb/s, {} ms, {} % loss", 2 * delay_ms, loss * 100.0);
        Self {
            title: "Aurora in the kernel, learning".into(),
            command,
            one_way_delay: Duration::from_millis(20),
            queue_packets: 200,
            phases: vec![
                PhasePlan::new("24 Mb/s, 40 ms".into(), before, Shape::mbit(24)),
                PhasePlan {
                    one_way_delay: Some(Duration::from_millis(delay_ms)),
                    loss: Some(loss),
                    ..PhasePlan::new(changed, after, Shape::mbit(mbit))
                },
            ],
            flows: vec![
                flow("Aurora, learning", "aurora", "ccplane", 5301),
                flow("Aurora, as it is", "aurora-still", "ccplane", 5302),
                flow("CUBIC, kernel", "cubic", "cubic", 5303),
                flow("BBR, kernel", "bbr", "bbr", 5304),
            ],
            sample_every: Duration::from_millis(100),
        }
    }

    /// The same with our flows under QUIC in this process, where the kernel's cannot be steered.
    #[must_use]
    pub fn over_quic(mut self) -> Self {
        for flow in self.flows.iter_mut().filter(|f| f.datapath == Datapath::CcplaneEbpf) {
            flow.label = flow.label.replace(Datapath::CcplaneEbpf.label(), Datapath::CcplaneQuic.label());
            flow.datapath = Datapath::CcplaneQuic;
        }
        self.title =
            self.title.replace("in the running kernel", "under QUIC").replace("in the kernel", "under QUIC");
        self
    }

    /// Checks what no link or flow checks itself.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<()> {
        let refuse = |field, reason: String| Err(Error::Config { field, reason });
        if self.phases.is_empty() || self.phases.iter().any(|p| p.duration.is_zero()) {
            return refuse("phases", "at least one is needed, each longer than zero".into());
        }
        if self.duration() > MAX_DURATION {
            return refuse("phases", format!("{:?} is more than {MAX_DURATION:?}", self.duration()));
        }
        if self.sample_every < MIN_SAMPLE_EVERY {
            return refuse(
                "sample_every",
                format!("{:?} is less than {MIN_SAMPLE_EVERY:?}", self.sample_every),
            );
        }
        if self.flows.len() > MAX_FLOWS {
            return refuse("flows", format!("{} are more than {MAX_FLOWS}", self.flows.len()));
        }
        for (i, flow) in self.flows.iter().enumerate() {
            if self.flows[..i].iter().any(|f| f.label == flow.label || f.port == flow.port) {
                return refuse(
                    "flows",
                    format!("label {:?} or port {} is used twice", flow.label, flow.port),
                );
            }
            if flow.datapath == Datapath::Sim {
                return refuse(
                    "flows",
                    format!("{:?} is simulated; Hooks::further_flows runs such", flow.label),
                );
            }
        }
        self.link(&self.phases[0].shape).check().map_err(|e| Error::Link(e.into()))
    }

    /// All phases together.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|p| p.duration).sum()
    }

    /// Round-trip time without queue over time, microseconds.
    #[must_use]
    pub fn base_rtts(&self) -> Vec<(u64, u64)> {
        let mut delay = self.one_way_delay;
        let step = |(plan, phase): (&PhasePlan, Phase)| {
            delay = plan.one_way_delay.unwrap_or(delay);
            (phase.t0_ms, u64::try_from(2 * delay.as_micros()).unwrap_or(u64::MAX))
        };
        self.phases.iter().zip(self.phase_times()).map(step).collect()
    }

    /// The phases on the report's time axis.
    #[must_use]
    pub fn phase_times(&self) -> Vec<Phase> {
        let mut t0_ms = 0;
        let mut phase = |plan: &PhasePlan| {
            let t1_ms = t0_ms + plan.duration.as_millis() as u64;
            let phase = Phase { label: plan.label.clone(), t0_ms, t1_ms };
            t0_ms = t1_ms;
            phase
        };
        self.phases.iter().map(&mut phase).collect()
    }

    /// A link as it starts: the queue and the shape lie on the way up, ACKs come back unhindered.
    pub(crate) fn link(&self, shape: &Shape) -> LinkConfig {
        let delay_us = u64::try_from(self.one_way_delay.as_micros()).unwrap_or(u64::MAX);
        let mut link = LinkConfig::symmetric(Shape::Unlimited, delay_us);
        link.up.shape = shape.clone();
        link.up.queue = Queue::packets(self.queue_packets);
        link.up.loss.seed = LOSS_SEED;
        link.command_line = self.command.clone();
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standard() -> DemoConfig {
        DemoConfig::standard("ccplane demo".into(), Shape::mbit(10), "cellular")
    }

    #[test]
    fn the_standard_demo_is_sound() {
        let config = standard();
        config.check().unwrap();
        assert_eq!(config.duration(), Duration::from_secs(24));
        let times: Vec<_> = config.phase_times().iter().map(|p| (p.t0_ms, p.t1_ms)).collect();
        assert_eq!(times, [(0, 12_000), (12_000, 24_000)]);
        let ccplane: Vec<_> = config
            .flows
            .iter()
            .filter(|f| f.congestion == "ccplane")
            .map(|f| (&*f.algorithm, f.port))
            .collect();
        assert_eq!(ccplane, [("reno", 5201), ("cubic", 5202)]);
    }

    #[test]
    fn refusals_name_the_field() {
        let refusal = |change: fn(&mut DemoConfig)| {
            let mut config = standard();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refusal(|c| c.phases.clear()).starts_with("phases: at least one"));
        assert!(refusal(|c| c.phases[1].duration = MAX_DURATION).starts_with("phases: "));
        assert!(refusal(|c| c.sample_every = Duration::ZERO).starts_with("sample_every: "));
        assert!(refusal(|c| c.flows[1].port = 5101).contains("port 5101 is used twice"));
        assert!(refusal(|c| c.flows[1].datapath = Datapath::Sim).starts_with("flows: "));
        assert!(refusal(|c| c.flows = vec![c.flows[0].clone(); 33]).contains("33 are more than 32"));
        assert!(refusal(|c| c.queue_packets = 0).starts_with("up.queue: "));
    }
}
