//! An algorithm that learns, and snapshots for it.

use super::Told;
use ccplane_alg::{PolicySource, ProgramSource, Row};
use ccplane_core::{Candidate, Evidence, Origin};
use ccplane_infer::Bits;
use ccplane_snapshot::{
    Action, ActionMap, Admission, Calibration, Feature, Fidelity, Guards, Layer, Network, Parts, PolicySpec,
    Provenance, Snapshot, Trust, TrustedSnapshot,
};
use std::sync::Arc;

/// Reports what it decided; `acked` is the reward in thousandths.
pub const LEARNED: &str = "
(def (Report (acked 0) (snapshot 0)) (x 0))
(when true
  (:= x Ack.bytes_acked)
  (history 2 x)
  (policy 3)
  (:= Report.acked Ack.bytes_acked)
  (:= Report.snapshot Policy.snapshot)
  (report))";

/// A policy whose action is `bias / 127`, whatever its two inputs.
pub fn snapshot(bias: i32) -> TrustedSnapshot {
    let feature = |name: &str| Feature { name: name.to_owned(), lo: 0, hi: 10_000 };
    let map = ActionMap::Rate;
    let action = Action { map, bound_q16: 65_536, step_q20: 1 << 15, knob_min: 1500, knob_max: 1 << 30 };
    let layers = vec![Layer { weights: vec![0, 0], biases: vec![bias], tables: vec![] }];
    let parts = Parts {
        spec: PolicySpec::new("learned", vec![feature("x[0]"), feature("x[1]")], action).unwrap(),
        network: Network::new(Bits::W8, &[2, 1], layers, 516, 0).unwrap(),
        guards: Guards::for_inputs(2),
        calibration: Calibration { inputs: vec![(0, 10_000); 2], sums: vec![254] },
        fidelity: Fidelity { visited_samples: 1, ..Fidelity::default() },
        provenance: Provenance { algorithm: "learned".to_owned(), ..Provenance::default() },
    };
    Trust::OURS.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap()
}

/// An algorithm that asks slot 3 and gives a row for each report; of the largest number, one whose reward is none.
pub fn learned(name: &'static str) -> Told {
    learned_from(name, None)
}

/// Makes the algorithm as [`learned`] does, where each row tells what would have been right.
pub fn learned_from(name: &'static str, target_q16: Option<i32>) -> Told {
    let mut told = Told::new(name);
    told.programs = vec![ProgramSource { name: "main", source: LEARNED }];
    told.on_flow =
        Arc::new(|info, control| control.set_program("main", &[("Cwnd", info.init_cwnd_bytes as i64)]));
    told.on_report = Arc::new(move |report, control| {
        let (reward, snapshot) = (report.get("acked").unwrap(), report.get("snapshot").unwrap());
        control.learn(Row {
            at_us: 0,
            slot: 3,
            snapshot: snapshot as u32,
            inputs: vec![1, 2],
            action_q16: 0,
            reward: if reward == i64::MAX { f32::NAN } else { reward as f32 / 1000.0 },
            follows: true,
            target_q16,
        });
    });
    told.policies =
        vec![PolicySource { slot: 3, snapshot: snapshot(0).to_bytes().leak(), policy: Arc::default() }];
    told
}

/// [`snapshot`], learned: as good, and as different from what is active, as a push asks.
pub fn candidate(bias: i32) -> Candidate {
    Candidate { snapshot: snapshot(bias), origin: Origin::Learned(WORTHY) }
}

/// Evidence that every push rule accepts.
pub const WORTHY: Evidence = Evidence {
    converged: true,
    stability: 0.01,
    fidelity_min: 0.0,
    fidelity_mean: 0.2,
    safe: true,
    quantisation_error: 0.001,
    gain: None,
    states: 1000,
};
