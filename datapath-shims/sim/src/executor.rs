//! The suite's way into the part of this shim that runs programs.

use crate::program::Installed;
use ccplane_contract::suite::{Executor, ExecutorError, Observation, PolicyObservation, Script, Step};
use ccplane_contract::{FlowId, ProgramUid, SlotTable, check_fields};
use ccplane_engine::steering::{Staged, Steering};
use ccplane_infer::FlowPolicy;
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::Prims;

/// Runs scripts through the code that steers simulated flows.
#[derive(Clone, Copy, Default, Debug)]
pub struct SimExecutor;

impl Executor for SimExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        let programs: Vec<Installed> = script
            .programs
            .iter()
            .zip(0..)
            .map(|(program, uid)| Installed::new(ProgramUid(uid), program))
            .collect();
        let get =
            |n: usize| programs.get(n).cloned().ok_or("the script names a program that it does not hold");
        let mut flow = Flow {
            name: script.flow,
            steering: Steering::new(script.cwnd_bytes, script.mss_bytes.into()),
            mss_bytes: script.mss_bytes,
            staged: Staged::default(),
            policy: FlowPolicy::default(),
        };
        flow.staged.stage_program(get(0)?, &[]);
        let mut slots = script.define(SlotTable::new())?;
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                Step::Update(fields) => {
                    check_fields(flow.program().map(|p| &*p.program), fields)?;
                    flow.staged.stage_fields(fields);
                }
                Step::SetProgram { program, fields } => {
                    let program = get(*program)?;
                    check_fields(Some(&program.program), fields)?;
                    flow.staged.stage_program(program, fields);
                }
                Step::Push { slot, image, part } => {
                    let image =
                        script.images.get(*image).ok_or("the script names an image that it does not hold")?;
                    slots.push(*slot, image, *part)?;
                }
                Step::Promote(slot) => slots.promote(*slot)?,
                Step::Rollback(slot) => slots.rollback(*slot)?,
                Step::SegmentSize { mss_bytes } => flow.mss_bytes = *mss_bytes,
                Step::Invoke(prims) => seen.push(flow.invoke(prims, &slots)?),
            }
        }
        Ok(seen)
    }

    fn policies(&self) -> bool {
        true
    }
}

struct Flow {
    name: FlowId,
    steering: Steering<Installed>,
    mss_bytes: u32,
    staged: Staged<Installed>,
    policy: FlowPolicy,
}

impl Flow {
    /// The program that will run at the next ACK.
    fn program(&self) -> Option<&Installed> {
        self.staged.program().or(self.steering.running())
    }

    fn invoke(&mut self, prims: &Prims, slots: &SlotTable) -> Result<Observation, ExecutorError> {
        let (mut report, mut reported, mut asked) = ([0; MAX_REGS], false, false);
        if self.staged.program().is_some() || !self.steering.gave_up() {
            self.steering.take(&mut self.staged, prims.get(Prim::AckNow));
            let mut policies = slots.policies(self.name.0, &mut self.policy);
            let outcome = self.steering.invoke(self.mss_bytes.into(), prims, &mut policies, &mut report);
            (reported, asked) = (outcome.report, outcome.asked);
        }
        let program = &self.program().ok_or("the flow has no program")?.program;
        let (vm, native) = (self.steering.flow(), self.steering.gave_up());
        Ok(Observation {
            regs: self.steering.regs().to_vec(),
            cwnd_bytes: vm.cwnd_bytes,
            rate_bytes_per_s: vm.rate_bytes_per_s,
            faults: vm.faults,
            report: reported.then(|| report[..program.report_len()].to_vec()),
            policy: Some(PolicyObservation::new(program, vm, &self.policy, asked, native)),
        })
    }
}
