//! Every algorithm that ships, on live flows of the module: each starts, outlives a dead link, and goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_contract::{Datapath, FlowStats, Mode};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_module::ModuleDatapath;

use super::lab::{Bulk, Lab, PATIENCE};

const DATAPATH: DatapathId = DatapathId(0);
/// Bytes that a flow is to move before and after the link is dead.
const MOVED_BYTES: u64 = 500_000;
/// Reports that the algorithm is to see in each half.
const REPORTS: u64 = 2;
const DEAD: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_millis(10);

/// An algorithm under an agent's core, and its flow.
struct Run {
    algorithm: &'static str,
    core: Core,
    datapath: ModuleDatapath,
    bulk: Bulk,
    started: Instant,
}

impl Run {
    fn start(lab: &Lab, algorithm: Arc<dyn Algorithm>) -> Run {
        let name = algorithm.name();
        let catalog = Catalog::new(vec![algorithm], 1).unwrap();
        let mut core = Core::new(catalog, Rules::all(name), Config::default()).unwrap();
        let datapath = lab.attach();
        core.attach(DATAPATH, datapath.capabilities(), 0).unwrap();
        Run { algorithm: name, core, datapath, bulk: lab.flow(), started: Instant::now() }
    }

    fn turn(&mut self) {
        let now_us = self.started.elapsed().as_micros() as u64;
        drive(&mut self.core, DATAPATH, &mut self.datapath, now_us);
        self.datapath.wait_also(WAIT, None).unwrap();
    }

    fn pass(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn();
        }
    }

    /// The flow as the module and the core see it: its statistics, and the reports that its algorithm saw.
    fn observe(&mut self) -> Option<(FlowStats, u64)> {
        let local = self.bulk.local();
        let stats = self.datapath.flows().into_iter().find(|f| f.info.local == local)?;
        let view = self.core.flow(DATAPATH, stats.flow)?;
        let refused = view.last_error().map(ToString::to_string);
        assert_eq!(refused, None, "{}: a command was refused", self.algorithm);
        assert_eq!(stats.transport.faults, 0, "{}: faults of its program", self.algorithm);
        Some((stats, view.counters().reports))
    }

    /// Waits until the flow, under its program, has moved bytes and reported beyond these; returns what it has then.
    fn moves(&mut self, beyond: (u64, u64)) -> (u64, u64) {
        let (start, mut last) = (Instant::now(), None);
        while start.elapsed() < PATIENCE {
            self.turn();
            let Some((stats, reports)) = self.observe() else { continue };
            let has = (stats.transport.bytes_acked, reports);
            let moved = has.0 >= beyond.0 + MOVED_BYTES && has.1 >= beyond.1 + REPORTS;
            if moved && stats.mode == Mode::Program {
                return has;
            }
            last = Some((stats, reports));
        }
        panic!("{}: beyond {beyond:?}, within {PATIENCE:?}: {last:?}", self.algorithm);
    }
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn every_algorithm_steers_live_flows() {
    let lab = Lab::new();
    for algorithm in ccplane_algs::all() {
        let mut run = Run::start(&lab, algorithm);
        let first = run.moves((0, 0));
        lab.carries(false);
        run.pass(DEAD);
        lab.carries(true);
        let second = run.moves(first);
        println!("{}: {} bytes, {} reports, {:?}", run.algorithm, second.0, second.1, run.started.elapsed());
        run.datapath.detach();
    }
}
