//! Aurora (Jay, Rotman, Godfrey, Schapira and Tamar, "A Deep Reinforcement Learning Perspective on Internet Congestion
//! Control", ICML 2019; code: PCC-RL). A network decides by how much the sending rate changes after each monitor interval.
//!
//! What `aurora.fold` does:
//!
//! - **Interval**: half an RTT (PCC-RL's simulator), at least 2 ms and long enough for ten packets. An interval in which the
//!   application had nothing to send is thrown away: it says nothing of the rate.
//! - **State** (section 4.1): three values of each of the last ten intervals, all Q16. The latency inflation is the
//!   mean RTT of the second half less that of the first, per time. The latency ratio r is the mean RTT over the
//!   smallest such mean, the send ratio s what was sent over what was acknowledged. Ratios go through x -> (x - 1) /
//!   (x + 1): one to one, monotone, and within [-1, 1], where 8 bits can hold them; [1, 10^4] and [0, 1000] themselves
//!   would leave nothing of the first percents above 1.
//! - **Action** (section 4.1): `(policy 0)` changes `Rate`. The window is twice what the rate needs, so that pacing governs.
//! - **Reward**: [`Reward`], of each report, on live flows and in training alike.
//!
//! What is different from the paper, the first four points unless configured as [`AuroraConfig::published`] (parameter `published`):
//!
//! - The flow starts as others do, by doubling its rate each RTT. It does so until packets queue or are lost, or three
//!   intervals bring less than a quarter more: 2.5 % an interval takes minutes from ten packets to a fast link. Also
//!   after a timeout, from half the rate.
//! - The smallest RTT is that of the last 10 s: routes change.
//! - Round trips count 2 ms more than they are in the latency ratio. So a queue of less, in a host or a fast link, is
//!   no reason to slow down.
//! - Each interval also adds a packet an RTT to the rate, at most a sixteenth. The features say nothing of a flow's
//!   size. By factors alone two flows on a link would keep the ratio of their rates for ever (Chiu and Jain, 1989);
//!   what is added lets the smaller one come up, and the policy takes back from both what the link does not carry.
//! - `Rate` stays above two packets an RTT, and comes down to twice what arrives, by half an interval at most: a rate far above
//!   what window and recovery let out means nothing, and neither would an action on it.
//!
//! Whether published or not, an interval has ten packets, and a timeout starts the flow over. `Rate` stays within what
//! the last point says, and the window has a GiB at most; a snapshot's inputs end at four smallest RTTs and three
//! packets sent for one that arrived.

use crate::interval::{
    DEFAULT_SLACK_US, Interval, PUBLISHED, Rows, SLACK_US, mss_bytes, selected_form, set, start_from,
};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, Parameter, PolicySource, Report};
use std::sync::Arc;

/// The slot that `aurora.fold` asks.
const SLOT: u8 = 0;
/// Time in which the mean that throughput is held against follows it, seconds.
const REFERENCE_S: f64 = 30.0;
/// The cost of losing everything, were it not bounded. Of N flows that share a link each gains by a loss that all pay
/// for, unless this is more than N - 1.
const LOSS_WEIGHT: f64 = 10.0;
/// The worst that an interval can be worth; the best is the opposite.
const WORST: f64 = 10.0;

// State

/// The agent's side of an Aurora flow: it tells the learner what each interval was worth.
struct AuroraFlow {
    reward: Reward,
    mss_bytes: f64,
    slack_us: f64,
    rows: Rows,
    /// Slow mean of the throughput's logarithm.
    reference: Option<f64>,
}

// Behaviour

impl AuroraFlow {
    fn worth(&mut self, interval: &Interval) -> f64 {
        match self.reward {
            // PCC-RL, network_sim.py: packets per second, seconds, share; times 0.001.
            Reward::Published => {
                let latency_s = interval.rtt_us / 1e6;
                (10.0 * interval.throughput_pps() - 1000.0 * latency_s - 2000.0 * interval.loss()) * 0.001
            }
            Reward::ScaleFree => {
                // Of nothing, half a packet arrived.
                let throughput = (interval.acked.max(0.5) / interval.took_s).ln();
                let reference = match (interval.link_pps, &mut self.reference) {
                    (Some(link_pps), _) => link_pps.ln(),
                    (None, Some(mean)) => {
                        *mean += (throughput - *mean) * (interval.took_s / REFERENCE_S).min(1.0);
                        *mean
                    }
                    (None, none) => *none.insert(throughput),
                };
                let latency = ((interval.rtt_us + self.slack_us) / (interval.min_us + self.slack_us)).ln();
                let worth =
                    throughput - reference - Reward::LATENCY_WEIGHT * latency - LOSS_WEIGHT * interval.loss();
                worth.clamp(-WORST, WORST)
            }
        }
    }
}

impl Flow for AuroraFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let Some(interval) = Interval::of(report, self.mss_bytes) else { return };
        let worth = self.worth(&interval);
        self.rows.add_interval(now_us, report, worth, control);
    }

    fn on_lost_reports(&mut self, _count: u32) {
        self.rows.lost();
    }
}

// Config

/// The rule by which an interval is rewarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reward {
    /// The paper's: `10 throughput - 1000 latency - 2000 loss`, in packets per second, seconds and a share, times 0.001.
    Published,
    /// `ln(throughput / reference) - 0.4 ln(RTT / smallest RTT) - 10 loss`: the logarithm of the power of a path. It is
    /// the same on a slow and a fast path; and each flow gains by the relative increase of its own throughput while all
    /// pay for the common queue. So equal shares are where nobody gains (as in PCC Vivace, NSDI 2018, section 4). The
    /// reference is the path's capacity where it is known ([`Truth`](ccplane_alg::Truth)), as in training, else a slow
    /// mean of the flow's own: either shifts all that actions can bring by the same.
    ScaleFree,
}

impl Reward {
    /// The weight of latency in the scale-free reward: what a doubled RTT costs where a halved throughput costs 1.
    pub const LATENCY_WEIGHT: f64 = 0.4;
}

/// The parameters of Aurora.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuroraConfig {
    /// The reward that its learner is given.
    pub reward: Reward,
    /// Whether the flow doubles its rate each RTT until its path is full, before the policy decides.
    pub doubles_at_start: bool,
    /// The queueing delay that counts as none: added to each RTT before they are compared, microseconds.
    pub slack_us: u32,
    /// Least length of an interval, microseconds.
    pub interval_us: u32,
    /// The time that the smallest RTT is remembered for, microseconds.
    pub min_rtt_window_us: u32,
    /// The window, in smallest RTTs of the rate.
    pub window_rtts: u32,
    /// Packets an RTT that each interval adds to the rate beside the policy.
    pub added_packets: u32,
}

impl AuroraConfig {
    /// Returns the published settings: no start of its own, nothing added to the rate, smallest RTT of the
    /// connection, all but no window; the published reward.
    pub fn published() -> AuroraConfig {
        AuroraConfig {
            reward: Reward::Published,
            doubles_at_start: false,
            slack_us: 0,
            interval_us: 1,
            min_rtt_window_us: u32::MAX,
            window_rtts: 1000,
            added_packets: 0,
        }
    }
}

// Defaults

const DEFAULTS: AuroraConfig = AuroraConfig {
    reward: Reward::ScaleFree,
    doubles_at_start: true,
    slack_us: DEFAULT_SLACK_US,
    interval_us: 2000,
    min_rtt_window_us: 10_000_000,
    window_rtts: 2,
    added_packets: 1,
};

const INTERVAL_US: Parameter = Parameter {
    name: "interval_us",
    about: "least length of a monitor interval",
    default: DEFAULTS.interval_us as i64,
    min: 100,
    max: 1_000_000,
};

const MIN_RTT_WINDOW_US: Parameter = Parameter {
    name: "min_rtt_window_us",
    about: "how long the smallest RTT is remembered",
    default: DEFAULTS.min_rtt_window_us as i64,
    min: 100_000,
    max: u32::MAX as i64,
};

impl Default for AuroraConfig {
    fn default() -> Self {
        DEFAULTS
    }
}

// Factory

/// Makes flows that Aurora's policy paces.
#[derive(Clone, Default, Debug)]
pub struct Aurora {
    pub config: AuroraConfig,
}

impl Algorithm for Aurora {
    ccplane_alg::one_program!("aurora", "aurora.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let config = &self.config;
        let fields = [
            ("mss", mss_bytes(info) as i64),
            ("starting", config.doubles_at_start.into()),
            ("slack_us", config.slack_us.into()),
            ("floor_us", config.interval_us.into()),
            ("min_window_us", config.min_rtt_window_us.into()),
            ("window_rtts", config.window_rtts.into()),
            ("added_packets", config.added_packets.into()),
        ];
        control.set_program("aurora", &fields);
        Box::new(AuroraFlow {
            reward: config.reward,
            mss_bytes: mss_bytes(info),
            slack_us: config.slack_us.into(),
            rows: Rows::new(SLOT, Vec::new()),
            reference: None,
        })
    }

    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        start_from(from, info, control);
    }

    fn policies(&self) -> Vec<PolicySource> {
        vec![PolicySource {
            slot: SLOT,
            snapshot: include_bytes!("../policies/aurora.snapshot"),
            policy: Arc::from(&include_bytes!("../policies/aurora.safetensors")[..]),
        }]
    }

    fn reserve(&self) -> Vec<Arc<[u8]>> {
        vec![Arc::from(&include_bytes!("../policies/aurora-lossy.safetensors")[..])]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[PUBLISHED, SLACK_US, INTERVAL_US, MIN_RTT_WINDOW_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut config = selected_form(values, AuroraConfig::published, &self.config);
        let fields = &mut [
            (&SLACK_US, &mut config.slack_us),
            (&INTERVAL_US, &mut config.interval_us),
            (&MIN_RTT_WINDOW_US, &mut config.min_rtt_window_us),
        ];
        set(values, fields);
        Some(Arc::new(Aurora { config }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::tests::{Driver, Step};
    use crate::testing::MSS;
    use ccplane_alg::Truth;

    const RTT_US: i64 = 40_000;

    fn start() -> Driver {
        Driver::new(&Aurora::default(), 10)
    }

    #[test]
    fn starts_by_doubling_each_round_trip_until_packets_queue() {
        let mut d = start();
        let mut rates = vec![];
        for _ in 0..8 {
            d.interval(Step { rtt_us: (RTT_US, RTT_US), ..Step::of_rate(&d) });
            rates.push(d.rate());
        }
        assert!(rates.windows(2).all(|w| w[1] * 128 / 181 - w[0] <= 1), "{rates:?}");
        assert_eq!((d.asked, d.reg("starting")), (0, 1));
        // A third of an RTT in the queue.
        let arrived = d.rate() / 2;
        d.interval(Step { rtt_us: (RTT_US * 4 / 3, RTT_US * 5 / 3), bytes_per_s: arrived, lost: 0 });
        assert_eq!(d.reg("starting"), 0);
        assert!((d.rate() * 8 - arrived * 7).abs() < arrived / 2, "{} of {arrived}", d.rate());
        d.interval(Step::of_rate(&d));
        assert_eq!(d.asked, 1);
    }

    #[test]
    fn features_are_those_of_the_paper() {
        let mut d = start();
        d.set("starting", 0);
        d.interval(Step { rtt_us: (RTT_US, RTT_US), ..Step::of_rate(&d) });
        assert_eq!((d.reg("Report.inflation"), d.reg("Report.ratio")), (0, 0));
        // 40 ms, then 60 ms: the mean lies between, the smallest mean is 40 ms, and 2 ms is no queue.
        d.interval(Step { rtt_us: (RTT_US, RTT_US * 3 / 2), ..Step::of_rate(&d) });
        let (took_us, rtt_us) = (d.reg("Report.took_us"), d.reg("Report.rtt_us"));
        assert!((48_000..=54_000).contains(&rtt_us), "{rtt_us}");
        assert_eq!(d.reg("Report.inflation"), 20_000 * 65_536 / took_us);
        assert_eq!(d.reg("Report.ratio"), (rtt_us - RTT_US) * 65_536 / (rtt_us + RTT_US + 4000));
        // A constant number in flight: what is sent arrives; then two of twelve are lost.
        assert_eq!(d.reg("Report.sent"), 0);
        d.interval(Step { lost: 2, ..Step::of_rate(&d) });
        let acked = d.reg("Report.acked");
        assert_eq!(d.reg("Report.sent"), 2 * 65_536 / (2 * acked + 2));
    }

    #[test]
    fn an_interval_without_enough_to_send_decides_nothing() {
        let mut d = start();
        d.set("starting", 0);
        d.interval(Step::of_rate(&d));
        let (asked, rate) = (d.asked, d.rate());
        d.limited = true;
        for _ in 0..50 {
            d.interval(Step { bytes_per_s: 20_000, ..Step::of_rate(&d) });
        }
        assert_eq!((d.asked, d.rate()), (asked, rate));
        d.limited = false;
        (0..3).for_each(|_| d.interval(Step::of_rate(&d)));
        assert!(d.asked > asked);
    }

    #[test]
    fn a_timeout_halves_the_rate_and_starts_over() {
        let mut d = start();
        d.set("starting", 0);
        (0..5).for_each(|_| d.interval(Step::of_rate(&d)));
        let (rate, asked) = (d.rate(), d.asked);
        d.timeout();
        assert_eq!((d.rate() / 10, d.reg("starting")), (rate / 20, 1));
        (0..3).for_each(|_| d.interval(Step::of_rate(&d)));
        assert!(d.rate() > rate && d.asked == asked, "{} of {rate}", d.rate());
    }

    #[test]
    fn the_rate_stays_above_two_packets_an_rtt_and_near_what_arrives() {
        let mut d = start();
        d.set("starting", 0);
        d.action_q16 = -8 << 16;
        (0..60).for_each(|_| d.interval(Step { rtt_us: (RTT_US, RTT_US), ..Step::of_rate(&d) }));
        assert_eq!(d.rate(), 2 * MSS * 1_000_000 / RTT_US);
        d.action_q16 = 8 << 16;
        for _ in 0..60 {
            d.interval(Step { rtt_us: (RTT_US, RTT_US), bytes_per_s: 1_000_000, lost: 0 });
        }
        assert!((1_900_000..=2_100_000).contains(&d.rate()), "{}", d.rate());
    }

    #[test]
    fn rewards_prefer_throughput_and_dislike_queues_and_loss() {
        let worth = |bytes_per_s, queued_us, lost| {
            let mut d = start();
            d.set("starting", 0);
            d.truth = Some(Truth { link_bytes_per_s: 1e6, random_losses: 0 });
            for _ in 0..3 {
                d.interval(Step { rtt_us: (RTT_US, RTT_US), bytes_per_s: 1_000_000, lost: 0 });
            }
            let rtt_us = RTT_US + queued_us;
            d.interval(Step { rtt_us: (rtt_us, rtt_us), bytes_per_s, lost });
            d.rows.last().unwrap().reward
        };
        let (all, half, queued, lossy) = (
            worth(1_000_000, 0, 0),
            worth(500_000, 0, 0),
            worth(1_000_000, RTT_US, 0),
            worth(1_000_000, 0, 2),
        );
        assert!(all.abs() < 0.2, "{all}");
        assert!((all - half - std::f32::consts::LN_2).abs() < 0.2, "{all} {half}");
        assert!(all - queued > 0.2 && all - lossy > 0.5, "{all} {queued} {lossy}");
    }

    #[test]
    fn rows_hold_what_the_policy_saw() {
        let mut d = start();
        d.set("starting", 0);
        (0..15).for_each(|n| d.interval(Step { rtt_us: (RTT_US, RTT_US + n * 100), ..Step::of_rate(&d) }));
        let cells: Vec<Vec<i32>> = d.rows.iter().map(|row| row.inputs.clone()).collect();
        assert_eq!(cells, d.seen);
    }

    #[test]
    fn a_parameter_selects_the_published_form() {
        let aurora: Arc<dyn Algorithm> = Arc::new(Aurora::default());
        let registers = |algorithm: &dyn Algorithm| {
            let d = Driver::new(algorithm, 10);
            ["starting", "slack_us", "floor_us", "min_window_us", "window_rtts", "added_packets"]
                .map(|r| d.reg(r))
        };
        let configured = |values: &[(&str, i64)]| {
            registers(&*ccplane_alg::configure(&aurora, values.iter().copied()).unwrap())
        };
        let published = registers(&Aurora { config: AuroraConfig::published() });
        assert_eq!(published, [0, 0, 1, u32::MAX.into(), 1000, 0]);
        assert_eq!(configured(&[("published", 1)]), published);
        assert_eq!(configured(&[("slack_us", 500), ("published", 1)])[1], 500, "in any order");
        assert_eq!(configured(&[("published", 0)]), registers(&*aurora));
    }

    #[test]
    fn the_published_configuration_begins_with_the_policy() {
        let mut d = Driver::new(&Aurora { config: AuroraConfig::published() }, 10);
        (0..3).for_each(|_| d.interval(Step::of_rate(&d)));
        assert_eq!(d.asked, 3);
        // 10 packets of 1448 bytes in 40 ms: 250 packets/s, 0.04 s.
        let reward = d.rows.last().unwrap().reward;
        assert!((reward - (2.5 - 0.04)).abs() < 0.3, "{reward}");
    }
}
