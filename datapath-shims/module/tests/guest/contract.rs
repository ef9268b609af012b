//! The contract's behaviour suite on live flows of the module.

use std::time::Duration;

use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::{Datapath, FlowId};
use ccplane_module::ModuleDatapath;

use super::lab::{Bulk, HEARTBEAT_TIMEOUT, Lab};

struct Live {
    // Dropped in this order: the flows end before the datapath and the link go.
    flows: Vec<Bulk>,
    datapath: ModuleDatapath,
    lab: Lab,
}

impl Harness for Live {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.datapath
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.flows.push(self.lab.flow());
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        let listed = self.datapath.flows();
        let local = listed.iter().find(|f| f.flow == flow).ok_or("no such flow")?.info.local;
        self.flows.retain(|f| f.local() != local);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        HEARTBEAT_TIMEOUT.as_micros() as u64
    }
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn keeps_the_contract_on_live_flows() {
    let mut setup = || -> Result<Box<dyn Harness>, HarnessError> {
        // A report on each ACK fills the smallest ring within seconds, and not between two heartbeats.
        let lab = Lab::with("ring=262144");
        Ok(Box::new(Live { flows: Vec::new(), datapath: lab.attach(), lab }))
    };
    let result = behave(&mut setup);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20, "{result}");
}
