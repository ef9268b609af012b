//! A datapath under several names: what a socket chooses by TCP_CONGESTION is what it asks for.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_contract::{Datapath, Mode, ProgramUid};
use common::{Lab, created, goes_on, registered, report};

const FIRST: &str = "cct_names_1";
const SECOND: &str = "cct_names_2";
const PROGRAM: &str = "(def (Report (volatile acked 0)))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (report))";

#[test]
fn a_socket_asks_by_the_name_that_it_chooses() {
    let Some(mut lab) = Lab::new("names") else { return };
    lab.options.requests = vec![FIRST.to_owned(), "reno".to_owned(), lab.options.name.clone()];
    let mut datapath = lab.attach();
    assert_eq!(datapath.names_taken(), ["reno"], "the kernel's own stays the kernel's");
    let plain = lab.own_flow();
    let plain_id = created(&mut datapath, &plain);
    let asking = lab.flow(FIRST);
    let asking_id = created(&mut datapath, &asking);
    assert_eq!((datapath.requested(plain_id), datapath.requested(asking_id)), (None, Some(FIRST)));
    let uid = ProgramUid(1);
    datapath.install(uid, &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    for flow in [plain_id, asking_id] {
        datapath.set_program(flow, uid, &[]).unwrap();
        report(&mut datapath, flow, uid);
    }

    // The next agent's rules have another name; flows keep theirs.
    datapath.leave();
    lab.options.requests = vec![SECOND.to_owned()];
    let mut next = lab.attach();
    assert!(next.names_taken().is_empty());
    assert_eq!(created(&mut next, &asking), asking_id);
    assert_eq!(next.requested(asking_id), Some(FIRST));
    let late = lab.flow(SECOND);
    let late_id = created(&mut next, &late);
    assert_eq!(next.requested(late_id), Some(SECOND));
    assert!(next.flows().iter().any(|flow| flow.flow == late_id && flow.mode == Mode::NativeNoProgram));

    // Under whatever name, its flows are handed back, and nothing stays registered.
    assert_eq!(next.detach().unwrap(), 3);
    for name in [&lab.options.name, FIRST, SECOND] {
        assert!(!registered(name), "{name}");
    }
    for flow in [&plain, &asking, &late] {
        goes_on(flow, "after the datapath has gone");
    }
}

/// A killed agent's names are removed with its pins.
#[test]
fn what_a_killed_agent_left_is_removed_under_each_name() {
    let Some(mut lab) = Lab::new("names_left") else { return };
    lab.options.requests = vec!["cct_names_3".to_owned()];
    lab.attach().leave();
    assert!(registered("cct_names_3"));
    lab.options.requests.clear();
    ccplane_ebpf::clean(&lab.options).unwrap();
    assert!(!registered("cct_names_3") && !lab.registered());
}
