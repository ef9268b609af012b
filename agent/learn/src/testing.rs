//! Helpers that several tests share.

use crate::architecture::Architecture;
use crate::policy::Policy;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec};

/// A specification of so many inputs, -1000 to 1000, and actions of +-2.
pub(crate) fn spec(inputs: usize) -> PolicySpec {
    let feature = |n| Feature { name: format!("x[{n}]"), lo: -1000, hi: 1000 };
    let action = Action { map: ActionMap::None, bound_q16: 2 << 16, step_q20: 1, knob_min: 1, knob_max: 2 };
    PolicySpec::new("toy", (0..inputs).map(feature).collect(), action).unwrap()
}

/// A policy that has learned nothing.
pub(crate) fn policy(architecture: Architecture, log_std: f32, seed: u64) -> Policy {
    let spec = spec(architecture.inputs);
    Policy::initial(architecture, spec, log_std, seed).unwrap()
}
