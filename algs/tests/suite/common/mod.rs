//! One bottleneck with an agent beside it: core, programs and simulated network together.

use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowId, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rule, Rules, drive};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use std::sync::Arc;

const DP: DatapathId = DatapathId(0);
pub const S: u64 = 1_000_000;
/// The interval at which the queue is sampled, microseconds.
const TICK_US: u64 = 1_000;
/// Bytes on the wire of a full segment.
pub const WIRE_BYTES: u64 = 1500;
pub const MSS: u64 = 1448;

/// A link; the way back takes as long as the way there.
#[derive(Clone, Copy)]
pub struct Link {
    pub mbit: u64,
    pub rtt_ms: u64,
    pub queue_packets: u32,
}

impl Link {
    /// The bottleneck at a constant rate.
    pub fn config(self) -> LinkConfig {
        let capacity = Capacity::Rate { bit_per_s: self.mbit * 1_000_000 };
        LinkConfig::new(capacity, self.rtt_ms * 500_000, QueueLimit::Packets(self.queue_packets))
    }
}

/// An algorithm's bulk flow and the time of its start.
pub struct Start {
    pub algorithm: &'static str,
    pub at_us: u64,
}

pub fn starts(algorithm: &'static str, flows: u64, apart_us: u64) -> Vec<Start> {
    (0..flows).map(|n| Start { algorithm, at_us: n * apart_us }).collect()
}

/// Flows of one algorithm that start a second apart on a link; what is seen of them from `from_us` to the end of a minute.
pub fn own_kind(algorithm: &'static str, (flows, mbit, rtt_ms): (u64, u64, u64), from_us: u64) -> Seen {
    let link = Link { mbit, rtt_ms, queue_packets: 400 };
    let mut lab = Lab::new(link, &starts(algorithm, flows, S));
    lab.run_until(from_us);
    let seen = lab.run_until(60 * S);
    eprintln!("{flows} of {algorithm}, {mbit} Mb/s: {seen:?}, Jain {:.4}", seen.jain());
    seen
}

pub struct Lab {
    pub sim: SimDatapath,
    pub core: Core,
    pub flows: Vec<FlowId>,
    link: Link,
}

/// Measurements over some time.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Of the link, by each flow, percent.
    pub shares: Vec<f64>,
    /// Mean of the packets that the link held.
    pub queued: f64,
    /// Packets lost, all flows.
    pub lost: u64,
}

impl Seen {
    pub fn used(&self) -> f64 {
        self.shares.iter().sum()
    }

    pub fn jain(&self) -> f64 {
        let squares: f64 = self.shares.iter().map(|x| x * x).sum();
        self.used().powi(2) / (self.shares.len() as f64 * squares)
    }
}

impl Lab {
    /// These algorithms in place of the built-in ones of their names.
    pub fn with(link: Link, starts: &[Start], configured: &[Arc<dyn Algorithm>]) -> Lab {
        Lab::over(link, vec![link.config()], |_| {}, starts, configured)
    }

    /// The same over these links, the first of which is the bottleneck that `link` tells of, with flows changed by `shape`.
    pub fn over(
        link: Link,
        links: Vec<LinkConfig>,
        shape: impl Fn(&mut FlowConfig),
        starts: &[Start],
        configured: &[Arc<dyn Algorithm>],
    ) -> Lab {
        let mut algorithms = ccplane_algs::all();
        algorithms.retain(|a| configured.iter().all(|c| c.name() != a.name()));
        algorithms.extend(configured.iter().cloned());
        let one_way_us = link.rtt_ms * 1000 / 2;
        let mut sim = SimDatapath::new(SimConfig::new(links, 1)).unwrap();
        let (mut flows, mut rules) = (vec![], vec![]);
        for (port, start) in (40_000u16..).zip(starts) {
            let mut flow = FlowConfig::new(Source::Bulk, one_way_us);
            flow.start_us = start.at_us;
            flow.local.set_port(port);
            shape(&mut flow);
            flows.push(sim.add_flow(&flow).unwrap());
            rules.push(Rule { local_port: Some(port..=port), ..Rule::any(start.algorithm) });
        }
        let rules = Rules { rules, default: "native".to_owned() };
        let mut core = Core::new(Catalog::new(algorithms, 1).unwrap(), rules, Config::default()).unwrap();
        core.attach(DP, sim.capabilities(), 0).unwrap();
        Lab { sim, core, flows, link }
    }

    pub fn new(link: Link, starts: &[Start]) -> Lab {
        Lab::with(link, starts, &[])
    }

    /// Runs until then; what was seen on the way.
    pub fn run_until(&mut self, until_us: u64) -> Seen {
        let (from_us, before) = (self.sim.now_us(), self.counts());
        let (mut queued, mut samples, mut next_sample_us) = (0, 0, from_us);
        while self.sim.now_us() < until_us {
            self.sim.step_to_event(until_us.min(next_sample_us + TICK_US));
            let now_us = self.sim.now_us();
            if now_us >= next_sample_us + TICK_US {
                queued += self.sim.network().held_packets(0).unwrap();
                samples += 1;
                next_sample_us = now_us;
            }
            drive(&mut self.core, DP, &mut self.sim, now_us);
        }
        for flow in &self.flows {
            let Some(view) = self.core.flow(DP, *flow) else { continue };
            assert_eq!((view.native(), view.last_error()), (None, None));
            let stats = self.sim.stats(*flow).unwrap();
            assert_eq!((stats.mode, stats.transport.faults), (Mode::Program, 0), "{flow:?}");
        }
        let after = self.counts();
        let possible = (self.link.mbit * 1_000_000 / 8 * (until_us - from_us)) as f64 / 1e6;
        let share = |(after, before): (&(u64, u64), &(u64, u64))| {
            100.0 * ((after.0 - before.0) / MSS * WIRE_BYTES) as f64 / possible
        };
        Seen {
            shares: after.iter().zip(&before).map(share).collect(),
            queued: queued as f64 / f64::from(samples.max(1)),
            lost: after.iter().zip(&before).map(|(a, b)| a.1 - b.1).sum(),
        }
    }

    /// Bytes acknowledged and packets lost of each flow.
    fn counts(&self) -> Vec<(u64, u64)> {
        let count = |flow: &FlowId| {
            self.sim.stats(*flow).map_or((0, 0), |s| (s.transport.bytes_acked, s.transport.lost))
        };
        self.flows.iter().map(count).collect()
    }

    /// The last reported value.
    pub fn reported(&self, n: usize, name: &str) -> i64 {
        let flow = self.core.flow(DP, self.flows[n]).unwrap();
        flow.report().find(|(reported, _)| *reported == name).unwrap().1
    }
}
