//! Live runs on kernel flows: each algorithm on an emulated link of its own, all at once, under one agent.

use super::{BLACKOUT_US, LINK_BIT_PER_S, LiveError, Phase, QUEUE_PACKETS, RTT_US, SMALL_MSS_BYTES};
use crate::live::traffic::{LIMITED_BYTES_PER_S, Traffic};
use crate::violation::Bounds;
use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowStats, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rule, Rules, drive};
use ccplane_ebpf::{EbpfDatapath, Options, clean_all};
use ccplane_emulator::{Direction, Emulator, LinkConfig, Loss, Queue, Shape, netns};
use ccplane_testing::killed::Suite;
use ccplane_testing::lacks;
use std::fmt::Display;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DATAPATH: DatapathId = DatapathId(0);
const WHERE: &str = "the kernel";
/// The time that the agent waits for events at most.
const WAIT: Duration = Duration::from_millis(10);
/// The name of the check in the notice that it was skipped.
const CHECK: &str = "algorithms on kernel flows";
/// The receiver of the first algorithm's flow; the others count up.
const FIRST_PORT: u16 = 5001;
/// IPv4, TCP and the timestamp option.
const HEADER_BYTES: u32 = 52;
const START: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_millis(2500);
/// A machine that holds everything up for a while spoils one window; an algorithm that is slow spoils each.
const WINDOWS: u32 = 4;
/// Longer than the agent's thread waits for a processor.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that the sender's timer may have backed off to when the link is back.
const TIMER: Duration = Duration::from_millis(2500);
const RESIZED: Duration = Duration::from_millis(1500);
/// The time that a full send buffer takes when the application begins to limit the flow.
const DRAINED: Duration = Duration::from_millis(1000);
/// The least share of the limited application's offer that is carried, percent: it writes on a busy machine's time.
const LIMITED_FLOOR_PERCENT: u64 = 80;

/// The run directories of live runs.
static RUNS: Suite =
    Suite::new("ccplane-kit-run", |run_dir| clean_all(run_dir).map_err(|error| error.to_string()));

/// The results of one algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveResults {
    pub algorithm: &'static str,
    pub phases: Vec<Phase>,
    /// Reports that the agent saw.
    pub reports: u64,
}

struct Subject {
    algorithm: &'static str,
    bounds: Bounds,
    link: Emulator,
    traffic: Traffic,
    phases: Vec<Phase>,
}

struct Lab {
    core: Core,
    datapath: EbpfDatapath,
    started: Instant,
    subjects: Vec<Subject>,
}

/// Runs all of them, half a minute in all, with a datapath registered as `name`. `None`, said loudly, where this
/// machine cannot.
///
/// # Errors
/// The first algorithm that did less than was due, after all have run.
pub fn kernel(
    name: &str,
    algorithms: &[(Arc<dyn Algorithm>, Bounds)],
) -> Result<Option<Vec<LiveResults>>, LiveError> {
    in_lab(name, algorithms, |lab| {
        lab.run()?;
        let ran = lab.subjects.iter().map(|s| LiveResults {
            algorithm: s.algorithm,
            phases: s.phases.clone(),
            reports: lab.reports(s.traffic.port()),
        });
        Ok(ran.collect())
    })
}

/// Bytes that a live flow carried before, during and after a change of its algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switched {
    /// Percent of the link's rate, window by window.
    pub used_percent: Vec<u64>,
    /// Changes of the arm in these windows.
    pub switches: u64,
}

/// Runs a flow of an algorithm that chooses among others, and looks window by window at what it carries after its start. `None`, said
/// loudly, where this machine cannot.
///
/// # Errors
/// The flow is not steered throughout, or nothing could be set up.
pub fn switching(
    name: &str,
    algorithm: &Arc<dyn Algorithm>,
    window: Duration,
    windows: u32,
) -> Result<Option<Switched>, LiveError> {
    const PHASE: &str = "switching";
    let algorithms = [(Arc::clone(algorithm), Bounds::default())];
    in_lab(name, &algorithms, |lab| {
        lab.pass(START)?;
        let before = lab.switches();
        let mut used_percent = Vec::new();
        for _ in 0..windows {
            let (carried, from) = (lab.stats(PHASE)?, Instant::now());
            lab.pass(window)?;
            let now = lab.stats(PHASE)?;
            let us = from.elapsed().as_micros() as u64;
            let bytes = |stats: &[FlowStats]| stats.iter().map(|f| f.transport.bytes_acked).sum::<u64>();
            let arrived = bytes(&now) - bytes(&carried);
            used_percent.push(arrived * 100 * 8 * 1_000_000 / (LINK_BIT_PER_S * us).max(1));
        }
        Ok(Switched { used_percent, switches: lab.switches() - before })
    })
}

/// Does something with all of them running, where this machine can.
fn in_lab<T>(
    name: &str,
    algorithms: &[(Arc<dyn Algorithm>, Bounds)],
    doing: impl FnOnce(&mut Lab) -> Result<T, LiveError>,
) -> Result<Option<T>, LiveError> {
    if lacks(CHECK, ccplane_ebpf::missing()) || lacks(CHECK, netns::missing()) {
        return Ok(None);
    }
    let run_dir = tempfile::tempdir().map_err(|e| set_up(name_of(algorithms), &e))?;
    let _marked = RUNS.mark(run_dir.path()).map_err(|e| set_up(name_of(algorithms), &e))?;
    let options = Options {
        run_dir: run_dir.path().into(),
        name: name.into(),
        heartbeat_timeout: HEARTBEAT_TIMEOUT,
        ..Options::default()
    };
    let mut lab = Lab::new(&options, algorithms)?;
    let outcome = doing(&mut lab);
    // The flows end before their datapath goes.
    lab.subjects.clear();
    let detached = lab.datapath.detach();
    let outcome = outcome?;
    detached.map_err(|e| set_up(name_of(algorithms), &e))?;
    Ok(Some(outcome))
}

fn name_of(algorithms: &[(Arc<dyn Algorithm>, Bounds)]) -> &'static str {
    algorithms.first().map_or("none", |(algorithm, _)| algorithm.name())
}

fn set_up(algorithm: &'static str, reason: &dyn Display) -> LiveError {
    LiveError::SetUp { algorithm, reason: reason.to_string() }
}

impl Lab {
    fn new(options: &Options, algorithms: &[(Arc<dyn Algorithm>, Bounds)]) -> Result<Lab, LiveError> {
        let first = name_of(algorithms);
        let said = |e: &dyn Display| set_up(first, e);
        let rule = |(port, (algorithm, _)): (u16, &(Arc<dyn Algorithm>, Bounds))| Rule {
            remote_port: Some(port..=port),
            ..Rule::any(algorithm.name())
        };
        let rules = Rules {
            rules: (FIRST_PORT..).zip(algorithms).map(rule).collect(),
            default: ccplane_core::NATIVE.to_owned(),
        };
        let catalog =
            Catalog::new(algorithms.iter().map(|(a, _)| Arc::clone(a)).collect(), 1).map_err(|e| said(&e))?;
        let mut core = Core::new(catalog, rules, Config::default()).map_err(|e| said(&e))?;
        let mut datapath = EbpfDatapath::attach(options.clone()).map_err(|e| said(&e))?;
        core.attach(DATAPATH, datapath.capabilities(), 0).map_err(|e| said(&e))?;
        drive(&mut core, DATAPATH, &mut datapath, 0);
        let mut config = LinkConfig::symmetric(Shape::Rate { bit_per_s: LINK_BIT_PER_S }, RTT_US / 2);
        config.up.queue = Queue::packets(QUEUE_PACKETS);
        let mut subjects = Vec::new();
        for (port, (algorithm, bounds)) in (FIRST_PORT..).zip(algorithms) {
            let algorithm = algorithm.name();
            let link = Emulator::start(&config).map_err(|e| set_up(algorithm, &e))?;
            let traffic = Traffic::start(&options.name, &link, port).map_err(|e| set_up(algorithm, &e))?;
            subjects.push(Subject { algorithm, bounds: bounds.clone(), link, traffic, phases: Vec::new() });
        }
        Ok(Lab { core, datapath, started: Instant::now(), subjects })
    }

    fn run(&mut self) -> Result<(), LiveError> {
        let blackout = Duration::from_micros(BLACKOUT_US);
        let settle = self.subjects.iter().map(|s| s.bounds.settle_us).max().unwrap_or(0);
        let settle = Duration::from_micros(settle);

        self.pass(START)?;
        self.phase("start", |s| (s.link_rate(), s.bounds.floor_percent))?;

        self.lose(1.0)?;
        self.pass(blackout)?;
        self.lose(0.0)?;
        self.pass(TIMER + settle)?;
        self.phase("after the blackout", |s| (s.link_rate(), s.bounds.floor_percent))?;

        self.resize()?;
        self.pass(RESIZED)?;
        self.phase("after a change of the segment size", |s| {
            (s.link_rate(), s.bounds.floor_percent * 9 / 10)
        })?;
        let sizes: Vec<_> = self.stats("segment size")?.iter().map(|f| f.transport.mss_bytes).collect();
        for (subject, mss_bytes) in self.subjects.iter().zip(sizes) {
            if mss_bytes > SMALL_MSS_BYTES {
                return Err(subject.broken("segment size", format!("segments of {mss_bytes} bytes")));
            }
        }

        self.subjects.iter().for_each(|s| s.traffic.limit(true));
        self.pass(DRAINED)?;
        self.phase("application-limited", |s| (s.reachable(LIMITED_BYTES_PER_S), LIMITED_FLOOR_PERCENT))?;
        self.subjects.iter().for_each(|s| s.traffic.limit(false));
        self.pass(RESIZED)?;
        self.phase("after the application's limit", |s| (s.link_rate(), s.bounds.floor_percent))?;
        self.judge()
    }

    /// Time passes under a live agent.
    fn pass(&mut self, time: Duration) -> Result<(), LiveError> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let now_us = self.started.elapsed().as_micros() as u64;
            drive(&mut self.core, DATAPATH, &mut self.datapath, now_us);
            self.datapath.wait(WAIT).map_err(|e| set_up("agent", &e))?;
        }
        Ok(())
    }

    /// Measures each flow's share of its reachable throughput. If one window is not enough, the best of several counts.
    fn phase(&mut self, name: &'static str, due: impl Fn(&Subject) -> (u64, u64)) -> Result<(), LiveError> {
        let mut most: Vec<Phase> = Vec::new();
        for window in 1..=WINDOWS {
            let (before, from) = (self.stats(name)?, Instant::now());
            self.pass(MEASURED)?;
            let after = self.stats(name)?;
            let us = from.elapsed().as_micros() as u64;
            let transports: Vec<_> = after.iter().map(|flow| flow.transport).collect();
            let measured = self.subjects.iter().zip(before).zip(after).map(|((subject, before), after)| {
                let (reachable, floor_percent) = due(subject);
                let bytes = after.transport.bytes_acked - before.transport.bytes_acked;
                let used_percent = bytes * 100 * 1_000_000 / (reachable * us).max(1);
                Phase { name, used_percent, floor_percent }
            });
            let measured: Vec<Phase> = measured.collect();
            let better = |(n, phase): (usize, &Phase)| match most.get(n) {
                Some(before) if before.used_percent > phase.used_percent => *before,
                _ => *phase,
            };
            most = measured.iter().enumerate().map(better).collect();
            if most.iter().all(|phase| phase.used_percent >= phase.floor_percent) {
                ccplane_testing::tried(name, window, WINDOWS);
                break;
            }
            for ((subject, phase), transport) in self.subjects.iter().zip(&most).zip(transports) {
                let Phase { used_percent, floor_percent, .. } = phase;
                if used_percent < floor_percent {
                    let of = subject.algorithm;
                    let measured = format!("{of}: {used_percent} of {floor_percent} %; {transport:?}");
                    ccplane_testing::missed(name, window, WINDOWS, measured);
                }
            }
        }
        for (subject, phase) in self.subjects.iter_mut().zip(most) {
            subject.phases.push(phase);
        }
        Ok(())
    }

    /// The flows, in the algorithms' order; each is steered, without faults.
    fn stats(&mut self, phase: &'static str) -> Result<Vec<FlowStats>, LiveError> {
        let flows = self.datapath.flows();
        let of = |subject: &Subject| {
            let port = subject.traffic.port();
            let stats = flows.iter().find(|f| f.info.remote.port() == port).cloned();
            let stats = stats.ok_or_else(|| subject.broken(phase, "the flow is gone".into()))?;
            if (stats.mode, stats.transport.faults) != (Mode::Program, 0) {
                return Err(
                    subject.broken(phase, format!("{:?}, {} faults", stats.mode, stats.transport.faults))
                );
            }
            match self.core.flow(DATAPATH, stats.flow).and_then(|v| v.last_error()) {
                Some(error) => Err(subject.broken(phase, error.to_string())),
                None => Ok(stats),
            }
        };
        self.subjects.iter().map(of).collect()
    }

    fn reports(&self, port: u16) -> u64 {
        let flow = self.core.flows().find(|f| f.info().remote.port() == port);
        flow.map_or(0, |f| f.counters().reports)
    }

    fn switches(&self) -> u64 {
        self.core.flows().map(|flow| flow.counters().switches).sum()
    }

    fn lose(&self, probability: f64) -> Result<(), LiveError> {
        self.subjects.iter().try_for_each(|s| {
            let loss = Loss { probability, ..Loss::default() };
            s.link.set_loss(Direction::Up, loss).map_err(|e| set_up(s.algorithm, &e))
        })
    }

    /// The senders' devices carry less from now on.
    fn resize(&self) -> Result<(), LiveError> {
        let mtu = (SMALL_MSS_BYTES + HEADER_BYTES).to_string();
        self.subjects.iter().try_for_each(|s| {
            let mut ip = Command::new("ip");
            ip.args(["link", "set", "ccp0", "mtu", &mtu]);
            let status = s.link.sender_ns().enter(&mut ip).map_err(|e| set_up(s.algorithm, &e))?.status();
            match status {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(set_up(s.algorithm, &format_args!("ip link: {status}"))),
                Err(error) => Err(set_up(s.algorithm, &format_args!("ip: {error}"))),
            }
        })
    }

    fn judge(&self) -> Result<(), LiveError> {
        let phases = self.subjects.iter().flat_map(|s| s.phases.iter().map(move |p| (s.algorithm, *p)));
        match phases.into_iter().find(|(_, p)| p.used_percent < p.floor_percent) {
            Some((algorithm, phase)) => Err(LiveError::Slow { algorithm, datapath: WHERE, phase }),
            None => Ok(()),
        }
    }
}

impl Subject {
    fn link_rate(&self) -> u64 {
        self.reachable(LINK_BIT_PER_S / 8)
    }

    fn reachable(&self, bytes_per_s: u64) -> u64 {
        self.bounds.reachable(bytes_per_s)
    }

    fn broken(&self, phase: &'static str, what: String) -> LiveError {
        LiveError::Broken { algorithm: self.algorithm, datapath: WHERE, phase, what }
    }
}
