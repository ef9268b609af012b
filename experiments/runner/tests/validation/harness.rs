//! The simulator held against the emulator: the same fold programs on the same links, once in virtual time and once
//! in the kernel, over TUN devices.
//!
//! A [`Scenario`] says which link and which algorithm; [`simulate`](crate::simulated) and [`emulate`](crate::emulated) run it and say what a flow
//! achieved. Links are emulated at the same time, each in namespaces of its own.

use ccplane_netsim::trace::Trace;

/// Between two samples of a flow, microseconds.
pub(crate) const SAMPLE_EVERY_US: u64 = 20_000;

/// The speed at which a link delivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Capacity {
    /// A constant rate, bits per second.
    Rate(u64),
    /// A trace, again and again.
    Trace(Trace),
}

/// One flow, alone on a link: a delay in both directions, a droptail queue and a bottleneck in the forward one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// The algorithm, as [`ccplane_algs`] names it.
    pub(crate) algorithm: String,
    pub(crate) capacity: Capacity,
    /// Delay of either direction, microseconds.
    pub(crate) one_way_delay_us: u64,
    /// Packets that fit the queue.
    pub(crate) queue_packets: u32,
    /// The start of the measured time, microseconds after the flow's start.
    pub(crate) from_us: u64,
    /// The flow's end, microseconds after its start.
    pub(crate) until_us: u64,
}

/// A flow at one time, in both worlds' terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Point {
    /// Since the flow's start, microseconds.
    pub(crate) at_us: u64,
    pub(crate) srtt_us: u64,
    pub(crate) cwnd_packets: u64,
    /// Packets delivered so far.
    pub(crate) delivered: u64,
    /// Packets marked lost so far.
    pub(crate) lost: u64,
}

/// The result of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// In order of time.
    pub(crate) points: Vec<Point>,
    /// Bytes of a packet.
    pub(crate) packet_bytes: u64,
}

impl Outcome {
    /// Packets' payload delivered in the measured time, bits per second; 0 when nothing was measured.
    pub(crate) fn throughput_bit_per_s(&self, scenario: &Scenario) -> f64 {
        let seen = self.measured(scenario);
        let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return 0.0 };
        let bits = (last.delivered - first.delivered) * self.packet_bytes * 8;
        bits as f64 * 1e6 / (last.at_us - first.at_us).max(1) as f64
    }

    /// Mean over the measured time of the smoothed RTT, microseconds; 0 when nothing was measured.
    pub(crate) fn mean_rtt_us(&self, scenario: &Scenario) -> f64 {
        let seen = self.measured(scenario);
        let sum: u64 = seen.iter().map(|p| p.srtt_us).sum();
        sum as f64 / seen.len().max(1) as f64
    }

    fn measured(&self, scenario: &Scenario) -> &[Point] {
        let from = self.points.partition_point(|p| p.at_us < scenario.from_us);
        let until = self.points.partition_point(|p| p.at_us <= scenario.until_us);
        self.points.get(from..until).unwrap_or_default()
    }
}

/// Reasons why a scenario could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An algorithm that there is not.
    #[error("no algorithm `{0}`")]
    NoAlgorithm(String),
    /// The machine can't emulate links or steer kernel flows.
    #[error("{0}")]
    Missing(String),
    /// The agent's core refused the algorithms.
    #[error("{0}")]
    Core(String),
    #[error(transparent)]
    Sim(#[from] ccplane_sim::SimError),
    #[error(transparent)]
    Ebpf(#[from] ccplane_ebpf::EbpfError),
    #[error(transparent)]
    Emulator(#[from] ccplane_emulator::Error),
    #[error(transparent)]
    Traffic(#[from] ccplane_runner::Error),
    /// The operating system said no.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        source: std::io::Error,
    },
}

/// The agent's core with these rules over the shipped algorithms.
pub(crate) fn core(rules: ccplane_core::Rules, heartbeat_us: u64) -> Result<ccplane_core::Core, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::Core(e.to_string());
    let catalog = ccplane_core::Catalog::new(ccplane_algs::all(), 1).map_err(|e| wrong(&e))?;
    let config = ccplane_core::Config { heartbeat_us, ..ccplane_core::Config::default() };
    ccplane_core::Core::new(catalog, rules, config).map_err(|e| wrong(&e))
}

pub(crate) fn check(scenario: &Scenario) -> Result<(), Error> {
    let known = ccplane_algs::all().iter().any(|a| a.name() == scenario.algorithm);
    if known { Ok(()) } else { Err(Error::NoAlgorithm(scenario.algorithm.clone())) }
}
