//! Runs the suite's scripts through both ends of an engine.

use crate::config::EngineConfig;
use crate::core::Core;
use crate::engine::{Engine, engine_with_clock};
use crate::flow::{Ack, FlowEngine, Sampled};
use crate::handle::Handle;
use ccplane_contract::suite::{Executor, ExecutorError, Observation, Script, ScriptedDatapath, run_script};
use ccplane_contract::{Datapath, FlowId, FlowInfo};
use ccplane_program::vm::Prims;
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
        let (Engine { core, .. }, handle) = engine_with_clock(CONFIG, Arc::new(|| ()), Arc::new(|| 0));
        run_script(script, &mut ScriptedEngine { core, handle, flow: None })
    }

    fn policies(&self) -> bool {
        true
    }
}

struct ScriptedEngine {
    core: Arc<Core>,
    handle: Handle,
    flow: Option<FlowEngine>,
}

impl ScriptedDatapath for ScriptedEngine {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.handle
    }

    fn start_flow(&mut self, id: FlowId, info: FlowInfo) {
        self.flow = Some(FlowEngine::start(&self.core, id, info, 0));
    }

    fn set_segment_size(&mut self, mss_bytes: u32) {
        self.flow.iter_mut().for_each(|flow| flow.set_mss(mss_bytes));
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
}
