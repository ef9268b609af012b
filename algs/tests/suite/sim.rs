//! Reno and CUBIC as the agent runs them, over the simulated datapath: core, programs and network together.

use ccplane_contract::{Datapath, FlowId, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rule, Rules, drive};
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use std::fmt::Write;

const DP: DatapathId = DatapathId(0);
const S: u64 = 1_000_000;
const TICK_US: u64 = 50_000;
/// Bytes on the wire of a full segment.
const WIRE_BYTES: u64 = 1500;
const MSS: u64 = 1448;
const DELAY_MS: u64 = 20;
const RTT_MS: u64 = 2 * DELAY_MS;

/// One bottleneck with an agent beside it.
struct Lab {
    sim: SimDatapath,
    core: Core,
    flows: Vec<FlowId>,
}

impl Lab {
    /// A bulk flow for each algorithm, `starts_apart_us` one after another.
    fn new(link: LinkConfig, algorithms: &[&str], starts_apart_us: u64) -> Lab {
        let mut sim = SimDatapath::new(SimConfig::new(vec![link], 1)).unwrap();
        let (mut flows, mut rules) = (vec![], vec![]);
        for (n, algorithm) in (0u16..).zip(algorithms) {
            let mut flow = FlowConfig::new(Source::Bulk, DELAY_MS * 1000);
            flow.start_us = u64::from(n) * starts_apart_us;
            flow.local.set_port(40_000 + n);
            flows.push(sim.add_flow(&flow).unwrap());
            rules.push(Rule { local_port: Some(40_000 + n..=40_000 + n), ..Rule::any(algorithm) });
        }
        let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
        let rules = Rules { rules, default: "native".to_owned() };
        let mut core = Core::new(catalog, rules, Config::default()).unwrap();
        core.attach(DP, sim.capabilities(), 0).unwrap();
        Lab { sim, core, flows }
    }

    fn run_until(&mut self, until_us: u64) {
        while self.sim.now_us() < until_us {
            let stop_us = until_us.min(self.sim.now_us() + TICK_US);
            self.sim.step_to_event(stop_us);
            let now_us = self.sim.now_us();
            drive(&mut self.core, DP, &mut self.sim, now_us);
        }
        for flow in &self.flows {
            let stats = self.sim.stats(*flow).unwrap();
            assert_eq!((stats.mode, stats.transport.faults), (Mode::Program, 0), "{flow:?}");
            let view = self.core.flow(DP, *flow).unwrap();
            assert_eq!((view.native(), view.last_error()), (None, None));
        }
    }

    /// Wire bytes per second that each flow delivered from now until `until_us`.
    fn throughput(&mut self, until_us: u64) -> Vec<u64> {
        let wire = |lab: &Lab| {
            let bytes = |f: &FlowId| lab.sim.stats(*f).unwrap().transport.bytes_acked / MSS * WIRE_BYTES;
            lab.flows.iter().map(bytes).collect::<Vec<u64>>()
        };
        let (before, from_us) = (wire(self), self.sim.now_us());
        self.run_until(until_us);
        wire(self)
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) * S / (until_us - from_us))
            .collect()
    }

    /// The last reported value.
    fn reported(&self, n: usize, name: &str) -> i64 {
        let flow = self.core.flow(DP, self.flows[n]).unwrap();
        flow.report().find(|(reported, _)| *reported == name).unwrap().1
    }
}

/// A queue of this share of the bandwidth-delay product, percent.
fn link(mbit: u64, queue_percent: u64) -> LinkConfig {
    let bdp_packets = mbit * 1_000_000 * RTT_MS / 1000 / 8 / WIRE_BYTES;
    let queue = QueueLimit::Packets((bdp_packets * queue_percent / 100) as u32);
    LinkConfig::new(Capacity::Rate { bit_per_s: mbit * 1_000_000 }, DELAY_MS * 1_000_000, queue)
}

fn percent(bytes_per_s: u64, mbit: u64) -> u64 {
    bytes_per_s * 8 * 100 / (mbit * 1_000_000)
}

#[test]
fn one_flow_fills_the_link() {
    for algorithm in ["reno", "cubic"] {
        for mbit in [12, 48, 96] {
            let mut lab = Lab::new(link(mbit, 100), &[algorithm], 0);
            lab.run_until(10 * S);
            let used = percent(lab.throughput(70 * S)[0], mbit);
            eprintln!("{algorithm} at {mbit} Mb/s: {used} %, {} lost", lab.reported(0, "lost"));
            assert!(used >= 90, "{algorithm} at {mbit} Mb/s: {used} %");
            assert_eq!(lab.reported(0, "timeouts"), 0, "{algorithm} at {mbit} Mb/s");
        }
    }
}

#[test]
fn equal_flows_share_fairly() {
    for (algorithm, mbit) in [("reno", 24), ("cubic", 24)] {
        let mut lab = Lab::new(link(mbit, 100), &[algorithm; 2], 10 * S);
        lab.run_until(60 * S);
        let shares = lab.throughput(240 * S);
        let (sum, squares) =
            shares.iter().fold((0.0, 0.0), |(s, q), x| (s + *x as f64, q + (*x as f64).powi(2)));
        let jain = sum * sum / (2.0 * squares);
        eprintln!("{algorithm}: {shares:?} B/s, Jain {jain:.4}");
        assert!(jain > 0.95, "{algorithm}: {shares:?}");
    }
}

#[test]
fn cubic_outgrows_reno_where_the_window_is_large() {
    // 200 Mb/s over 200 ms of round trip: 3333 packets, and one loss in 100,000.
    let mut long = link(200, 100);
    long.delay_ns = 180_000_000;
    long.loss_ppm = 10;
    let [reno, cubic] = ["reno", "cubic"].map(|algorithm| {
        let mut lab = Lab::new(long.clone(), &[algorithm], 0);
        lab.run_until(30 * S);
        percent(lab.throughput(150 * S)[0], 200)
    });
    eprintln!("reno {reno} %, cubic {cubic} %");
    assert!(cubic >= reno * 3 / 2, "reno {reno} %, cubic {cubic} %");
}

#[test]
fn cubic_does_not_starve_reno_where_the_window_is_small() {
    // RFC 9438 section 4.3: at 6 Mb/s over 40 ms CUBIC is in its Reno-friendly region.
    let mut lab = Lab::new(link(6, 100), &["reno", "cubic"], S);
    lab.run_until(60 * S);
    let shares = lab.throughput(360 * S);
    eprintln!("reno {} B/s, cubic {} B/s", shares[0], shares[1]);
    assert!(shares[0] * 2 > shares[1] && shares[1] * 2 > shares[0], "{shares:?}");
}

/// 24 Mb/s, dead from 20 s to 22 s.
fn blackout() -> Capacity {
    let mut text = String::new();
    for ms in (1..=60_000).filter(|ms| !(20_000..22_000).contains(ms)) {
        writeln!(text, "{ms}\n{ms}").unwrap();
    }
    Capacity::Trace { trace: Trace::parse(&text).unwrap(), repeat: false }
}

#[test]
fn a_flow_recovers_from_a_blackout() {
    for algorithm in ["reno", "cubic"] {
        let mut lab = Lab::new(LinkConfig { capacity: blackout(), ..link(24, 100) }, &[algorithm], 0);
        lab.run_until(10 * S);
        let before = lab.throughput(20 * S)[0];
        lab.run_until(25 * S);
        assert_eq!(lab.reported(0, "timeouts"), 1, "{algorithm}: the timer backs off, the program sees one");
        let after = lab.throughput(35 * S)[0];
        eprintln!("{algorithm}: {before} B/s before, {after} after");
        assert!(after * 100 >= before * 95, "{algorithm}: {before} B/s before, {after} after");
    }
}

#[test]
fn reports_come_about_once_per_round_trip() {
    let mut lab = Lab::new(link(48, 100), &["reno"], 0);
    lab.run_until(20 * S);
    let counters = lab.core.flow(DP, lab.flows[0]).unwrap().counters();
    // 40 to 80 ms of round trip.
    assert!((250..=520).contains(&counters.reports), "{counters:?}");
    assert_eq!((counters.lost_reports, counters.stale_reports, counters.malformed_reports), (0, 0, 0));
}

/// Modes of BBR's reports.
const PROBE_BW: i64 = 2;
const PROBE_RTT: i64 = 3;

#[test]
fn bbr_fills_the_link_without_a_queue() {
    let mut lab = Lab::new(link(24, 400), &["bbr"], 0);
    lab.run_until(2 * S);
    assert_eq!(lab.reported(0, "mode"), PROBE_BW);
    let (mut sum_us, mut samples) = (0, 0);
    let mut delivered = 0;
    while lab.sim.now_us() < 9 * S {
        let until_us = lab.sim.now_us() + 10_000;
        delivered += lab.throughput(until_us)[0] / 100;
        sum_us += u64::from(lab.sim.stats(lab.flows[0]).unwrap().transport.srtt_us);
        samples += 1;
    }
    let (used, rtt_us) = (percent(delivered / 7, 24), sum_us / samples);
    eprintln!("bbr: {used} %, RTT {rtt_us} us of {} us", RTT_MS * 1000);
    assert!(used >= 98, "{used} %");
    // The pipe has room for three bursts of two segments, which stand in the queue: 3 ms.
    assert!((rtt_us - 3_000) * 10 <= RTT_MS * 1000 * 11, "{rtt_us} us");
    assert_eq!(lab.reported(0, "lost"), 0);
}

#[test]
fn bbr_looks_for_the_rtt_every_ten_seconds() {
    let mut lab = Lab::new(link(24, 400), &["bbr"], 0);
    lab.run_until(2 * S);
    let mut probes: Vec<(u64, u64)> = vec![];
    while lab.sim.now_us() < 45 * S {
        let until_us = lab.sim.now_us() + 10_000;
        lab.run_until(until_us);
        let probing = lab.reported(0, "mode") == PROBE_RTT;
        match probes.last_mut() {
            Some((_, until_us)) if probing && lab.sim.now_us() - *until_us < S => {
                *until_us = lab.sim.now_us()
            }
            _ if probing => probes.push((lab.sim.now_us(), lab.sim.now_us())),
            _ => {}
        }
    }
    eprintln!("bbr: PROBE_RTT {probes:?}");
    assert!((3..=4).contains(&probes.len()), "{probes:?}");
    for pair in probes.windows(2) {
        assert!((10 * S..11 * S).contains(&(pair[1].0 - pair[0].1)), "{pair:?}");
    }
    assert!(probes.iter().all(|(from_us, until_us)| until_us - from_us < S / 2), "{probes:?}");
}

#[test]
fn bbr_flows_share() {
    let mut lab = Lab::new(link(24, 200), &["bbr"; 2], 5 * S);
    lab.run_until(30 * S);
    let shares = lab.throughput(90 * S);
    eprintln!("bbr: {shares:?}");
    let used = percent(shares.iter().sum(), 24);
    assert!(used >= 95, "{used} %");
    assert!(shares.iter().all(|share| percent(*share, 24) >= 25), "{shares:?}");
}
