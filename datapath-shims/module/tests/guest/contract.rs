//! The contract's behaviour suite on live flows of the module.

use super::lab::{Bulk, HEARTBEAT_TIMEOUT, Lab};
use ccplane_contract::suite::behaviour::{Harness, HarnessError, RealFlows, behave};

#[test]
#[ignore = "runs in a machine that has the module"]
fn keeps_the_contract_on_live_flows() {
    let mut setup = || -> Result<Box<dyn Harness>, HarnessError> {
        // A report on each ACK fills the smallest ring within seconds, and not between two heartbeats.
        let lab = Lab::with("ring=262144");
        Ok(Box::new(RealFlows::new(lab.attach(), lab, HEARTBEAT_TIMEOUT, Lab::flow, Bulk::local)))
    };
    let result = behave(&mut setup);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20, "{result}");
}
