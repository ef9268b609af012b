//! The sampler asks the loops for their values, and adds these to the registry.

use super::registry::{
    AlgorithmLabel, DatapathLabel, FlowLabels, Level, LoopLabel, LoopMetrics, Metrics, ModeLabels,
    VerdictLabels,
};
use crate::control::Counters;
use crate::learning::LearnerView;
use ccplane_channel::clock;
use ccplane_contract::{FlowId, Mode, TransportStats};
use ccplane_core::{AlgorithmCounters, DatapathId};
use ccplane_infer::FlowPolicy;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;

/// One flow at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowSample {
    pub(crate) datapath: &'static str,
    /// Its name in the loop.
    pub(crate) id: (DatapathId, FlowId),
    pub(crate) algorithm: &'static str,
    pub(crate) mode: Mode,
    pub(crate) transport: TransportStats,
    /// Decisions of the flow's policy; `None` where its program asks none.
    pub(crate) policy: Option<FlowPolicy>,
}

/// One datapath at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DatapathSample {
    pub(crate) kind: &'static str,
    /// Flows that it can steer.
    pub(crate) max_flows: usize,
    /// Programs that it holds.
    pub(crate) programs: usize,
    /// Programs that it can hold.
    pub(crate) max_programs: usize,
}

/// Answer of one loop to a request for samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoopSample {
    pub(crate) flows: Vec<FlowSample>,
    pub(crate) datapaths: Vec<DatapathSample>,
    /// By algorithm, since the agent started.
    pub(crate) algorithms: BTreeMap<&'static str, AlgorithmCounters>,
    /// Since the agent started.
    pub(crate) counters: Counters,
    /// Decisions to push or not, by algorithm and verdict, since the agent started.
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u64>,
}

/// The registry, and the values that were last added to it.
pub(crate) struct Sampler {
    metrics: Metrics,
    loops: Vec<(&'static str, LoopMetrics)>,
    learners: Vec<LearnerView>,
    last: HashMap<(usize, DatapathId, FlowId), TransportStats>,
}

impl Sampler {
    /// A registry for these loops.
    pub(crate) fn new(
        metrics: Metrics,
        loops: Vec<(&'static str, LoopMetrics)>,
        learners: Vec<LearnerView>,
    ) -> Sampler {
        Sampler { metrics, loops, learners, last: HashMap::new() }
    }

    /// Adds the loops' answers, in their order; `None`: it gave none in time.
    pub(crate) fn add(&mut self, samples: &[Option<LoopSample>]) {
        let now_us = clock::now_us();
        for ((name, of_loop), sample) in self.loops.iter().zip(samples) {
            let label = LoopLabel { r#loop: name };
            self.metrics.loop_up.get_or_create(&label).set(sample.is_some().into());
            let silence_s = now_us.saturating_sub(of_loop.turned_us()) as f64 / 1e6;
            self.metrics.loop_silence.get_or_create(&label).set(silence_s);
        }
        self.add_counters(samples);
        self.add_datapaths(samples);
        self.add_flows(samples);
        self.add_learning(samples);
    }

    fn add_learning(&self, samples: &[Option<LoopSample>]) {
        let m = &self.metrics;
        let mut sums = BTreeMap::<(&str, &str), u64>::new();
        for (key, count) in samples.iter().flatten().flat_map(|s| &s.verdicts) {
            *sums.entry(*key).or_default() += count;
        }
        for ((algorithm, verdict), count) in sums {
            raise(&m.decisions.get_or_create(&VerdictLabels { algorithm, verdict }), count);
        }
        for learner in &self.learners {
            let label = AlgorithmLabel { algorithm: learner.algorithm };
            let (gauges, rows) = (&learner.gauges, &m.rows_learned);
            raise(&rows.get_or_create(&label), gauges.rows.load(Relaxed));
            raise(&m.rows_dropped.get_or_create(&label), learner.dropped_rows());
            raise(&m.candidates.get_or_create(&label), gauges.candidates.load(Relaxed));
            let seconds = gauges.cpu_us.load(Relaxed) as f64 / 1e6;
            let counter = m.learner_cpu.get_or_create(&label);
            counter.inc_by((seconds - counter.get()).max(0.0));
        }
    }

    /// The registry as text.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics.registry)?;
        Ok(text)
    }

    fn add_counters(&self, samples: &[Option<LoopSample>]) {
        let m = &self.metrics;
        let mut sum = Counters::default();
        let mut algorithms = BTreeMap::<&'static str, AlgorithmCounters>::new();
        for sample in samples.iter().flatten() {
            sum += sample.counters;
            for (name, one) in &sample.algorithms {
                let all = algorithms.entry(name).or_default();
                all.flows_created += one.flows_created;
                all.flows_closed += one.flows_closed;
                all.flows += one.flows;
            }
        }
        raise(&m.flows_refused, sum.core.flows_refused);
        raise(&m.stray_reports, sum.core.stray_reports);
        raise(&m.events_dropped, sum.core.dropped_events);
        raise(&m.panics, sum.core.panics);
        raise(&m.commands_refused, sum.core.refused_commands);
        raise(&m.malformed_datagrams, sum.malformed_datagrams);
        raise(&m.unseen_flows, sum.unseen_flows);
        for (algorithm, c) in algorithms {
            let label = AlgorithmLabel { algorithm };
            let raise =
                |family: &Family<AlgorithmLabel, Counter>, to| raise(&family.get_or_create(&label), to);
            raise(&m.flows_created, c.flows_created);
            raise(&m.flows_closed, c.flows_closed);
            raise(&m.reports, c.flows.reports);
            raise(&m.reports_lost, c.flows.lost_reports);
            raise(&m.program_changes, c.flows.program_changes);
            raise(&m.updates, c.flows.updates);
        }
    }

    /// Sets the gauges anew, so that datapaths that are gone have none.
    fn add_datapaths(&self, samples: &[Option<LoopSample>]) {
        let m = &self.metrics;
        for family in [&m.max_flows, &m.programs, &m.max_programs] {
            family.clear();
        }
        for d in samples.iter().flatten().flat_map(|s| &s.datapaths) {
            let add = |family: &Family<DatapathLabel, Level>, n: usize| {
                family.get_or_create(&DatapathLabel { datapath: d.kind }).inc_by(n as i64);
            };
            add(&m.max_flows, d.max_flows);
            add(&m.programs, d.programs);
            add(&m.max_programs, d.max_programs);
        }
    }

    fn add_flows(&mut self, samples: &[Option<LoopSample>]) {
        let m = &self.metrics;
        m.flows.clear();
        let mut last = HashMap::new();
        for (n, sample) in samples.iter().enumerate() {
            let Some(sample) = sample else {
                // Its flows are where they were.
                last.extend(self.last.iter().filter(|((l, ..), _)| *l == n).map(|(k, v)| (*k, *v)));
                continue;
            };
            for f in &sample.flows {
                let (datapath, algorithm) = (f.datapath, f.algorithm);
                m.flows.get_or_create(&ModeLabels { datapath, algorithm, mode: f.mode.into() }).inc();
                let labels = FlowLabels { datapath, algorithm };
                if f.transport.srtt_us > 0 {
                    m.srtt.get_or_create(&labels).observe(f64::from(f.transport.srtt_us) / 1e6);
                }
                m.cwnd.get_or_create(&labels).observe(f.transport.snd_cwnd.into());
                let key = (n, f.id.0, f.id.1);
                let before = self.last.get(&key).copied().unwrap_or_default();
                let (now, before) = (f.transport.to_words(), before.to_words());
                for (n, family) in &m.transport {
                    family.get_or_create(&labels).inc_by(now[*n].saturating_sub(before[*n]));
                }
                last.insert(key, f.transport);
            }
        }
        self.last = last;
    }
}

/// Brings a counter up to a total that somebody else keeps.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
