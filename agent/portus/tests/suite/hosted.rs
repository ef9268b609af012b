//! Algorithm crates of portus, unmodified, steer flows in our process: of portus 0.7 from the registry, and of 0.9 here.

use crate::common::{S, SILENCE_US, World};
use crate::generic::{RENO, generic, reno};
use ccplane_contract::FlowId;
use ccplane_portus_host::{Hosted, host};
use generic_cong_avoid::cubic::Cubic;
use portus::ipc::Ipc;
use portus::lang::Scope;
use portus::{CongAlg, Datapath, DatapathInfo, DatapathTrait, Flow, Report};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const MBIT: u64 = 12;
/// Packets of the queue: a bandwidth-delay product at 20 ms.
const QUEUE_PACKETS: u32 = 20;
/// Ports of the senders.
const HOSTED_PORT: u16 = 40_001;
const OTHER_PORT: u16 = 40_002;
const OUR_PORT: u16 = 40_003;

/// A scripted algorithm misbehaves when it has heard more reports than this, of all its flows.
#[derive(Clone, Copy)]
enum Mishap {
    None,
    Panics { after: u64 },
    Hangs { after: u64 },
}

/// The flows of a scripted algorithm share this, which is not `Send`: portus needs no such thing.
struct Script {
    packets: u32,
    source: &'static str,
    mishap: Mishap,
    reports: Cell<u64>,
    /// Tells that it hangs.
    hangs: Sender<()>,
    /// Ends the hang of a scripted algorithm.
    released: Receiver<()>,
}

/// Holds the window of each flow.
struct Scripted(Rc<Script>);

/// The ends that a test keeps of a scripted algorithm.
struct Held {
    hanging: Receiver<()>,
    release: Sender<()>,
}

/// Reports the bytes that were acknowledged, each 10 ms.
const HOLD: &str = "
(def (Report (volatile acked 0)) (packets 1))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (fallthrough))
(when (> Micros 10000) (report) (:= Micros 0))";

fn scripted(name: &'static str, packets: u32, source: &'static str, mishap: Mishap) -> (Hosted, Held) {
    let ((hangs, hanging), (release, released)) = (channel(), channel());
    let make = move || {
        let reports = Cell::new(0);
        Scripted(Rc::new(Script { packets, source, mishap, reports, hangs, released }))
    };
    (host!(portus, name, make), Held { hanging, release })
}

struct ScriptedFlow<I: Ipc> {
    script: Rc<Script>,
    control: Datapath<I>,
    scope: Scope,
    cwnd_bytes: u32,
}

impl<I: Ipc> CongAlg<I> for Scripted {
    type Flow = ScriptedFlow<I>;

    fn name() -> &'static str {
        "scripted"
    }
    fn datapath_programs(&self) -> HashMap<&'static str, String> {
        HashMap::from([("hold", self.0.source.to_owned())])
    }
    fn new_flow(&self, mut control: Datapath<I>, info: DatapathInfo) -> ScriptedFlow<I> {
        let (packets, cwnd_bytes) = (self.0.packets, self.0.packets * info.mss);
        let scope = control.set_program("hold", Some(&[("packets", packets), ("Cwnd", cwnd_bytes)])).unwrap();
        ScriptedFlow { script: Rc::clone(&self.0), control, scope, cwnd_bytes }
    }
}

impl<I: Ipc> Flow for ScriptedFlow<I> {
    fn on_report(&mut self, _: u32, report: Report) {
        report.get_field("Report.acked", &self.scope).unwrap();
        let before = self.script.reports.replace(self.script.reports.get() + 1);
        match self.script.mishap {
            Mishap::Panics { after } if before >= after => panic!("as the script says"),
            Mishap::Hangs { after } if before == after => {
                self.script.hangs.send(()).unwrap();
                self.script.released.recv().unwrap();
            }
            _ => {}
        }
        self.control.update_field(&self.scope, &[("Cwnd", self.cwnd_bytes)]).unwrap();
    }
}

#[test]
fn generic_cong_avoids_reno_and_cubic_fill_a_link() {
    let cubic = host!(portus07, "generic-cubic", || generic::<Cubic>(&["cubic"]));
    for (algorithm, hosted) in [(RENO, reno()), ("generic-cubic", cubic)] {
        let mut world = World::new(MBIT, QUEUE_PACKETS, vec![Arc::new(hosted)], &[(HOSTED_PORT, algorithm)]);
        let flow = world.open(HOSTED_PORT);
        world.run(10 * S);
        let share = world.share(flow, MBIT, 20 * S);
        assert_eq!(world.native(flow), None);
        let program = world.flow(flow).program().unwrap().name().to_owned();
        assert!(program.starts_with(&format!("{algorithm}-")), "{program}");
        let counters = world.links.counters(algorithm).unwrap();
        println!("{algorithm}: {share:.3} of the link; {counters:?}");
        assert!(share > 0.85 && share <= 1.0, "{algorithm}: {share:.3} of the link");
        // Its clock is the real one, on which the whole test is over within a round trip: the window hardly moves.
        assert!(counters.reports > 500 && counters.updates > 0, "{counters:?}");
    }
}

#[test]
fn algorithms_of_two_portuses_and_one_of_ours_run_side_by_side() {
    const PACKETS: u32 = 7;
    let (held, _ends) = scripted("held", PACKETS, HOLD, Mishap::None);
    let rules = [(HOSTED_PORT, RENO), (OTHER_PORT, "held"), (OUR_PORT, "ccp-reno")];
    let mut world = World::new(MBIT, 4 * QUEUE_PACKETS, vec![Arc::new(reno()), Arc::new(held)], &rules);
    let flows = rules.map(|(port, algorithm)| (world.open(port), algorithm));
    world.run(10 * S);
    let before = flows.map(|(flow, _)| world.sim.stats(flow).unwrap().transport.bytes_acked);
    world.run(20 * S);
    for ((flow, algorithm), before) in flows.iter().zip(before) {
        let stats = world.sim.stats(*flow).unwrap();
        let acked = stats.transport.bytes_acked - before;
        println!("{algorithm}: {:.2} Mb/s", acked as f64 * 8.0 / (20 * S) as f64);
        assert_eq!((world.flow(*flow).algorithm(), world.native(*flow)), (*algorithm, None));
        assert!(acked > 500_000, "{algorithm}: {acked} bytes");
    }
    let [generic, held, ours] = flows.map(|(flow, _)| flow);
    // The window that is held is exact, and the others move.
    let windows = |flow| world.sim.samples(flow).iter().skip(100).map(|s| s.cwnd_bytes).collect::<Vec<_>>();
    let mss = u64::from(world.sim.stats(held).unwrap().transport.mss_bytes);
    assert!(windows(held).iter().all(|window| *window == u64::from(PACKETS) * mss), "{:?}", windows(held));
    for moving in [generic, ours] {
        assert!(windows(moving).iter().max() > windows(moving).iter().min());
    }
    assert!(world.flow(ours).program().unwrap().name() != world.flow(generic).program().unwrap().name());
    assert_eq!(world.links.counters("held").unwrap().malformed, 0);
    world.sim.close(held).unwrap();
    world.run(S);
    assert!(world.is_steered(generic) && world.core.flow(crate::common::DP, held).is_none());
}

/// A flow of ours, and one that a scripted algorithm steers.
fn beside_ours(name: &'static str, mishap: Mishap) -> (World, [FlowId; 2], Held) {
    let (hosted, ends) = scripted(name, 5, HOLD, mishap);
    let rules = [(HOSTED_PORT, "ccp-reno"), (OTHER_PORT, name)];
    let mut world = World::new(MBIT, QUEUE_PACKETS, vec![Arc::new(hosted)], &rules);
    let (ours, flow) = (world.open(HOSTED_PORT), world.open(OTHER_PORT));
    world.run_until("it steers", |world| world.is_steered(flow));
    (world, [ours, flow], ends)
}

#[test]
fn an_algorithm_that_panics_leaves_its_flows_native_and_the_agent_alive() {
    let (mut world, [ours, flow], _ends) = beside_ours("frail", Mishap::Panics { after: 200 });
    world.run_until("it panics", |world| !world.is_steered(flow));
    let reason = "frail has ended: it panicked: as the script says";
    assert_eq!(world.native(flow).unwrap(), reason);
    assert!(world.links.counters("frail").unwrap().reports > 200);
    // A flow that starts later is native at once; both make headway, and the other algorithm goes on.
    let late = world.open(OTHER_PORT);
    world.run(S);
    assert_eq!(world.native(late).unwrap(), reason);
    for native in [flow, late] {
        assert!(world.share(native, MBIT, 5 * S) > 0.05);
    }
    assert!(world.is_steered(ours) && world.share(ours, MBIT, 5 * S) > 0.05);
}

#[test]
fn an_algorithm_that_hangs_is_silent_and_gets_its_flows_back_when_it_goes_on() {
    let (mut world, [ours, flow], ends) = beside_ours("slow", Mishap::Hangs { after: 100 });
    world.hanging = Some(ends.hanging);
    world.run_until("it hangs", |world| world.hangs);
    let hung_us = world.sim.now_us();
    world.run_until("it is silent", |world| !world.is_steered(flow));
    let (reason, after_us) = (world.native(flow).unwrap(), world.sim.now_us() - hung_us);
    println!("{reason}, seen after {after_us} us");
    assert!(reason.starts_with("slow is silent: it has read nothing for "), "{reason}");
    assert!(after_us >= SILENCE_US - 20 * crate::common::MS, "{after_us} us");
    assert!(world.is_steered(ours));

    world.hanging = None;
    ends.release.send(()).unwrap();
    world.hangs = false;
    world.run_until("it steers again", |world| world.is_steered(flow));
    world.run(S);
    let mss = u64::from(world.sim.stats(flow).unwrap().transport.mss_bytes);
    assert_eq!(world.sim.samples(flow).last().unwrap().cwnd_bytes, 5 * mss);
}
