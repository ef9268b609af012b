//! A case: its script, and what must come out.

use crate::fields::mss_register;
use crate::suite::executor::{Divergence, Executor, Observation, Script, observe};
use std::fmt;

/// Something that an observation shows.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Observable {
    /// A register, by the name that the first program of the script gives it.
    Reg(String),
    /// A register as it was reported; fails if nothing was.
    Reported(String),
    /// 1 if the invocation reported, else 0.
    DidReport,
    /// The window register, bytes.
    Cwnd,
    /// The rate register, bytes per second.
    Rate,
    /// Faults since the flow started.
    Faults,
    Action,
    Snapshot,
    /// A cell of the histories.
    Cell(usize),
    /// 1 if a policy was asked, so that a report is a row, else 0.
    IsRow,
    /// 1 if the flow is the native algorithm's, else 0.
    Native,
}

impl fmt::Display for Observable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observable::Reg(name) => write!(f, "register {name}"),
            Observable::Reported(name) => write!(f, "reported {name}"),
            Observable::DidReport => f.write_str("whether it reported"),
            Observable::Cwnd => f.write_str("Cwnd"),
            Observable::Rate => f.write_str("Rate"),
            Observable::Faults => f.write_str("the fault count"),
            Observable::Action => f.write_str("Policy.action"),
            Observable::Snapshot => f.write_str("Policy.snapshot"),
            Observable::Cell(n) => write!(f, "history cell {n}"),
            Observable::IsRow => f.write_str("whether a policy was asked"),
            Observable::Native => f.write_str("whether it runs natively"),
        }
    }
}

/// A value that one invocation must show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expectation {
    /// The invocation's index, from 0.
    pub invocation: usize,
    pub what: Observable,
    pub value: i64,
}

/// A script with its expected values, computed by hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The case's name, unique in the suite.
    pub name: String,
    pub script: Script,
    pub expectations: Vec<Expectation>,
}

/// The reason why a case of the suite is none: its program does not compile.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("case {name}: {reason}")]
pub struct CaseError {
    pub name: String,
    /// The compiler's or the verifier's first word.
    pub reason: String,
}

impl Case {
    /// Whether only an executor that [runs policies](Executor::policies) can run it.
    pub fn is_beyond_stock(&self) -> bool {
        self.script.programs.iter().any(|p| p.uses_policy() || mss_register(p).is_some())
    }

    /// Runs the case on an executor.
    ///
    /// # Errors
    /// The first difference from the reference VM, or else from what was expected.
    pub fn check(&self, executor: &mut dyn Executor) -> Result<(), Divergence> {
        let observations = observe(executor, &self.script)?;
        for e in &self.expectations {
            let found = observations.get(e.invocation).and_then(|o| self.observe(o, &e.what));
            if found != Some(e.value) {
                let what = e.what.to_string();
                return Err(Divergence::Golden { invocation: e.invocation, what, expected: e.value, found });
            }
        }
        Ok(())
    }

    fn observe(&self, seen: &Observation, what: &Observable) -> Option<i64> {
        let reg = |name: &str| Some(usize::from(self.script.programs.first()?.reg(name)?));
        match what {
            Observable::Reg(name) => seen.regs.get(reg(name)?).copied(),
            Observable::Reported(name) => seen.report.as_ref()?.get(reg(name)?).copied(),
            Observable::DidReport => Some(i64::from(seen.report.is_some())),
            Observable::Cwnd => Some(seen.cwnd_bytes),
            Observable::Rate => Some(seen.rate_bytes_per_s),
            Observable::Faults => i64::try_from(seen.faults).ok(),
            Observable::Action => Some(seen.policy.as_ref()?.action_q16),
            Observable::Snapshot => Some(seen.policy.as_ref()?.snapshot.into()),
            Observable::Cell(n) => seen.policy.as_ref()?.histories.get(*n).map(|cell| (*cell).into()),
            Observable::IsRow => Some(seen.policy.as_ref()?.asked.into()),
            Observable::Native => Some(seen.policy.as_ref()?.native.into()),
        }
    }
}
