//! The contract's suite on the simulated datapath.

use crate::common::{MS, rate};
use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::suite::{conform, conform_packets};
use ccplane_contract::{Datapath, FlowId};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, SimExecutor, Source};

#[test]
fn programs_mean_what_the_reference_says() {
    let result = conform(&mut SimExecutor, 2000, 1);
    assert!(result.failed.is_empty(), "{result}");
    assert!(result.passed.len() > 2100, "{result}");
}

#[test]
fn packets_get_what_the_rules_say() {
    let result = conform_packets(&mut SimExecutor, 2000, 1);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 2000);
}

struct Sim(SimDatapath);

impl Harness for Sim {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.0
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.0
            .add_flow(&FlowConfig { start_us: self.0.now_us(), ..FlowConfig::new(Source::Bulk, 10 * MS) })?;
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        Ok(self.0.close(flow)?)
    }
    fn pass(&mut self, us: u64) {
        let until_us = self.0.now_us() + us;
        self.0.step_until(until_us);
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        500 * MS
    }
}

#[test]
fn keeps_the_contract_on_live_flows() {
    let result = behave(&mut || {
        let config = SimConfig {
            heartbeat_timeout_us: 500 * MS,
            event_capacity: 1000,
            ..SimConfig::new(vec![rate(12, 50)], 1)
        };
        Ok(Box::new(Sim(SimDatapath::new(config)?)))
    });
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}
