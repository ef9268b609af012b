//! The programs of an algorithm, and what they report of an interval.

use ccplane_alg::{Report, Truth};
use ccplane_program::ir::{MAX_REGS, Program, RegId};
use ccplane_program::vm::FastVm;

/// A program of an algorithm, compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// Runs it, unless the program has too many constants.
    pub(crate) machine: Option<FastVm>,
    pub(crate) report_names: Vec<String>,
    pub(crate) start_rate: Option<RegId>,
}

/// The program and the clock of one ACK's report, beside the registers' values.
#[derive(Clone, Copy)]
pub(crate) struct Interval<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) now_us: u64,
    pub(crate) truth: Truth,
}

impl<'a> Interval<'a> {
    /// Makes the report of these registers.
    pub(crate) fn report<'r>(&'r self, values: &'r [i64; MAX_REGS]) -> Report<'r> {
        let names = &self.compiled.report_names;
        let values = &values[..names.len()];
        Report { program: self.compiled.name, names, values, truth: Some(self.truth) }
    }
}
