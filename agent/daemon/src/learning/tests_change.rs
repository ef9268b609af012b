//! False alarms and delays of [`super::change`], measured on simulated links in virtual time.

use super::change::{Detection, Quantity, Watch};
use super::estimate::Estimator;
use super::mailbox::LoopId;
use ccplane_core::{Companion, Core};
use ccplane_netsim::{Capacity, CrossConfig, CrossPattern, LinkChange, LinkConfig, QueueLimit};
use ccplane_runner::sim::{SimChange, Simulation, SimulationFlow, run_beside};
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
        let flow = SimulationFlow::new;
        let mut flows: Vec<SimulationFlow> =
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
    /// Alarms that were taken back.
    returns: usize,
}

impl Companion for Watcher {
    fn after_turn(&mut self, core: &mut Core, now_us: u64) {
        for batch in core.take_rows() {
            self.now_us = batch.measures.iter().map(|m| m.at_us).fold(self.now_us, u64::max);
            self.estimator.take(LoopId(0), &batch);
            while let Some(second) = self.estimator.second(self.now_us) {
                if second.is_another {
                    self.watch.restart();
                }
                let Some(detection) = self.watch.push(second.block, false) else { continue };
                match detection {
                    Detection::Changed(quantity) => self.alarms.push((now_us, quantity.to_string())),
                    Detection::Returned => self.returns += 1,
                }
                self.estimator.forget(self.now_us, detection == Detection::Changed(Quantity::Rtt));
            }
        }
    }
}

fn watched(simulation: &Simulation) -> Watcher {
    let mut watcher = Watcher::default();
    run_beside(simulation, &ccplane_algs::all(), S, &mut |_| true, Some(&mut watcher)).unwrap();
    watcher
}

/// Hours of each busy link, and the seeds of the runs: from [`SEEDS`] on; the constants were chosen on 1 and 2.
const HOURS: u64 = 1;
const SEEDS: u64 = 200;

/// Constant links alarm in one hour at most four times each, and ten times all nine together. The first minutes are
/// included, in which it is learned what noise is. Each link's count is printed, and how many alarms were taken back.
#[test]
fn busy_links_have_not_changed() {
    let (mut alarms, mut flow_hours) = (0, 0);
    for (n, busy) in (0..).zip(BUSY) {
        let Watcher { alarms: found, returns, .. } =
            watched(&busy.simulation("aurora-still", HOURS * 3600, SEEDS + n));
        let when: Vec<String> = found.iter().map(|(at, what)| format!("{what} at {} s", at / S)).collect();
        println!(
            "{}: {} alarms, {returns} taken back, in {HOURS} h: {}",
            busy.name,
            found.len(),
            when.join(", ")
        );
        assert!(found.len() <= 4, "{}: {when:?}", busy.name);
        alarms += found.len();
        flow_hours += HOURS as usize * busy.flows;
    }
    println!("{alarms} alarms in {flow_hours} hours of a flow");
    assert!(alarms <= 10, "{alarms} alarms in {flow_hours} hours of a flow");
}

/// Seconds from a change to its alarm, 60 where there was none, in order.
fn delays(busy: &Busy, there: LinkChange, back: LinkChange, seeds: u64) -> Vec<u64> {
    const AT_S: u64 = 120;
    let there = LinkChange { loss_ppm: there.loss_ppm.map(|l| l + busy.loss_ppm), ..there };
    let change = |link, change| SimChange { at_us: AT_S * S, link, change };
    let changes = vec![change(0, there), change(1, back)];
    let delay = |seed| {
        let simulation = busy.simulation("aurora-still", AT_S + 60, SEEDS + seed);
        let found = watched(&Simulation { changes: changes.clone(), ..simulation });
        let after = found.alarms.iter().find(|(at, _)| *at >= AT_S * S);
        after.map_or(60, |(at, _)| (at - AT_S * S).div_ceil(S))
    };
    let mut all: Vec<u64> = (0..seeds).map(delay).collect();
    all.sort_unstable();
    all
}

/// On a quiet link and a lossy one: 20 s at most, half of them within 16 s, most within 9 s. On the others as printed.
#[test]
fn changes_are_told_in_seconds() {
    const RUNS: u64 = 5;
    let none = LinkChange::default();
    let mbit = |mbit: u64| LinkChange { bit_per_s: Some(mbit * 1_000_000), ..none };
    let far = LinkChange { delay_ns: Some(30_000_000), ..none };
    let changes = [
        ("twice the rate", mbit(24), none),
        ("half the rate", mbit(6), none),
        ("20 ms more", far, far),
        ("3 % more loss", LinkChange { loss_ppm: Some(30_000), ..none }, none),
    ];
    for (n, busy) in BUSY.iter().enumerate() {
        for (name, there, back) in changes {
            let all = delays(busy, there, back, RUNS);
            println!("{}, {name}: {all:?} s", busy.name);
            let (median, most) = (all[all.len() / 2], all[all.len() - 1]);
            assert!(n > 1 || median <= 16 && most <= 20, "{}, {name}: {all:?}", busy.name);
        }
    }
}

/// The twin itself on the link that it had trained 35 times for in ten minutes: it trains, and tries again what came to nothing.
#[test]
fn a_busy_link_is_trained_for_four_times_in_three_minutes_at_most() {
    let algorithms = ccplane_algs::all();
    let aurora = algorithms.iter().find(|a| a.name() == "aurora").unwrap();
    let mut beside = super::simulated::Simulated::twin(aurora, SEEDS).unwrap();
    let busy = BUSY.iter().find(|b| b.name.ends_with("each 3 s")).unwrap();
    let simulation = busy.simulation("aurora", 180, SEEDS);
    run_beside(&simulation, &algorithms, S, &mut |_| true, Some(&mut beside)).unwrap();
    let (twin, used) = (&beside.learner, super::Learn::used(&beside.learner).as_secs_f64());
    println!("{} changes, {} trainings, {used:.1} s of a core in 180 s", twin.changes, twin.trainings);
    assert!(twin.changes <= 2 && (1..=4).contains(&twin.trainings), "{} {}", twin.changes, twin.trainings);
}
