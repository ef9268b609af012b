//! A datapath under several names: what a socket chooses by TCP_CONGESTION is what it asks for.

use ccplane_ebpf::MAX_REQUESTS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common::{Lab, created, goes_on, registered, report};
use ccplane_contract::{Datapath, Mode, ProgramUid};

const FIRST: &str = "cct_names_1";
const SECOND: &str = "cct_names_2";
const FURTHER: [&str; 2] = ["cct_names_4", "cct_names_5"];
/// The struct_ops members that a datapath has: all kernels have the first six.
const MIN_MEMBERS: usize = 6;
const MAX_MEMBERS: usize = 7;
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

/// However many names there are, the kernel holds one set of programs.
#[test]
fn all_names_share_one_set_of_programs() {
    let Some(mut lab) = Lab::new("names_share") else { return };
    lab.options.requests = (0..MAX_REQUESTS).map(|n| format!("cct_share_{n}")).collect();
    let start = Instant::now();
    let mut datapath = lab.attach();
    println!("attached under {} names in {:?}", MAX_REQUESTS + 1, start.elapsed());
    let counted = crate::programs::of_links(&pin_directory(&lab));
    assert_eq!(counted.len(), MAX_REQUESTS + 1);
    let own = counted.first().unwrap();
    assert!((MIN_MEMBERS..=MAX_MEMBERS).contains(&own.len()), "{own:?}");
    assert!(counted.iter().all(|programs| programs == own), "{counted:?}");

    // They are the same to flows of each name.
    let last = lab.options.requests.last().unwrap().clone();
    let asking = lab.flow(&last);
    let id = created(&mut datapath, &asking);
    assert_eq!(datapath.requested(id), Some(last.as_str()));
    let uid = ProgramUid(1);
    datapath.install(uid, &ccplane_program::compile(PROGRAM).unwrap()).unwrap();
    datapath.set_program(id, uid, &[]).unwrap();
    report(&mut datapath, id, uid);

    // The names that a next agent adds share a set, too.
    datapath.leave();
    lab.options.requests = vec![FURTHER[0].to_owned(), FURTHER[1].to_owned()];
    let next = lab.attach();
    let counted: BTreeSet<_> = crate::programs::of_links(&pin_directory(&lab)).into_iter().collect();
    assert_eq!(counted.len(), 2, "that of the first agent and that of the next");
    next.detach().unwrap();
    assert!(!registered(&last) && !registered(FURTHER[0]));
}

fn pin_directory(lab: &Lab) -> PathBuf {
    let [own, system] = [lab.options.run_dir.join("bpf"), PathBuf::from("/sys/fs/bpf")];
    let of = |folder: &Path| folder.join(&lab.options.name);
    if of(&own).exists() { of(&own) } else { of(&system) }
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
