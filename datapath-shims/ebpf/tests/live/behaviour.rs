//! The contract's behaviour suite on real TCP flows over an emulated link.

use std::time::Duration;

use crate::common::Lab;
use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::{Datapath, FlowId};
use ccplane_ebpf::EbpfDatapath;
use ccplane_emulator::{LinkConfig, Queue, Shape};
use ccplane_runner::traffic::BulkFlow;

/// Fast enough that a report on each ACK fills the event ring within seconds, and slow enough that it does not between
/// two heartbeats.
const LINK_MBIT: u32 = 100;
const DELAY_US: u64 = 1_000;
const QUEUE_PACKETS: u32 = 50;

struct Live {
    // Dropped in this order: the flows end before the datapath and the link go.
    flows: Vec<BulkFlow>,
    datapath: EbpfDatapath,
    lab: Lab,
}

impl Harness for Live {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.datapath
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.flows.push(self.lab.own_flow());
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
        self.lab.options.heartbeat_timeout.as_micros() as u64
    }
}

#[test]
fn keeps_the_contract_on_live_flows() {
    let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    link.up.queue = Queue::packets(QUEUE_PACKETS);
    if Lab::over("behave", &link).is_none() {
        return;
    }
    let mut setup = || -> Result<Box<dyn Harness>, HarnessError> {
        let lab = Lab::over("behave", &link).ok_or("cannot run here any more")?;
        Ok(Box::new(Live { flows: Vec::new(), datapath: lab.attach(), lab }))
    };
    let result = behave(&mut setup);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20, "{result}");
}
