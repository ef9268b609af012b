//! Every metric: its name, its labels, its meaning.

use ccplane_contract::{Mode, TransportStats};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A whole number that goes up and down.
pub(super) type Level = Gauge<i64, AtomicI64>;

/// One of the agent's loops.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct LoopLabel {
    pub(super) r#loop: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct DatapathLabel {
    pub(super) datapath: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct AlgorithmLabel {
    pub(super) algorithm: &'static str,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EncodeLabelSet)]
pub(super) struct FlowLabels {
    pub(super) datapath: &'static str,
    pub(super) algorithm: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct ModeLabels {
    pub(super) datapath: &'static str,
    pub(super) algorithm: &'static str,
    pub(super) mode: ModeLabel,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct VerdictLabels {
    pub(super) algorithm: &'static str,
    pub(super) verdict: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ModeLabel {
    Program,
    NativeNoProgram,
    NativeAgentSilent,
    NativePolicy,
}

impl From<Mode> for ModeLabel {
    fn from(mode: Mode) -> ModeLabel {
        match mode {
            Mode::Program => ModeLabel::Program,
            Mode::NativeNoProgram => ModeLabel::NativeNoProgram,
            Mode::NativeAgentSilent => ModeLabel::NativeAgentSilent,
            Mode::NativePolicy => ModeLabel::NativePolicy,
        }
    }
}

impl EncodeLabelValue for ModeLabel {
    fn encode(&self, to: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        to.write_str(match self {
            ModeLabel::Program => "program",
            ModeLabel::NativeNoProgram => "native_no_program",
            ModeLabel::NativeAgentSilent => "native_agent_silent",
            ModeLabel::NativePolicy => "native_policy",
        })
    }
}

/// Metrics that a loop updates itself.
#[derive(Clone, Debug)]
pub(crate) struct LoopMetrics {
    handling: Histogram,
    turned_us: Arc<AtomicU64>,
}

impl LoopMetrics {
    /// Records a turn of the loop; `took`: its duration, where it handled events.
    pub(crate) fn record_turn(&self, now_us: u64, took: Option<Duration>) {
        self.turned_us.store(now_us, Relaxed);
        if let Some(took) = took {
            self.handling.observe(took.as_secs_f64());
        }
    }

    /// When the loop last turned, microseconds on the agent's clock.
    pub(super) fn turned_us(&self) -> u64 {
        self.turned_us.load(Relaxed)
    }
}

/// 1 us to 1 s.
fn handling() -> Histogram {
    Histogram::new(exponential_buckets(1e-6, 4.0, 11))
}

/// 100 us to 6.5 s.
fn srtt() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 17))
}

/// 1 to 32768 packets.
fn cwnd() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 16))
}

type Histograms = Family<FlowLabels, Histogram, fn() -> Histogram>;

/// The registry and the handles to fill it.
pub(crate) struct Metrics {
    pub(super) registry: Registry,
    handling: Family<LoopLabel, Histogram, fn() -> Histogram>,
    pub(super) loop_up: Family<LoopLabel, Level>,
    pub(super) loop_silence: Family<LoopLabel, Gauge<f64, AtomicU64>>,
    pub(super) flows: Family<ModeLabels, Level>,
    pub(super) max_flows: Family<DatapathLabel, Level>,
    pub(super) programs: Family<DatapathLabel, Level>,
    pub(super) max_programs: Family<DatapathLabel, Level>,
    pub(super) flows_created: Family<AlgorithmLabel, Counter>,
    pub(super) flows_closed: Family<AlgorithmLabel, Counter>,
    pub(super) reports: Family<AlgorithmLabel, Counter>,
    pub(super) reports_lost: Family<AlgorithmLabel, Counter>,
    pub(super) program_changes: Family<AlgorithmLabel, Counter>,
    pub(super) updates: Family<AlgorithmLabel, Counter>,
    pub(super) flows_refused: Counter,
    pub(super) stray_reports: Counter,
    pub(super) events_dropped: Counter,
    pub(super) panics: Counter,
    pub(super) commands_refused: Counter,
    pub(super) malformed_datagrams: Counter,
    pub(super) unseen_flows: Counter,
    pub(super) srtt: Histograms,
    pub(super) cwnd: Histograms,
    /// The counters among the statistics of transports, by their place in [`TransportStats::LIST`].
    pub(super) transport: Vec<(usize, Family<FlowLabels, Counter>)>,
    pub(super) decisions: Family<VerdictLabels, Counter>,
    pub(super) rows_learned: Family<AlgorithmLabel, Counter>,
    pub(super) rows_dropped: Family<AlgorithmLabel, Counter>,
    pub(super) candidates: Family<AlgorithmLabel, Counter>,
    pub(super) learner_cpu: Family<AlgorithmLabel, Counter<f64, AtomicU64>>,
}

impl Metrics {
    /// Makes a registry without loops or flows.
    pub(crate) fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("ccplane"),
            handling: Family::new_with_constructor(handling),
            loop_up: Family::default(),
            loop_silence: Family::default(),
            flows: Family::default(),
            max_flows: Family::default(),
            programs: Family::default(),
            max_programs: Family::default(),
            flows_created: Family::default(),
            flows_closed: Family::default(),
            reports: Family::default(),
            reports_lost: Family::default(),
            program_changes: Family::default(),
            updates: Family::default(),
            flows_refused: Counter::default(),
            stray_reports: Counter::default(),
            events_dropped: Counter::default(),
            panics: Counter::default(),
            commands_refused: Counter::default(),
            malformed_datagrams: Counter::default(),
            unseen_flows: Counter::default(),
            srtt: Family::new_with_constructor(srtt),
            cwnd: Family::new_with_constructor(cwnd),
            transport: transport_counters(),
            decisions: Family::default(),
            rows_learned: Family::default(),
            rows_dropped: Family::default(),
            candidates: Family::default(),
            learner_cpu: Family::default(),
        };
        metrics.register_agent();
        metrics.register_algorithms();
        metrics.register_flows();
        metrics.register_learning();
        metrics
    }

    /// Returns the metrics of the loop of this name.
    pub(crate) fn of_loop(&self, name: &'static str) -> LoopMetrics {
        let handling = self.handling.get_or_create(&LoopLabel { r#loop: name }).clone();
        LoopMetrics { handling, turned_us: Arc::default() }
    }

    fn register_agent(&mut self) {
        let r = &mut self.registry;
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        r.register("build", "The agent", version);
        r.register_with_unit(
            "handling",
            "Time a loop took to take waiting events, run algorithms and carry out their commands",
            Unit::Seconds,
            self.handling.clone(),
        );
        r.register("loop_up", "Whether a loop of the agent answers", self.loop_up.clone());
        r.register_with_unit(
            "loop_silence",
            "Since a loop last turned; datapaths fall back to their native algorithms past the heartbeat timeout",
            Unit::Seconds,
            self.loop_silence.clone(),
        );
        r.register("flows_max", "Flows that a datapath can steer at once", self.max_flows.clone());
        r.register("programs_installed", "Programs that a datapath holds", self.programs.clone());
        r.register("programs_max", "Programs that a datapath can hold", self.max_programs.clone());
        r.register("flows_refused", "Flows left native as there were too many", self.flows_refused.clone());
        r.register(
            "flows_unseen",
            "Flows that ended before the agent heard of them",
            self.unseen_flows.clone(),
        );
        r.register("reports_stray", "Reports of flows not known or not steered", self.stray_reports.clone());
        r.register("events_dropped", "Events that datapaths dropped", self.events_dropped.clone());
        r.register("algorithm_panics", "Panics of algorithms", self.panics.clone());
        r.register("commands_refused", "Commands that datapaths refused", self.commands_refused.clone());
        r.register(
            "datagrams_malformed",
            "Datagrams that were not heard or not understood",
            self.malformed_datagrams.clone(),
        );
    }

    fn register_algorithms(&mut self) {
        let r = &mut self.registry;
        r.register("flows_created", "Flows given to an algorithm", self.flows_created.clone());
        r.register("flows_closed", "Flows of an algorithm that ended", self.flows_closed.clone());
        r.register("reports", "Reports that an algorithm saw", self.reports.clone());
        r.register("reports_lost", "Reports sent that did not arrive", self.reports_lost.clone());
        r.register(
            "program_changes",
            "Programs that an algorithm set on flows",
            self.program_changes.clone(),
        );
        r.register("updates", "Updates of running programs by an algorithm", self.updates.clone());
    }

    fn register_learning(&mut self) {
        let r = &mut self.registry;
        r.register(
            "snapshot_decisions",
            "Decisions to push a snapshot or not, to promote it or roll it back, by verdict",
            self.decisions.clone(),
        );
        r.register("learner_rows", "Intervals of flows that a learner took", self.rows_learned.clone());
        r.register(
            "learner_rows_dropped",
            "Intervals that a learner had no time for",
            self.rows_dropped.clone(),
        );
        r.register("learner_candidates", "Snapshots that a learner offered", self.candidates.clone());
        r.register_with_unit(
            "learner_cpu",
            "Processor time that a learner used",
            Unit::Seconds,
            self.learner_cpu.clone(),
        );
    }

    fn register_flows(&mut self) {
        let r = &mut self.registry;
        r.register("flows", "Flows by how they are steered", self.flows.clone());
        r.register_with_unit(
            "srtt",
            "Smoothed round-trip times of flows, each observed once a second",
            Unit::Seconds,
            self.srtt.clone(),
        );
        r.register(
            "cwnd_packets",
            "Congestion windows of flows, each observed once a second",
            self.cwnd.clone(),
        );
        for (n, family) in &self.transport {
            let Some((name, help)) = TransportStats::LIST[*n].counter else { continue };
            match name.strip_suffix("_bytes") {
                Some(stem) => r.register_with_unit(stem, help, Unit::Bytes, family.clone()),
                None => r.register(name, help, family.clone()),
            }
        }
    }
}

fn transport_counters() -> Vec<(usize, Family<FlowLabels, Counter>)> {
    let counters = TransportStats::LIST.iter().enumerate().filter(|(_, stat)| stat.counter.is_some());
    counters.map(|(n, _)| (n, Family::default())).collect()
}
