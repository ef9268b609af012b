//! The meaning of a policy's inputs and of its action.

use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec, SpecError};

/// Intervals that a policy sees.
const DEPTH: usize = 10;
const ONE_Q16: i32 = 1 << 16;
const ONE_Q20: f64 = 1_048_576.0;

/// Range of one kind of input, Q16.
struct Kind {
    name: &'static str,
    lo: f64,
    hi: f64,
}

/// The features of an interval that `aurora.fold` and MOCC's program keep. Their ranges hold the values that flows
/// meet, with resolution where decisions are made. Inflation is within half a second a second for any queue that
/// fills or drains; the latency ratio's 0.6 stands for four smallest RTTs, the send ratio's 0.5 for three packets
/// sent for one acknowledged.
const INTERVAL: [Kind; 3] = [
    Kind { name: "inflation", lo: -0.5, hi: 0.5 },
    Kind { name: "ratio", lo: 0.0, hi: 0.6 },
    Kind { name: "sent", lo: -0.5, hi: 0.5 },
];
/// The registers of MOCC's preference, percent.
const PREFERENCE: [&str; 3] = ["w_thr", "w_lat", "w_loss"];

/// The size and the bound of an action's effect on the rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Steps {
    /// The relative change that an action of 1 makes.
    pub step: f64,
    pub bound: f64,
}

impl Steps {
    /// The published steps of 2.5 %, here up to eightfold.
    pub const PUBLISHED: Steps = Steps { step: 0.025, bound: 8.0 };
    /// Links change by more: 5 %, up to 40 % an interval.
    pub const REAL: Steps = Steps { step: 0.05, bound: 8.0 };

    fn action(self) -> Action {
        Action {
            map: ActionMap::Rate,
            bound_q16: (self.bound * f64::from(ONE_Q16)) as u32,
            step_q20: (self.step * ONE_Q20) as u32,
            // 8 kb/s to 275 Gb/s.
            knob_min: 1000,
            knob_max: 1 << 35,
        }
    }
}

/// The policy of `aurora.fold`.
///
/// # Errors
/// Steps outside a snapshot's limits.
pub fn aurora(steps: Steps) -> Result<PolicySpec, SpecError> {
    PolicySpec::new("aurora", intervals(), steps.action())
}

/// The policy of MOCC's program: the preference follows the intervals.
///
/// # Errors
/// Steps outside a snapshot's limits.
pub fn mocc(steps: Steps) -> Result<PolicySpec, SpecError> {
    let preference = PREFERENCE.map(|name| Feature { name: name.to_owned(), lo: 0, hi: 100 });
    PolicySpec::new("mocc", intervals().into_iter().chain(preference).collect(), steps.action())
}

fn intervals() -> Vec<Feature> {
    let feature = |n: usize, kind: &Kind| Feature {
        name: format!("{}[{n}]", kind.name),
        lo: (kind.lo * f64::from(ONE_Q16)) as i32,
        hi: (kind.hi * f64::from(ONE_Q16)) as i32,
    };
    (0..DEPTH).flat_map(|n| INTERVAL.iter().map(move |kind| feature(n, kind))).collect()
}
