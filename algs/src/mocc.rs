//! MOCC (Ma, Tian, Liao, Zhang, Xu, Xu, Chen and Chen, "Multi-Objective Congestion Control", EuroSys 2022): one network for
//! every preference between throughput, latency and loss.
//!
//! Its program is `aurora.fold` but for three registers: the flow's preference, percents that sum to 100, which follow the
//! state as the network's last three inputs (section 4.1). `(policy 1)` decides.
//!
//! - **Reward** (section 4.1, equation 2): `w_thr throughput / capacity + w_lat base RTT / RTT + w_loss (1 - loss)`.
//!   The capacity is the path's where it is known ([`Truth`](ccplane_alg::Truth)), as in training. Else it is the
//!   largest throughput of the last minute or two, as the paper estimates it.
//! - **Preferences**: parameters of the algorithm, so a rule gives each application's flows their own.
//! - **Published form** (parameter `published`): as Aurora's, without what `aurora.rs` says is different from the paper in its first four
//!   points. The paper takes Aurora's state, intervals and steps over, and has no start of its own. The shipped network was
//!   trained on the other form.

use crate::aurora::{Aurora, AuroraConfig};
use crate::interval::{
    DEFAULT_SLACK_US, Interval, PUBLISHED, Rows, SLACK_US, mss_bytes, selected_form, set, start_from,
};
use crate::largest::Largest;
use crate::policy_program::PolicyProgram;
use ccplane_alg::{
    Algorithm, Control, Flow, FlowInfo, Handover, Parameter, PolicySource, ProgramSource, Report,
};
use std::sync::{Arc, LazyLock};

/// The slot that its program asks.
const SLOT: u8 = 1;
/// The registers that its program has beside Aurora's.
const PREFERENCE: &str = "(w_thr 33) (w_lat 33) (w_loss 34)";
/// The sum of a preference's parts, percent.
pub(crate) const WHOLE_PERCENT: u32 = 100;
/// The largest throughput counts for one to two of these, microseconds.
const CAPACITY_US: u64 = 60_000_000;

// State

/// The agent's side of a MOCC flow: it tells the learner what each interval was worth.
struct MoccFlow {
    /// Throughput, latency, loss; sum 1.
    preference: [f64; 3],
    mss_bytes: f64,
    slack_us: f64,
    rows: Rows,
    /// The largest throughput, packets per second.
    capacity: Largest,
}

// Behaviour

impl MoccFlow {
    fn worth(&mut self, interval: &Interval, now_us: u64) -> f64 {
        let throughput_pps = interval.throughput_pps();
        let largest_pps = self.capacity.update(throughput_pps, now_us);
        let capacity_pps = interval.link_pps.unwrap_or(largest_pps);
        let used = (throughput_pps / capacity_pps.max(f64::MIN_POSITIVE)).min(1.0);
        let near = (interval.min_us + self.slack_us) / (interval.rtt_us + self.slack_us);
        let [throughput, latency, loss] = self.preference;
        throughput * used + latency * near + loss * (1.0 - interval.loss())
    }
}

impl Flow for MoccFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let Some(interval) = Interval::of(report, self.mss_bytes) else { return };
        let worth = self.worth(&interval, now_us);
        self.rows.add_interval(now_us, report, worth, control);
    }

    fn on_lost_reports(&mut self, _count: u32) {
        self.rows.lost();
    }
}

// Config

/// The parameters of MOCC. The weights of a preference count by their shares of the three's sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoccConfig {
    pub w_thr_pct: u32,
    pub w_lat_pct: u32,
    pub w_loss_pct: u32,
    /// The queueing delay that counts as none: added to each RTT before they are compared, microseconds.
    pub slack_us: u32,
    /// Whether the flow starts, remembers and adds as Aurora's flow was published to.
    pub published: bool,
}

impl MoccConfig {
    /// Returns the published settings, with the preference that ships.
    pub fn published() -> MoccConfig {
        MoccConfig { slack_us: AuroraConfig::published().slack_us, published: true, ..DEFAULTS }
    }

    /// The preference, percents that sum to 100: each at least 1, as in training.
    pub fn preference(&self) -> [u32; 3] {
        let weights = [self.w_thr_pct, self.w_lat_pct, self.w_loss_pct].map(|w| w.clamp(1, WHOLE_PERCENT));
        let sum: u32 = weights.iter().sum();
        let share = |w: u32| (w * WHOLE_PERCENT / sum).max(1);
        let (latency, loss) = (share(weights[1]), share(weights[2]));
        [WHOLE_PERCENT - latency - loss, latency, loss]
    }
}

// Defaults

const DEFAULTS: MoccConfig =
    MoccConfig { w_thr_pct: 37, w_lat_pct: 33, w_loss_pct: 30, slack_us: DEFAULT_SLACK_US, published: false };

const fn weight(name: &'static str, about: &'static str, default: u32) -> Parameter {
    Parameter { name, about, default: default as i64, min: 1, max: WHOLE_PERCENT as i64 }
}

const W_THR_PCT: Parameter = weight(
    "w_thr_pct",
    "weight of throughput in the preference; the three count by their shares",
    DEFAULTS.w_thr_pct,
);
const W_LAT_PCT: Parameter = weight("w_lat_pct", "weight of latency", DEFAULTS.w_lat_pct);
const W_LOSS_PCT: Parameter = weight("w_loss_pct", "weight of loss", DEFAULTS.w_loss_pct);

impl Default for MoccConfig {
    /// Between throughput and a short queue. Loss weighs at least about a third of throughput. With less, the
    /// preference asks for a flow that loses a quarter of what it sends to fill the link.
    fn default() -> Self {
        DEFAULTS
    }
}

// Factory

/// Makes flows that MOCC's policy paces.
#[derive(Clone, Default, Debug)]
pub struct Mocc {
    pub config: MoccConfig,
}

/// Aurora's, which also sees the preference.
fn program() -> Option<String> {
    let mut program = PolicyProgram::of(Aurora::default().programs().first()?.source)?;
    program.declare(PREFERENCE)?;
    program.asking(&format!("(history 1 w_thr w_lat w_loss) (policy {SLOT})"))
}

impl Algorithm for Mocc {
    fn name(&self) -> &'static str {
        "mocc"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        static PROGRAM: LazyLock<Option<String>> = LazyLock::new(program);
        PROGRAM.iter().map(|source| ProgramSource { name: "mocc", source }).collect()
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let preference = self.config.preference();
        let [throughput, latency, loss] = preference.map(i64::from);
        let form = if self.config.published { AuroraConfig::published() } else { AuroraConfig::default() };
        let fields = [
            ("mss", mss_bytes(info) as i64),
            ("starting", form.doubles_at_start.into()),
            ("slack_us", self.config.slack_us.into()),
            ("floor_us", form.interval_us.into()),
            ("min_window_us", form.min_rtt_window_us.into()),
            ("window_rtts", form.window_rtts.into()),
            ("added_packets", form.added_packets.into()),
            ("w_thr", throughput),
            ("w_lat", latency),
            ("w_loss", loss),
        ];
        control.set_program("mocc", &fields);
        Box::new(MoccFlow {
            preference: preference.map(|w| f64::from(w) / f64::from(WHOLE_PERCENT)),
            mss_bytes: mss_bytes(info),
            slack_us: self.config.slack_us.into(),
            rows: Rows::new(SLOT, preference.map(|w| w as i32).to_vec()),
            capacity: Largest::within(CAPACITY_US),
        })
    }

    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        start_from(from, info, control);
    }

    fn policies(&self) -> Vec<PolicySource> {
        vec![PolicySource {
            slot: SLOT,
            snapshot: include_bytes!("../policies/mocc.snapshot"),
            policy: Arc::from(&include_bytes!("../policies/mocc.safetensors")[..]),
        }]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[PUBLISHED, W_THR_PCT, W_LAT_PCT, W_LOSS_PCT, SLACK_US]
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let mut config = selected_form(values, MoccConfig::published, &self.config);
        let fields = &mut [
            (&W_THR_PCT, &mut config.w_thr_pct),
            (&W_LAT_PCT, &mut config.w_lat_pct),
            (&W_LOSS_PCT, &mut config.w_loss_pct),
            (&SLACK_US, &mut config.slack_us),
        ];
        set(values, fields);
        Some(Arc::new(Mocc { config }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::tests::{Driver, Step};
    use ccplane_alg::Truth;

    #[test]
    fn its_program_is_auroras_but_for_the_preference() {
        let own = ccplane_program::compile(Mocc::default().programs()[0].source).unwrap();
        let auroras = ccplane_program::compile(Aurora::default().programs()[0].source).unwrap();
        assert_eq!((own.policy_slots(), auroras.policy_slots()), (vec![SLOT], vec![0]));
        assert_eq!(own.insts().len(), auroras.insts().len() + 1);
        assert_eq!(own.regs().len(), auroras.regs().len() + 3);
        let [state, preference] = own.histories() else { panic!("{:?}", own.histories()) };
        assert_eq!(std::slice::from_ref(state), auroras.histories());
        let names: Vec<&str> = preference.regs.iter().map(|r| &*own.regs()[usize::from(*r)].name).collect();
        assert_eq!((preference.depth, names), (1, vec!["w_thr", "w_lat", "w_loss"]));
    }

    #[test]
    fn a_parameter_selects_the_published_form() {
        let mocc: Arc<dyn Algorithm> = Arc::new(Mocc::default());
        let registers = |algorithm: &dyn Algorithm, names: &[&str]| -> Vec<i64> {
            let d = Driver::new(algorithm, 10);
            names.iter().map(|name| d.reg(name)).collect()
        };
        let form = ["starting", "slack_us", "floor_us", "min_window_us", "window_rtts", "added_packets"];
        let auroras = registers(&Aurora { config: AuroraConfig::published() }, &form);
        let published = ccplane_alg::configure(&mocc, [("w_thr_pct", 98), ("published", 1)]).unwrap();
        assert_eq!(registers(&*published, &form), auroras);
        let weights = registers(&*published, &["w_thr", "w_lat", "w_loss"]);
        assert_eq!(weights, [62, 20, 18], "the preference is one's own");
        assert_eq!(registers(&*mocc, &form), registers(&Aurora::default(), &form));
        let mut d = Driver::new(&*published, 10);
        (0..3).for_each(|_| d.interval(Step::of_rate(&d)));
        assert_eq!(d.asked, 3, "it begins with the policy");
    }

    #[test]
    fn preferences_are_shares_that_sum_to_100() {
        for (given, expected) in [
            ([60, 30, 10], [60, 30, 10]),
            ([1, 1, 1], [34, 33, 33]),
            ([100, 1, 1], [98, 1, 1]),
            ([1, 100, 100], [2, 49, 49]),
            ([2, 1, 1], [50, 25, 25]),
        ] {
            let [w_thr_pct, w_lat_pct, w_loss_pct] = given;
            let config = MoccConfig { w_thr_pct, w_lat_pct, w_loss_pct, ..MoccConfig::default() };
            assert_eq!(config.preference(), expected, "{given:?}");
        }
    }

    #[test]
    fn the_policy_sees_the_preference_and_the_reward_follows_it() {
        let worth = |w_thr_pct, w_lat_pct| {
            let config = MoccConfig { w_thr_pct, w_lat_pct, w_loss_pct: 1, ..MoccConfig::default() };
            let mut d = Driver::new(&Mocc { config: config.clone() }, 10);
            d.set("starting", 0);
            d.truth = Some(Truth { link_bytes_per_s: 1e6, random_losses: 0 });
            d.interval(Step { rtt_us: (40_000, 40_000), bytes_per_s: 1_000_000, lost: 0 });
            // Half the rate, twice the RTT: 0.5 and (40 + 2) / (80 + 2).
            d.interval(Step { rtt_us: (80_000, 80_000), bytes_per_s: 500_000, lost: 0 });
            let row = d.rows.last().unwrap().clone();
            assert_eq!(row.inputs, *d.seen.last().unwrap());
            assert_eq!(row.inputs[30..], config.preference().map(|w| w as i32));
            row.reward
        };
        assert!((worth(98, 1) - (0.98 * 0.5 + 0.01 * 0.51 + 0.01)).abs() < 0.03, "{}", worth(98, 1));
        assert!((worth(1, 98) - (0.01 * 0.5 + 0.98 * 42.0 / 82.0 + 0.01)).abs() < 0.03, "{}", worth(1, 98));
    }

    #[test]
    fn the_capacity_is_the_largest_throughput_of_late() {
        let mut d = Driver::new(&Mocc::default(), 10);
        d.set("starting", 0);
        for bytes_per_s in [1_000_000, 1_000_000, 500_000] {
            d.interval(Step { rtt_us: (40_000, 40_000), bytes_per_s, lost: 0 });
        }
        let [.., all, half] = &d.rows[..] else { panic!("{:?}", d.rows) };
        let less = f64::from(all.reward - half.reward);
        assert!((less - 0.5 * f64::from(DEFAULTS.w_thr_pct) / 100.0).abs() < 0.03, "{less}");
    }
}
