//! The contract's suite on the template: its scripts, and live flows. A new datapath passes the same two tests.
#![allow(clippy::unwrap_used)]

use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::suite::{
    Executor, ExecutorError, Observation, Script, ScriptedDatapath, conform, run_script,
};
use ccplane_contract::{Datapath, FlowId, FlowInfo};
use ccplane_program::vm::Prims;
use ccplane_template_datapath::{HEARTBEAT_TIMEOUT_US, TemplateDatapath};

/// Runs each script on a datapath of its own, whose time stands still.
struct TemplateExecutor;

impl Executor for TemplateExecutor {
    fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
        run_script(script, &mut Scripted { datapath: TemplateDatapath::default(), flow: script.flow })
    }
    fn policies(&self) -> bool {
        true
    }
}

struct Scripted {
    datapath: TemplateDatapath,
    flow: FlowId,
}

impl ScriptedDatapath for Scripted {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.datapath
    }
    fn start_flow(&mut self, id: FlowId, info: FlowInfo) {
        assert!(self.datapath.start(id, info));
    }
    fn set_segment_size(&mut self, mss_bytes: u32) {
        self.datapath.set_mss(self.flow, mss_bytes);
    }
    fn on_ack(&mut self, prims: &Prims) -> Result<Observation, ExecutorError> {
        let asked = self.datapath.on_ack(self.flow, prims, 1, 0);
        self.datapath.observe(self.flow, asked).ok_or_else(|| "the flow has no program".into())
    }
}

#[test]
fn programs_mean_what_the_reference_says() {
    let result = conform(&mut TemplateExecutor, 2000, 1);
    assert!(result.failed.is_empty(), "{result}");
    assert!(result.passed.len() > 2100, "{result}");
}

/// Live traffic for the suite, and the number of flows so far.
struct Pipe(TemplateDatapath, u64);

impl Harness for Pipe {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.0
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.1 += 1;
        let info = FlowInfo::example(1000, 10_000);
        if self.0.start(FlowId(self.1), info) { Ok(()) } else { Err("too many flows".into()) }
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        self.0.stop(flow);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        self.0.pass(us);
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        HEARTBEAT_TIMEOUT_US
    }
}

#[test]
fn keeps_the_contract_on_live_flows() {
    let result = behave(&mut || Ok(Box::new(Pipe(TemplateDatapath::default(), 0))));
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}
