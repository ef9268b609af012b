//! The suite's way through both ends of an engine.

use crate::config::EngineConfig;
use crate::core::{Core, Engine, engine_with_clock};
use crate::flow::{Ack, FlowEngine, Sampled};
use crate::handle::Handle;
use crate::steering::Ready;
use ccplane_contract::suite::{Executor, ExecutorError, Observation, PolicyObservation, Script, Step};
use ccplane_contract::{Datapath, Event, Field, FlowInfo, ProgramUid};
use ccplane_program::vm::Prims;
use std::net::SocketAddr;
use std::sync::Arc;

/// Scripts have at most as many programs as a datapath has slots for, and report at most once an ACK.
const CONFIG: EngineConfig = EngineConfig {
    max_programs: usize::MAX,
    event_capacity: 4,
    // The times of a script's ACKs are any numbers.
    heartbeat_timeout_us: u64::MAX,
    ..EngineConfig::new("suite")
};

/// Runs scripts on an engine: commands through its [`Handle`], ACKs through a [`FlowEngine`].
#[derive(Clone, Copy, Default, Debug)]
pub struct EngineExecutor;

impl Executor for EngineExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        let (Engine { core }, mut handle) = engine_with_clock(CONFIG, Arc::new(|| ()), Arc::new(|| 0));
        script.slots.iter().try_for_each(|(slot, shape)| handle.define_slot(*slot, shape))?;
        for (program, uid) in script.programs.iter().zip(0..) {
            handle.install(ProgramUid(uid), program)?;
        }
        let mut flow = start(&core, script, &mut handle)?;
        let mut seen = Vec::new();
        for step in &script.steps {
            match step {
                Step::Update(fields) => handle.update(script.flow, fields)?,
                Step::SetProgram { program, fields } => {
                    handle.set_program(script.flow, ProgramUid(*program as u32), fields)?;
                }
                Step::Push { slot, image, part } => {
                    let image =
                        script.images.get(*image).ok_or("the script names an image that it does not hold")?;
                    handle.push(*slot, image, *part)?;
                }
                Step::Promote(slot) => handle.promote(*slot)?,
                Step::Rollback(slot) => handle.rollback(*slot)?,
                Step::SegmentSize { mss_bytes } => flow.set_mss(*mss_bytes),
                Step::Invoke(prims) => seen.push(invoke(&mut flow, &mut handle, prims)?),
            }
        }
        Ok(seen)
    }

    fn policies(&self) -> bool {
        true
    }
}

/// A flow of the script's name and window, with its first program staged.
fn start(core: &Arc<Core>, script: &Script, handle: &mut Handle) -> Result<FlowEngine, ExecutorError> {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let info = FlowInfo {
        mss_bytes: script.mss_bytes,
        init_cwnd_bytes: script.mss_bytes.into(),
        local: nowhere,
        remote: nowhere,
        cgroup: None,
        min_rtt_us: None,
    };
    let flow = core.start(script.flow, info, 0);
    handle.set_program(script.flow, ProgramUid(0), &[(Field::Cwnd, script.cwnd_bytes)])?;
    Ok(flow)
}

fn invoke(flow: &mut FlowEngine, handle: &mut Handle, prims: &Prims) -> Result<Observation, ExecutorError> {
    flow.on_ack(&Ack {
        prims: *prims,
        packets: 1,
        new_loss_episode: false,
        timeout: false,
        window_limited: true,
        sampled: Sampled::default(),
    });
    let asked = flow.has_asked();
    let steering = flow.helm().steering();
    let (vm, native) = (steering.flow(), steering.gave_up());
    if native && asked {
        // To the script the window is the program's own until it is set; here the native algorithm's goes on from it.
        handle.update(flow.id(), &[(Field::Cwnd, vm.cwnd_bytes)])?;
    }
    let mut events = Vec::new();
    handle.poll(usize::MAX, &mut events);
    let report = events.into_iter().find_map(|event| match event {
        Event::Report { values, .. } => Some(values.into_vec()),
        _ => None,
    });
    let program = steering.running().ok_or("the flow has no program")?.program();
    Ok(Observation {
        regs: steering.regs().to_vec(),
        cwnd_bytes: vm.cwnd_bytes,
        rate_bytes_per_s: vm.rate_bytes_per_s,
        faults: vm.faults,
        report,
        policy: Some(PolicyObservation::new(program, vm, flow.policy(), asked, native)),
    })
}
