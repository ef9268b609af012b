//! The inputs and the action of a policy: what they mean, apart from its network.

pub use ccplane_infer::image::{MAX_BOUND_Q16, MAX_CHANGE_Q20, MAX_KNOB};

use ccplane_infer::{MAX_CLASSES, MAX_INPUTS, image};
use serde::{Deserialize, Serialize};

/// Longest name of an algorithm or an input, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// One input of a policy: a cell of the program's histories.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// The input's name, such as `latency_ratio[0]`.
    pub name: String,
    /// The lower end, which the network sees as -1; smaller values count as this.
    pub lo: i32,
    /// The upper end, more than `lo`, which the network sees as 1; larger values count as this.
    pub hi: i32,
}

/// The quantity that an action changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionMap {
    /// The action changes nothing: the program reads `Policy.action` and decides itself.
    None,
    /// The action scales `Rate`: with `d = |action| * step`, to `Rate * (1 + d)`, or to `Rate / (1 + d)` if the action
    /// is negative (Aurora).
    Rate,
    /// The action scales `Cwnd` in the same way.
    Cwnd,
}

impl ActionMap {
    /// The map's number in an image.
    pub const fn code(self) -> u32 {
        match self {
            ActionMap::None => image::map::NONE,
            ActionMap::Rate => image::map::RATE,
            ActionMap::Cwnd => image::map::CWND,
        }
    }

    /// The map with this number in an image.
    pub const fn from_code(code: u32) -> Option<ActionMap> {
        match code {
            image::map::NONE => Some(ActionMap::None),
            image::map::RATE => Some(ActionMap::Rate),
            image::map::CWND => Some(ActionMap::Cwnd),
            _ => None,
        }
    }
}

/// The limits and the effect of a policy's action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    pub map: ActionMap,
    /// The largest action either way, Q16: 1 to [`MAX_BOUND_Q16`].
    pub bound_q16: u32,
    /// The change that an action of 1 makes, Q20; with the bound it changes at most [`MAX_CHANGE_Q20`].
    pub step_q20: u32,
    /// Smallest rate (bytes per second) or window (bytes) that the map sets; at least 1.
    pub knob_min: i64,
    /// Largest rate (bytes per second) or window (bytes) that the map sets; at most [`MAX_KNOB`].
    pub knob_max: i64,
}

/// The checked inputs and action of a policy.
///
/// A float network is trained on exactly what [`PolicySpec::normalise`] gives; its integer snapshot rounds that.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct PolicySpec {
    algorithm: String,
    inputs: Vec<Feature>,
    action: Action,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    algorithm: String,
    inputs: Vec<Feature>,
    action: Action,
}

/// Reasons why there is no such policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A name is empty, too long, or has characters other than visible ASCII.
    #[error("{field}: {name:?} is no name: 1 to {MAX_NAME_BYTES} visible ASCII characters")]
    Name {
        /// The field that the name is of.
        field: &'static str,
        name: String,
    },
    /// The policy has no or too many inputs.
    #[error("inputs: {found}, 1 to {MAX_INPUTS} are allowed")]
    Inputs { found: usize },
    /// An input has an empty range.
    #[error("input {name}: lo {lo} is not below hi {hi}")]
    Range {
        /// The input's name.
        name: String,
        lo: i32,
        hi: i32,
    },
    /// The action's bound is outside its limits.
    #[error("action.bound_q16: {found}, 1 to {MAX_BOUND_Q16} are allowed")]
    Bound { found: u32 },
    /// An action could change too much at once.
    #[error("action.step_q20: bound * step is {found} / 2^20, at most {MAX_CHANGE_Q20} / 2^20 is allowed")]
    Change {
        /// The bound times the step, Q20.
        found: u64,
    },
    /// The rate or window bounds are not a range within the limits.
    #[error("action.knob_min {min}, action.knob_max {max}: 1 <= min < max <= {MAX_KNOB} is needed")]
    Knob { min: i64, max: i64 },
}

impl PolicySpec {
    /// Makes a policy of `algorithm`, with one feature for each input, in the order of the program's history cells.
    ///
    /// # Errors
    /// The first field outside its limits.
    pub fn new(
        algorithm: impl Into<String>,
        inputs: Vec<Feature>,
        action: Action,
    ) -> Result<PolicySpec, SpecError> {
        let algorithm = algorithm.into();
        check_name("algorithm", &algorithm)?;
        if !(1..=MAX_INPUTS).contains(&inputs.len()) {
            return Err(SpecError::Inputs { found: inputs.len() });
        }
        for feature in &inputs {
            check_name("inputs", &feature.name)?;
            if feature.lo >= feature.hi {
                return Err(SpecError::Range { name: feature.name.clone(), lo: feature.lo, hi: feature.hi });
            }
        }
        action.check()?;
        Ok(PolicySpec { algorithm, inputs, action })
    }

    /// Makes the spec of a classifier, whose class changes nothing by itself.
    ///
    /// # Errors
    /// As [`PolicySpec::new`].
    pub fn classifier(name: impl Into<String>, inputs: Vec<Feature>) -> Result<PolicySpec, SpecError> {
        let action = Action {
            map: ActionMap::None,
            bound_q16: (MAX_CLASSES as u32) << 16,
            step_q20: 0,
            knob_min: 1,
            knob_max: MAX_KNOB,
        };
        PolicySpec::new(name, inputs, action)
    }

    /// The algorithm whose policy it is, such as `aurora`.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// The input specs, in the order of the history cells.
    pub fn inputs(&self) -> &[Feature] {
        &self.inputs
    }

    /// The limits and the effect of an action.
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Converts a program's history cells to the float network's inputs: each clipped to its range, then linear to [-1,
    /// 1].
    ///
    /// Missing cells count as 0, as they do in a datapath. Writes as many numbers as there are inputs and room.
    pub fn normalise(&self, cells: &[i32], out: &mut [f32]) {
        for (n, (feature, to)) in self.inputs.iter().zip(out).enumerate() {
            let (lo, hi) = (f64::from(feature.lo), f64::from(feature.hi));
            let value = f64::from(cells.get(n).copied().unwrap_or(0)).clamp(lo, hi);
            *to = (2.0 * (value - lo) / (hi - lo) - 1.0) as f32;
        }
    }
}

impl Action {
    /// The action's bound as a float.
    pub fn bound(&self) -> f64 {
        f64::from(self.bound_q16) / 65536.0
    }

    fn check(&self) -> Result<(), SpecError> {
        if !(1..=MAX_BOUND_Q16).contains(&self.bound_q16) {
            return Err(SpecError::Bound { found: self.bound_q16 });
        }
        let change = (u64::from(self.bound_q16) * u64::from(self.step_q20)) >> 16;
        if change > MAX_CHANGE_Q20 {
            return Err(SpecError::Change { found: change });
        }
        if self.knob_min < 1 || self.knob_min >= self.knob_max || self.knob_max > MAX_KNOB {
            return Err(SpecError::Knob { min: self.knob_min, max: self.knob_max });
        }
        Ok(())
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), SpecError> {
    let good = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    if good { Ok(()) } else { Err(SpecError::Name { field, name: name.to_owned() }) }
}

impl TryFrom<Fields> for PolicySpec {
    type Error = SpecError;

    fn try_from(fields: Fields) -> Result<PolicySpec, SpecError> {
        PolicySpec::new(fields.algorithm, fields.inputs, fields.action)
    }
}

impl From<PolicySpec> for Fields {
    fn from(spec: PolicySpec) -> Fields {
        Fields { algorithm: spec.algorithm, inputs: spec.inputs, action: spec.action }
    }
}
