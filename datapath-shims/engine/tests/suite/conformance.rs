//! The contract's suite on an engine: its programs, and live flows over a link in virtual time.

use crate::common::MS;
use crate::common::link::Link;
use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::suite::conform;
use ccplane_contract::{Datapath, FlowId};
use ccplane_engine::{EngineConfig, EngineExecutor};

const TIMEOUT_US: u64 = 500 * MS;

#[test]
fn programs_mean_what_the_reference_says() {
    let result = conform(&mut EngineExecutor, 2000, 1);
    assert!(result.failed.is_empty(), "{result}");
    assert!(result.passed.len() > 2100, "{result}");
}

struct Live(Link);

impl Harness for Live {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.0.handle
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.0.start();
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        self.0.stop(flow);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        self.0.pass(us);
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        TIMEOUT_US
    }
}

#[test]
fn keeps_the_contract_on_live_flows() {
    let result = behave(&mut || {
        Ok(Box::new(Live(Link::new(EngineConfig {
            event_capacity: 1000,
            heartbeat_timeout_us: TIMEOUT_US,
            ..EngineConfig::new("suite")
        }))))
    });
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}
