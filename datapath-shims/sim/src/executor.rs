//! The suite's access to the part of this shim that runs programs.

use crate::hosts::HostFlow;
use ccplane_contract::suite::{
    Executor, ExecutorError, Observation, PacketExecutor, PacketStream, PacketTreatment, Script, ScriptStep,
};
use ccplane_contract::{FlowId, ProgramUid, SlotTable, check_fields};
use ccplane_engine::SharedProgram;
use ccplane_engine::runner::{ProgramRunner, Runnable, Staged};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{Hook, MAX_REGS, Prim, Program};
use ccplane_program::vm::PrimValues;
use std::sync::Arc;

/// Runs scripts through the code that steers simulated flows.
#[derive(Clone, Copy, Default, Debug)]
pub struct SimExecutor;

impl Executor for SimExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        let programs: Vec<SharedProgram> = script
            .programs
            .iter()
            .zip(0..)
            .map(|(program, uid)| SharedProgram::new(ProgramUid(uid), &Arc::new(program.clone())))
            .collect();
        let get =
            |n: usize| programs.get(n).cloned().ok_or("the script names a program that it does not hold");
        let mut flow = ScriptFlow {
            name: script.flow,
            runner: ProgramRunner::new(script.cwnd_bytes, script.mss_bytes.into()),
            mss_bytes: script.mss_bytes,
            staged: Staged::default(),
            policy: FlowPolicy::default(),
        };
        flow.staged.stage_program(get(0)?, &[]);
        let mut slots = script.define(SlotTable::new())?;
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                ScriptStep::Update(fields) => {
                    check_fields(flow.program().map(Runnable::program), fields)?;
                    flow.staged.stage_fields(fields);
                }
                ScriptStep::SetProgram { program, fields } => {
                    let program = get(*program)?;
                    check_fields(Some(program.program()), fields)?;
                    flow.staged.stage_program(program, fields);
                }
                ScriptStep::Push { slot, image, part } => slots.push(*slot, script.image(*image)?, *part)?,
                ScriptStep::Promote(slot) => slots.promote(*slot)?,
                ScriptStep::Rollback(slot) => slots.rollback(*slot)?,
                ScriptStep::SegmentSize { mss_bytes } => flow.mss_bytes = *mss_bytes,
                ScriptStep::Invoke(prims) => seen.push(flow.invoke(prims, &slots)?),
                ScriptStep::Decide(prims) => seen.push(flow.invoke(&**prims, &slots)?),
            }
        }
        Ok(seen)
    }

    fn policies(&self) -> bool {
        true
    }

    fn hooks(&self) -> &'static [Hook] {
        &Hook::ALL
    }
}

impl PacketExecutor for SimExecutor {
    fn carry(
        &mut self,
        program: &Program,
        stream: &PacketStream,
    ) -> Result<Vec<PacketTreatment>, ExecutorError> {
        let program = SharedProgram::new(ProgramUid(0), &Arc::new(program.clone()));
        Ok(HostFlow::carry(program, stream))
    }
}

struct ScriptFlow {
    name: FlowId,
    runner: ProgramRunner<SharedProgram>,
    mss_bytes: u32,
    staged: Staged<SharedProgram>,
    policy: FlowPolicy,
}

impl ScriptFlow {
    /// The program that will run at the next ACK.
    fn program(&self) -> Option<&SharedProgram> {
        self.staged.program().or(self.runner.running())
    }

    fn invoke(&mut self, prims: &impl PrimValues, slots: &SlotTable) -> Result<Observation, ExecutorError> {
        let (mut report, mut reported, mut asked) = ([0; MAX_REGS], false, false);
        if self.staged.program().is_some() || !self.runner.lacks_decision() {
            let clock = self.program().map_or(Prim::AckNow, |program| program.program().hook().clock());
            self.runner.take(&mut self.staged, prims.get(clock));
            let mut policies = slots.policies(self.name.0, &mut self.policy);
            let outcome = self.runner.invoke(self.mss_bytes.into(), prims, &mut policies, &mut report);
            (reported, asked) = (outcome.report, outcome.asked);
        }
        let mut seen = self.runner.observe(&self.policy, asked).ok_or("the flow has no program")?;
        let len = self.runner.running().map_or(0, |running| running.program().report_len());
        seen.report = reported.then(|| report[..len].to_vec());
        Ok(seen)
    }
}
