//! Priorities as real queueing disciplines see them: classes of htb, chosen by the buffer's priority or by bits of the mark.

use std::process::Command;

use crate::packets_lab::{Lab, MARK_MASK, RECEIVER_V4, RECEIVER_V6, compile, run, steer, wait_for};
use crate::{A, THRESHOLD, by_bytes_sent};
use ccplane_contract::{Datapath, Event};
use ccplane_ebpf::packets::{Marking, PacketsOptions};
use ccplane_testing::skipped;
use nix::sys::socket::{setsockopt, sockopt};

/// The classes of priorities 0 and 5, which the program gives, and the one of all other packets.
const CLASSES: [&str; 3] = ["1:10", "1:20", "1:30"];
/// The same as the numbers that htb takes a buffer's priority for.
const HANDLES: [u32; 2] = [0x1_0010, 0x1_0020];
/// Bits of the mark that stand for the two priorities, of those that are the datapath's.
const MARKS: [u32; 2] = [4, 8];
const _: () = assert!((MARKS[0] | MARKS[1]) & !MARK_MASK == 0);
/// A bit of the mark that the application sets, and that is not the datapath's.
const APPLICATIONS: u32 = 0x100;
/// Bytes of handshakes, of acknowledgements and of what is sent before a program is set, at most.
const OTHER_BYTES: u64 = 50_000;

/// Puts htb with three classes on the sender's first device; false, and the reason is said, where the kernel has none.
fn add_classes(test: &str, lab: &Lab) -> bool {
    let mut add = Command::new("tc");
    add.args(["-n", lab.sender.name().unwrap()]);
    let added = add.args("qdisc add dev p0 root handle 1: htb default 30".split(' ')).output().unwrap();
    if !added.status.success() {
        skipped(test, format!("htb: {}", String::from_utf8_lossy(&added.stderr)));
        return false;
    }
    for (n, class) in CLASSES.into_iter().enumerate() {
        let class = format!("class add dev p0 parent 1: classid {class} htb rate 1gbit prio {n}");
        run("tc", &lab.sender, &class);
    }
    true
}

/// Leads packets to the classes by their whole mark, in classic BPF: not every kernel has a classifier of marks.
fn add_filters(lab: &Lab) {
    // Loads the mark, and returns the filter's own class where it is this one.
    const LOAD_MARK: &str = "32 0 0 4294963220";
    for (mark, class) in MARKS.into_iter().zip(CLASSES) {
        let code = format!("4,{LOAD_MARK},21 0 1 {},6 0 0 4294967295,6 0 0 0", mark | APPLICATIONS);
        let mut filter = Command::new("tc");
        filter.args(["-n", lab.sender.name().unwrap()]);
        filter.args("filter add dev p0 parent 1: prio 1 protocol all bpf bytecode".split(' '));
        assert!(filter.args([code.as_str(), "flowid", class]).status().unwrap().success(), "{code}");
    }
}

/// Bytes that each class has sent.
fn sent(lab: &Lab) -> [u64; 3] {
    let told = run("tc", &lab.sender, "-s class show dev p0");
    CLASSES.map(|class| {
        let of = format!("class htb {class} ");
        let after = told.split(of.as_str()).nth(1).unwrap_or_else(|| panic!("{class}: {told}"));
        let sent = after.split("Sent ").nth(1).and_then(|sent| sent.split(' ').next());
        sent.and_then(|sent| sent.parse().ok()).unwrap_or_else(|| panic!("{class}: {told}"))
    })
}

/// Sends beyond the threshold, before which bytes are of the first class, and after it of the second one.
fn classes_take_what_priorities_say(test: &str, marking: fn(usize) -> Marking, by_mark: bool) {
    let Some(lab) = Lab::new(test) else { return };
    if !add_classes(test, &lab) {
        return;
    }
    if by_mark {
        add_filters(&lab);
    }
    // Of the program's two priorities, 0 and 5; others do not occur.
    let markings = std::array::from_fn(|n| marking(usize::from(n > 0)));
    let options = PacketsOptions { markings, writes_dscp: false, ..lab.options() };
    let mut datapath = lab.attach(options);
    datapath.install(A, &compile(&by_bytes_sent())).unwrap();
    for to in [RECEIVER_V4, RECEIVER_V6] {
        let before = sent(&lab);
        let mut flow = lab.flow(to, 0);
        setsockopt(&flow.stream, sockopt::Mark, &APPLICATIONS).unwrap();
        let id = steer(&mut datapath, &mut flow, A);
        flow.send(6 * THRESHOLD as usize);
        let after = sent(&lab);
        let grown: [u64; 3] = std::array::from_fn(|n| after[n] - before[n]);
        let [first, second, others] = grown;
        let threshold = u64::from(THRESHOLD);
        // One burst reaches beyond the threshold, and a busy machine sends some again.
        assert!((threshold..3 * threshold).contains(&first), "{first} {second} {others}");
        assert!(second >= 4 * threshold && others < OTHER_BYTES, "{first} {second} {others}");
        flow.end();
        wait_for(&mut datapath, "Closed", |e| (*e == Event::Closed { flow: id }).then_some(()));
    }
    datapath.detach();
    let before = sent(&lab);
    let mut flow = lab.flow(RECEIVER_V4, 0);
    setsockopt(&flow.stream, sockopt::Mark, &APPLICATIONS).unwrap();
    flow.send(THRESHOLD as usize);
    let after = sent(&lab);
    assert_eq!(after[..2], before[..2], "nobody decides any more");
    assert!(after[2] >= before[2] + u64::from(THRESHOLD));
}

#[test]
fn htb_chooses_classes_by_the_buffers_priority() {
    let marking = |n: usize| Marking { skb_priority: HANDLES[n], ..Marking::default() };
    classes_take_what_priorities_say("pk-htb", marking, false);
}

#[test]
fn htb_chooses_classes_by_bits_of_the_mark_and_those_of_others_stay() {
    let marking = |n: usize| Marking { mark: MARKS[n], ..Marking::default() };
    classes_take_what_priorities_say("pk-htbm", marking, true);
}
