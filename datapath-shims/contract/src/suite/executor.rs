//! The interface of a shim's program runner to the suite, and the reference that the runner is held against.

use crate::command::{Field, Part};
use crate::datapath::{Datapath, ON_ACKS};
use crate::error::DatapathError;
use crate::event::Event;
use crate::fields::{apply_fields, mss_register};
use crate::flow::FlowInfo;
use crate::ids::{FlowId, ProgramUid};
use crate::slots::{SlotPolicies, SlotTable};
use ccplane_infer::{FlowPolicy, Shape};
use ccplane_program::ir::{Hook, MAX_REGS, Program};
use ccplane_program::vm::{InvokeOutcome, PrimValues, Prims, ProgramState, SendPrims};

/// The segment size that a flow starts with, bytes.
pub(super) const START_MSS_BYTES: u32 = 1448;

/// One thing that happens to a flow or to the slots that its policies are in.
#[derive(Clone, PartialEq, Eq, Debug)]
// Exhaustive: an executor that passed over a step would pass a test that it does not run.
pub enum ScriptStep {
    /// An ACK with these primitives: what was staged is applied, then the program runs. Neither happens once a policy had
    /// no answer, until a program is staged.
    Invoke(Prims),
    /// A packet or a flow's start with these primitives, for programs of [`Hook::Send`] and [`Hook::Connect`]; else like
    /// [`ScriptStep::Invoke`]. A script of the latter has one, as a flow has one start, and its segment size does not change.
    Decide(Box<SendPrims>),
    /// Stages field updates for the next ACK.
    Update(Vec<(Field, i64)>),
    /// Stages a program change, and fields to set after it, for the next ACK. Registers of the old program that
    /// were staged before are void; a staged window or rate is not.
    SetProgram {
        program: usize,
        /// Fields of the new program.
        fields: Vec<(Field, i64)>,
    },
    /// Pushes a snapshot into a slot.
    Push { slot: u8, image: usize, part: Part },
    /// Makes a slot's canary active.
    Promote(u8),
    /// Drops a slot's canary, or makes its last good snapshot active.
    Rollback(u8),
    /// The flow's segment size from the next ACK on.
    SegmentSize { mss_bytes: u32 },
}

/// Programs, and what happens to a flow that starts with the first one staged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The programs by index; there is at least one.
    pub programs: Vec<Program>,
    /// The flow's window before its first ACK, bytes; its rate is 0.
    pub cwnd_bytes: i64,
    /// The segment size that it starts with, bytes.
    pub mss_bytes: u32,
    pub steps: Vec<ScriptStep>,
    /// The flow's name, by which canaries choose it and its noise is drawn.
    pub flow: FlowId,
    /// The slots that are defined before the programs are installed.
    pub slots: Vec<(u8, Shape)>,
    /// The images by index, for [`ScriptStep::Push`].
    pub images: Vec<Vec<u64>>,
}

impl Script {
    /// A script without policies, on flow 1.
    pub fn new(programs: Vec<Program>, cwnd_bytes: i64, steps: Vec<ScriptStep>) -> Script {
        let (slots, images) = Default::default();
        Script { programs, cwnd_bytes, mss_bytes: START_MSS_BYTES, steps, flow: FlowId(1), slots, images }
    }

    /// Returns the image that a [`ScriptStep::Push`] names.
    ///
    /// # Errors
    /// The script does not hold it.
    pub fn image(&self, index: usize) -> Result<&[u64], ExecutorError> {
        let image = self.images.get(index).map(Vec::as_slice);
        image.ok_or_else(|| "the script names an image that it does not hold".into())
    }

    /// Defines the script's slots in a datapath, and installs its programs under the uids 0, 1 and so on.
    ///
    /// # Errors
    /// The first command that is refused.
    pub fn install(&self, datapath: &mut dyn Datapath) -> Result<(), DatapathError> {
        self.slots.iter().try_for_each(|(slot, shape)| datapath.define_slot(*slot, shape))?;
        let mut programs = self.programs.iter().zip(0..);
        programs.try_for_each(|(program, uid)| datapath.install(ProgramUid(uid), program))
    }

    /// Defines the script's slots in `table`, and checks that its programs could be installed beside them.
    ///
    /// # Errors
    /// As [`SlotTable::define`] and [`SlotTable::check`].
    pub fn define(&self, mut table: SlotTable) -> Result<SlotTable, DatapathError> {
        self.slots.iter().try_for_each(|(slot, shape)| table.define(*slot, shape))?;
        self.programs.iter().try_for_each(|program| table.check(program))?;
        Ok(table)
    }
}

/// The decision of a program about a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sending {
    pub priority: i64,
    pub path: i64,
    /// The count of sent bytes from which on the program runs again.
    pub decide_at_bytes: i64,
}

impl Sending {
    /// Returns the decision that stands for a flow.
    pub fn of(flow: &ProgramState) -> Sending {
        Sending { priority: flow.priority, path: flow.path, decide_at_bytes: flow.decide_at_bytes }
    }
}

/// The observable state of a flow after one [`ScriptStep::Invoke`] or [`ScriptStep::Decide`].
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
    pub sending: Sending,
    /// Present if the executor [runs policies](Executor::policies).
    pub policy: Option<PolicyObservation>,
}

/// The observable state of a flow's policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyObservation {
    /// The cells of the program's histories.
    pub histories: Vec<i32>,
    pub action_q16: i64,
    pub snapshot: u32,
    pub flow: FlowPolicy,
    /// Whether this invocation asked a policy, which makes its report a row of a batch.
    pub asked: bool,
    /// Whether a policy had no answer, now or earlier, so that the native algorithm controls the flow.
    pub native: bool,
}

impl PolicyObservation {
    /// Collects the policy state of a flow that runs `program`.
    pub fn new(
        program: &Program,
        vm: &ProgramState,
        flow: &FlowPolicy,
        asked: bool,
        native: bool,
    ) -> PolicyObservation {
        let histories = vm.histories[..program.policy_inputs()].to_vec();
        let (action_q16, snapshot) = (vm.action_q16, vm.snapshot);
        PolicyObservation { histories, action_q16, snapshot, flow: *flow, asked, native }
    }
}

/// The answer of an executor of [`Hook::Ack`] alone to [`ScriptStep::Decide`].
pub const NO_PACKETS: &str = "it decides on ACKs alone";

/// The reason why an executor could not run a script at all.
pub type ExecutorError = Box<dyn std::error::Error + Send + Sync>;

/// Runs programs the way a shim does on live flows.
pub trait Executor {
    /// Runs a script from a fresh flow; one observation per [`ScriptStep::Invoke`].
    ///
    /// # Errors
    /// What kept the script from running; the suite counts it as a failure.
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError>;

    /// Whether it runs `(policy ...)` and `(history ...)`, and shows what they do. One that does also lets programs follow
    /// the segment size; stock CCP does neither.
    fn policies(&self) -> bool {
        false
    }

    /// The hooks whose programs it runs.
    fn hooks(&self) -> &'static [Hook] {
        ON_ACKS
    }
}

/// A datapath with the flow of one script, for [`run_script`].
pub trait ScriptedDatapath {
    /// The datapath, for the agent's commands.
    fn datapath(&mut self) -> &mut dyn Datapath;

    /// Starts the script's flow under the id [`Script::flow`].
    fn start_flow(&mut self, id: FlowId, info: FlowInfo);

    /// Sets the flow's segment size, bytes.
    fn set_segment_size(&mut self, mss_bytes: u32);

    /// Processes an ACK of the flow, and returns its state but for the report, which [`run_script`] takes from the events.
    ///
    /// # Errors
    /// The flow has no program.
    fn on_ack(&mut self, prims: &Prims) -> Result<Observation, ExecutorError>;

    /// Decides on a packet of the flow, as [`ScriptedDatapath::on_ack`] does on an ACK.
    ///
    /// # Errors
    /// The flow has no program, or the datapath decides on ACKs alone.
    fn on_packet(&mut self, prims: &SendPrims) -> Result<Observation, ExecutorError> {
        let _ = prims;
        Err(NO_PACKETS.into())
    }
}

/// Runs a script through a datapath's own commands, ACKs or packets, and events, as one way to be an [`Executor`].
///
/// # Errors
/// The first command that was refused, or ACK or packet that failed.
pub fn run_script(
    script: &Script,
    scripted: &mut dyn ScriptedDatapath,
) -> Result<Vec<Observation>, ExecutorError> {
    let info = FlowInfo::example(script.mss_bytes, script.mss_bytes.into());
    scripted.start_flow(script.flow, info);
    let datapath = scripted.datapath();
    script.install(datapath)?;
    datapath.set_program(script.flow, ProgramUid(0), &[(Field::Cwnd, script.cwnd_bytes)])?;
    let mut seen = Vec::new();
    for step in &script.steps {
        match step {
            ScriptStep::Update(fields) => scripted.datapath().update(script.flow, fields)?,
            ScriptStep::SetProgram { program, fields } => {
                scripted.datapath().set_program(script.flow, ProgramUid(*program as u32), fields)?;
            }
            ScriptStep::Push { slot, image, part } => {
                scripted.datapath().push(*slot, script.image(*image)?, *part)?;
            }
            ScriptStep::Promote(slot) => scripted.datapath().promote(*slot)?,
            ScriptStep::Rollback(slot) => scripted.datapath().rollback(*slot)?,
            ScriptStep::SegmentSize { mss_bytes } => scripted.set_segment_size(*mss_bytes),
            ScriptStep::Invoke(prims) => {
                let state = scripted.on_ack(prims)?;
                seen.push(with_report(script.flow, scripted, state)?);
            }
            ScriptStep::Decide(prims) => {
                let state = scripted.on_packet(prims)?;
                seen.push(with_report(script.flow, scripted, state)?);
            }
        }
    }
    Ok(seen)
}

/// Adds the report of the last invocation, which is among the datapath's events.
fn with_report(
    flow: FlowId,
    scripted: &mut dyn ScriptedDatapath,
    mut seen: Observation,
) -> Result<Observation, ExecutorError> {
    let datapath = scripted.datapath();
    if seen.policy.as_ref().is_some_and(|policy| policy.native && policy.asked) {
        // To the script the window is the program's own until it is set; here the native algorithm's goes on from it.
        datapath.update(flow, &[(Field::Cwnd, seen.cwnd_bytes)])?;
    }
    seen.report = reported(datapath);
    Ok(seen)
}

/// Takes a datapath's events, and returns the report that is among them.
pub fn reported(datapath: &mut dyn Datapath) -> Option<Vec<i64>> {
    let mut events = Vec::new();
    datapath.poll(usize::MAX, &mut events);
    events.into_iter().find_map(|event| match event {
        Event::Report { values, .. } => Some(values.into_vec()),
        _ => None,
    })
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
    fn hooks(&self) -> &'static [Hook] {
        &Hook::ALL
    }
}

fn reference(script: &Script) -> Result<Vec<Observation>, DatapathError> {
    run(script, SlotTable::plain(), &mut Reference)
}

/// The machines that run a script's programs.
trait Machines {
    /// Runs the program of this index.
    fn invoke<M: PrimValues>(
        &mut self,
        program: (usize, &Program),
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut SlotPolicies<'_>,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome;
}

impl Machines for Reference {
    fn invoke<M: PrimValues>(
        &mut self,
        (_, program): (usize, &Program),
        flow: &mut ProgramState,
        prims: &M,
        policies: &mut SlotPolicies<'_>,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        flow.invoke_with(program, prims, policies, report)
    }
}

fn run(
    script: &Script,
    slots: SlotTable,
    machines: &mut impl Machines,
) -> Result<Vec<Observation>, DatapathError> {
    let mut slots = script.define(slots)?;
    let Some(program) = script.programs.first() else { return Ok(Vec::new()) };
    let mut run = Run {
        key: script.flow.0,
        current: 0,
        program,
        flow: ProgramState::new(program, script.cwnd_bytes, 0),
        policy: FlowPolicy::default(),
        native: false,
        starts: true,
        fields: Vec::new(),
        first_mss_bytes: script.mss_bytes,
        mss_bytes: script.mss_bytes,
        told_mss_bytes: script.mss_bytes,
    };
    let mut seen = Vec::new();
    for step in &script.steps {
        match step {
            ScriptStep::Update(more) => run.fields.extend_from_slice(more),
            ScriptStep::SetProgram { program: index, fields: first } => {
                let Some(next) = script.programs.get(*index) else { continue };
                (run.program, run.current, run.starts) = (next, *index, true);
                run.fields.retain(|(field, _)| !matches!(field, Field::Reg(_)));
                run.fields.extend_from_slice(first);
            }
            ScriptStep::Push { slot, image, part } => {
                slots.push(*slot, script.images.get(*image).map_or(&[], Vec::as_slice), *part)?;
            }
            ScriptStep::Promote(slot) => slots.promote(*slot)?,
            ScriptStep::Rollback(slot) => slots.rollback(*slot)?,
            ScriptStep::SegmentSize { mss_bytes: now } => run.mss_bytes = *now,
            ScriptStep::Invoke(prims) => seen.push(run.invoke(machines, &slots, prims)),
            ScriptStep::Decide(prims) => seen.push(run.invoke(machines, &slots, &**prims)),
        }
    }
    Ok(seen)
}

/// A flow of the reference.
struct Run<'a> {
    key: u64,
    /// The program's index.
    current: usize,
    program: &'a Program,
    flow: ProgramState,
    policy: FlowPolicy,
    native: bool,
    starts: bool,
    fields: Vec<(Field, i64)>,
    first_mss_bytes: u32,
    mss_bytes: u32,
    told_mss_bytes: u32,
}

impl Run<'_> {
    fn invoke(
        &mut self,
        machines: &mut impl Machines,
        slots: &SlotTable,
        prims: &impl PrimValues,
    ) -> Observation {
        let program = self.program;
        if std::mem::take(&mut self.starts) {
            self.flow.start(program, prims.get(program.hook().clock()));
            (self.native, self.told_mss_bytes) = (false, self.first_mss_bytes);
        }
        let (mut reported, mut asked) = (None, false);
        if !self.native {
            apply_fields(&mut self.flow, program, &std::mem::take(&mut self.fields));
            follow_mss(&mut self.flow, program, &mut self.told_mss_bytes, self.mss_bytes);
            let mut report = [0; MAX_REGS];
            let mut policies = slots.policies(self.key, &mut self.policy);
            let outcome =
                machines.invoke((self.current, program), &mut self.flow, prims, &mut policies, &mut report);
            (self.native, asked) = (outcome.native, outcome.asked);
            reported = outcome.report.then(|| report[..program.report_len()].to_vec());
        }
        let flow = &self.flow;
        Observation {
            regs: flow.regs[..program.regs().len()].to_vec(),
            cwnd_bytes: flow.cwnd_bytes,
            rate_bytes_per_s: flow.rate_bytes_per_s,
            faults: flow.faults,
            report: reported,
            sending: Sending::of(flow),
            policy: Some(PolicyObservation::new(program, flow, &self.policy, asked, self.native)),
        }
    }
}

/// Replaces the previous segment size by the current one in a register that holds it.
fn follow_mss(flow: &mut ProgramState, program: &Program, told_bytes: &mut u32, now_bytes: u32) {
    let told_bytes = std::mem::replace(told_bytes, now_bytes);
    let register = mss_register(program).and_then(|register| flow.regs.get_mut(usize::from(register)));
    if let Some(held) = register.filter(|held| **held == i64::from(told_bytes)) {
        *held = now_bytes.into();
    }
}

/// The ways in which an executor differs from what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Divergence {
    /// The executor could not run the script.
    #[error("could not run: {0}")]
    NotRun(ExecutorError),
    /// The number of observations is wrong.
    #[error("{found} observations for {expected} invocations")]
    Length {
        /// Invocations in the script.
        expected: usize,
        found: usize,
    },
    /// An invocation had other effects than the reference VM's.
    #[error("invocation {invocation}: expected {expected:?}, found {found:?}; script: {script:?}")]
    Effect { invocation: usize, expected: Box<Observation>, found: Box<Observation>, script: Box<Script> },
    /// An invocation had other effects than were worked out by hand.
    #[error("invocation {invocation}: {what} is {found:?}, not {expected}")]
    Golden {
        invocation: usize,
        what: String,
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

/// Checks as [`check`] does, and hands out the observations.
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
    use ccplane_program::vm::FastVm;

    /// [`FastVm`] for the programs, vectors for the networks.
    struct Fast;

    impl Executor for Fast {
        fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
            let mut machines = script.programs.iter().map(FastVm::new).collect::<Result<Vec<_>, _>>()?;
            Ok(run(script, SlotTable::new(), &mut machines)?)
        }
        fn policies(&self) -> bool {
            true
        }
        fn hooks(&self) -> &'static [Hook] {
            &Hook::ALL
        }
    }

    impl Machines for Vec<FastVm> {
        fn invoke<M: PrimValues>(
            &mut self,
            (index, _): (usize, &Program),
            flow: &mut ProgramState,
            prims: &M,
            policies: &mut SlotPolicies<'_>,
            report: &mut [i64; MAX_REGS],
        ) -> InvokeOutcome {
            self[index].invoke_with(flow, prims, policies, report)
        }
    }

    #[test]
    fn the_fast_way_gives_the_same_bits() {
        let result = conform(&mut Fast, 3000, 1);
        assert!(result.failed.is_empty(), "{result}");
    }
}
