//! The pages' model: the agent's last answers, and how its figures went.

use crate::series::Series;
use crate::source::Sample;
use ccplane_agent::control::{DecisionRecord, FlowRecord, LearnerRecord, SlotRecord, StandingRecord, Status};
use serde::Serialize;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Flows that a page lists; those that deliver most.
pub const MAX_LISTED: usize = 200;
/// Flows whose figures are kept over time.
pub const MAX_CHARTED: usize = 64;
/// Decisions that a page lists, the newest.
pub const MAX_DECISIONS: usize = 100;

/// Tells a flow from all others. Datapaths of several processes may share a name, and then number their flows alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey {
    datapath: String,
    flow: u64,
    local: SocketAddr,
    remote: SocketAddr,
}

impl FlowKey {
    fn of(record: &FlowRecord) -> FlowKey {
        let FlowRecord { flow, local, remote, .. } = *record;
        FlowKey { datapath: record.datapath.clone(), flow, local, remote }
    }
}

/// Figures of one flow over time.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct FlowHistory {
    /// Bytes acknowledged a second.
    pub rate: Series,
    /// Smoothed round-trip time, microseconds.
    pub srtt_us: Series,
    /// Congestion window, packets.
    pub snd_cwnd: Series,
}

/// A flow as a page shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FlowView {
    #[serde(flatten)]
    pub record: FlowRecord,
    /// The way in which it is steered, in a word or two.
    pub mode_words: &'static str,
    /// Bytes acknowledged a second since the sample before; `None` at the flow's first one.
    pub rate: Option<f64>,
    /// The history of its figures; `None` beyond [`MAX_CHARTED`] flows.
    pub history: Option<FlowHistory>,
}

impl FlowView {
    /// The algorithm, with the arm that it runs.
    pub fn algorithm(&self) -> String {
        let algorithm = self.record.algorithm.as_deref().unwrap_or("-");
        match &self.record.arm {
            Some(arm) => format!("{algorithm}/{}", arm.name),
            None => algorithm.to_owned(),
        }
    }

    pub(crate) fn key(&self) -> FlowKey {
        FlowKey::of(&self.record)
    }
}

/// A learner as a page shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LearnerView {
    #[serde(flatten)]
    pub record: LearnerRecord,
    /// The learning curve: mean reward of the rows between two samples.
    pub curve: Series,
}

/// The agent's last answers and their history.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct Model {
    /// The reason why the last sample failed; `None` while the agent answers.
    pub trouble: Option<String>,
    /// `None` before the first answer.
    pub status: Option<Status>,
    /// When the last sample was taken, seconds since the monitor started.
    pub at_s: f64,
    /// When the last sample was taken, seconds since 1970.
    pub time_s: f64,
    /// Those that deliver most first, at most [`MAX_LISTED`].
    pub flows: Vec<FlowView>,
    /// The number of flows that are not shown.
    pub hidden_flows: usize,
    /// Bytes acknowledged a second by all flows, over time.
    pub total_rate: Series,
    pub slots: Vec<SlotRecord>,
    /// Newest first, at most [`MAX_DECISIONS`].
    pub decisions: Vec<DecisionRecord>,
    pub learners: Vec<LearnerView>,
    pub standings: Vec<StandingRecord>,
    /// Bytes acknowledged at the last sample, of all flows.
    #[serde(skip)]
    acked: HashMap<FlowKey, u64>,
}

impl Model {
    /// Notes that the agent gave no answer; what it answered last stays.
    pub fn fail(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Takes the agent's answers. Those of another agent than before start all over.
    pub fn take(&mut self, sample: Sample) {
        if self.status.as_ref().is_some_and(|status| status.pid != sample.status.pid) {
            *self = Model::default();
        }
        let seconds = self.status.as_ref().map_or(0.0, |_| sample.at_s - self.at_s);
        self.trouble = None;
        self.at_s = sample.at_s;
        self.time_s = sample.time_s;
        self.take_flows(sample.flows.flows, seconds);
        self.take_learners(sample.snapshots.learners);
        self.slots = sample.snapshots.slots;
        self.standings = sample.snapshots.standings;
        self.decisions = sample.snapshots.decisions;
        self.decisions.reverse();
        self.decisions.truncate(MAX_DECISIONS);
        self.status = Some(sample.status);
    }

    fn take_flows(&mut self, records: Vec<FlowRecord>, seconds: f64) {
        let mut histories: HashMap<FlowKey, FlowHistory> =
            self.flows.drain(..).filter_map(|flow| Some((flow.key(), flow.history?))).collect();
        let acked = std::mem::take(&mut self.acked);
        let mut flows = Vec::with_capacity(records.len());
        for record in records {
            let key = FlowKey::of(&record);
            let now = record.transport.bytes_acked.unwrap_or(0);
            let before = acked.get(&key).filter(|before| seconds > 0.0 && **before <= now);
            let rate = before.map(|before| (now - before) as f64 / seconds);
            self.acked.insert(key, now);
            let mode_words = record.mode_words();
            flows.push(FlowView { record, mode_words, rate, history: None });
        }
        let rate = |flow: &FlowView| flow.rate.unwrap_or(0.0);
        // Those of the same rate stay in place from sample to sample.
        flows.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then_with(|| a.key().cmp(&b.key())));
        if seconds > 0.0 {
            self.total_rate.push(self.at_s, flows.iter().map(rate).sum());
        }
        self.hidden_flows = flows.len().saturating_sub(MAX_LISTED);
        flows.truncate(MAX_LISTED);
        for flow in flows.iter_mut().take(MAX_CHARTED) {
            let mut history = histories.remove(&flow.key()).unwrap_or_default();
            if let Some(rate) = flow.rate {
                history.rate.push(self.at_s, rate);
            }
            let transport = &flow.record.transport;
            if let Some(srtt_us) = transport.srtt_us {
                history.srtt_us.push(self.at_s, srtt_us.into());
            }
            if let Some(snd_cwnd) = transport.snd_cwnd {
                history.snd_cwnd.push(self.at_s, snd_cwnd.into());
            }
            flow.history = Some(history);
        }
        self.flows = flows;
    }

    fn take_learners(&mut self, records: Vec<LearnerRecord>) {
        let mut before: HashMap<String, LearnerView> =
            self.learners.drain(..).map(|learner| (learner.record.algorithm.clone(), learner)).collect();
        for record in records {
            let mut curve = Series::default();
            if let Some(earlier) = before.remove(&record.algorithm) {
                curve = earlier.curve;
                let rows = record.rows.saturating_sub(earlier.record.rows);
                if rows > 0 {
                    let rewards = record.reward_sum - earlier.record.reward_sum;
                    curve.push(self.at_s, rewards / rows as f64);
                }
            }
            self.learners.push(LearnerView { record, curve });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ccplane_agent::control::{ArmRecord, Counters, DatapathRecord, FlowArm, Flows, ModeName, Snapshots};
    use ccplane_contract::KnownStats;

    /// A flow that has delivered so much.
    pub(crate) fn flow(number: u64, bytes_acked: u64) -> FlowRecord {
        let transport = KnownStats {
            bytes_acked: Some(bytes_acked),
            srtt_us: Some(25_000 + number as u32),
            min_rtt_us: Some(20_000),
            snd_cwnd: Some(40),
            lost: Some(number),
            ..KnownStats::default()
        };
        FlowRecord {
            datapath: "quic".into(),
            flow: number,
            local: "192.0.2.1:4433".parse().unwrap(),
            remote: "192.0.2.2:40000".parse().unwrap(),
            cgroup: None,
            algorithm: Some("portfolio".into()),
            program: Some("copa".into()),
            arm: Some(FlowArm {
                name: "copa".into(),
                why: "best there".into(),
                switches: 1,
                evidence: vec![ArmRecord { name: "copa".into(), intervals: 3, worth: 1.0 }],
            }),
            state: None,
            mode: ModeName::Program,
            waits_for_ack: false,
            native_reason: None,
            instead_of: None,
            last_error: None,
            transport,
            policy: None,
            steering: None,
        }
    }

    pub(crate) fn learner(rows: u64, reward_sum: f64) -> LearnerRecord {
        LearnerRecord {
            algorithm: "aurora".into(),
            rows,
            reward_sum,
            dropped_rows: 0,
            candidates: 1,
            cpu_s: 2.5,
            adapting: false,
            failed: false,
        }
    }

    pub(crate) fn sample(at_s: f64, flows: Vec<FlowRecord>, learners: Vec<LearnerRecord>) -> Sample {
        let datapath =
            DatapathRecord { kind: "quic".into(), flows: 1, max_flows: 64, programs: 2, max_programs: 64 };
        let status = Status {
            pid: 4321,
            uptime_s: 100 + at_s as u64,
            default_algorithm: "cubic".into(),
            rules: 2,
            loops: Vec::new(),
            datapaths: vec![datapath],
            counters: Counters::default(),
        };
        let snapshots = Snapshots { learners, ..Snapshots::default() };
        let flows = Flows { silent: None, flows, unseen: 0 };
        Sample { at_s, time_s: 1000.0 + at_s, status, flows, snapshots }
    }

    #[test]
    fn pages_say_in_a_word_or_two_how_a_flow_is_steered() {
        let states = [
            (ModeName::Program, false, "program"),
            (ModeName::NativeNoProgram, false, "no program"),
            (ModeName::NativeNoProgram, true, "no ACK yet"),
            (ModeName::NativeAgentSilent, false, "agent silent"),
            (ModeName::NativePolicy, false, "policy tripped"),
        ];
        for (mode, waits_for_ack, words) in states {
            let mut model = Model::default();
            model.take(sample(1.0, vec![FlowRecord { mode, waits_for_ack, ..flow(1, 0) }], vec![]));
            assert_eq!(serde_json::to_value(&model.flows[0]).unwrap()["mode_words"], words);
            let is_steered = ["program", "no ACK yet"].contains(&words);
            assert_eq!(model.flows[0].record.is_steered(), is_steered, "{words}");
        }
    }

    #[test]
    fn rates_are_what_counters_grow_by() {
        let mut model = Model::default();
        model.take(sample(10.0, vec![flow(1, 1000), flow(2, 500)], vec![]));
        assert_eq!(model.flows[0].rate, None, "of one sample there is none");
        assert_eq!(model.total_rate.last(), None);
        model.take(sample(12.0, vec![flow(1, 1200), flow(2, 2500), flow(3, 9000)], vec![]));
        let rates: Vec<_> = model.flows.iter().map(|f| (f.record.flow, f.rate)).collect();
        assert_eq!(rates, [(2, Some(1000.0)), (1, Some(100.0)), (3, None)]);
        assert_eq!(model.total_rate.last().map(|p| (p.at_s, p.value)), Some((12.0, 1100.0)));
        let history = model.flows[0].history.as_ref().unwrap();
        assert_eq!((history.rate.points().len(), history.srtt_us.points().len()), (1, 2));
        // A number that is used again, by a flow that has delivered less.
        model.take(sample(13.0, vec![flow(2, 10)], vec![]));
        assert_eq!((model.flows.len(), model.flows[0].rate), (1, None));
    }

    #[test]
    fn flows_of_the_same_number_in_two_processes_are_two() {
        let other = |bytes| FlowRecord { remote: "192.0.2.9:443".parse().unwrap(), ..flow(1, bytes) };
        let mut model = Model::default();
        model.take(sample(10.0, vec![flow(1, 1000), other(50)], vec![]));
        model.take(sample(12.0, vec![flow(1, 3000), other(250)], vec![]));
        assert_eq!(model.flows.iter().map(|f| f.rate).collect::<Vec<_>>(), [Some(1000.0), Some(100.0)]);
        let points = |f: &FlowView| f.history.as_ref().map(|history| history.srtt_us.points().len());
        assert_eq!(model.flows.iter().map(points).collect::<Vec<_>>(), [Some(2), Some(2)]);
    }

    #[test]
    fn a_learning_curve_is_the_mean_reward_of_new_rows() {
        let mut model = Model::default();
        model.take(sample(1.0, vec![], vec![learner(100, 50.0)]));
        model.take(sample(2.0, vec![], vec![learner(100, 50.0)]));
        assert_eq!(model.learners[0].curve.last(), None, "no rows, no point");
        model.take(sample(3.0, vec![], vec![learner(120, 65.0)]));
        assert_eq!(model.learners[0].curve.last().map(|p| p.value), Some(0.75));
    }

    #[test]
    fn many_flows_are_bounded_and_those_that_deliver_most_are_kept() {
        let flows = |round: u64| (0..1000).map(|n| flow(n, round * n)).collect::<Vec<_>>();
        let mut model = Model::default();
        for round in 1..=3 {
            model.take(sample(round as f64, flows(round), vec![]));
        }
        assert_eq!((model.flows.len(), model.hidden_flows), (MAX_LISTED, 1000 - MAX_LISTED));
        assert_eq!(model.flows[0].record.flow, 999);
        let charted = model.flows.iter().filter(|f| f.history.is_some()).count();
        assert_eq!(charted, MAX_CHARTED);
        assert_eq!(model.total_rate.last().map(|p| p.value), Some(999.0 * 500.0));
    }

    #[test]
    fn another_agent_starts_all_over_and_silence_keeps_what_was_said() {
        let mut model = Model::default();
        model.take(sample(1.0, vec![flow(1, 100)], vec![]));
        model.take(sample(2.0, vec![flow(1, 200)], vec![]));
        model.fail("no agent runs".into());
        assert_eq!((model.flows.len(), model.trouble.as_deref()), (1, Some("no agent runs")));
        let mut next = sample(3.0, vec![flow(1, 300)], vec![]);
        next.status.pid += 1;
        model.take(next);
        assert_eq!((model.flows[0].rate, model.total_rate.last(), model.trouble), (None, None, None));
    }
}
