//! generic_cong_avoid's Reno, hosted in this process, steers a TCP flow of the kernel over an emulated link.
#![allow(clippy::unwrap_used)]

mod generic;

use ccplane_agent::agent::OwnLoop;
use ccplane_agent::args::AgentPlace;
use ccplane_agent::control::ModeName;
use ccplane_core::Rules;
use ccplane_ebpf::clean_all;
use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_portus_host::beside_ours;
use ccplane_runner::traffic::{BulkFlow, FlowConfig, TcpSample};
use ccplane_testing::killed::Suite;
use ccplane_testing::{lacks, wait_for, within_tries};
use generic::RENO;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The link: 6 Mb/s, 40 ms each way, 50 packets of queue. It is slow, so that a busy machine has the time to fill it.
const LINK_MBIT: u32 = 6;
const DELAY_US: u64 = 40_000;
const QUEUE_PACKETS: u32 = 50;
/// The share of the link that a steered flow carries at least.
const DUE: f64 = 0.6;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);
/// The time over which goodput is measured.
const WINDOW: Duration = Duration::from_secs(5);
/// Tries of a measurement that other work on the machine may spoil.
const TRIES: u32 = 5;
/// The congestion control that sockets choose.
const CC: &str = "ccp_hosted";

static LABS: Suite =
    Suite::new("ccplane-hosted-lab", |run_dir| clean_all(run_dir).map_err(|error| error.to_string()));

#[test]
fn generic_cong_avoids_reno_steers_a_kernel_flow() {
    let test = "hosted in the kernel";
    if lacks(test, ccplane_ebpf::missing()) || lacks(test, ccplane_runner::missing_for_links().first()) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let _marked = LABS.mark(home.path()).unwrap();
    let config = home.path().join("agent.toml");
    let text = format!("[datapath.ebpf]\nmode = \"on\"\nname = \"{CC}\"\nrun_dir = {:?}\n", home.path());
    fs::write(&config, text).unwrap();
    let place = AgentPlace { config: Some(config), socket: Some(home.path().join("control.sock")) };
    let algorithms = beside_ours([generic::reno()]);
    let located = place.locate(None).map_err(|failure| failure.message()).unwrap();
    let started = OwnLoop::start(&located, &Rules::all(RENO), &algorithms);
    let kernel = started.map_err(|failure| failure.message()).unwrap().unwrap();

    let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    link.up.queue = Queue::packets(QUEUE_PACKETS);
    let link = Emulator::start(&link).unwrap();
    let flow = FlowConfig {
        congestion: CC.to_owned(),
        receiver: SocketAddr::new(link.receiver_addresses().v4.into(), 0),
        duration: LONG,
        bytes: None,
        sample_every: Duration::from_millis(20),
    };
    let flow = BulkFlow::start(&flow, link.sender_ns(), link.receiver_ns(), Instant::now()).unwrap();
    let record = wait_for("it is steered", || {
        kernel
            .flows()
            .into_iter()
            .find(|flow| flow.mode == ModeName::Program && flow.transport.reports > Some(20))
    });
    assert_eq!(record.algorithm.as_deref(), Some(RENO));
    assert!(record.program.as_ref().unwrap().starts_with("generic-reno-"), "{record:?}");
    let sample = || -> TcpSample { wait_for("a sample", || flow.latest()) };
    let share = within_tries(test, TRIES, |_| {
        let before = sample();
        let after = wait_for("the end of a window, by the flow's clock", || {
            Some(sample()).filter(|now| now.at_us - before.at_us >= WINDOW.as_micros() as u64)
        });
        let took_us = (after.at_us - before.at_us) as f64;
        let bytes = (after.info.bytes_acked - before.info.bytes_acked) as f64;
        let share = bytes / (took_us * f64::from(LINK_MBIT) / 8.0);
        if share < DUE { Err(format!("{share:.2} of the link")) } else { Ok(share) }
    });
    let record = kernel.flows().into_iter().next().unwrap();
    println!("{share:.2} of the link, {} reports", record.transport.reports.unwrap());
    assert_eq!(record.mode, ModeName::Program, "{record:?}");
    drop(flow);
    kernel.stop().map_err(|failure| failure.message()).unwrap();
}
