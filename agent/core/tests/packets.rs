//! Tests the core on a datapath that decides on packets: the programs that flows start with.
#![allow(clippy::unwrap_used)]

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use ccplane_contract::{Datapath, FlowId, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, NATIVE, NativeReason, Rules, RulesError, drive};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, HostsConfig, SimConfig, SimDatapath, Source};
use std::sync::{Arc, Mutex};

const DP: DatapathId = DatapathId(1);

/// Sets the priority that it was made with, from the first packet on, and hears how much each flow sent.
struct Fixed {
    name: &'static str,
    priority: i64,
    sizes: Arc<Mutex<Vec<i64>>>,
}

const SEND: &str = "(hook send) (def (Report (sent 0)) (p 0))
    (when (== Packet.bytes 0) (:= Report.sent Flow.bytes_sent) (report))
    (when true (:= Priority p))";

impl Algorithm for Fixed {
    fn name(&self) -> &'static str {
        self.name
    }
    fn programs(&self) -> Vec<ProgramSource> {
        let connect = "(hook connect) (def (p 0)) (when true (:= Priority p))";
        vec![ProgramSource { name: "send", source: SEND }, ProgramSource { name: "connect", source: connect }]
    }
    fn first(&self, control: &mut Control) {
        control.set_program("connect", &[("p", 7)]);
        control.set_program("send", &[("p", self.priority)]);
    }
    fn flow(&self, _: &FlowInfo, _: &mut Control) -> Box<dyn Flow> {
        Box::new(Listening(Arc::clone(&self.sizes)))
    }
}

struct Listening(Arc<Mutex<Vec<i64>>>);

impl Flow for Listening {
    fn on_report(&mut self, _: u64, report: &Report<'_>, _: &mut Control) {
        self.0.lock().unwrap().push(report.get("sent").unwrap());
    }
}

fn algorithms(sizes: &Arc<Mutex<Vec<i64>>>) -> Vec<Arc<dyn Algorithm>> {
    let fixed = |name, priority| Fixed { name, priority, sizes: Arc::clone(sizes) };
    vec![Arc::new(fixed("three", 3)), Arc::new(fixed("five", 5))]
}

fn core(name: &str, sizes: &Arc<Mutex<Vec<i64>>>) -> Core {
    Core::new(Catalog::new(algorithms(sizes), 1).unwrap(), Rules::all(name), Config::default()).unwrap()
}

fn simulated(agent_latency_us: u64) -> SimDatapath {
    let capacity = Capacity::Rate { bit_per_s: 1_000_000_000 };
    let link = LinkConfig::new(capacity, 50_000, QueueLimit::Packets(100));
    let hosts = HostsConfig { agent_latency_us, ..HostsConfig::default() };
    SimDatapath::new(SimConfig { hosts: Some(hosts), ..SimConfig::new(vec![link], 1) }).unwrap()
}

fn turn(core: &mut Core, sim: &mut SimDatapath, until_us: u64) {
    while sim.now_us() < until_us {
        sim.step_to_packet_event(until_us);
        let now_us = sim.now_us();
        drive(core, DP, sim.hosts().unwrap(), now_us);
    }
}

fn attached(core: &mut Core, sim: &mut SimDatapath) {
    core.attach(DP, sim.hosts().unwrap().capabilities(), 0).unwrap();
    drive(core, DP, sim.hosts().unwrap(), 0);
}

#[test]
fn flows_have_their_algorithms_priority_before_the_agent_hears_of_them() {
    let sizes = Arc::default();
    let (mut core, mut sim) = (core("three", &sizes), simulated(40_000));
    let core = &mut core;
    attached(core, &mut sim);
    let flow = |start_us, source| FlowConfig { start_us, ..FlowConfig::new(source, 50) };
    let long = sim.add_flow(&flow(10, Source::Bulk)).unwrap();
    let short = sim.add_flow(&flow(10, Source::Bytes(5000))).unwrap();
    turn(core, &mut sim, 30_000);
    assert!(core.flow(DP, long).is_none(), "the agent has not heard of it");
    assert_eq!(sim.hosts().unwrap().steering(long), Some((3, 0)));
    turn(core, &mut sim, 100_000);
    assert!(core.flow(DP, long).is_some() && core.flow(DP, short).is_none());
    assert_eq!(*sizes.lock().unwrap(), [5000]);
    assert_eq!(sim.hosts().unwrap().flows()[0].mode, Mode::Program);
    assert_eq!(core.counters().refused_commands, 0);

    // Other rules reach flows to come; the ones that run keep their algorithm.
    core.set_rules(Rules::all("five")).unwrap();
    turn(core, &mut sim, 110_000);
    let other = sim.add_flow(&flow(0, Source::Bulk)).unwrap();
    turn(core, &mut sim, 111_000);
    assert_eq!(sim.hosts().unwrap().steering(long), Some((3, 0)));
    assert_eq!(sim.hosts().unwrap().steering(other), Some((5, 0)));

    core.set_rules(Rules::all(NATIVE)).unwrap();
    turn(core, &mut sim, 120_000);
    let native = sim.add_flow(&flow(0, Source::Bulk)).unwrap();
    turn(core, &mut sim, 200_000);
    assert_eq!(sim.hosts().unwrap().steering(native), Some((0, 0)));
    assert_eq!(core.flow(DP, native).unwrap().native(), Some(&NativeReason::Rule));
}

/// One core may have datapaths of both kinds, of which each has a default of its own.
#[test]
fn packets_have_a_default_of_their_own_which_rules_leave_as_it_is() {
    let sizes = Arc::default();
    let of_packets = |name: &str| {
        let config = Config { on_packets: Some(name.to_owned()), ..Config::default() };
        Core::new(Catalog::new(algorithms(&sizes), 1).unwrap(), Rules::all(NATIVE), config)
    };
    assert!(matches!(of_packets("four").err(), Some(RulesError::UnknownAlgorithm { rule: None, .. })));
    let (mut core, mut sim) = (of_packets("three").unwrap(), simulated(0));
    let core = &mut core;
    attached(core, &mut sim);
    let flow = |sim: &mut SimDatapath| sim.add_flow(&FlowConfig::new(Source::Bulk, 50)).unwrap();
    let first = flow(&mut sim);
    turn(core, &mut sim, 10_000);
    assert_eq!(sim.hosts().unwrap().steering(first), Some((3, 0)));
    assert_eq!(core.flow(DP, first).unwrap().algorithm(), "three");
    core.set_rules(Rules::all("five")).unwrap();
    turn(core, &mut sim, 20_000);
    let second = flow(&mut sim);
    turn(core, &mut sim, 30_000);
    assert_eq!(core.flow(DP, second).unwrap().algorithm(), "three");
    assert_eq!(sim.hosts().unwrap().steering(second), Some((3, 0)));
}

/// A flow that ran when the agent came gets the send program as a command.
#[test]
fn flows_that_started_before_the_agent_came_get_the_program_then() {
    let sizes = Arc::default();
    let (mut core, mut sim) = (core("five", &sizes), simulated(0));
    let core = &mut core;
    let id = sim.add_flow(&FlowConfig::new(Source::Bulk, 50)).unwrap();
    sim.step_until(5000);
    assert_eq!((id, sim.hosts().unwrap().steering(id)), (FlowId(0), Some((0, 0))));
    attached(core, &mut sim);
    turn(core, &mut sim, 10_000);
    assert_eq!(sim.hosts().unwrap().steering(id), Some((5, 0)));
}
