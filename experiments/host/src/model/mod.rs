//! A model of a host with memory nodes, many cores and a network device, for sizes that are not at hand.
//!
//! Nothing here is measured. Costs of interrupts, frames, segments, copies and wake-ups load the cores that a placement names; flows
//! go as fast as the fullest core, the device, the cache and the receive window let them. The same cell and seed give the
//! same figures, bit for bit.

mod cost;
mod solve;

use ccplane_learn::Rng;

use crate::cpus::CpuSet;
use crate::sample::Sample;
use crate::space::{Cell, Knob, Role, Space, SpaceError};
use crate::subject::{Fault, Subject};
use crate::topology::{Cache, Interface, Node, Processor, Topology};
pub use cost::Costs;
use solve::{Load, Placement, solve};

/// The name of a model's interface.
pub const MODEL_INTERFACE: &str = "model0";
/// Memory nodes of a model, at most.
pub const MAX_NODES: u32 = 8;
/// Cores of a model, all nodes together.
pub const CORES: std::ops::RangeInclusive<u32> = 4..=128;
/// First processors of a placement that are tried on each node.
const POSITIONS: u32 = 3;
const USECS: [&str; 6] = ["4", "8", "16", "32", "64", "128"];
const FRAMES: [&str; 7] = ["1", "8", "16", "32", "64", "128", "256"];
const QUEUES: [u32; 3] = [1, 2, 4];
/// The levels of coalescing that a fresh driver has: 8 microseconds, 32 frames.
const DEFAULT_COALESCING: (usize, usize) = (1, 3);
/// The length of one modelled measurement, microseconds.
const DURATION_US: u64 = 1_000_000;
/// The stream of the noise.
const NOISE: u64 = 0x401e;
const KIB: u64 = 1024;

/// The size of a modelled host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelSize {
    pub nodes: u32,
    pub cores_per_node: u32,
}

/// A text that names no size of a model.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no size of a model: write NODESxCORES, such as 2x16, with 1 to {MAX_NODES} nodes and {} to {} cores in all",
    CORES.start(),
    CORES.end()
)]
pub struct BadModelSize {
    /// The text as it was given.
    pub text: String,
}

impl std::str::FromStr for ModelSize {
    type Err = BadModelSize;

    fn from_str(text: &str) -> Result<ModelSize, BadModelSize> {
        let bad = || BadModelSize { text: text.to_owned() };
        let (nodes, cores) = text.split_once('x').ok_or_else(bad)?;
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| bad());
        let size = ModelSize { nodes: number(nodes)?, cores_per_node: number(cores)? };
        let all = size.nodes.checked_mul(size.cores_per_node).ok_or_else(bad)?;
        let fits = (1..=MAX_NODES).contains(&size.nodes) && CORES.contains(&all);
        if fits { Ok(size) } else { Err(bad()) }
    }
}

/// A modelled host as something to measure and tune.
#[derive(Clone, Debug)]
pub struct ModelHost {
    size: ModelSize,
    costs: Costs,
    space: Space,
    flows: u32,
    seed: u64,
}

impl ModelHost {
    /// Makes a model whose noise follows from the seed.
    ///
    /// # Errors
    /// The size has too many placements for a space.
    pub fn new(size: ModelSize, costs: Costs, flows: u32, seed: u64) -> Result<ModelHost, SpaceError> {
        let positions = positions(size);
        let texts = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let placement = |name: &str, role: Role, default: usize| Knob {
            name: name.to_owned(),
            role,
            levels: texts(&positions),
            default,
        };
        let setting = |name: &str, path: &str, levels: Vec<String>, default: usize| Knob {
            name: name.to_owned(),
            role: Role::Settings(vec![format!("net/{MODEL_INTERFACE}/{path}")]),
            levels,
            default,
        };
        let elsewhere = positions.len() - 1;
        let space = Space::new(vec![
            // A scheduler that knows nothing of the device puts the application anywhere.
            placement("application", Role::Application, elsewhere),
            placement("interrupt", Role::Interrupt, 0),
            placement("flow", Role::Flow, 0),
            setting("queues", "channels/combined", texts(&QUEUES), 0),
            setting("rx-usecs", "coalesce/rx-usecs", words(&USECS), DEFAULT_COALESCING.0),
            setting("rx-frames", "coalesce/rx-frames", words(&FRAMES), DEFAULT_COALESCING.1),
        ])?;
        Ok(ModelHost { size, costs, space, flows: flows.max(1), seed })
    }

    /// Computes a cell without noise.
    pub fn exact(&self, cell: &Cell) -> Sample {
        self.sample(cell, [1.0; 3])
    }

    /// Returns the processors by memory node.
    pub fn nodes(&self) -> Vec<Vec<u32>> {
        let node = |n| (n * self.size.cores_per_node..(n + 1) * self.size.cores_per_node).collect();
        (0..self.size.nodes).map(node).collect()
    }

    /// Returns the model's topology, as that of a host.
    pub fn topology(&self) -> Topology {
        let nodes = self.nodes();
        let set = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>();
        let processor = |number: u32| {
            let node = &nodes[(number / self.size.cores_per_node) as usize];
            let last = Cache {
                level: 3,
                kind: "Unified".to_owned(),
                bytes: self.costs.last_cache_bytes,
                shared_by: set(node),
            };
            Processor {
                number,
                package: Some(number / self.size.cores_per_node),
                core: Some(number),
                siblings: set(&[number]),
                caches: vec![last],
                governor: None,
            }
        };
        let interface = Interface {
            name: MODEL_INTERFACE.to_owned(),
            driver: Some("model".to_owned()),
            node: Some(0),
            state: "modelled, not measured".to_owned(),
            mtu_bytes: Some(self.costs.mtu_bytes as u32),
            receive_queues: (0..QUEUES[QUEUES.len() - 1]).collect(),
            transmit_queues: Vec::new(),
            interrupts: Vec::new(),
        };
        Topology {
            nodes: (0..self.size.nodes)
                .zip(&nodes)
                .map(|(number, cpus)| Node {
                    number,
                    processors: set(cpus),
                    memory_bytes: 64 * KIB * KIB * KIB,
                })
                .collect(),
            processors: nodes.iter().flatten().map(|number| processor(*number)).collect(),
            interfaces: vec![interface],
            interrupts: Vec::new(),
        }
    }

    fn placement(&self, cell: &Cell) -> Placement {
        // Levels are numbers, since they were made of numbers.
        let numbers: Vec<u32> =
            self.space.values(cell).into_iter().map(|value| value.parse().unwrap_or(0)).collect();
        let [application, interrupt, flow, queues, usecs, frames] = numbers[..] else {
            unreachable!("a model has six knobs")
        };
        Placement {
            application,
            interrupt,
            flow,
            queues,
            usecs: f64::from(usecs),
            frames: f64::from(frames),
            flows: self.flows,
            cores: self.size.nodes * self.size.cores_per_node,
            cores_per_node: self.size.cores_per_node,
        }
    }

    /// `noise` are factors of the throughput, the processor time and the instructions.
    fn sample(&self, cell: &Cell, noise: [f64; 3]) -> Sample {
        let load: Load = solve(&self.costs, &self.placement(cell));
        let [throughput, time, work] = noise;
        // Counts are positive and far below the largest integer that is exact.
        let count = |value: f64| value.max(0.0) as u64;
        let seconds = DURATION_US as f64 / 1e6;
        let scaled = |per_s: f64| count(per_s * seconds * throughput);
        Sample {
            duration_us: DURATION_US,
            bytes: scaled(load.bytes_per_s),
            busy_us: count(load.busy * DURATION_US as f64 * throughput * time),
            softirq_us: count(load.softirq * DURATION_US as f64 * throughput * time),
            instructions: Some(count(load.instructions_per_s * seconds * throughput * work)),
            interrupts: scaled(load.interrupts_per_s),
            softirqs: scaled(load.softirqs_per_s),
            steered: scaled(load.steered_per_s),
            squeezed: scaled(load.squeezed_per_s),
            drops: scaled(load.drops_per_s),
            retransmits: scaled(load.drops_per_s),
            context_switches: scaled(load.wakes_per_s),
        }
    }
}

impl Subject for ModelHost {
    fn space(&self) -> &Space {
        &self.space
    }

    fn measure(&mut self, cell: &Cell, repeat: u32) -> Result<Sample, Fault> {
        let mut rng = Rng::new(self.seed, &[NOISE, self.space.number(cell), u64::from(repeat)]);
        let noise = std::array::from_fn(|_| 1.0 + self.costs.noise * rng.normal());
        Ok(self.sample(cell, noise))
    }

    fn settle(&mut self, _cell: &Cell) -> Result<(), Fault> {
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// First processors that placements are tried at, as far apart on each node as it allows.
fn positions(size: ModelSize) -> Vec<u32> {
    let count = POSITIONS.min(size.cores_per_node);
    let step = size.cores_per_node.div_ceil(count);
    let on_node = |node: u32| {
        (0..size.cores_per_node).step_by(step as usize).map(move |core| node * size.cores_per_node + core)
    };
    (0..size.nodes).flat_map(on_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(size: &str) -> ModelHost {
        ModelHost::new(size.parse().unwrap(), Costs::default(), 4, 7).unwrap()
    }

    fn gbps(host: &ModelHost, values: [&str; 6]) -> f64 {
        let space = host.space();
        let level = |(knob, value): (&Knob, &str)| knob.levels.iter().position(|l| l == value).unwrap();
        let cell = Cell(space.knobs().iter().zip(values).map(level).collect());
        host.exact(&cell).throughput_bps() / 1e9
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("2x16".parse(), Ok(ModelSize { nodes: 2, cores_per_node: 16 }));
        for bad in ["", "2", "x", "0x8", "9x4", "2x1", "2x100", "4294967295x2", "2x16x1"] {
            assert!(
                bad.parse::<ModelSize>().unwrap_err().to_string().contains("no size of a model"),
                "{bad}"
            );
        }
        assert_eq!(positions("2x4".parse().unwrap()), [0, 2, 4, 6]);
        assert_eq!(positions("2x16".parse().unwrap()), [0, 6, 12, 16, 22, 28]);
    }

    /// The same cell, repeat and seed give the same sample; another repeat another one, about the exact one.
    #[test]
    fn figures_follow_from_the_seed() {
        let mut host = host("2x4");
        let cell = host.space().default_cell();
        let first = host.measure(&cell, 0).unwrap();
        assert_eq!(host.measure(&cell, 0).unwrap(), first);
        assert_ne!(host.measure(&cell, 1).unwrap(), first);
        let exact = host.exact(&cell).throughput_bps();
        let ratios: Vec<f64> =
            (0..400).map(|n| host.measure(&cell, n).unwrap().throughput_bps() / exact).collect();
        let mean = ratios.iter().sum::<f64>() / 400.0;
        let deviation = (ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 399.0).sqrt();
        assert!((mean - 1.0).abs() < 4.0 * deviation / 20.0, "{mean}");
        assert!((deviation / Costs::default().noise - 1.0).abs() < 0.2, "{deviation}");
    }

    /// The application next to the device's node carries more than on the other one, and one queue less than four.
    #[test]
    fn near_receivers_and_more_queues_are_faster() {
        for size in ["2x12", "2x16", "2x32"] {
            let host = host(size);
            let levels = &host.space().knobs()[0].levels;
            let (near, far) = (levels[1].as_str(), levels[levels.len() - 1].as_str());
            let third = levels[2].as_str();
            let local = gbps(&host, [near, "0", third, "4", "32", "64"]);
            let remote = gbps(&host, [far, "0", third, "4", "32", "64"]);
            let one_queue = gbps(&host, [near, "0", third, "1", "32", "64"]);
            assert!(remote < 0.9 * local, "{size}: {remote} against {local} Gb/s");
            assert!(one_queue < 0.9 * local, "{size}: {one_queue} against {local} Gb/s");
        }
    }

    /// An interrupt for each frame costs, and so does waiting for too many.
    #[test]
    fn coalescing_has_an_optimum_inside() {
        let host = host("2x16");
        let at = |usecs, frames| gbps(&host, ["6", "0", "12", "4", usecs, frames]);
        let each = at("4", "1");
        let best = USECS.iter().flat_map(|u| FRAMES.iter().map(|f| at(u, f))).fold(0.0, f64::max);
        let longest = at("128", "256");
        assert!(each < 0.8 * best && longest < 0.97 * best, "{each}, {best}, {longest}");
    }

    /// Throughput by placement of one flow over 40 Gb/s with jumbo frames: 26 to 28 on the wrong node, 38.7 at best
    /// (Chauhan, NESCAT, 2016).
    #[test]
    fn placements_differ_as_published() {
        let host = ModelHost::new("2x6".parse().unwrap(), Costs::jumbo_40g(), 1, 1).unwrap();
        let space = host.space().clone();
        let all: Vec<(Cell, f64)> = (0..space.cells())
            .map(|n| space.cell(n))
            .map(|cell| (cell.clone(), host.exact(&cell).throughput_bps() / 1e9))
            .collect();
        let best = all.iter().map(|(_, gbps)| *gbps).fold(0.0, f64::max);
        assert!((best / 38.7 - 1.0).abs() < 0.025, "{best} Gb/s");
        // The best that the wrong node can do.
        let is_remote = |cell: &Cell| {
            let values = space.values(cell);
            let cpu = |n: usize| values[n].parse::<u32>().unwrap();
            cpu(0) >= 6 && cpu(1) < 6
        };
        let wrong = all.iter().filter(|(cell, _)| is_remote(cell)).map(|(_, gbps)| *gbps).fold(0.0, f64::max);
        assert!((26.0..=28.0).contains(&wrong), "{wrong} Gb/s");
    }

    #[test]
    fn counters_are_consistent() {
        let host = host("2x8");
        let space = host.space();
        for number in (0..space.cells()).step_by(97) {
            let sample = host.exact(&space.cell(number));
            assert!(sample.bytes > 0 && sample.softirq_us <= sample.busy_us, "{sample:?}");
            assert!(sample.busy_us <= 16 * DURATION_US, "{sample:?}");
            assert!(sample.throughput_bps() <= Costs::default().line_bps, "{sample:?}");
        }
        let topology = host.topology();
        assert_eq!((topology.processors.len(), topology.node_of(15)), (16, Some(1)));
    }
}
