//! The trait that a congestion control algorithm implements.
//!
//! An algorithm is a set of fold programs, which decide per ACK inside a datapath, and the code here. That
//! code runs in the agent once per report and sets the programs' parameters. It never learns which datapath
//! or transport it runs on, does no I/O and reads no clock: what it needs comes in its arguments.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod choice;
mod fold;
mod rows;

pub use choice::{
    ArmEvidence, Choice, Chooser, Handover, MAX_MEMORY_BYTES, Memory, MemoryError, PathSample,
    RESUMES_WITHIN_US, Standing, Switch,
};
pub use fold::{FoldAlgorithm, ResumedValue, Start, StartValue};
pub use rows::RowBuilder;

pub use ccplane_contract::FlowInfo;
use std::any::Any;
use std::sync::Arc;

/// The source of one fold program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramSource {
    /// The name for [`Control::set_program`], unique within the algorithm.
    pub name: &'static str,
    /// The fold program's text.
    pub source: &'static str,
}

/// Writes the name and the only program of an [`Algorithm`] whose program has its name; the program is in a file beside.
#[macro_export]
macro_rules! one_program {
    ($name:expr, $file:literal) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn programs(&self) -> Vec<$crate::ProgramSource> {
            vec![$crate::ProgramSource { name: $name, source: include_str!($file) }]
        }
    };
}

/// An algorithm: makes one [`Flow`] for each connection.
pub trait Algorithm: Any + Send + Sync {
    /// The name that rules, plans and reports use: short, lower case.
    fn name(&self) -> &'static str;

    /// The fold programs that its flows may run. Compiled and installed before the first flow starts.
    fn programs(&self) -> Vec<ProgramSource>;

    /// Called once when a flow starts; sets its first program through `control`.
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow>;

    /// Called once for each datapath that decides on packets: sets the programs, at most one of each hook, that flows start with
    /// before the agent hears of them. A flow for which [`Algorithm::flow`] sets no program goes on under that of `(hook send)`.
    fn first(&self, control: &mut Control) {
        let _ = control;
    }

    /// Called once when a running flow is handed over to it by another algorithm: as [`Algorithm::flow`], but from the flow's own
    /// speed. An algorithm that has a start of its own, or looks for the smallest round trip, sets what spares it both.
    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        let flow = self.flow(info, control);
        self.take_up(info, from, control);
        flow
    }

    /// Called by [`Algorithm::resume`] once the flow is made: sets what it takes up of the other algorithm, by default the window.
    fn take_up(&self, info: &FlowInfo, from: &Handover, control: &mut Control) {
        control.update(&[("Cwnd", field(from.window_bytes(info.mss_bytes)))]);
    }

    /// The algorithms that its flows may run in place of programs of its own; then [`Algorithm::chooser`] chooses among them.
    /// Where the agent has one of the same name, that is the arm.
    fn arms(&self) -> Vec<Arc<dyn Algorithm>> {
        Vec::new()
    }

    /// Called once when a flow starts, where there are arms. Without a chooser the flow stays native.
    fn chooser(&self, info: &FlowInfo) -> Option<Box<dyn Chooser>> {
        let _ = info;
        None
    }

    /// Returns the knowledge to keep beyond its agent's life.
    fn memory(&self) -> Option<Arc<dyn Memory>> {
        None
    }

    /// Makes the same algorithm without what its flows have taught it, for an experiment of its own; `None` where flows
    /// leave nothing to those that follow.
    fn renewed(&self) -> Option<Arc<dyn Algorithm>> {
        None
    }

    /// The policies that its programs ask. Pushed before the first flow starts; improved while flows run.
    fn policies(&self) -> Vec<PolicySource> {
        Vec::new()
    }

    /// Whether live flows improve a policy of it: one that ships as a float policy, too.
    fn learns(&self) -> bool {
        self.policies().iter().any(|policy| !policy.policy.is_empty())
    }

    /// Whether that is learned from the targets of its rows, as [`Row::target_q16`] says, and not from rewards.
    fn is_supervised(&self) -> bool {
        false
    }

    /// Float policies for the first slot that were trained for other conditions, as the content of policy files: what
    /// improves the policy while flows run may try them before it trains.
    fn reserve(&self) -> Vec<Arc<[u8]>> {
        Vec::new()
    }

    /// Whether others run it, such as a portus agent: its programs come while flows run, and neither [`Algorithm::flow`] nor
    /// [`Algorithm::programs`] is asked for any.
    fn is_hosted(&self) -> bool {
        false
    }

    /// Returns the parameters that [`Algorithm::configured`] takes.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    /// Makes the algorithm with these parameters, the others at their defaults; `None` if it takes none. Callers use
    /// [`configure`], which checks names and ranges before.
    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let _ = values;
        None
    }
}

/// A policy that an algorithm's programs ask as `(policy slot)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicySource {
    /// The slot; no other algorithm's.
    pub slot: u8,
    /// The snapshot that flows start with: the content of a snapshot file, built in, so that the program vouches for it.
    pub snapshot: &'static [u8],
    /// The float policy that it was made from, which learning goes on from: the content of a policy file.
    pub policy: Arc<[u8]>,
}

/// One interval of one flow, as its learner sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The datapath's clock when the interval ended, microseconds.
    pub at_us: u64,
    pub slot: u8,
    /// The deployment that decided: `Policy.snapshot`.
    pub snapshot: u32,
    /// The policy's inputs when the interval ended: the program's history cells.
    pub inputs: Vec<i32>,
    /// The policy's action on those inputs: `Policy.action`, Q16, noise included.
    pub action_q16: i32,
    /// The reward of the interval that ended, which the flow's action before this one led to.
    pub reward: f32,
    /// Whether the flow's previous row is that of its previous action, so that the reward is that action's. An algorithm
    /// sets true; the agent corrects it where rows are missing.
    pub follows: bool,
    /// The answer that would have been right, as an action, Q16, where it is known by now: then the reward is that of this row's
    /// own action.
    pub target_q16: Option<i32>,
}

/// A number that plans and rules may set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// The name as plans spell it, which ends in its unit.
    pub name: &'static str,
    /// The effect, in a few words.
    pub about: &'static str,
    pub default: i64,
    pub min: i64,
    pub max: i64,
}

impl Parameter {
    /// Returns this parameter's value among those set, limited to its range; its default where it is not set.
    pub fn value_in(&self, values: &[(&'static str, i64)]) -> i64 {
        let set = values.iter().rev().find(|(name, _)| *name == self.name);
        set.map_or(self.default, |(_, value)| (*value).clamp(self.min, self.max))
    }
}

/// The reason why parameters were refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParameterError {
    /// The algorithm takes no parameter of this name.
    Unknown {
        name: String,
        /// The parameters that it takes.
        known: Vec<&'static str>,
    },
    OutOfRange {
        parameter: Parameter,
        found: i64,
    },
}

impl ParameterError {
    /// Returns the name of the parameter that is refused.
    pub fn parameter(&self) -> &str {
        match self {
            ParameterError::Unknown { name, .. } => name,
            ParameterError::OutOfRange { parameter, .. } => parameter.name,
        }
    }
}

impl std::fmt::Display for ParameterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParameterError::Unknown { name, known } if known.is_empty() => {
                write!(f, "no parameter `{name}`; the algorithm takes none")
            }
            ParameterError::Unknown { name, known } => {
                write!(f, "no parameter `{name}`; there are {}", known.join(", "))
            }
            ParameterError::OutOfRange { parameter: Parameter { name, min, max, .. }, found } => {
                write!(f, "{name} is {found}, allowed are {min}..={max}")
            }
        }
    }
}

impl std::error::Error for ParameterError {}

/// `algorithm` with these parameters.
///
/// # Errors
/// The first that it does not take, or that is outside its range.
pub fn configure<'a>(
    algorithm: &Arc<dyn Algorithm>,
    values: impl IntoIterator<Item = (&'a str, i64)>,
) -> Result<Arc<dyn Algorithm>, ParameterError> {
    let known = algorithm.parameters();
    let check = |(name, found): (&str, i64)| {
        let parameter = known.iter().find(|p| p.name == name).ok_or_else(|| ParameterError::Unknown {
            name: name.to_owned(),
            known: known.iter().map(|p| p.name).collect(),
        })?;
        if (parameter.min..=parameter.max).contains(&found) {
            Ok((parameter.name, found))
        } else {
            Err(ParameterError::OutOfRange { parameter: *parameter, found })
        }
    };
    let values = values.into_iter().map(check).collect::<Result<Vec<_>, _>>()?;
    Ok(algorithm.configured(&values).unwrap_or_else(|| Arc::clone(algorithm)))
}

/// The algorithms without what flows have taught them, so that experiments in one process keep apart.
pub fn renewed(algorithms: &[Arc<dyn Algorithm>]) -> Vec<Arc<dyn Algorithm>> {
    algorithms.iter().map(|algorithm| algorithm.renewed().unwrap_or_else(|| Arc::clone(algorithm))).collect()
}

/// The agent's side of one flow.
pub trait Flow: Send {
    /// Called for each report of the flow's current program, in order. `now_us` is the datapath's clock at
    /// the ACK that reported, microseconds.
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control);

    /// Called before the next report when `count` reports were lost on their way.
    fn on_lost_reports(&mut self, count: u32) {
        let _ = count;
    }

    /// Called once when the connection ends.
    fn on_close(&mut self) {}

    /// Whether others fill the queue that the flow crosses; `None` where the algorithm does not tell.
    fn rivals(&self) -> Option<bool> {
        None
    }

    /// Returns fields with which the program goes on if it steers the flow again within [`RESUMES_WITHIN_US`]. They hold what it
    /// has learned of the path and no [`Handover`] says.
    fn kept(&self) -> Vec<(&'static str, i64)> {
        Vec::new()
    }

    /// The flow's present state in two or three words for people; `None` where the algorithm does not tell.
    fn state(&self) -> Option<&'static str> {
        None
    }
}

/// A number of bytes as a field holds it.
pub fn field(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The report registers of one program, as they were when it executed `(report)`.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The program that reported.
    pub program: &'a str,
    /// Register names, `Report.` prefix left out, in the order of `values`.
    pub names: &'a [String],
    pub values: &'a [i64],
    /// The true state of a simulated flow's path, which no datapath can see. Rewards may use it, decisions must not.
    pub truth: Option<Truth>,
}

/// A simulator's knowledge of a flow's path, which no datapath can see.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Truth {
    /// The flow's fair share of what its bottleneck carries now, payload bytes per second.
    pub link_bytes_per_s: f64,
    /// Packets found lost since the last report that no queue dropped.
    pub random_losses: u32,
}

impl Report<'_> {
    /// The value of the register declared as `name` inside `(Report ...)`; `None` if the program has no such one.
    #[inline]
    pub fn get(&self, name: &str) -> Option<i64> {
        let i = self.names.iter().position(|n| n == name)?;
        self.values.get(i).copied()
    }
}

/// The requests of an algorithm to its flow's datapath, applied together at the flow's next ACK.
#[derive(Default, Debug)]
pub struct Control {
    requests: Vec<Requested>,
    /// The fields of all requests, in order.
    fields: Vec<(&'static str, i64)>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Requested {
    program: Option<&'static str>,
    /// The index of its first field.
    from: usize,
}

/// One request, as [`Control`] holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Run this program ([`Algorithm::programs`]) from its initial state; `None`: the running one goes on.
    pub program: Option<&'static str>,
    /// Control registers, `Cwnd` or `Rate` by name, and what they are set to.
    pub fields: &'a [(&'static str, i64)],
}

impl Control {
    /// Runs program `name` from its initial state, with these control registers, `Cwnd` (bytes) or `Rate`
    /// (bytes per second) set.
    pub fn set_program(&mut self, name: &'static str, fields: &[(&'static str, i64)]) {
        self.request(Some(name), fields);
    }

    /// Sets control registers, `Cwnd` (bytes) or `Rate` (bytes per second) of the running program.
    #[inline]
    pub fn update(&mut self, fields: &[(&'static str, i64)]) {
        self.request(None, fields);
    }

    #[inline]
    fn request(&mut self, program: Option<&'static str>, fields: &[(&'static str, i64)]) {
        self.requests.push(Requested { program, from: self.fields.len() });
        self.fields.extend_from_slice(fields);
    }

    /// Gives the flow's learner an interval to learn from.
    pub fn learn(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Whether there are intervals for the learner.
    #[inline]
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The intervals so far, which are removed.
    pub fn take_rows(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.rows)
    }

    /// The requests so far.
    #[inline]
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'_>> {
        self.requests.iter().enumerate().map(|(n, Requested { program, from })| {
            let to = self.requests.get(n + 1).map_or(self.fields.len(), |next| next.from);
            Request { program: *program, fields: self.fields.get(*from..to).unwrap_or_default() }
        })
    }

    /// Forgets the requests; the room for them is kept.
    #[inline]
    pub fn clear(&mut self) {
        self.requests.clear();
        self.fields.clear();
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `gain` from 1 to 4, and remembers it.
    struct Tuned(i64);

    impl Algorithm for Tuned {
        fn name(&self) -> &'static str {
            if self.0 == 4 { "set to four" } else { "as it ships" }
        }

        fn programs(&self) -> Vec<ProgramSource> {
            Vec::new()
        }

        fn flow(&self, _info: &FlowInfo, _control: &mut Control) -> Box<dyn Flow> {
            unreachable!("no flow starts")
        }

        fn parameters(&self) -> &'static [Parameter] {
            &[Parameter { name: "gain", about: "", default: 2, min: 1, max: 4 }]
        }

        fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
            values.last().map(|(_, value)| Arc::new(Tuned(*value)) as Arc<dyn Algorithm>)
        }
    }

    #[test]
    fn parameters_that_an_algorithm_does_not_take_or_allow_are_refused() {
        let shipped: Arc<dyn Algorithm> = Arc::new(Tuned(2));
        let refused = |values: &[(&str, i64)]| {
            let error = configure(&shipped, values.iter().copied()).err().unwrap();
            (error.parameter().to_owned(), error.to_string())
        };
        let says = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(refused(&[("gain", 4), ("loss", 1)]), says("loss", "no parameter `loss`; there are gain"));
        assert_eq!(refused(&[("gain", 0)]), says("gain", "gain is 0, allowed are 1..=4"));
        assert_eq!(refused(&[("gain", 5)]), says("gain", "gain is 5, allowed are 1..=4"));
        assert_eq!(configure(&shipped, [("gain", 4)]).unwrap().name(), "set to four");
        assert_eq!(configure(&shipped, [("gain", 1)]).unwrap().name(), "as it ships");
    }
}
