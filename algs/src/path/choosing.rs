//! When flows choose a path: at pauses that are the datapath's, or where they start.

use ccplane_alg::Parameter;

/// When flows choose a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choosing {
    /// The pause that begins a flowlet, microseconds.
    pub flowlet_gap_us: i64,
    /// Whether they choose where they start, and nowhere else.
    pub at_start: bool,
}

impl Default for Choosing {
    fn default() -> Choosing {
        Choosing { flowlet_gap_us: FLOWLET_GAP.default, at_start: AT_START.default != 0 }
    }
}

/// A parameter's value among those that are set, if it is one of them.
pub fn value_if_set(parameter: &Parameter, values: &[(&'static str, i64)]) -> Option<i64> {
    let is_set = values.iter().any(|(name, _)| *name == parameter.name);
    is_set.then(|| parameter.value_in(values))
}

impl Choosing {
    /// The same with the values that are set.
    pub fn with(self, values: &[(&'static str, i64)]) -> Choosing {
        let or = |parameter: &Parameter, own: i64| value_if_set(parameter, values).unwrap_or(own);
        Choosing {
            flowlet_gap_us: or(&FLOWLET_GAP, self.flowlet_gap_us),
            at_start: or(&AT_START, self.at_start.into()) != 0,
        }
    }

    /// The register of the pause.
    pub fn register(self) -> (&'static str, i64) {
        ("flowlet_us", self.flowlet_gap_us)
    }
}

/// The pause that begins a flowlet, which the agent sets as its datapath has it.
pub const FLOWLET_GAP: Parameter = Parameter {
    name: "flowlet_gap_us",
    about: "pause that begins a flowlet, where flows may change their path; the agent sets the datapath's",
    default: 500,
    min: 1,
    max: 10_000_000,
};
/// Whether flows choose where they start, which the agent sets for paths that are marks alone.
pub const AT_START: Parameter = Parameter {
    name: "at_start",
    about: "1: flows choose a path where they start, and keep it; the agent sets it for paths without devices",
    default: 0,
    min: 0,
    max: 1,
};
