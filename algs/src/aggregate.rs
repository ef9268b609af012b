//! Aggregate: all flows to one destination under one controller, each with a share of its window by weight (CCP,
//! SIGCOMM'18, section 2.2: "congestion control for flow aggregates").
//!
//! The controller is Reno's (RFC 5681) on the sum of what the flows acknowledge and lose. So a group of any size takes
//! what one flow would take. A flow that joins gets its share at once, without a slow start of its own; what one leaves
//! goes to the others. The group lives in the agent: flows of any datapath that the agent serves may be in it. Rules
//! give the weights, such as `{ algorithm = "aggregate", remote_port = 5201, parameters = { weight = 3 } }`.

use crate::parameters::{DEFAULT_REPORT_US, MAX_WINDOW_BYTES, REPORT_US, report_us};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, Report};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Largest weight of a flow.
pub const MAX_WEIGHT: u32 = 1000;

// State

/// The groups that have flows, by destination.
type Groups = Mutex<HashMap<IpAddr, Weak<Mutex<Group>>>>;

/// The flows to one destination.
#[derive(Debug)]
struct Group {
    /// The weights of its flows, summed.
    weights: u64,
    /// The window of all flows together.
    cwnd_bytes: u64,
    ssthresh_bytes: u64,
    /// Bytes acknowledged in congestion avoidance that have not grown the window yet.
    credit_bytes: u64,
    /// Bytes still to be acknowledged until losses belong to a new episode. Bytes and not time: datapaths have clocks
    /// of their own.
    recovery_bytes: u64,
}

struct AggregateFlow {
    group: Arc<Mutex<Group>>,
    weight: u64,
    mss_bytes: u64,
}

// Behaviour

impl Group {
    fn new(cwnd_bytes: u64) -> Group {
        Group { weights: 0, cwnd_bytes, ssthresh_bytes: MAX_WINDOW_BYTES, credit_bytes: 0, recovery_bytes: 0 }
    }

    fn acked(&mut self, bytes: u64, mss_bytes: u64) {
        if self.recovery_bytes > 0 {
            self.recovery_bytes = self.recovery_bytes.saturating_sub(bytes);
            return;
        }
        if self.cwnd_bytes < self.ssthresh_bytes {
            // RFC 5681 section 3.1, slow start.
            self.cwnd_bytes = (self.cwnd_bytes + bytes).min(self.ssthresh_bytes);
            return;
        }
        // Section 3.1, congestion avoidance: a segment per window acknowledged.
        self.credit_bytes += bytes;
        while self.credit_bytes >= self.cwnd_bytes {
            self.credit_bytes -= self.cwnd_bytes;
            self.cwnd_bytes = (self.cwnd_bytes + mss_bytes).min(MAX_WINDOW_BYTES);
        }
    }

    fn lost(&mut self, mss_bytes: u64) {
        if self.recovery_bytes > 0 {
            return;
        }
        self.recovery_bytes = self.cwnd_bytes;
        // Section 3.1, equation 4.
        self.ssthresh_bytes = (self.cwnd_bytes / 2).max(2 * mss_bytes);
        self.cwnd_bytes = self.ssthresh_bytes;
        self.credit_bytes = 0;
    }

    fn share(&self, weight: u64, mss_bytes: u64) -> u64 {
        let share = u128::from(self.cwnd_bytes) * u128::from(weight) / u128::from(self.weights.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).max(mss_bytes)
    }
}

impl AggregateFlow {
    /// No code panics while it holds the lock, and a group's numbers are right at any time.
    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow for AggregateFlow {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, control: &mut Control) {
        let get = |name| report.get(name).unwrap_or(0).max(0) as u64;
        let timeout = get("timeout") != 0;
        let mut group = self.group();
        group.acked(get("acked"), self.mss_bytes);
        if timeout || get("lost") > 0 {
            group.lost(self.mss_bytes);
        }
        // A timeout starts the flow over, not the group.
        let cwnd_bytes = if timeout { self.mss_bytes } else { group.share(self.weight, self.mss_bytes) };
        control.update(&[("Cwnd", cwnd_bytes as i64)]);
    }
}

impl Drop for AggregateFlow {
    fn drop(&mut self) {
        let weight = self.weight;
        let mut group = self.group();
        group.weights = group.weights.saturating_sub(weight);
    }
}

// Config

/// The parameters of the aggregate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AggregateConfig {
    /// A flow's part of the group's window, against the other flows' weights: 1 to `MAX_WEIGHT`.
    pub weight: u32,
    /// Time between two reports, microseconds; 0 for one at each ACK. Loss is reported at once.
    pub report_us: u32,
}

// Defaults

impl Default for AggregateConfig {
    fn default() -> Self {
        AggregateConfig { weight: 1, report_us: DEFAULT_REPORT_US }
    }
}

// Factory

/// Makes flows that share one window for each destination. A [`configured`](Algorithm::configured) copy shares its groups.
#[derive(Clone, Default, Debug)]
pub struct Aggregate {
    pub config: AggregateConfig,
    groups: Arc<Groups>,
}

impl Aggregate {
    /// The group of a destination; a new one starts with this window.
    fn group(&self, of: IpAddr, cwnd_bytes: u64) -> Arc<Mutex<Group>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&of).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::new(Mutex::new(Group::new(cwnd_bytes)));
        groups.insert(of, Arc::downgrade(&group));
        group
    }
}

const WEIGHT: Parameter = Parameter {
    name: "weight",
    about: "a flow's part of the window that all flows to its destination share",
    default: 1,
    min: 1,
    max: MAX_WEIGHT as i64,
};

impl Algorithm for Aggregate {
    ccplane_alg::one_program!("aggregate", "ccp_reno.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let mss_bytes = u64::from(info.mss_bytes.max(1));
        let flow = AggregateFlow {
            group: self.group(info.remote.ip(), info.init_cwnd_bytes.max(mss_bytes)),
            weight: u64::from(self.config.weight.clamp(1, MAX_WEIGHT)),
            mss_bytes,
        };
        let mut group = flow.group();
        group.weights += flow.weight;
        let cwnd_bytes = group.share(flow.weight, mss_bytes) as i64;
        drop(group);
        let report_us = i64::from(self.config.report_us);
        control.set_program("aggregate", &[("report_us", report_us), ("Cwnd", cwnd_bytes)]);
        Box::new(flow)
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[WEIGHT, REPORT_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let weight = u32::try_from(WEIGHT.value_in(values)).unwrap_or(1);
        let config = AggregateConfig { weight, report_us: report_us(values) };
        Some(Arc::new(Aggregate { config, groups: Arc::clone(&self.groups) }))
    }

    fn renewed(&self) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Aggregate { groups: Arc::default(), ..self.clone() }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::window_set;
    use ccplane_alg::configure;

    /// Flows of these weights to one destination, with a window of 12,000 bytes at the start and segments of 1000.
    fn flows(weights: &[i64]) -> (Vec<Box<dyn Flow>>, Vec<i64>) {
        let algorithm: Arc<dyn Algorithm> = Arc::new(Aggregate::default());
        let start = |weight: &i64| started(&*configure(&algorithm, [("weight", *weight)]).unwrap());
        weights.iter().map(start).unzip()
    }

    /// A flow to that destination, and its window at its start.
    fn started(algorithm: &dyn Algorithm) -> (Box<dyn Flow>, i64) {
        let mut control = Control::default();
        let flow = algorithm.flow(&FlowInfo::example(1000, 12_000), &mut control);
        (flow, window_set(&mut control))
    }

    /// Returns the flow's window after a report of `acked`, `lost` and `timeout`.
    fn report(flow: &mut dyn Flow, values: [i64; 3]) -> i64 {
        let names = ["acked", "lost", "timeout"].map(String::from);
        let mut control = Control::default();
        let report = Report { program: "aggregate", names: &names, values: &values, truth: None };
        flow.on_report(0, &report, &mut control);
        window_set(&mut control)
    }

    #[test]
    fn a_flow_that_joins_gets_its_share_at_once_and_leaves_it_to_the_others() {
        let (mut flows, first) = flows(&[1, 2, 3]);
        assert_eq!(first, [12_000, 8_000, 6_000]);
        let now: Vec<i64> = flows.iter_mut().map(|f| report(&mut **f, [0, 0, 0])).collect();
        assert_eq!(now, [2_000, 4_000, 6_000]);
        flows.pop();
        assert_eq!(report(&mut *flows[1], [0, 0, 0]), 8_000);
    }

    #[test]
    fn flows_of_another_experiment_have_a_window_of_their_own() {
        let algorithm = Aggregate::default();
        let (_first, window) = started(&algorithm);
        assert_eq!(window, 12_000);
        assert_eq!(started(&algorithm).1, 6_000, "shared");
        assert_eq!(started(&*algorithm.renewed().unwrap()).1, 12_000);
    }

    #[test]
    fn all_grow_as_one_and_one_loss_is_answered_once() {
        let (mut flows, _) = flows(&[1, 1]);
        // Slow start on what both acknowledge.
        assert_eq!(report(&mut *flows[0], [6_000, 0, 0]), 9_000);
        assert_eq!(report(&mut *flows[1], [6_000, 0, 0]), 12_000);
        // Both lose of the same queue.
        assert_eq!(report(&mut *flows[0], [0, 1, 0]), 6_000);
        assert_eq!(report(&mut *flows[1], [0, 3, 0]), 6_000);
        // The window of before is acknowledged: the episode is over. Then a segment a window.
        assert_eq!(report(&mut *flows[0], [24_000, 0, 0]), 6_000);
        assert_eq!(report(&mut *flows[1], [12_000, 0, 0]), 6_500);
        assert_eq!(report(&mut *flows[1], [0, 1, 0]), 3_250);
    }

    #[test]
    fn a_timeout_starts_one_flow_over() {
        let (mut flows, _) = flows(&[1, 1]);
        assert_eq!(report(&mut *flows[0], [0, 1, 1]), 1_000);
        assert_eq!(report(&mut *flows[1], [0, 0, 0]), 3_000);
        assert_eq!(report(&mut *flows[0], [1_000, 0, 0]), 3_000);
    }

    #[test]
    fn other_destinations_are_other_groups() {
        let algorithm = Aggregate::default();
        let mut control = Control::default();
        let elsewhere = FlowInfo { remote: ([127, 0, 0, 2], 2).into(), ..FlowInfo::example(1000, 12_000) };
        let mut here = algorithm.flow(&FlowInfo::example(1000, 12_000), &mut control);
        let mut there = algorithm.flow(&elsewhere, &mut control);
        assert_eq!([report(&mut *here, [0, 1, 0]), report(&mut *there, [0, 0, 0])], [6_000, 12_000]);
        drop((here, there));
        // Nobody is left: the next one starts anew.
        let mut again = algorithm.flow(&FlowInfo::example(1000, 12_000), &mut control);
        assert_eq!(report(&mut *again, [0, 0, 0]), 12_000);
    }
}
