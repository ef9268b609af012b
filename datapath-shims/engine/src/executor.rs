//! Runs the suite's scripts and streams of packets through both ends of an engine.

use crate::config::{EngineConfig, PacketsConfig};
use crate::core::Core;
use crate::engine::{Engine, engine_with_clock};
use crate::flow::{Ack, FlowEngine, Sampled};
use crate::handle::Handle;
use crate::packets::{HostMemory, Outbound, PacketFlowEngine, Started};
use ccplane_contract::suite::{
    Executor, ExecutorError, Observation, OutPacket, PacketExecutor, PacketStream, PacketTreatment, Script,
    ScriptStep, ScriptedDatapath, reported, run_script,
};
use ccplane_contract::{Datapath, Field, FlowId, FlowInfo, ProgramUid};
use ccplane_program::ir::{Hook, Prim, Program};
use ccplane_program::vm::{PrimValues, Prims, SendPrims};
use std::sync::Arc;

/// Scripts have at most as many programs as a datapath has slots for, and report at most once an ACK.
const CONFIG: EngineConfig = EngineConfig {
    max_programs: usize::MAX,
    event_capacity: 4,
    // The times of a script's ACKs are any numbers.
    heartbeat_timeout_us: u64::MAX,
    ..EngineConfig::new("suite")
};
/// The segment size of a stream's flow, bytes.
const MSS_BYTES: u32 = 1448;

/// Makes both ends of an engine that decides about packets where that is configured.
fn ends(packets: Option<PacketsConfig>) -> (Arc<Core>, Handle) {
    let config = EngineConfig { packets, ..CONFIG };
    let (Engine { core, .. }, handle) = engine_with_clock(config, Arc::new(|| ()), Arc::new(|| 0));
    (core, handle)
}

/// Runs scripts on an engine: commands through its [`Handle`], ACKs through a [`FlowEngine`], packets and starts through a
/// [`PacketFlowEngine`].
#[derive(Clone, Copy, Default, Debug)]
pub struct EngineExecutor;

impl Executor for EngineExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        if script.programs.iter().any(|program| program.hook() == Hook::Connect) {
            return run_start(script);
        }
        let on_packets = script.programs.iter().any(|program| program.hook() != Hook::Ack);
        let (core, handle) = ends(on_packets.then(PacketsConfig::default));
        let memory = HostMemory::new(1, 1, 0);
        run_script(script, &mut ScriptedEngine { core, handle, flow: None, packets: None, memory })
    }

    fn policies(&self) -> bool {
        true
    }

    fn hooks(&self) -> &'static [Hook] {
        &Hook::ALL
    }
}

/// Runs a script whose programs decide about a flow's start: what it stages is what flows start with.
fn run_start(script: &Script) -> Result<Vec<Observation>, ExecutorError> {
    let (core, mut handle) = ends(Some(PacketsConfig::default()));
    script.install(&mut handle)?;
    let (mut first, mut staged) = (ProgramUid(0), vec![(Field::Cwnd, script.cwnd_bytes)]);
    let mut seen = Vec::new();
    for step in &script.steps {
        match step {
            ScriptStep::Update(fields) => staged.extend_from_slice(fields),
            ScriptStep::SetProgram { program, fields } => {
                first = ProgramUid(*program as u32);
                staged.retain(|(field, _)| !matches!(field, Field::Reg(_)));
                staged.extend_from_slice(fields);
            }
            ScriptStep::Push { slot, image, part } => handle.push(*slot, script.image(*image)?, *part)?,
            ScriptStep::Promote(slot) => handle.promote(*slot)?,
            ScriptStep::Rollback(slot) => handle.rollback(*slot)?,
            ScriptStep::Decide(prims) if seen.is_empty() => {
                handle.set_first(first, &staged)?;
                seen.push(start(script, prims, &core, &mut handle)?);
            }
            ScriptStep::Decide(_) | ScriptStep::Invoke(_) | ScriptStep::SegmentSize { .. } => {
                return Err("a flow starts once, and decides about nothing else".into());
            }
        }
    }
    Ok(seen)
}

/// Starts the script's flow by these primitives.
fn start(
    script: &Script,
    prims: &SendPrims,
    core: &Arc<Core>,
    handle: &mut Handle,
) -> Result<Observation, ExecutorError> {
    let info = (FlowInfo::example(script.mss_bytes, script.mss_bytes.into()), 1);
    let mut memory = HostMemory::new(1, 1, 0);
    let Started { flow, ran, outcome } =
        PacketFlowEngine::start_by(core, script.flow, info, &mut memory, 0, |_, _| *prims);
    let asked = outcome.is_some_and(|outcome| outcome.asked);
    let mut seen = ran.observe(flow.policy(), asked).ok_or("the flow has no program")?;
    seen.report = reported(handle);
    Ok(seen)
}

impl PacketExecutor for EngineExecutor {
    fn carry(
        &mut self,
        program: &Program,
        stream: &PacketStream,
    ) -> Result<Vec<PacketTreatment>, ExecutorError> {
        const UID: ProgramUid = ProgramUid(1);
        let config = PacketsConfig { flowlet_us: stream.flowlet_us, ..PacketsConfig::default() };
        let (core, mut handle) = ends(Some(config));
        handle.install(UID, program)?;
        handle.set_first(UID, &[])?;
        let mut memory = HostMemory::new(1, 1, 0);
        let start_us = stream.packets.first().map_or(0, |packet| packet.at_us);
        let info = (FlowInfo::example(MSS_BYTES, MSS_BYTES.into()), stream.paths);
        let mut flow = PacketFlowEngine::start(&core, FlowId(1), info, &mut memory, start_us);
        flow.flow().begin_at(0, stream.start_path.into());
        let sent = |(packet, tx): (&OutPacket, u64)| -> Result<PacketTreatment, ExecutorError> {
            let packet = Outbound {
                now_ns: packet.at_us * 1000,
                payload_bytes: packet.bytes,
                bytes_sent: flow.bytes_sent(),
                new_bytes: packet.bytes,
                bytes_waiting: packet.waiting_bytes,
                bytes_in_flight: packet.in_flight_bytes,
                tx,
            };
            let decided = flow.on_packet_by(&packet, &mut memory, |_, _| stream.known);
            let steering = flow.steering().ok_or("the program does not run")?;
            Ok(PacketTreatment { priority: steering.priority, path: steering.path, decided })
        };
        stream.packets.iter().zip(0..).map(sent).collect()
    }
}

struct ScriptedEngine {
    core: Arc<Core>,
    handle: Handle,
    flow: Option<FlowEngine>,
    /// The flow, where programs decide on packets.
    packets: Option<PacketFlowEngine>,
    memory: HostMemory,
}

impl ScriptedDatapath for ScriptedEngine {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.handle
    }

    fn start_flow(&mut self, id: FlowId, info: FlowInfo) {
        if self.core.config.packets.is_some() {
            self.packets = Some(PacketFlowEngine::start(&self.core, id, (info, 1), &mut self.memory, 0));
        } else {
            self.flow = Some(FlowEngine::start(&self.core, id, info, 0));
        }
    }

    fn set_segment_size(&mut self, mss_bytes: u32) {
        self.flow.iter_mut().for_each(|flow| flow.set_mss(mss_bytes));
        self.packets.iter_mut().for_each(|flow| flow.set_mss(mss_bytes));
    }

    fn on_ack(&mut self, prims: &Prims) -> Result<Observation, ExecutorError> {
        let flow = self.flow.as_mut().ok_or("the flow was not started")?;
        flow.on_ack(&Ack {
            prims: *prims,
            packets: 1,
            new_loss_episode: false,
            timeout: false,
            window_limited: true,
            sampled: Sampled::default(),
        });
        let asked = flow.has_asked();
        let runner = flow.controller().runner();
        runner.observe(flow.policy(), asked).ok_or_else(|| "the flow has no program".into())
    }

    fn on_packet(&mut self, prims: &SendPrims) -> Result<Observation, ExecutorError> {
        let flow = self.packets.as_mut().ok_or("the flow was not started")?;
        flow.take_changes(prims.get(Prim::Now));
        let outcome = flow.decide(&Outbound::default(), prims, &mut self.memory);
        let policy = *flow.policy();
        let seen = flow.flow().runner().observe(&policy, outcome.is_some_and(|outcome| outcome.asked));
        seen.ok_or_else(|| "the flow has no program".into())
    }
}
