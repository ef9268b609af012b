//! A switchback: flows go back and forth between the candidate and the active snapshot, and are compared with themselves.
//!
//! Flows differ more than policies do: on a clean and on a lossy path no policy gets the same. So no flow is compared with
//! another one. Time is cut into windows of equal length, all of whose canary flows decide by the candidate, or by the
//! active snapshot. A window's first part does not count: queues are still the other snapshot's. Two windows, one of each,
//! make a pair; of every flow with rewards in both, the difference of its means counts, and of all flows alike. What
//! changed meanwhile for the flows that are no canaries is taken off (difference in differences).
//!
//! A window is over when its flows have decided often enough, so windows are shorter where round trips are. Each ends
//! after four seconds at the latest.
//!
//! The candidate leads for two windows that do not count. They end the trial if the candidate has collapsed: flows are
//! then worth far less than before. They also end it if the candidate has rescued the flows, which are then worth far
//! more, where its learner expects a rescue: taking turns would let them fall again. Then pairs come in blocks of two,
//! in the order `a c c a` or `c a a c`: a drift cancels. Which it is, the deployment's number decides as a coin would,
//! so that nothing that comes and goes with a period keeps step for long. What a change of the path within a pair does,
//! stays in that pair.
//!
//! Windows are counted in batch intervals, after which rows are taken: so they are right whatever a datapath's clock says.

use super::compare::{Comparison, Finding, MAX_PAIRS, Pair, has_collapsed, has_recovered, interim_analysis};
use ccplane_contract::FlowId;
use ccplane_infer::spread;
use std::collections::BTreeMap;

/// Longest part of a window that counts, microseconds.
const MEASURED_US: u64 = 2_400_000;
/// A flow's decisions after which it has settled, and those that are measured then: with them a window is over.
const SETTLE_DECISIONS: f64 = 32.0;
const MEASURED_DECISIONS: f64 = 48.0;
/// Batch intervals of either part, at least.
const LEAST_BATCHES: u32 = 3;
/// Windows under the candidate before the first that counts: where the active snapshot has got its flows to after the path
/// changed is no place that either would keep them in.
const LEAD: u32 = 2;
/// Pairs that are tried: in some of them flows may have nothing to send.
const MAX_TRIED: u32 = MAX_PAIRS + 4;
/// Flows whose rewards are summed in one window; those of further ones are dropped.
const MAX_SUMS: usize = 1 << 16;

/// A window's parts in batch intervals, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Windows {
    settle: u32,
    measured: u32,
}

impl Windows {
    /// With rows each `batch_us`; rewards in the first `settle_us` of a window do not count.
    pub fn new(settle_us: u64, batch_us: u64) -> Windows {
        let batches = |us: u64| u32::try_from(us.div_ceil(batch_us.max(1))).unwrap_or(u32::MAX / 2);
        Windows { settle: batches(settle_us), measured: batches(MEASURED_US).max(1) }
    }

    /// Batch intervals of the longest window.
    fn batches(self) -> u32 {
        self.settle + self.measured
    }

    /// The longest that a trial takes, microseconds.
    pub fn longest_us(self, batch_us: u64) -> u64 {
        u64::from(LEAD + 2 * MAX_TRIED) * u64::from(self.batches()) * batch_us.max(1)
    }
}

/// Of one flow in one window.
#[derive(Clone, Copy, Default)]
struct Sum {
    rewards: f64,
    count: f64,
    /// Rewards before the flow had settled.
    unsettled: f64,
}

/// Step that a trial takes at the end of a batch interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Turn {
    Wait,
    /// Canary flows are to decide by the other snapshot: [`Switchback::current_share`].
    Switch,
    /// The trial is over.
    Over(Finding),
}

/// A trial under way.
pub(super) struct Switchback {
    windows: Windows,
    /// The candidate's deployment and the active one.
    candidate: u32,
    active: u32,
    /// The canaries' share of the flows, in 2^-16.
    share: u16,
    /// Whether the learner expects flows to recover that have come down.
    is_rescue: bool,
    /// Windows to come that do not count.
    lead: u32,
    /// Windows that have ended, batch intervals of this part of the present one, and whether it is the part that counts.
    window: u32,
    batch: u32,
    is_settled: bool,
    sums: BTreeMap<FlowId, Sum>,
    /// Each flow's mean before the trial.
    before: BTreeMap<FlowId, f64>,
    /// Each flow's mean in the first window of this pair.
    first: BTreeMap<FlowId, f64>,
    pairs: Vec<Pair>,
    pub last: Option<Comparison>,
}

impl Switchback {
    /// Starts a trial. `before` has each flow's recent mean reward; with `is_rescue` the learner expects far higher ones.
    pub fn new(
        windows: Windows,
        candidate: u32,
        active: u32,
        share: u16,
        before: BTreeMap<FlowId, f64>,
        is_rescue: bool,
    ) -> Switchback {
        Switchback {
            windows,
            candidate,
            active,
            share,
            is_rescue,
            lead: LEAD,
            window: 0,
            batch: 0,
            is_settled: windows.settle == 0,
            sums: BTreeMap::new(),
            before,
            first: BTreeMap::new(),
            pairs: Vec::new(),
            last: None,
        }
    }

    /// The candidate's share of the flows now: the canaries', or none.
    pub fn current_share(&self) -> u16 {
        if self.tries() { self.share } else { 0 }
    }

    /// Whether the canary flows are to decide by the candidate now.
    fn tries(&self) -> bool {
        self.lead > 0 || tries(self.candidate, self.window)
    }

    fn is_canary(&self, flow: FlowId) -> bool {
        place(flow) < self.share
    }

    /// Entries that it keeps of single flows.
    pub fn flow_entries(&self) -> usize {
        self.sums.len() + self.first.len() + self.before.len()
    }

    /// A flow ended. What it was worth in this window still counts.
    pub fn forget(&mut self, flow: FlowId) {
        self.before.remove(&flow);
    }

    /// Takes the reward of a flow's action under deployment `uid`.
    pub fn reward(&mut self, flow: FlowId, uid: u32, reward: f64) {
        let expected = if self.tries() && self.is_canary(flow) { self.candidate } else { self.active };
        let room = self.sums.len() < MAX_SUMS || self.sums.contains_key(&flow);
        if uid != expected || !room {
            return;
        }
        let sum = self.sums.entry(flow).or_default();
        if self.is_settled {
            sum.rewards += reward;
            sum.count += 1.0;
        } else {
            sum.unsettled += 1.0;
        }
    }

    /// Decisions of a flow in this part of the window, on average over those that decide.
    fn decisions(&self) -> f64 {
        let of = |s: &Sum| if self.is_settled { s.count } else { s.unsettled };
        let (sum, flows) =
            self.sums.values().map(of).filter(|n| *n > 0.0).fold((0.0, 0.0), |(s, n), x| (s + x, n + 1.0));
        sum / f64::max(flows, 1.0)
    }

    /// Whether this part of the window has ended with this batch interval.
    fn part_ends(&mut self) -> bool {
        self.batch += 1;
        let (most, decisions) = if self.is_settled {
            (self.windows.measured, MEASURED_DECISIONS)
        } else {
            (self.windows.settle, SETTLE_DECISIONS)
        };
        let ends = self.batch >= most || self.batch >= LEAST_BATCHES && self.decisions() >= decisions;
        if ends {
            self.batch = 0;
        }
        ends
    }

    /// A batch interval has ended.
    pub fn end_batch(&mut self, margin_share: f64) -> Turn {
        if !self.part_ends() {
            return Turn::Wait;
        }
        if !self.is_settled {
            self.is_settled = true;
            return Turn::Wait;
        }
        self.is_settled = self.windows.settle == 0;
        let sums = std::mem::take(&mut self.sums);
        let means: BTreeMap<FlowId, f64> = sums
            .into_iter()
            .filter(|(_, s)| s.count > 0.0)
            .map(|(flow, s)| (flow, s.rewards / s.count))
            .collect();
        if self.lead > 0 {
            self.lead -= 1;
            let pair = self.pair(&means, &self.before);
            if pair.is_some_and(|pair| has_collapsed(&pair)) {
                return Turn::Over(Finding::Worse);
            }
            if self.lead == 0 && self.is_rescue && pair.is_some_and(|pair| has_recovered(&pair)) {
                return Turn::Over(Finding::Better);
            }
            if self.lead == 0 {
                self.before.clear();
            }
            return if self.tries() { Turn::Wait } else { Turn::Switch };
        }
        let tried = self.tries();
        self.window += 1;
        if !self.window.is_multiple_of(2) {
            self.first = means;
        } else {
            let first = std::mem::take(&mut self.first);
            let (candidate, active) = if tried { (means, first) } else { (first, means) };
            if let Some(pair) = self.pair(&candidate, &active) {
                self.pairs.push(pair);
                let analysis = interim_analysis(&self.pairs, margin_share);
                self.last = analysis.or(self.last);
                let finding = analysis.map_or(Finding::Open, |c| c.finding);
                if finding != Finding::Open || self.pairs.len() as u32 == MAX_PAIRS {
                    return Turn::Over(finding);
                }
            }
            if self.window == 2 * MAX_TRIED {
                return Turn::Over(Finding::Open);
            }
        }
        if self.tries() == tried { Turn::Wait } else { Turn::Switch }
    }

    /// Compares each flow's means in two windows; `None` if no canary has rewards in both.
    fn pair(&self, candidate: &BTreeMap<FlowId, f64>, active: &BTreeMap<FlowId, f64>) -> Option<Pair> {
        let (mut tried, mut stayed) = (Means::default(), Means::default());
        for (flow, with) in candidate {
            let Some(without) = active.get(flow) else { continue };
            if self.is_canary(*flow) { &mut tried } else { &mut stayed }.add(*with, *without);
        }
        let (with, without) = tried.means()?;
        let meanwhile = stayed.means().map_or(0.0, |(with, without)| with - without);
        Some(Pair {
            candidate: with,
            active: without,
            difference: with - without - meanwhile,
            flows: tried.count,
            controls: stayed.count,
        })
    }
}

/// Means over flows in two windows.
#[derive(Default)]
struct Means {
    with: f64,
    without: f64,
    count: u32,
}

impl Means {
    fn add(&mut self, with: f64, without: f64) {
        self.with += with;
        self.without += without;
        self.count += 1;
    }

    fn means(&self) -> Option<(f64, f64)> {
        let count = f64::from(self.count);
        (self.count > 0).then(|| (self.with / count, self.without / count))
    }
}

/// Returns a flow's place among all flows, in 2^-16: those below the canary's share decide by it.
pub(super) fn place(flow: FlowId) -> u16 {
    (spread(flow.0) >> 48) as u16
}

/// Whether canary flows decide by the candidate in this window.
fn tries(candidate: u32, window: u32) -> bool {
    let inner = matches!(window % 4, 1 | 2);
    inner != coin(u64::from(candidate) << 32 | u64::from(window / 4))
}

/// Heads or tails (the finaliser of splitmix64, Steele et al., OOPSLA 2014).
fn coin(of: u64) -> bool {
    let x = spread(of);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31) & 1 == 1
}
