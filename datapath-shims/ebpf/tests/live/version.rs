//! Leftovers in the kernel, of an agent of another version or of one whose pins have gone: the next agent replaces them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::{Lab, goes_on, report, wait_until};
use ccplane_bpf::{SharedMap, get_pinned};
use ccplane_contract::{Datapath, FlowId, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, EbpfError, read_flows};
use ccplane_runner::traffic::BulkFlow;
use ccplane_testing::wait_for;

/// The offset of the layout's version in the control page, in every version.
const VERSION_OFFSET: usize = 64;
const PAGE_BYTES: usize = 4096;
const OTHER_VERSION: u64 = 1_000_000;
/// A name that sockets choose besides the datapath's own.
const FURTHER: &str = "cct_version_2";
const UID: ProgramUid = ProgramUid(1);
const PROGRAM: &str = "(def (Report (volatile acked 0)))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (report))";

fn pins(lab: &Lab) -> PathBuf {
    let own = lab.options.run_dir.join("bpf").join(&lab.options.name);
    if own.exists() { own } else { PathBuf::from("/sys/fs/bpf").join(&lab.options.name) }
}

/// The number of a flow that the datapath carries, however long ago it was said to be created.
fn number(datapath: &mut EbpfDatapath, of: &BulkFlow) -> FlowId {
    wait_for("the datapath has the flow", || {
        datapath.flows().into_iter().find(|flow| flow.info.local == of.local()).map(|flow| flow.flow)
    })
}

/// The datapath runs its program on these flows.
fn steers(datapath: &mut EbpfDatapath, flows: &[&BulkFlow]) {
    datapath.install(UID, &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    for traffic in flows {
        let flow = number(datapath, traffic);
        datapath.set_program(flow, UID, &[]).unwrap();
        report(datapath, flow, UID);
    }
}

#[test]
fn a_datapath_of_another_version_is_replaced_and_its_flows_come_along() {
    let Some(mut lab) = Lab::new("version") else { return };
    lab.options.requests = vec![FURTHER.to_owned()];
    let mut datapath = lab.attach();
    assert_eq!(datapath.replaced(), None);
    let (plain, asking) = (lab.own_flow(), lab.flow(FURTHER));
    steers(&mut datapath, &[&plain, &asking]);
    datapath.leave();
    // It is as old as it says.
    let control = get_pinned(&pins(&lab).join("ctl")).unwrap();
    let page = SharedMap::new(&control, 0, PAGE_BYTES, true).unwrap();
    page.u64(VERSION_OFFSET).store(OTHER_VERSION, Relaxed);
    let seen = read_flows(&lab.options);
    assert!(matches!(seen, Err(EbpfError::OtherVersion { found: OTHER_VERSION, .. })), "{seen:?}");

    let mut next = lab.attach();
    assert_eq!(next.replaced(), Some(OTHER_VERSION));
    steers(&mut next, &[&plain, &asking]);
    let asks = number(&mut next, &asking);
    assert_eq!(next.requested(asks), Some(FURTHER));
    assert_eq!(read_flows(&lab.options).unwrap().flows.len(), 2);
    assert_eq!(next.detach().unwrap(), 2, "handed back");
    assert!(!lab.registered());
    goes_on(&plain, "the flow goes on");
}

/// The agent was killed with the mount namespace that its BPF file system was in.
#[test]
fn flows_whose_datapath_has_lost_its_pins_are_steered_again() {
    let Some(lab) = Lab::new("unpinned") else { return };
    let mut datapath = lab.attach();
    let traffic = lab.own_flow();
    steers(&mut datapath, &[&traffic]);
    datapath.leave();
    for pin in fs::read_dir(pins(&lab)).unwrap() {
        fs::remove_file(pin.unwrap().path()).unwrap();
    }
    wait_until("nobody can choose it", || !lab.registered());
    goes_on(&traffic, "the flow goes on without");
    let mut next = lab.attach();
    steers(&mut next, &[&traffic]);
    next.detach().unwrap();
}
