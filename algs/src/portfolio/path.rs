//! One path: which arm its flows have, and what is tried next.

use super::PortfolioConfig;
use super::meter::{Key, Measured, Meter};
use super::record::Record;
use ccplane_alg::PathSample;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest interval, microseconds, and its length in round trips.
const MAX_INTERVAL_US: u64 = 6_000_000;
const INTERVAL_RTTS: u64 = 40;
/// After a hand-over the queue is still the other arm's for so many round trips, and for this long at least and at most, microseconds.
const SETTLE_RTTS: u64 = 4;
const SETTLE_US: (u64, u64) = (200_000, 2_000_000);
/// The same for a flow's own start.
const START_RTTS: u64 = 15;
const START_US: (u64, u64) = (1_500_000, 5_000_000);
/// Beyond this and so many round trips an arm that is worth this much less is left, microseconds and a logarithm.
const EARLY_US: u64 = 1_000_000;
const EARLY_RTTS: u64 = 6;
const EARLY_LOSS: f64 = std::f64::consts::LN_2;
/// The loss that trials may cause beyond their share of the time, seconds.
const BURST_S: f64 = 8.0;
/// A level that is this much another one, as a logarithm, in two intervals in a row is another path.
const JUMP: f64 = 1.5;
/// A flow whose first smallest round trip is this much another one, as a logarithm, crosses another path.
const OTHER_PATH: f64 = 0.25;
/// Two intervals of one arm that differ by this much, as a logarithm, tell nothing of what was between them.
const UNSTEADY: f64 = 0.7;
/// A switch waits for the queue of the arm before, while the round trip is this much longer than it was.
/// It waits no longer than [`MAX_SETTLE_US`].
const QUEUE_LEFT: f64 = 1.5;
const MAX_SETTLE_US: u64 = 5_000_000;
/// Beside rivals, an arm that can tell looks whether they have gone this often, microseconds.
const PROBE_INTERVAL_US: u64 = 20_000_000;
/// Beside rivals, an arm's share may differ from the fair arm's by this factor; beyond it costs this many times as a logarithm.
const FAIR_BAND: f64 = 1.25;
const UNFAIR_COST: f64 = 4.0;

/// The presence of rivals on the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition {
    /// Nobody who fills the queue.
    Alone,
    /// Others fill the queue.
    Shared,
}

/// The knowledge of a path that is kept.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Known {
    pub records: [Record; 2],
    pub condition: Condition,
    /// Smallest round trip of its flows, microseconds; 0: none yet.
    pub min_rtt_us: u32,
    /// The loss that trials have caused, and the time that flows ran, seconds.
    pub lost_s: f64,
    pub ran_s: f64,
}

impl Known {
    pub(super) fn record(&self) -> &Record {
        &self.records[self.condition as usize]
    }

    fn record_mut(&mut self) -> &mut Record {
        &mut self.records[self.condition as usize]
    }
}

/// The worths that arms are expected to have before anything is measured.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Expected {
    /// Of each, 0 to 1.
    pub priors: Vec<f64>,
    /// The arm that can tell whether there are rivals and is fair to them, where there is one.
    pub teller: Option<usize>,
}

impl Expected {
    /// Nothing is known; `None` where there are no arms, or too many.
    pub(super) fn known(&self) -> Option<Known> {
        let largest = self.priors.iter().copied().fold(0.0, f64::max);
        let first = self.priors.iter().position(|p| *p == largest).unwrap_or(0);
        let of = |best| Record::new(self.priors.len(), best);
        let records = [of(first)?, of(self.teller.unwrap_or(first))?];
        Some(Known { records, condition: Condition::Alone, min_rtt_us: 0, lost_s: 0.0, ran_s: 0.0 })
    }
}

/// The state of the choice on the path.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// An interval of the arm in use.
    Hold,
    /// One of a candidate.
    Trial { candidate: usize, before: Measured },
    /// The arm in use again; then the two are compared.
    Again { candidate: usize, before: Measured, tried: Measured, trial_us: u64 },
    /// An arm that can tell looks for rivals.
    Probe,
}

/// A path with live flows.
#[derive(Debug)]
pub(super) struct PortfolioPath {
    pub known: Known,
    expected: Arc<Expected>,
    /// Each flow's arms that its datapath can run.
    flows: BTreeMap<Key, Vec<usize>>,
    /// By whose samples time passes: datapaths have clocks of their own.
    leader: Option<Key>,
    now_us: u64,
    began_us: u64,
    settle_us: u64,
    rtt_us: u64,
    phase: Phase,
    arm: usize,
    meter: Meter,
    /// Of the last interval of the arm in use.
    level: Option<f64>,
    jumped: bool,
    probed_us: u64,
    fair_bytes_per_s: Option<f64>,
    pub why: Why,
}

/// Reasons why a path has its arm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Why {
    /// Nothing has been measured yet.
    Expected,
    /// The arm was the best on this path before.
    Remembered,
    Tried,
    /// The arm is compared with another one.
    Compared {
        with: usize,
    },
    /// The arm was worth this much more than the arm before it.
    Better {
        than: usize,
        by: f64,
    },
    /// The last candidate was worth this much more, or less if negative.
    Stays {
        than: usize,
        by: f64,
    },
    /// The arm is fair to rivals.
    Fair,
    /// The rivals have gone.
    AloneAgain,
    /// The arm tests whether there are rivals.
    Probes,
    /// The path has changed.
    Changed,
}

impl PortfolioPath {
    pub(super) fn new(known: Known, expected: Arc<Expected>) -> PortfolioPath {
        let arm = known.record().best;
        let measured = known.record().intervals.iter().sum::<u64>() > 0;
        PortfolioPath {
            known,
            expected,
            flows: BTreeMap::new(),
            leader: None,
            now_us: 0,
            began_us: 0,
            settle_us: START_US.0,
            rtt_us: 0,
            phase: Phase::Hold,
            arm,
            meter: Meter::default(),
            level: None,
            jumped: false,
            probed_us: 0,
            fair_bytes_per_s: None,
            why: if measured { Why::Remembered } else { Why::Expected },
        }
    }

    /// A flow comes; its arm.
    pub(super) fn join(&mut self, key: Key, available: Vec<usize>) -> usize {
        self.flows.insert(key, available);
        self.leader.get_or_insert(key);
        self.arm_of(key)
    }

    /// A flow goes; whether it was the last one.
    pub(super) fn leave(&mut self, key: Key) -> bool {
        self.flows.remove(&key);
        self.meter.forget(key);
        if self.leader == Some(key) {
            self.leader = self.flows.keys().next().copied();
        }
        self.flows.is_empty()
    }

    /// Returns the path's arm where that is not the best one: on trial, or a probe.
    pub(super) fn other_arm(&self) -> Option<usize> {
        Some(self.arm).filter(|arm| *arm != self.known.record().best)
    }

    /// The path's arm, or the best one that the flow's datapath can run.
    pub(super) fn arm_of(&self, key: Key) -> usize {
        let Some(available) = self.flows.get(&key) else { return self.arm };
        if available.contains(&self.arm) {
            return self.arm;
        }
        let record = self.known.record();
        let mean = |arm: &usize| record.mean(*arm).unwrap_or(f64::NEG_INFINITY);
        let best = available.iter().copied().reduce(|a, b| if mean(&b) > mean(&a) { b } else { a });
        best.unwrap_or(self.arm)
    }

    /// Takes in a flow's progress between two samples.
    pub(super) fn feed(
        &mut self,
        key: Key,
        before: Option<&PathSample>,
        now: &PathSample,
        config: &PortfolioConfig,
    ) {
        let took_us = before.map_or(0, |before| now.at_us.saturating_sub(before.at_us));
        let since_us = self.now_us.saturating_sub(self.began_us);
        if let Some(before) = before.filter(|_| since_us >= self.settle_us && self.arm_of(key) == self.arm) {
            self.meter.add(key, before, now);
        }
        if self.leader != Some(key) {
            return;
        }
        if self.rtt_us == 0 {
            self.rtt_us = now.transport.srtt_us.into();
            self.settle_us = (START_RTTS * self.rtt_us).clamp(START_US.0, START_US.1);
            self.meet(now.transport.min_rtt_us);
        }
        self.now_us += took_us;
        self.known.ran_s += took_us as f64 / 1e6;
        self.rtt_us = now.transport.srtt_us.into();
        self.known.min_rtt_us = now.transport.min_rtt_us;
        self.step(config);
    }

    /// The first round trip of a flow: is it the path that was known?
    fn meet(&mut self, min_rtt_us: u32) {
        let (known, found) = (f64::from(self.known.min_rtt_us), f64::from(min_rtt_us.max(1)));
        if known > 0.0
            && (found / known).ln().abs() > OTHER_PATH
            && let Some(fresh) = self.expected.known()
        {
            self.known = fresh;
            self.why = Why::Changed;
            let best = self.known.record().best;
            self.enter(Phase::Hold, best);
        }
    }

    fn changed(&mut self) {
        self.known.records.iter_mut().for_each(Record::doubt);
        self.known.lost_s = self.known.lost_s.min(BURST_S / 2.0);
        self.known.ran_s = 0.0;
        self.level = None;
        self.fair_bytes_per_s = None;
        self.why = Why::Changed;
    }

    fn step(&mut self, config: &PortfolioConfig) {
        let since_us = self.now_us.saturating_sub(self.began_us);
        let measured_us = since_us.saturating_sub(self.settle_us);
        let interval_us =
            (INTERVAL_RTTS * self.rtt_us).clamp(config.interval_us, MAX_INTERVAL_US.max(config.interval_us));
        if let Phase::Again { before, .. } = self.phase
            && self.rtt_us as f64 > before.rtt_us * QUEUE_LEFT
            && since_us >= self.settle_us
            && since_us < MAX_SETTLE_US
        {
            self.settle_us = since_us;
            self.meter = Meter::default();
            return;
        }
        if let Phase::Trial { candidate, before } = self.phase
            && since_us >= EARLY_US.max(EARLY_RTTS * self.rtt_us)
            && measured_us > 0
            && measured_us < interval_us
            && let Some(so_far) = self.meter.measured(&config.utility)
            && (so_far.fallen || self.worth(&so_far) < self.worth(&before) - EARLY_LOSS)
        {
            return self.tried(candidate, before, so_far, since_us);
        }
        if measured_us < interval_us {
            return;
        }
        let Some(measured) = self.meter.measured(&config.utility) else {
            // The application has little to send: nothing can be compared, and nothing is tried.
            let best = self.known.record().best;
            return self.enter(Phase::Hold, best);
        };
        match self.phase {
            Phase::Hold => self.held(measured, config),
            Phase::Trial { candidate, before } => self.tried(candidate, before, measured, since_us),
            Phase::Probe => {
                self.probed_us = self.now_us;
                if !self.rivals_changed(&measured) {
                    let best = self.known.record().best;
                    self.level = None;
                    self.enter(Phase::Hold, best);
                }
            }
            Phase::Again { candidate, before, tried, trial_us } => {
                let by = self.worth(&tried) - (self.worth(&before) + self.worth(&measured)) / 2.0;
                self.known.lost_s += (1.0 - by.min(0.0).exp()) * trial_us as f64 / 1e6;
                let best = self.known.record().best;
                let unsteady = (self.worth(&before) - self.worth(&measured)).abs() > UNSTEADY;
                if unsteady {
                    self.held(measured, config);
                } else if self.known.record_mut().compared(candidate, by) {
                    self.level = Some(tried.worth);
                    self.why = Why::Better { than: best, by };
                    self.enter(Phase::Hold, candidate);
                } else {
                    self.why = Why::Stays { than: candidate, by };
                    self.held(measured, config);
                }
            }
        }
    }

    /// An interval of the arm in use has ended.
    fn held(&mut self, measured: Measured, config: &PortfolioConfig) {
        if self.expected.teller == Some(self.arm) {
            self.fair_bytes_per_s = Some(measured.bytes_per_s);
        }
        if self.rivals_changed(&measured) {
            return;
        }
        let jump = self.level.map_or(0.0, |level| measured.worth - level);
        let best = self.known.record().best;
        if jump.abs() > JUMP && !self.jumped {
            // Once more: it may have been a moment's.
            self.jumped = true;
            return self.enter(Phase::Hold, best);
        }
        if self.jumped && jump.abs() > JUMP {
            self.changed();
        }
        let due =
            self.known.condition == Condition::Shared && self.now_us - self.probed_us > PROBE_INTERVAL_US;
        if let Some(teller) = self
            .expected
            .teller
            .filter(|teller| *teller != self.arm && (due || (self.jumped && jump < -JUMP)))
            && self.flows.len() == 1
            && self.available().contains(&teller)
        {
            self.jumped = false;
            self.why = Why::Probes;
            return self.enter(Phase::Probe, teller);
        }
        self.jumped = false;
        self.level = Some(measured.worth);
        self.known.record_mut().held();
        let may = self.known.lost_s <= BURST_S + self.known.ran_s * config.cost_ppm as f64 / 1e6;
        let all: Vec<usize> = self.available();
        match self.known.record().candidate(&all, &self.expected.priors).filter(|_| may) {
            Some(candidate) => {
                self.why = Why::Tried;
                self.enter(Phase::Trial { candidate, before: measured }, candidate);
            }
            None => self.enter(Phase::Hold, best),
        }
    }

    fn tried(&mut self, candidate: usize, before: Measured, tried: Measured, trial_us: u64) {
        if self.rivals_changed(&tried) {
            return;
        }
        let best = self.known.record().best;
        self.why = Why::Compared { with: candidate };
        self.enter(Phase::Again { candidate, before, tried, trial_us }, best);
    }

    /// Returns whether rivals have come or gone, and changes the arm with them. Flows of the same path take each other for
    /// rivals, so that only a single flow is believed.
    fn rivals_changed(&mut self, measured: &Measured) -> bool {
        let (Some(rivals), Some(_), 1) = (measured.rivals, self.expected.teller, self.flows.len()) else {
            return false;
        };
        let condition = if rivals { Condition::Shared } else { Condition::Alone };
        if condition == self.known.condition {
            return false;
        }
        self.known.condition = condition;
        self.level = None;
        self.probed_us = self.now_us;
        self.why = if rivals { Why::Fair } else { Why::AloneAgain };
        let best = self.known.record().best;
        self.enter(Phase::Hold, best);
        true
    }

    /// The worth of an interval in the path's condition.
    fn worth(&self, measured: &Measured) -> f64 {
        match (self.known.condition, self.fair_bytes_per_s) {
            (Condition::Shared, Some(fair)) => {
                let off = (measured.bytes_per_s.max(1.0) / fair.max(1.0)).ln().abs();
                measured.worth - UNFAIR_COST * (off - FAIR_BAND.ln()).max(0.0)
            }
            _ => measured.worth,
        }
    }

    /// Arms that every flow's datapath can run.
    fn available(&self) -> Vec<usize> {
        let count = self.known.record().intervals.len();
        (0..count).filter(|arm| self.flows.values().all(|of| of.contains(arm))).collect()
    }

    fn enter(&mut self, phase: Phase, arm: usize) {
        if arm != self.arm {
            self.settle_us = (SETTLE_RTTS * self.rtt_us).clamp(SETTLE_US.0, SETTLE_US.1);
        } else {
            self.settle_us = 0;
        }
        self.arm = arm;
        self.phase = phase;
        self.began_us = self.now_us;
        self.meter = Meter::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::TransportStats;

    const KEY: Key = 1;
    const SAMPLE_US: u64 = 100_000;

    /// A sample of a flow that has all of its window in flight.
    fn full() -> PathSample {
        let transport = TransportStats {
            unacked: 100,
            srtt_us: 40_000,
            min_rtt_us: 40_000,
            ..TransportStats::new(1448, 100)
        };
        PathSample { transport, steered: true, ..PathSample::default() }
    }

    /// The longest time for which a candidate keeps the path that carries this part of what the arm in use does, microseconds.
    fn longest_trial_us(percent: u64) -> u64 {
        let expected = Arc::new(Expected { priors: vec![0.9, 0.5], teller: None });
        let mut path = PortfolioPath::new(expected.known().unwrap(), Arc::clone(&expected));
        path.join(KEY, vec![0, 1]);
        let mut before = full();
        let (mut longest_us, mut since_us) = (0, 0);
        for _ in 0..300 {
            let mut now = before;
            now.at_us += SAMPLE_US;
            now.transport.bytes_acked += if path.arm == 1 { 3_000 * percent } else { 300_000 };
            path.feed(KEY, Some(&before), &now, &PortfolioConfig::default());
            since_us = if path.arm == 1 { since_us + SAMPLE_US } else { 0 };
            longest_us = longest_us.max(since_us);
            before = now;
        }
        longest_us
    }

    /// Half of the throughput is worth a quarter.
    #[test]
    fn a_candidate_that_is_worth_less_than_half_is_left_after_a_second() {
        assert!((1..=1_200_000).contains(&longest_trial_us(50)), "{} us", longest_trial_us(50));
        assert!(longest_trial_us(90) >= 2_000_000, "{} us", longest_trial_us(90));
    }

    /// The arm that is expected to be the best cannot tell; on its trial the other one finds them.
    #[test]
    fn beside_rivals_the_path_has_the_arm_that_tells_of_them() {
        let expected = Arc::new(Expected { priors: vec![0.9, 0.5], teller: Some(1) });
        let mut path = PortfolioPath::new(expected.known().unwrap(), Arc::clone(&expected));
        path.join(KEY, vec![0, 1]);
        assert_eq!((path.known.condition, path.known.record().best), (Condition::Alone, 0));
        let mut before = full();
        for _ in 0..300 {
            let mut now = before;
            now.at_us += SAMPLE_US;
            now.transport.bytes_acked += 300_000;
            now.rivals = (path.arm == 1).then_some(true);
            path.feed(KEY, Some(&before), &now, &PortfolioConfig::default());
            before = now;
        }
        assert_eq!((path.known.condition, path.known.record().best), (Condition::Shared, 1));
    }
}
