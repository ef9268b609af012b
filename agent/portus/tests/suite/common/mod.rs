//! Simulated flows steered by algorithms of portus in this process, in step with virtual time.

use ccplane_alg::Algorithm;
use ccplane_bridge::{Links, Options};
use ccplane_contract::{Datapath, FlowId};
use ccplane_core::{Catalog, Config, Core, DatapathId, FlowView, Rule, Rules, drive};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub const DP: DatapathId = DatapathId(1);
pub const MS: u64 = 1000;
pub const S: u64 = 1_000_000;
/// Time between two turns of the agent without an event, microseconds.
const TICK_US: u64 = 10 * MS;
/// Wall time that an algorithm may take for what it was sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// Virtual time after which an algorithm that takes nothing is silent, microseconds.
pub const SILENCE_US: u64 = S;

/// A core beside a simulated datapath, with the agent's ways to hosted algorithms.
pub struct World {
    pub sim: SimDatapath,
    pub core: Core,
    pub links: Links,
    /// Tells that an algorithm hangs, after which it is not waited for.
    pub hanging: Option<Receiver<()>>,
    pub hangs: bool,
    /// Their threads end with them.
    _algorithms: Vec<Arc<dyn Algorithm>>,
}

impl World {
    /// Makes a world with all of our algorithms and `more`, and a rule for each local port. Its flows share a link of `mbit` Mb/s with 20 ms
    /// of RTT and a queue of `queue_packets`.
    pub fn new(mbit: u64, queue_packets: u32, more: Vec<Arc<dyn Algorithm>>, rules: &[(u16, &str)]) -> World {
        let capacity = Capacity::Rate { bit_per_s: mbit * 1_000_000 };
        let link = LinkConfig::new(capacity, 10_000_000, QueueLimit::Packets(queue_packets));
        let mut config = SimConfig::new(vec![link], 1);
        config.sample_every_us = 100 * MS;
        let sim = SimDatapath::new(config).unwrap();
        let mut algorithms = ccplane_algs::all();
        algorithms.extend(more);
        let catalog = Catalog::new(algorithms.clone(), 100).unwrap();
        let rule = |(port, algorithm): &(u16, &str)| Rule {
            local_port: Some(*port..=*port),
            ..Rule::any(algorithm)
        };
        let rules = Rules { rules: rules.iter().map(rule).collect(), default: "native".to_owned() };
        let mut core = Core::new(catalog, rules, Config::default()).unwrap();
        core.attach(DP, sim.capabilities(), 0).unwrap();
        let nobody = PathBuf::from("/nonexistent");
        let options = Options {
            socket: nobody.clone(),
            takes_kernel_flows: false,
            own: nobody,
            silence_us: SILENCE_US,
            max_flows: 16,
        };
        let links = Links::new(options, &algorithms, || ()).unwrap();
        World { sim, core, links, hanging: None, hangs: false, _algorithms: algorithms }
    }

    /// Starts a flow that always has more to send.
    pub fn open(&mut self, port: u16) -> FlowId {
        let mut config = FlowConfig::new(Source::Bulk, 10 * MS);
        config.local.set_port(port);
        config.start_us = self.sim.now_us();
        self.sim.add_flow(&config).unwrap()
    }

    /// Goes on for this long, microseconds.
    pub fn run(&mut self, for_us: u64) {
        let until_us = self.sim.now_us() + for_us;
        while self.sim.now_us() < until_us {
            let tick_us = (self.sim.now_us() / TICK_US + 1) * TICK_US;
            self.sim.step_to_event(tick_us.min(until_us));
            self.turn();
        }
    }

    /// Goes on until `done`, for 10 s of virtual time at most.
    pub fn run_until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let until_us = self.sim.now_us() + 10 * S;
        while !done(self) {
            assert!(self.sim.now_us() < until_us, "{what}: not within 10 s");
            self.run(TICK_US);
        }
    }

    /// One turn of the agent, in which algorithms answer all that they are sent.
    fn turn(&mut self) {
        let now_us = self.sim.now_us();
        loop {
            let driven = drive(&mut self.core, DP, &mut self.sim, now_us);
            let mut asked = self.links.exchange(&mut self.core, now_us);
            if self.hangs {
                return;
            }
            let start = Instant::now();
            while self.links.unhandled() > 0 {
                self.hangs = self.hanging.as_ref().is_some_and(|hanging| hanging.try_recv().is_ok());
                if self.hangs {
                    return;
                }
                assert!(start.elapsed() < PATIENCE, "an algorithm takes too long");
                std::thread::yield_now();
            }
            asked |= self.links.exchange(&mut self.core, now_us);
            if !asked && driven.events == 0 && driven.actions == 0 && self.links.unhandled() == 0 {
                return;
            }
        }
    }

    pub fn flow(&self, flow: FlowId) -> FlowView<'_> {
        self.core.flow(DP, flow).unwrap()
    }

    /// Returns the reason for which a flow is native, if it is.
    pub fn native(&self, flow: FlowId) -> Option<String> {
        self.core.flow(DP, flow)?.native().map(ToString::to_string)
    }

    pub fn is_steered(&self, flow: FlowId) -> bool {
        self.core.flow(DP, flow).is_some_and(|flow| flow.native().is_none())
    }

    /// Bytes of a flow that were acknowledged in this time, as a share of what a link of `mbit` carries.
    pub fn share(&mut self, flow: FlowId, mbit: u64, for_us: u64) -> f64 {
        let acked = |sim: &SimDatapath| sim.stats(flow).unwrap().transport.bytes_acked;
        let before = acked(&self.sim);
        self.run(for_us);
        (acked(&self.sim) - before) as f64 * 8.0 / (mbit * for_us) as f64
    }
}
