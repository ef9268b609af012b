//! False alarms and delays of [`super::change`], measured on simulated links in virtual time.

use super::change::Watch;
use super::estimate::Estimator;
use super::mailbox::LoopId;
use ccplane_core::Core;
use ccplane_netsim::{Capacity, CrossConfig, CrossPattern, LinkChange, LinkConfig, QueueLimit};
use ccplane_runner::sim::{Beside, SimChange, SimFlow, Simulation, run_beside};
use ccplane_sim::Source;

const S: u64 = 1_000_000;

/// A link that does not change, and what crosses it.
#[derive(Clone, Copy, Debug)]
struct Busy {
    name: &'static str,
    mbit: u64,
    delay_ms: u64,
    loss_ppm: u32,
    /// Flows that are watched.
    flows: usize,
    /// Datagrams: of the rate, percent, and mean on and off periods, milliseconds.
    datagrams: Option<(u64, u64, u64)>,
    /// Bulk flows of Cubic that come and go: each for so many seconds, of so many.
    comes: Option<(u64, u64)>,
    /// Whether short flows come, a third of the rate.
    short: bool,
}

const QUIET: Busy = Busy {
    name: "nothing crosses",
    mbit: 12,
    delay_ms: 20,
    loss_ppm: 0,
    flows: 1,
    datagrams: None,
    comes: None,
    short: false,
};

const BUSY: [Busy; 9] = [
    QUIET,
    Busy { name: "1 % random loss", loss_ppm: 10_000, ..QUIET },
    Busy { name: "datagrams, half of the rate, each 0.5 s", datagrams: Some((50, 500, 500)), ..QUIET },
    Busy { name: "datagrams, half of the rate, each 3 s", datagrams: Some((50, 3000, 3000)), ..QUIET },
    Busy { name: "datagrams, three quarters, 2 s of 10", datagrams: Some((75, 2000, 8000)), ..QUIET },
    Busy { name: "datagrams, half of the rate, each 10 s", datagrams: Some((50, 10_000, 10_000)), ..QUIET },
    Busy { name: "short flows, a third of the rate, four flows", short: true, flows: 4, ..QUIET },
    Busy { name: "Cubic, 20 s of 40, 0.5 % loss", comes: Some((20, 40)), loss_ppm: 5_000, ..QUIET },
    Busy { name: "8 flows and datagrams each 2 s", flows: 8, datagrams: Some((50, 2000, 2000)), ..QUIET },
];

impl Busy {
    fn simulation(&self, algorithm: &str, seconds: u64, seed: u64) -> Simulation {
        let bit_per_s = self.mbit * 1_000_000;
        let link = |bit_per_s, packets| {
            LinkConfig::new(
                Capacity::Rate { bit_per_s },
                self.delay_ms * 1_000_000,
                QueueLimit::Packets(packets),
            )
        };
        let bdp = bit_per_s / 8 * 2 * self.delay_ms / 1000 / 1500;
        let there = LinkConfig { loss_ppm: self.loss_ppm, ..link(bit_per_s, bdp as u32) };
        let flow = |algorithm: &str, source, start_us, stop_us| SimFlow {
            algorithm: algorithm.to_owned(),
            link: 0,
            source,
            start_us,
            stop_us,
        };
        let mut flows: Vec<SimFlow> =
            (0..self.flows as u64).map(|n| flow(algorithm, Source::Bulk, n * S / 2, None)).collect();
        if let Some((stays, every)) = self.comes {
            let starts = (every..seconds).step_by(every as usize);
            flows.extend(starts.map(|at| flow("cubic", Source::Bulk, at * S, Some((at + stays) * S))));
        }
        if self.short {
            let sizes = ccplane_netsim::workload::FlowSizes::web_search();
            let arrivals = ccplane_netsim::workload::Arrivals::new(&sizes, 330_000, bit_per_s, seed)
                .into_iter()
                .flatten();
            let arrivals = arrivals.take_while(|a| a.start_us < seconds * S);
            flows.extend(arrivals.map(|a| flow("cubic", Source::Bytes(a.bytes), a.start_us, None)));
        }
        flows.sort_by_key(|f| f.start_us);
        let cross = self.datagrams.map(|(percent, on, off)| CrossConfig {
            pattern: CrossPattern::OnOff { on_ns: on * 1_000_000, off_ns: off * 1_000_000 },
            ..CrossConfig::new(vec![0], bit_per_s * percent / 100)
        });
        Simulation {
            links: vec![there, link(100_000_000_000, 1 << 20)],
            return_link: Some(1),
            flows,
            cross: cross.into_iter().collect(),
            ..Simulation::new(0, seconds * S, seed)
        }
    }
}

/// Counts alarms.
#[derive(Default)]
struct Watcher {
    estimator: Estimator,
    watch: Watch,
    now_us: u64,
    /// When, and of what.
    alarms: Vec<(u64, String)>,
}

impl Beside for Watcher {
    fn turned(&mut self, core: &mut Core, now_us: u64) {
        for batch in core.take_rows() {
            self.now_us = batch.measures.iter().map(|m| m.at_us).fold(self.now_us, u64::max);
            self.estimator.take(LoopId(0), &batch);
            while let Some(second) = self.estimator.second(self.now_us) {
                if second.is_another {
                    self.watch.restart();
                }
                if let Some(quantity) = self.watch.push(second.block, false) {
                    self.alarms.push((now_us, quantity.to_string()));
                    self.estimator.forget();
                }
            }
        }
    }
}

fn watched(simulation: &Simulation) -> Vec<(u64, String)> {
    let mut watcher = Watcher::default();
    run_beside(simulation, &ccplane_algs::all(), S, &mut |_| true, Some(&mut watcher)).unwrap();
    watcher.alarms
}

#[test]
fn temporary_null() {
    for busy in BUSY {
        let start = std::time::Instant::now();
        let mut all = Vec::new();
        for seed in 1..=2 {
            let alarms = watched(&busy.simulation("aurora-still", 3600, seed));
            all.push(
                alarms
                    .iter()
                    .filter(|(at, _)| *at > 0)
                    .map(|(at, q)| format!("{}{}", at / S, &q[..2]))
                    .collect::<Vec<_>>(),
            );
        }
        eprintln!("{:50} {all:?} {:.1?}", busy.name, start.elapsed());
    }
}

#[test]
fn temporary_old_twin() {
    for busy in BUSY {
        let start = std::time::Instant::now();
        let algorithms = ccplane_algs::all();
        let aurora = algorithms.iter().find(|a| a.name() == "aurora").unwrap();
        let mut twin = super::simulated::Simulated::new(aurora, 1).unwrap();
        run_beside(&busy.simulation("aurora", 600, 1), &algorithms, S, &mut |_| true, Some(&mut twin))
            .unwrap();
        eprintln!(
            "{:50} {} changes, {} trainings {:.1} cpu s {:.1?}",
            busy.name,
            twin.twin.changes,
            twin.twin.trainings,
            super::Learn::used(&twin.twin).as_secs_f64(),
            start.elapsed()
        );
    }
}

#[test]
fn temporary_changes() {
    let changes = [
        (
            "x2 rate",
            LinkChange { bit_per_s: Some(24_000_000), ..LinkChange::default() },
            LinkChange::default(),
        ),
        (
            "/2 rate",
            LinkChange { bit_per_s: Some(6_000_000), ..LinkChange::default() },
            LinkChange::default(),
        ),
        (
            "+20 ms",
            LinkChange { delay_ns: Some(30_000_000), ..LinkChange::default() },
            LinkChange { delay_ns: Some(30_000_000), ..LinkChange::default() },
        ),
        ("+3 % loss", LinkChange { loss_ppm: Some(30_000), ..LinkChange::default() }, LinkChange::default()),
    ];
    for busy in BUSY {
        for (name, there, back) in changes {
            let mut delays = Vec::new();
            for seed in 1..=6 {
                let there = LinkChange { loss_ppm: there.loss_ppm.map(|l| l + busy.loss_ppm), ..there };
                let change = |link, change| SimChange { at_us: 120 * S, link, change };
                let simulation = Simulation {
                    changes: vec![change(0, there), change(1, back)],
                    ..busy.simulation("aurora-still", 180, seed)
                };
                let alarms = watched(&simulation);
                delays.push(
                    alarms
                        .iter()
                        .find(|(at, _)| *at >= 120 * S)
                        .map(|(at, q)| format!("{:.1}{}", (at - 120 * S) as f64 / 1e6, &q[..2])),
                );
            }
            eprintln!("{:45} {name:10} {delays:?}", busy.name);
        }
    }
}
