//! What the suite asks of a shim's program runner, and the reference that it is held against.

use super::operation::START_MSS_BYTES;
use crate::slots::SlotPolicies;
use crate::{DatapathError, Field, FlowId, Part, SlotTable, apply_fields, mss_register};
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Flow, Outcome, Prims};

/// One thing that happens to a flow or to the slots that its policies are in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// An ACK with these primitives: what was staged is applied, then the program runs. Neither happens once a policy had
    /// no answer, until a program is staged.
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
    /// Pushes a snapshot.
    Push {
        /// The slot.
        slot: u8,
        /// Index into [`Script::images`].
        image: usize,
        /// What for.
        part: Part,
    },
    /// Makes a slot's canary active.
    Promote(u8),
    /// Drops a slot's canary, or makes its last good snapshot active.
    Rollback(u8),
    /// The flow's segment size from the next ACK on.
    SegmentSize {
        /// Bytes.
        mss_bytes: u32,
    },
}

/// Programs, and what happens to a flow that starts with the first one staged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// At least one.
    pub programs: Vec<Program>,
    /// The flow's window before its first ACK, bytes; its rate is 0.
    pub cwnd_bytes: i64,
    /// The segment size that it starts with, bytes.
    pub mss_bytes: u32,
    /// In order.
    pub steps: Vec<Step>,
    /// The flow's name, by which canaries choose it and its noise is drawn.
    pub flow: FlowId,
    /// The slots that are defined before the programs are installed.
    pub slots: Vec<(u8, Shape)>,
    /// What [`Step::Push`] names.
    pub images: Vec<Vec<u64>>,
}

impl Script {
    /// A script without policies, on flow 1.
    pub fn new(programs: Vec<Program>, cwnd_bytes: i64, steps: Vec<Step>) -> Script {
        let (slots, images) = Default::default();
        Script { programs, cwnd_bytes, mss_bytes: START_MSS_BYTES, steps, flow: FlowId(1), slots, images }
    }

    /// This table once its slots are defined, in which its programs could be installed.
    ///
    /// # Errors
    /// As [`SlotTable::define`] and [`SlotTable::check`].
    pub fn define(&self, mut table: SlotTable) -> Result<SlotTable, DatapathError> {
        self.slots.iter().try_for_each(|(slot, shape)| table.define(*slot, shape))?;
        self.programs.iter().try_for_each(|program| table.check(program))?;
        Ok(table)
    }
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
    /// Where the executor [runs policies](Executor::policies).
    pub policy: Option<PolicyObservation>,
}

/// What can be seen of a flow's policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyObservation {
    /// The cells of the program's histories.
    pub histories: Vec<i32>,
    /// `Policy.action`.
    pub action_q16: i64,
    /// `Policy.snapshot`.
    pub snapshot: u32,
    /// What else is kept for them.
    pub flow: FlowPolicy,
    /// The report of this invocation, if there was one, is a row of a batch.
    pub asked: bool,
    /// A policy had no answer, now or earlier: the flow is the native algorithm's.
    pub native: bool,
}

impl PolicyObservation {
    /// What a flow that runs `program` shows.
    pub fn new(
        program: &Program,
        vm: &Flow,
        flow: &FlowPolicy,
        asked: bool,
        native: bool,
    ) -> PolicyObservation {
        let histories = vm.histories[..program.policy_inputs()].to_vec();
        let (action_q16, snapshot) = (vm.action_q16, vm.snapshot);
        PolicyObservation { histories, action_q16, snapshot, flow: *flow, asked, native }
    }
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

    /// Whether it runs `(policy ...)` and `(history ...)`, and shows what they do. One that does also lets programs follow
    /// the segment size; stock CCP does neither.
    fn policies(&self) -> bool {
        false
    }
}

/// The reference VM as an executor: the oracle.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reference;

impl Executor for Reference {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        Ok(reference(script)?)
    }
    fn policies(&self) -> bool {
        true
    }
}

fn reference(script: &Script) -> Result<Vec<Observation>, DatapathError> {
    run(script, SlotTable::plain(), |program, flow, prims, policies, report| {
        flow.invoke_with(&script.programs[program], prims, policies, report)
    })
}

/// Runs a script; `invoke` runs one of its programs on an ACK.
fn run(
    script: &Script,
    slots: SlotTable,
    mut invoke: impl FnMut(usize, &mut Flow, &Prims, &mut SlotPolicies<'_>, &mut [i64; MAX_REGS]) -> Outcome,
) -> Result<Vec<Observation>, DatapathError> {
    let mut slots = script.define(slots)?;
    let mut current = 0;
    let Some(mut program) = script.programs.first() else { return Ok(Vec::new()) };
    let mut flow = Flow::new(program, script.cwnd_bytes, 0);
    let (mut policy, mut native) = (FlowPolicy::default(), false);
    let (mut start, mut fields) = (true, Vec::<(Field, i64)>::new());
    let (mut mss_bytes, mut told_mss_bytes) = (script.mss_bytes, script.mss_bytes);
    let mut seen = Vec::new();
    for step in &script.steps {
        match step {
            Step::Update(more) => fields.extend_from_slice(more),
            Step::SetProgram { program: index, fields: first } => {
                let Some(next) = script.programs.get(*index) else { continue };
                (program, current, start) = (next, *index, true);
                fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
                fields.extend_from_slice(first);
            }
            Step::Push { slot, image, part } => {
                slots.push(*slot, script.images.get(*image).map_or(&[], Vec::as_slice), *part)?;
            }
            Step::Promote(slot) => slots.promote(*slot)?,
            Step::Rollback(slot) => slots.rollback(*slot)?,
            Step::SegmentSize { mss_bytes: now } => mss_bytes = *now,
            Step::Invoke(prims) => {
                if std::mem::take(&mut start) {
                    flow.start(program, prims.get(Prim::AckNow));
                    (native, told_mss_bytes) = (false, script.mss_bytes);
                }
                let (mut reported, mut asked) = (None, false);
                if !native {
                    apply_fields(&mut flow, program, &std::mem::take(&mut fields));
                    follow_mss(&mut flow, program, &mut told_mss_bytes, mss_bytes);
                    let mut report = [0; MAX_REGS];
                    let mut policies = slots.policies(script.flow.0, &mut policy);
                    let outcome = invoke(current, &mut flow, prims, &mut policies, &mut report);
                    (native, asked) = (outcome.native, outcome.asked);
                    reported = outcome.report.then(|| report[..program.report_len()].to_vec());
                }
                seen.push(Observation {
                    regs: flow.regs[..program.regs().len()].to_vec(),
                    cwnd_bytes: flow.cwnd_bytes,
                    rate_bytes_per_s: flow.rate_bytes_per_s,
                    faults: flow.faults,
                    report: reported,
                    policy: Some(PolicyObservation::new(program, &flow, &policy, asked, native)),
                });
            }
        }
    }
    Ok(seen)
}

/// What holds the segment size that the program was told last becomes that of now.
fn follow_mss(flow: &mut Flow, program: &Program, told_bytes: &mut u32, now_bytes: u32) {
    let told_bytes = std::mem::replace(told_bytes, now_bytes);
    let register = mss_register(program).and_then(|register| flow.regs.get_mut(usize::from(register)));
    if let Some(held) = register.filter(|held| **held == i64::from(told_bytes)) {
        *held = now_bytes.into();
    }
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
    let mut expected = reference(script).map_err(|e| Divergence::NotRun(e.into()))?;
    if !executor.policies() {
        expected.iter_mut().for_each(|o| o.policy = None);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::conform;
    use ccplane_program::vm::Machine;

    /// [`Machine`] for the programs, vectors for the networks.
    struct Fast;

    impl Executor for Fast {
        fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
            let mut machines = script.programs.iter().map(Machine::new).collect::<Result<Vec<_>, _>>()?;
            Ok(run(script, SlotTable::new(), |program, flow, prims, policies, report| {
                machines[program].invoke_with(flow, prims, policies, report)
            })?)
        }
        fn policies(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_fast_way_gives_the_same_bits() {
        let result = conform(&mut Fast, 3000, 1);
        assert!(result.failed.is_empty(), "{result}");
    }
}
