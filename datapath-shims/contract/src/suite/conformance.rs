//! The cases that a datapath passed and failed.

use super::executor::Divergence;
use std::fmt;

/// The result of a run of the suite.
#[derive(Debug)]
pub struct Conformance<E = Divergence> {
    /// Names of the cases that passed.
    pub passed: Vec<String>,
    /// The cases that failed, each with its reason.
    pub failed: Vec<(String, E)>,
}

impl<E> Default for Conformance<E> {
    fn default() -> Self {
        Conformance { passed: Vec::new(), failed: Vec::new() }
    }
}

impl<E> Conformance<E> {
    /// Adds a case with its outcome.
    pub(super) fn note(&mut self, name: String, outcome: Result<(), E>) {
        match outcome {
            Ok(()) => self.passed.push(name),
            Err(why) => self.failed.push((name, why)),
        }
    }
}

/// One line a failure.
impl<E: fmt::Display> fmt::Display for Conformance<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed.len(), self.failed.len())?;
        self.failed.iter().try_for_each(|(name, why)| write!(f, "\n{name}: {why}"))
    }
}
