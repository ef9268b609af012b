//! Loss recovery of the shipped algorithms and the native fallback over an emulated link.
//!
//! The kernel's own algorithms run beside them, on links of their own and at the same time.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_contract::{Datapath, Mode, ProgramUid};
use ccplane_core::{Catalog, Config, Core, DatapathId, FlowView, Rule, Rules, drive};
use ccplane_ebpf::{EbpfDatapath, clock_us, read_flows};
use ccplane_emulator::{Direction, Emulator, LinkConfig, Loss, Queue, Shape};
use ccplane_runner::tcp_info::CaState;
use ccplane_runner::traffic::{BulkFlow, FlowConfig, TcpSample};
use ccplane_testing::{Mishap, STALL, assert_never_stalled, within_tries};
use common::{LONG, Lab, can_run, created, mishap, wait_until};

const LINK_MBIT: u32 = 12;
const DELAY_US: u64 = 10_000;
/// One bandwidth-delay product of the link, packets.
const QUEUE_PACKETS: u32 = 20;
const SAMPLE_US: u64 = 5_000;
/// Tries: a busy machine spoils one run, a wrong datapath spoils each.
const TRIES: u32 = 3;
const DP: DatapathId = DatapathId(0);
/// The port of each algorithm.
const RENO_PORT: u16 = 5001;
const CUBIC_PORT: u16 = 5002;
const NATIVE_PORT: u16 = 5003;

fn link() -> LinkConfig {
    let mut link = LinkConfig::symmetric(Shape::mbit(LINK_MBIT), DELAY_US);
    link.up.queue = Queue::packets(QUEUE_PACKETS);
    link
}

/// An agent on a thread of its own, which gives up the datapath when it is stopped.
struct Agent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(EbpfDatapath, Reports)>>,
}

/// Registers of the last report of each flow, by its remote port.
type Reports = HashMap<u16, Vec<(String, i64)>>;

impl Agent {
    fn start(mut datapath: EbpfDatapath) -> Agent {
        let stop = Arc::new(AtomicBool::new(false));
        let run = {
            let stop = stop.clone();
            move || {
                let rule = |port, name| Rule { remote_port: Some(port..=port), ..Rule::any(name) };
                let rules = vec![rule(RENO_PORT, "reno"), rule(CUBIC_PORT, "cubic")];
                let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
                let rules = Rules { rules, default: ccplane_core::NATIVE.to_owned() };
                let mut core = Core::new(catalog, rules, Config::default()).unwrap();
                core.attach(DP, datapath.capabilities(), clock_us()).unwrap();
                while !stop.load(Ordering::Acquire) {
                    datapath.heartbeat();
                    drive(&mut core, DP, &mut datapath, clock_us());
                    datapath.wait(Duration::from_millis(20)).unwrap();
                }
                assert!(core.flows().all(|f| f.last_error().is_none()));
                let report = |f: &FlowView<'_>| f.report().map(|(name, v)| (name.to_owned(), v)).collect();
                let reports = core.flows().map(|f| (f.info().remote.port(), report(&f))).collect();
                (datapath, reports)
            }
        };
        Agent { stop, thread: Some(std::thread::spawn(run)) }
    }

    fn stop(mut self) -> (EbpfDatapath, Reports) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A failed test has failed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A flow on a link of its own.
struct LoadedLink {
    flow: BulkFlow,
    emulator: Emulator,
}

impl LoadedLink {
    fn start(congestion: &str, port: u16, link: &LinkConfig) -> LoadedLink {
        let emulator = Emulator::start(link).unwrap();
        let config = FlowConfig {
            congestion: congestion.into(),
            receiver: SocketAddr::new(emulator.receiver_addresses().v4.into(), port),
            duration: LONG,
            bytes: None,
            sample_every: Duration::from_micros(SAMPLE_US),
        };
        let flow =
            BulkFlow::start(&config, emulator.sender_ns(), emulator.receiver_ns(), Instant::now()).unwrap();
        LoadedLink { flow, emulator }
    }
}

/// Measurements of a flow.
struct Figures {
    name: &'static str,
    samples: Vec<TcpSample>,
    /// Registers of its program's last report; empty for the kernel's own.
    report: Vec<(String, i64)>,
}

impl Figures {
    /// The samples between two times, in seconds.
    fn between(&self, from_s: u64, to_s: u64) -> &[TcpSample] {
        let at = |s: u64| self.samples.partition_point(|sample| sample.at_us < s * 1_000_000);
        &self.samples[at(from_s)..at(to_s)]
    }

    /// Payload acknowledged, bytes.
    fn acked(&self, from_s: u64, to_s: u64) -> u64 {
        let of = self.between(from_s, to_s);
        of.last().unwrap().info.bytes_acked - of[0].info.bytes_acked
    }

    fn retransmitted(&self, from_s: u64, to_s: u64) -> u32 {
        let of = self.between(from_s, to_s);
        of.last().unwrap().info.total_retrans - of[0].info.total_retrans
    }

    fn mean_rtt_us(&self, from_s: u64, to_s: u64) -> u64 {
        let of = self.between(from_s, to_s);
        of.iter().map(|s| u64::from(s.info.rtt_us)).sum::<u64>() / of.len() as u64
    }

    /// Most packets retransmitted between two samples, without those that came late.
    ///
    /// The time between two samples is that of five packets on the link.
    fn worst_burst(&self) -> u32 {
        let in_time = self.samples.windows(2).filter(|w| w[1].at_us - w[0].at_us < 2 * SAMPLE_US);
        in_time.map(|w| w[1].info.total_retrans - w[0].info.total_retrans).max().unwrap()
    }

    /// Median time from the start of a fast recovery to its first retransmission, microseconds.
    ///
    /// Single times depend on the thread that samples, too.
    fn first_retransmission_us(&self) -> u64 {
        let in_recovery = |s: &TcpSample| s.info.ca_state == CaState::Recovery;
        let mut all = Vec::new();
        for (n, w) in self.samples.windows(2).enumerate() {
            if !in_recovery(&w[0]) && in_recovery(&w[1]) {
                let sent = w[0].info.total_retrans;
                let then = self.samples[n + 1..].iter().find(|s| s.info.total_retrans > sent);
                all.push(then.map_or(u64::MAX, |s| s.at_us - w[1].at_us));
            }
        }
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(u64::MAX)
    }

    /// Windows (packets) before each timeout, and the largest within the 200 ms after the flow was open again.
    fn around_timeouts(&self) -> Vec<(u32, u32)> {
        let mut windows = Vec::new();
        for (n, w) in self.samples.windows(2).enumerate() {
            let is_loss = |s: &TcpSample| s.info.ca_state == CaState::Loss;
            if !is_loss(&w[0]) && is_loss(&w[1]) {
                let after: Vec<_> = self.samples[n + 1..].iter().skip_while(|s| is_loss(s)).collect();
                let soon = after.iter().take_while(|s| s.at_us < after[0].at_us + 200_000);
                windows.push((w[0].info.snd_cwnd, soon.map(|s| s.info.snd_cwnd).max().unwrap_or(0)));
            }
        }
        windows
    }

    fn reported(&self, register: &str) -> i64 {
        self.report.iter().find(|(name, _)| name == register).unwrap().1
    }

    fn summary(&self, from_s: u64, to_s: u64) -> String {
        format!(
            "{:>12}: {:>8} bytes, rtt {:>6} us, {:>3} retransmitted, at most {:>2} at once, {:?} {:?}",
            self.name,
            self.acked(from_s, to_s),
            self.mean_rtt_us(from_s, to_s),
            self.retransmitted(from_s, to_s),
            self.worst_burst(),
            self.around_timeouts(),
            self.report
        )
    }
}

/// Our flows, each with the kernel's flow that it is compared with.
struct Compared {
    reno: [Figures; 2],
    cubic: [Figures; 2],
    native: Figures,
}

impl Compared {
    /// Checks that ours retransmits at most twice as much at once as the kernel's own.
    fn no_burst(&self, ours: &Figures) -> Result<(), String> {
        let (burst, theirs) = (ours.worst_burst(), self.reno[1].worst_burst());
        ensure(burst <= 2 * theirs, || format!("{}: {burst} at once, the kernel's {theirs}", ours.name))
    }

    /// Pairs of our flow and the kernel's.
    fn pairs(&self) -> [(&Figures, &Figures); 3] {
        let ([a, b], [c, d]) = (&self.reno, &self.cubic);
        [(a, b), (c, d), (&self.native, b)]
    }
}

/// Runs our Reno and Cubic, the native fallback and the kernel's Reno and Cubic at the same time.
fn compare(test: &str, link: &LinkConfig, during: impl Fn(&[LoadedLink])) -> Compared {
    let lab = Lab::new(test).unwrap();
    let agent = Agent::start(lab.attach());
    let own = lab.options.name.as_str();
    let lanes = [
        ("our reno", own, RENO_PORT),
        ("kernel reno", "reno", RENO_PORT),
        ("our cubic", own, CUBIC_PORT),
        ("kernel cubic", "cubic", CUBIC_PORT),
        ("native", own, NATIVE_PORT),
    ];
    let running = lanes.map(|(_, congestion, port)| LoadedLink::start(congestion, port, link));
    during(&running);
    let (datapath, reports) = agent.stop();
    let mut figures = running.into_iter().zip(lanes).map(|(lane, (name, congestion, port))| {
        lane.flow.stop();
        let samples = lane.flow.finish().unwrap().samples;
        let steered = congestion == own && port != NATIVE_PORT;
        let report = reports.get(&port).filter(|_| steered).cloned().unwrap_or_default();
        Figures { name, samples, report }
    });
    let mut next = || figures.next().unwrap();
    let compared = Compared { reno: [next(), next()], cubic: [next(), next()], native: next() };
    datapath.detach().unwrap();
    compared
}

/// Runs a comparison until `judge` finds nothing wrong with one.
fn hold(
    test: &str,
    link: &LinkConfig,
    during: impl Fn(&[LoadedLink]),
    (from_s, to_s): (u64, u64),
    judge: impl Fn(&Compared) -> Result<(), String>,
) {
    if !can_run(test) {
        return;
    }
    within_tries(test, TRIES, |_| {
        let compared = compare(test, link, &during);
        print(test, &compared, from_s, to_s);
        judge(&compared)
    });
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn print(test: &str, compared: &Compared, from_s: u64, to_s: u64) {
    for figures in compared.reno.iter().chain(&compared.cubic).chain([&compared.native]) {
        eprintln!("{test}: {}", figures.summary(from_s, to_s));
    }
}

fn sleep_s(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

#[test]
fn a_full_queue_is_used_as_by_the_kernels_own() {
    hold(
        "queue",
        &link(),
        |_| sleep_s(16),
        (1, 16),
        |compared| {
            for (ours, kernels) in compared.pairs() {
                let name = ours.name;
                let (acked, theirs) = (ours.acked(0, 16), kernels.acked(0, 16));
                ensure(acked * 100 >= theirs * 90, || {
                    format!("{name}: {acked} bytes, the kernel's {theirs}")
                })?;
                // In the first second, slow start ends, and how far it overshoots is left to chance.
                let (rtt, theirs) = (ours.mean_rtt_us(1, 16), kernels.mean_rtt_us(1, 16));
                let near = rtt * 100 <= theirs * 115 && rtt * 115 >= theirs * 100;
                ensure(near, || format!("{name}: RTT {rtt}, {theirs} us"))?;
                let (again, theirs) = (ours.retransmitted(1, 16), kernels.retransmitted(1, 16));
                ensure(again <= 2 * theirs, || {
                    format!("{name}: {again} retransmitted, by the kernel's {theirs}")
                })?;
                compared.no_burst(ours)?;
                // At once: within a sample or two, not when half of the window has drained (20 ms).
                let waited_us = ours.first_retransmission_us();
                ensure(waited_us < 15_000, || {
                    format!("{name}: the first retransmission waits {waited_us} us")
                })?;
                let timeouts = ours.around_timeouts();
                ensure(timeouts.is_empty(), || format!("{name}: timeouts: {timeouts:?}"))?;
            }
            for ours in [&compared.reno[0], &compared.cubic[0]] {
                let (reported, again) = (ours.reported("lost"), ours.retransmitted(0, 16));
                ensure(reported >= i64::from(again), || {
                    format!("{}: heard of {reported} losses of {again}", ours.name)
                })?;
            }
            Ok(())
        },
    );
}

#[test]
fn random_losses_are_repaired_as_by_the_kernels_own() {
    let mut link = link();
    link.up.loss = Loss { probability: 0.01, seed: 7 };
    hold(
        "random",
        &link,
        |_| sleep_s(12),
        (0, 12),
        |compared| {
            for (ours, kernels) in compared.pairs() {
                let (acked, theirs) = (ours.acked(0, 12), kernels.acked(0, 12));
                // Which packets are lost is left to chance.
                ensure(acked * 100 >= theirs * 75, || {
                    format!("{}: {acked} bytes, the kernel's {theirs}", ours.name)
                })?;
                compared.no_burst(ours)?;
            }
            Ok(())
        },
    );
}

#[test]
fn a_blackout_ends_in_a_timeout_and_a_slow_start() {
    const DARK_S: (u64, u64) = (4, 6);
    let during = |lanes: &[LoadedLink]| {
        let lose = |probability| {
            let loss = Loss { probability, seed: 1 };
            lanes.iter().for_each(|l| l.emulator.set_loss(Direction::Up, loss).unwrap());
        };
        sleep_s(DARK_S.0);
        lose(1.0);
        sleep_s(DARK_S.1 - DARK_S.0);
        lose(0.0);
        sleep_s(6);
    };
    hold("blackout", &link(), during, (0, 12), |compared| {
        for (ours, kernels) in compared.pairs() {
            let name = ours.name;
            ensure(!ours.around_timeouts().is_empty(), || format!("{name}: no timeout"))?;
            let dark = ours.between(DARK_S.0 + 1, DARK_S.1);
            let single = dark.iter().all(|s| s.info.snd_cwnd == 1);
            ensure(single, || format!("{name}: not one packet at a time in the dark"))?;
            // The link is lit again at 6 s; the backed-off timer fires at 8 s at the latest.
            let (acked, theirs) = (ours.acked(9, 12), kernels.acked(9, 12));
            ensure(acked * 100 >= theirs * 85, || {
                format!("{name}: {acked} bytes after it, the kernel's {theirs}")
            })?;
            compared.no_burst(ours)?;
        }
        for ours in [&compared.reno[0], &compared.cubic[0]] {
            let reported = ours.reported("timeouts");
            ensure(reported == 1, || format!("{}: {reported}, however often the timer ran out", ours.name))?;
        }
        Ok(())
    });
}

#[test]
fn a_timeout_for_nothing_is_undone() {
    let during = |lanes: &[LoadedLink]| {
        let delay = |us| lanes.iter().for_each(|l| l.emulator.set_delay_us(Direction::Down, us).unwrap());
        for _ in 0..3 {
            sleep_s(2);
            // ACKs are late by more than the timer waits, and none is lost.
            delay(600_000);
            std::thread::sleep(Duration::from_millis(200));
            delay(DELAY_US);
        }
        sleep_s(2);
    };
    // A real loss may come in the way of one, but hardly of all three.
    let undone = |figures: &Figures| {
        let timeouts = figures.around_timeouts();
        let undone = timeouts.iter().filter(|(before, after)| 10 * after >= 9 * before).count();
        (undone, timeouts.len())
    };
    hold("undo", &link(), during, (0, 8), |compared| {
        for figures in compared.pairs().iter().flat_map(|(ours, kernels)| [ours, kernels]) {
            let (count, timeouts) = undone(figures);
            ensure(count > 0, || format!("{}: {count} of {timeouts}", figures.name))?;
        }
        for ours in [&compared.reno[0], &compared.cubic[0]] {
            let (undone, timeouts) = undone(ours);
            let reported = ours.reported("timeouts") as usize;
            ensure(reported <= timeouts - undone, || {
                format!("{}: undone before the program heard of it: {reported}", ours.name)
            })?;
        }
        Ok(())
    });
}

/// A program that paces at the link's rate under a window far above what it needs, as rate-based algorithms do.
const PACED: &str = "(def (Report (acks 0)) (pace 1425000)) (when true (:= Rate pace) (:= Cwnd 1448000))";
const PACED_UID: ProgramUid = ProgramUid(1_000_000);

#[test]
fn an_agents_death_costs_no_throughput() {
    if can_run("death") {
        within_tries("death", TRIES, |_| death());
    }
}

/// One run: the throughput of each flow before its agent dies, and after.
fn death() -> Result<(), String> {
    const WARM_UP_S: u64 = 4;
    const WINDOW_S: u64 = 8;
    let lab = Lab::new("death").unwrap();
    let mut datapath = lab.attach();
    let own = lab.options.name.as_str();
    let paced = LoadedLink::start(own, NATIVE_PORT, &link());
    let flow = created(&mut datapath, &paced.flow);
    datapath.install(PACED_UID, &ccplane_program::compile(PACED).unwrap()).unwrap();
    datapath.set_program(flow, PACED_UID, &[]).unwrap();
    let agent = Agent::start(datapath);
    let [reno, cubic] = [RENO_PORT, CUBIC_PORT].map(|port| LoadedLink::start(own, port, &link()));
    sleep_s(WARM_UP_S + WINDOW_S);
    let all_in = |mode: Mode| {
        wait_until(&format!("{mode:?}"), || {
            read_flows(&lab.options).unwrap().flows.iter().all(|f| f.mode == mode)
        })
    };
    all_in(Mode::Program);
    // What a kill does: descriptors and memory go, nothing is undone.
    let died: Vec<Mishap> = [&reno, &cubic, &paced].map(|lane| mishap(&lane.flow, "an agent's death")).into();
    agent.stop().0.leave();
    sleep_s(WINDOW_S + 1);
    all_in(Mode::NativeAgentSilent);
    let mut wrong = Vec::new();
    for ((lane, name), died) in [(reno, "reno"), (cubic, "cubic"), (paced, "paced")].into_iter().zip(died) {
        lane.flow.stop();
        let samples = lane.flow.finish().unwrap().samples;
        let acked: Vec<_> = samples.iter().map(|s| (s.at_us, s.info.bytes_acked)).collect();
        // This must hold at the first try: no window makes up for a stall.
        assert_never_stalled(&acked, &[died], STALL);
        let figures = Figures { name, samples, report: Vec::new() };
        let killed_s = WARM_UP_S + WINDOW_S;
        let before = figures.acked(WARM_UP_S, killed_s);
        let after = figures.acked(killed_s, killed_s + WINDOW_S);
        eprintln!(
            "death: {name:>5}: {before} bytes before, {after} after, at most {} at once",
            figures.worst_burst()
        );
        if before <= 9_000_000 {
            wrong.push(format!("{name}: the link is not used: {before} bytes"));
        }
        if after * 100 < before * 95 {
            wrong.push(format!("{name}: {before} bytes before, {after} after"));
        }
    }
    ensure(wrong.is_empty(), || wrong.join("; "))
}
