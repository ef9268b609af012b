//! Algorithms of the simulated agents: one changes programs, one learns, and one misbehaves.

use crate::common::learned::{LEARNED, snapshot};
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, PolicySource, ProgramSource, Report, Row};
use ccplane_snapshot::TrustedSnapshot;
use std::sync::{Arc, LazyLock};

/// Policy slot of the algorithm that learns.
pub const SLOT: u8 = 3;
/// The message with which a misbehaving algorithm panics.
pub const PANIC: &str = "told to";
/// Their names, in order of registration.
pub const NAMES: [&str; 3] = ["plain", "learned", "rude"];

const PLAIN: &str = "
(def (Report (acked 0) (volatile seen false)) (mss 1448) (armed false))
(when true (:= Report.acked Ack.bytes_acked) (report))";

/// Snapshots by number; the first is the one that is shipped.
pub static SNAPSHOTS: LazyLock<Vec<TrustedSnapshot>> =
    LazyLock::new(|| [0, 9, -9, 20, -20, 60, -60, 127].map(snapshot).to_vec());
static SHIPPED: LazyLock<Vec<u8>> = LazyLock::new(|| SNAPSHOTS[0].to_bytes());

/// Returns every algorithm of the simulated agents.
pub fn all() -> Vec<Arc<dyn Algorithm>> {
    NAMES.map(|name| Arc::new(Simulated { name }) as Arc<dyn Algorithm>).to_vec()
}

struct Simulated {
    name: &'static str,
}

impl Algorithm for Simulated {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        match self.name {
            "learned" => vec![ProgramSource { name: "main", source: LEARNED }],
            _ => ["main", "other"].map(|name| ProgramSource { name, source: PLAIN }).to_vec(),
        }
    }

    fn policies(&self) -> Vec<PolicySource> {
        let policy = || PolicySource { slot: SLOT, snapshot: &SHIPPED, policy: Arc::default() };
        if self.name == "learned" { vec![policy()] } else { Vec::new() }
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        let port = info.remote.port();
        match (self.name, port % 8) {
            ("rude", 0) => panic!("{PANIC}"),
            ("rude", 1) => {}
            ("rude", 2) => control.set_program("none", &[]),
            ("rude", 3) => (0..30).for_each(|_| control.set_program("main", &[])),
            ("rude", 4) => control.set_program("main", &[("acked", 1)]),
            _ => control.set_program("main", &[("Cwnd", info.init_cwnd_bytes as i64)]),
        }
        Box::new(SimulatedFlow { name: self.name, port })
    }
}

struct SimulatedFlow {
    name: &'static str,
    port: u16,
}

impl Flow for SimulatedFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control) {
        let acked = report.get("acked").unwrap_or(0);
        if self.name == "learned" {
            let snapshot = report.get("snapshot").unwrap_or(0) as u32;
            let reward = if acked % 1000 == 999 { f32::NAN } else { (acked - 5000) as f32 / 1000.0 };
            // A row for a slot that is not its own, now and then.
            let slot = if acked % 1000 == 998 { SLOT + 1 } else { SLOT };
            let (inputs, action_q16) = (vec![1, 2], 0);
            return control.learn(Row {
                at_us: now_us,
                slot,
                snapshot,
                inputs,
                action_q16,
                reward,
                follows: true,
                target_q16: None,
            });
        }
        match (self.name, acked % 64) {
            (_, 0) => control.set_program("other", &[("mss", 1400)]),
            (_, 1) => control.set_program("main", &[]),
            (_, 2..=9) => control.update(&[("Cwnd", 5000 + acked)]),
            ("rude", 10) => panic!("{PANIC}"),
            ("rude", 11) => control.update(&[("nothing", 1)]),
            ("rude", 12) => control.update(&[("Cwnd", -1)]),
            ("rude", 13) => (0..30).for_each(|_| control.update(&[("armed", 1)])),
            ("rude", 14) => control.learn(Row {
                at_us: 0,
                slot: SLOT,
                snapshot: 1,
                inputs: Vec::new(),
                action_q16: 0,
                reward: 1.0,
                follows: true,
                target_q16: None,
            }),
            _ => {}
        }
    }

    fn on_lost_reports(&mut self, count: u32) {
        assert!(self.name != "rude" || count < 1_000_000, "{PANIC}");
    }

    fn on_close(&mut self) {
        assert!(self.name != "rude" || !self.port.is_multiple_of(5), "{PANIC}");
    }
}
