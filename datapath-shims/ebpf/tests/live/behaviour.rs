//! The contract's behaviour suite on real TCP flows over an emulated link.

use crate::common::Lab;
use ccplane_contract::suite::behaviour::{Harness, HarnessError, RealFlows, behave};
use ccplane_emulator::{LinkConfig, Queue, Shape};
use ccplane_runner::traffic::BulkFlow;

/// Fast enough that a report on each ACK fills the event ring within seconds, and slow enough that it does not between
/// two heartbeats.
const LINK_MBIT: u32 = 100;
const DELAY_US: u64 = 1_000;
const QUEUE_PACKETS: u32 = 50;

#[test]
fn keeps_the_contract_on_live_flows() {
    let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    link.up.queue = Queue::packets(QUEUE_PACKETS);
    if Lab::over("behave", &link).is_none() {
        return;
    }
    let mut setup = || -> Result<Box<dyn Harness>, HarnessError> {
        let lab = Lab::over("behave", &link).ok_or("cannot run here any more")?;
        let (datapath, timeout) = (lab.attach(), lab.options.heartbeat_timeout);
        Ok(Box::new(RealFlows::new(datapath, lab, timeout, Lab::own_flow, BulkFlow::local)))
    };
    let result = behave(&mut setup);
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20, "{result}");
}
