//! The suite's way into the part of this shim that runs programs.

use crate::steering::{Installed, Invoked, Steering};
use ccplane_contract::suite::{Executor, ExecutorError, Observation, PolicyObservation, Script, Step};
use ccplane_contract::{ProgramUid, SlotTable, check_fields};

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
        let mut flow = Steering::new(script.cwnd_bytes);
        flow.stage_program(get(0)?, &[]);
        let mut slots = script.define(SlotTable::new())?;
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                Step::Update(fields) => {
                    check_fields(flow.program().map(|p| &*p.program), fields)?;
                    flow.stage_fields(fields);
                }
                Step::SetProgram { program, fields } => {
                    let program = get(*program)?;
                    check_fields(Some(&program.program), fields)?;
                    flow.stage_program(program, fields);
                }
                Step::Push { slot, image, part } => {
                    let image =
                        script.images.get(*image).ok_or("the script names an image that it does not hold")?;
                    slots.push(*slot, image, *part)?;
                }
                Step::Promote(slot) => slots.promote(*slot)?,
                Step::Rollback(slot) => slots.rollback(*slot)?,
                Step::Invoke(prims) => {
                    let invoked = if flow.gave_up() {
                        Invoked::default()
                    } else {
                        flow.on_ack(prims, script.flow.0, &slots)
                    };
                    let program = &flow.program().ok_or("the flow has no program")?.program;
                    let vm = flow.vm();
                    seen.push(Observation {
                        regs: vm.regs[..program.regs().len()].to_vec(),
                        cwnd_bytes: vm.cwnd_bytes,
                        rate_bytes_per_s: vm.rate_bytes_per_s,
                        faults: vm.faults,
                        report: invoked.report,
                        policy: Some(PolicyObservation::new(
                            program,
                            vm,
                            flow.policy(),
                            invoked.asked,
                            flow.gave_up(),
                        )),
                    });
                }
            }
        }
        Ok(seen)
    }

    fn policies(&self) -> bool {
        true
    }
}
