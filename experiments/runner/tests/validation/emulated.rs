//! Scenarios in the kernel: flows over emulated links, steered by the agent's core through the eBPF datapath.

use crate::harness::{Capacity, Error, Outcome, Point, SAMPLE_EVERY_US, Scenario, check, core};
use ccplane_contract::Datapath;
use ccplane_core::{DatapathId, NATIVE, Rule, Rules, drive};
use ccplane_ebpf::{EbpfDatapath, Options, clock_us};
use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_runner::traffic::{BulkFlow, FlowConfig, TcpSample};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const KERNEL: DatapathId = DatapathId(0);
/// The receiver's port of the first scenario, by which the rules tell flows apart.
const FIRST_PORT: u16 = 5201;
const WAIT: Duration = Duration::from_millis(20);
const HEARTBEAT_US: u64 = 100_000;
/// The flow goes on for a little, so that its last sample is past the end.
const MARGIN: Duration = Duration::from_millis(100);

/// Runs all scenarios at the same time, each on a link of its own; their outcomes in the same order. `tag` makes
/// the datapath's name its own.
///
/// # Errors
/// [`Error::Missing`] where the machine can't; else what went wrong. Nothing is left behind.
pub(crate) fn emulate(scenarios: &[Scenario], tag: &str) -> Result<Vec<Outcome>, Error> {
    scenarios.iter().try_for_each(check)?;
    let no_links = || ccplane_runner::missing_for_links().first().map(ToString::to_string);
    if let Some(missing) = ccplane_ebpf::missing().or_else(no_links) {
        return Err(Error::Missing(missing));
    }
    let owner_only = std::fs::Permissions::from_mode(0o700);
    let run_dir = tempfile::Builder::new()
        .permissions(owner_only)
        .tempdir()
        .map_err(|source| Error::Os { what: "make a temporary directory", source })?;
    let name = format!("ccv{tag}{}", std::process::id() % 100_000);
    let options = Options { run_dir: run_dir.path().into(), name: name.clone(), ..Options::default() };
    let links =
        scenarios.iter().map(|s| Ok(Emulator::start(&link(s))?)).collect::<Result<Vec<_>, Error>>()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let agent = Agent::attach(scenarios, options)?;
        let steering = scope.spawn({
            let stop = &stop;
            move || agent.run(stop)
        });
        let outcomes = run_flows(scenarios, &links, &name);
        stop.store(true, Relaxed);
        let steered = steering.join().map_err(|_| Error::Core("the agent's thread panicked".into()))?;
        steered.and(outcomes)
    })
}

fn link(scenario: &Scenario) -> LinkConfig {
    let shape = match &scenario.capacity {
        Capacity::Rate(bit_per_s) => Shape::Rate { bit_per_s: *bit_per_s },
        Capacity::Trace(trace) => {
            Shape::Trace { trace: trace.clone(), repeat: true, source: scenario.name.clone() }
        }
    };
    let mut link = LinkConfig::symmetric(Shape::Unlimited, scenario.one_way_delay_us);
    link.up.shape = shape;
    link.up.queue = Queue::packets(scenario.queue_packets);
    link
}

/// The core and its datapath, attached while it lives.
struct Agent {
    core: ccplane_core::Core,
    datapath: EbpfDatapath,
}

impl Agent {
    fn attach(scenarios: &[Scenario], options: Options) -> Result<Agent, Error> {
        let rule = |(scenario, port): (&Scenario, u16)| Rule {
            remote_port: Some(port..=port),
            ..Rule::any(&scenario.algorithm)
        };
        let rules = scenarios.iter().zip(FIRST_PORT..).map(rule).collect();
        let mut core = core(Rules { rules, default: NATIVE.to_owned() }, HEARTBEAT_US)?;
        let mut datapath = EbpfDatapath::attach(options)?;
        core.attach(KERNEL, datapath.capabilities(), clock_us()).map_err(|e| Error::Core(e.to_string()))?;
        if drive(&mut core, KERNEL, &mut datapath, clock_us()).refused > 0 {
            datapath.detach()?;
            return Err(Error::Core("the kernel refused a program".into()));
        }
        Ok(Agent { core, datapath })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<(), Error> {
        while !stop.load(Relaxed) {
            drive(&mut self.core, KERNEL, &mut self.datapath, clock_us());
            self.datapath.wait(WAIT).map_err(|source| Error::Os { what: "wait for events", source })?;
        }
        self.datapath.detach()?;
        Ok(())
    }
}

fn run_flows(scenarios: &[Scenario], links: &[Emulator], congestion: &str) -> Result<Vec<Outcome>, Error> {
    thread::scope(|scope| {
        let flows: Vec<_> = scenarios
            .iter()
            .zip(links)
            .zip(FIRST_PORT..)
            .map(|((scenario, link), port)| scope.spawn(move || run_flow(scenario, link, congestion, port)))
            .collect();
        let joined = |flow: thread::ScopedJoinHandle<'_, Result<Outcome, Error>>| {
            flow.join().unwrap_or_else(|_| Err(Error::Core("a flow's thread panicked".into())))
        };
        flows.into_iter().map(joined).collect()
    })
}

fn run_flow(scenario: &Scenario, link: &Emulator, congestion: &str, port: u16) -> Result<Outcome, Error> {
    let config = FlowConfig {
        congestion: congestion.to_owned(),
        receiver: SocketAddr::new(link.receiver_addresses().v4.into(), port),
        duration: Duration::from_micros(scenario.until_us) + MARGIN,
        bytes: None,
        sample_every: Duration::from_micros(SAMPLE_EVERY_US),
    };
    let epoch = Instant::now();
    let flow = BulkFlow::start(&config, link.sender_ns(), link.receiver_ns(), epoch)?;
    let outcome = flow.finish()?;
    let start_us = outcome.samples.first().map_or(0, |s| s.at_us);
    let packet_bytes = outcome.samples.last().map_or(1, |s| u64::from(s.info.snd_mss_bytes)).max(1);
    let point = |sample: &TcpSample| Point {
        at_us: sample.at_us - start_us,
        srtt_us: sample.info.rtt_us.into(),
        cwnd_packets: sample.info.snd_cwnd.into(),
        delivered: sample.info.delivered.into(),
        lost: sample.info.total_retrans.into(),
    };
    Ok(Outcome { points: outcome.samples.iter().map(point).collect(), packet_bytes })
}
