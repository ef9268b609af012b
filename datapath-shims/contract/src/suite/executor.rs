//! What the suite asks of a shim's program runner, and the reference that it is held against.

use crate::{Field, apply_fields};
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Flow, Prims};

/// One thing that happens to a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// An ACK with these primitives: what was staged is applied, then the program runs.
    Invoke(Prims),
    /// Stages field updates for the next ACK.
    Update(Vec<(Field, i64)>),
    /// Stages a program change, and fields to set after it, for the next ACK. Registers of the old program that
    /// were staged before are void; a staged window or rate is not.
    SetProgram {
        /// Index into [`Script::programs`].
        program: usize,
        /// Fields of the new program.
        fields: Vec<(Field, i64)>,
    },
}

/// Programs, and what happens to a flow that starts with the first one staged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// At least one.
    pub programs: Vec<Program>,
    /// The flow's window before its first ACK, bytes; its rate is 0.
    pub cwnd_bytes: i64,
    /// In order.
    pub steps: Vec<Step>,
}

/// What can be seen after one [`Step::Invoke`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The program's registers, all kinds, after volatile ones were reset.
    pub regs: Vec<i64>,
    /// The window register, bytes.
    pub cwnd_bytes: i64,
    /// The rate register, bytes per second.
    pub rate_bytes_per_s: i64,
    /// Faults since the flow started.
    pub faults: u64,
    /// The report registers as reported, if the invocation reported.
    pub report: Option<Vec<i64>>,
}

/// Why an executor could not run a script at all.
pub type ExecutorError = Box<dyn std::error::Error + Send + Sync>;

/// Runs programs the way a shim does on live flows.
pub trait Executor {
    /// Runs a script from a fresh flow; one observation per [`Step::Invoke`].
    ///
    /// # Errors
    /// What kept the script from running; the suite counts it as a failure.
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError>;
}

/// The reference VM as an executor: the oracle.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reference;

impl Executor for Reference {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        Ok(reference(script))
    }
}

fn reference(script: &Script) -> Vec<Observation> {
    let Some(mut program) = script.programs.first() else { return Vec::new() };
    let mut flow = Flow::new(program, script.cwnd_bytes, 0);
    let (mut start, mut fields) = (true, Vec::<(Field, i64)>::new());
    let mut seen = Vec::new();
    for step in &script.steps {
        match step {
            Step::Update(more) => fields.extend_from_slice(more),
            Step::SetProgram { program: index, fields: first } => {
                let Some(next) = script.programs.get(*index) else { continue };
                (program, start) = (next, true);
                fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
                fields.extend_from_slice(first);
            }
            Step::Invoke(prims) => {
                if std::mem::take(&mut start) {
                    flow.start(program, prims.get(Prim::AckNow));
                }
                apply_fields(&mut flow, program, &std::mem::take(&mut fields));
                let mut report = [0; MAX_REGS];
                let reported = flow.invoke(program, prims, &mut report).report;
                seen.push(Observation {
                    regs: flow.regs[..program.regs().len()].to_vec(),
                    cwnd_bytes: flow.cwnd_bytes,
                    rate_bytes_per_s: flow.rate_bytes_per_s,
                    faults: flow.faults,
                    report: reported.then(|| report[..program.report_len()].to_vec()),
                });
            }
        }
    }
    seen
}

/// How an executor differs from what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Divergence {
    /// It could not run the script.
    #[error("could not run: {0}")]
    NotRun(ExecutorError),
    /// The number of observations is wrong.
    #[error("{found} observations for {expected} invocations")]
    Length {
        /// Invocations in the script.
        expected: usize,
        /// Observations made.
        found: usize,
    },
    /// An invocation had other effects than the reference VM's.
    #[error("invocation {invocation}: expected {expected:?}, found {found:?}; script: {script:?}")]
    Effect {
        /// Counts from 0.
        invocation: usize,
        /// The reference VM's.
        expected: Box<Observation>,
        /// The executor's.
        found: Box<Observation>,
        /// What was run.
        script: Box<Script>,
    },
    /// An invocation had other effects than were worked out by hand.
    #[error("invocation {invocation}: {what} is {found:?}, not {expected}")]
    Golden {
        /// Counts from 0.
        invocation: usize,
        /// What was looked at.
        what: String,
        /// By hand.
        expected: i64,
        /// The executor's; `None` if it showed no such thing.
        found: Option<i64>,
    },
}

/// Runs a script and holds it against the reference VM.
///
/// # Errors
/// The first difference.
pub fn check(executor: &mut dyn Executor, script: &Script) -> Result<(), Divergence> {
    observe(executor, script).map(drop)
}

/// As [`check`], and hands out the observations.
pub(super) fn observe(executor: &mut dyn Executor, script: &Script) -> Result<Vec<Observation>, Divergence> {
    let found = executor.execute(script).map_err(Divergence::NotRun)?;
    let expected = reference(script);
    if expected.len() != found.len() {
        return Err(Divergence::Length { expected: expected.len(), found: found.len() });
    }
    let differs = expected.iter().zip(&found).position(|(e, f)| e != f);
    if let Some(invocation) = differs {
        return Err(Divergence::Effect {
            invocation,
            expected: Box::new(expected[invocation].clone()),
            found: Box::new(found[invocation].clone()),
            script: Box::new(script.clone()),
        });
    }
    Ok(found)
}
