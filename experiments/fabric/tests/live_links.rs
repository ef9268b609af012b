//! Short runs of this machine's flows over emulated links under an agent. They need root; without it they say so and prove nothing.
#![allow(clippy::unwrap_used)]

use ccplane_agent::config::Config;
use ccplane_agent::place::Located;
use ccplane_algs::{PathInAgent, Pias, THRESHOLDS};
use ccplane_emulator::netns;
use ccplane_fabric::{Decides, Kind, LiveOutcome, LiveSetting, LiveTrial, Uplinks};
use ccplane_netsim::workload::{FlowSizes, HostArrivals, PPM, Split};
use ccplane_testing::{found, lacks};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs that wait for each other: the datapath has one name, and the machine few processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const FLOWS: usize = 24;
const WARM_UP_FLOWS: usize = 6;

/// Flows of up to 200 kB over links of 20 Mb/s; `None`, and a report, where the machine cannot carry them.
fn run(test: &str, kind: Kind, uplinks: Uplinks, decides: Decides) -> Option<LiveOutcome> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if lacks(test, netns::missing()) {
        return None;
    }
    found(test, ccplane_ebpf::packets::available())?;
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.datapath.ebpf.run_dir = folder.path().to_owned();
    let located = Located { config, control_socket: folder.path().join("control.sock") };
    let setting = LiveSetting {
        paths: 3,
        rate_mbit: 20,
        delay_us: 1000,
        queue_packets: 100,
        flowlet_us: 5000,
        largest_flow_kb: 200,
        load_percent: vec![60],
        repeats: 1,
        flows: FLOWS,
        warm_up_flows: WARM_UP_FLOWS,
    };
    let trial = LiveTrial {
        setting: &setting,
        located: &located,
        kind,
        uplinks,
        decides,
        seed: 1,
        warm_up_flows: WARM_UP_FLOWS,
        flows: FLOWS,
    };
    let sizes = FlowSizes::web_search().at_most(200_000);
    let of = (Split::Test, 1);
    let arrivals = HostArrivals::new(&sizes, 600_000, 20_000_000, setting.structure(PPM), of).unwrap();
    let outcome = trial.run(arrivals).unwrap();
    assert_eq!(outcome.completions.len(), FLOWS);
    for flow in &outcome.completions {
        let took_ns = flow.completion_ns.unwrap_or_else(|| panic!("{flow:?} has not ended"));
        // The handshake's round trip, and the way of its last byte.
        assert!(took_ns >= 3_000_000, "{flow:?}");
    }
    let families: Vec<u16> = outcome.completions.iter().map(|flow| flow.arrival.application % 2).collect();
    assert!(families.contains(&0) && families.contains(&1), "IPv4 and IPv6");
    Some(outcome)
}

#[test]
fn flows_without_a_program_take_the_first_link() {
    let test = "flows_without_a_program_take_the_first_link";
    let decides = Decides::Application([10_000; THRESHOLDS]);
    let Some(outcome) = run(test, Kind::Scheduling, Uplinks::Even, decides) else { return };
    assert_eq!(outcome.steered, 0);
    assert!(outcome.carried_bytes[0] > 500_000, "{outcome:?}");
    assert!(outcome.carried_bytes[1..].iter().all(|bytes| *bytes < 10_000), "{outcome:?}");
}

#[test]
fn flows_are_scheduled_by_a_program() {
    let decides = Decides::Program(Arc::new(Pias::default()));
    let run = run("flows_are_scheduled_by_a_program", Kind::Scheduling, Uplinks::Even, decides);
    let Some(outcome) = run else { return };
    assert!(outcome.steered > 0, "{outcome:?}");
    assert!(outcome.carried_bytes[1..].iter().all(|bytes| *bytes < 10_000), "{outcome:?}");
}

#[test]
fn flows_are_balanced_by_the_agent_over_links_of_which_one_is_slow() {
    let test = "flows_are_balanced_by_the_agent_over_links_of_which_one_is_slow";
    let decides = Decides::Program(Arc::new(PathInAgent::least_loaded()));
    let Some(outcome) = run(test, Kind::Balancing, Uplinks::Slow, decides) else { return };
    assert!(outcome.steered > 0, "{outcome:?}");
    let used = outcome.carried_bytes.iter().filter(|bytes| **bytes > 50_000).count();
    assert!(used >= 2, "{outcome:?}");
}
