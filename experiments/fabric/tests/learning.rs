//! `size` learns beside the flows of a simulated fabric: a network that tells no flow from another is replaced, by a trial of completion
//! times.
#![allow(clippy::unwrap_used)]

use ccplane_agent::config::LearnMode;
use ccplane_agent::learning::beside;
use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, PolicySource, ProgramSource};
use ccplane_algs::{SIZE_INPUTS, Size};
use ccplane_core::{Companion, Config, Core, Decision, Origin, Verdict};
use ccplane_fabric::{Fabric, Trial};
use ccplane_learn::{Policy, Rng};
use ccplane_netsim::workload::{FlowSizes, PPM, Split, Structure};
use ccplane_quantize::{Mlp, Options, quantize};
use std::sync::Arc;

/// The prediction of the network that flows begin with, for all of them: two megabytes, as octaves beyond 64 kB.
const ALL_ALIKE: f32 = 5.0;
/// Share of its weights that the network's last layer keeps.
const KEPT: f32 = 0.01;

/// `size` with another network to begin with.
struct Ignorant {
    size: Size,
    snapshot: &'static [u8],
    policy: Arc<[u8]>,
}

impl Ignorant {
    fn new() -> Ignorant {
        let size = Size::default();
        let shipped = Policy::from_bytes(&size.policies()[0].policy).unwrap();
        let mut layers = shipped.actor().layers().to_vec();
        let last = layers.last_mut().unwrap();
        last.weights.iter_mut().for_each(|weight| *weight *= KEPT);
        last.bias[0] = ALL_ALIKE;
        let actor = Mlp::new(layers).unwrap();
        let policy = shipped.with_parameters(actor, shipped.critic().clone(), shipped.log_std()).unwrap();
        let mut rng = Rng::new(1, &[]);
        let mut state = || (0..SIZE_INPUTS).map(|_| (rng.uniform() * 65_536.0) as i32).collect();
        let states: Vec<Vec<i32>> = (0..512).map(|_| state()).collect();
        let snapshot = quantize(policy.actor(), policy.spec(), &states, &Options::default()).unwrap();
        let policy = policy.to_bytes().unwrap().into();
        Ignorant { size, snapshot: Box::leak(snapshot.to_bytes().into_boxed_slice()), policy }
    }
}

impl Algorithm for Ignorant {
    fn name(&self) -> &'static str {
        self.size.name()
    }
    fn programs(&self) -> Vec<ProgramSource> {
        self.size.programs()
    }
    fn first(&self, control: &mut Control) {
        self.size.first(control);
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.size.flow(info, control)
    }
    fn policies(&self) -> Vec<PolicySource> {
        let slot = self.size.policies()[0].slot;
        vec![PolicySource { slot, snapshot: self.snapshot, policy: self.policy.clone() }]
    }
    fn is_supervised(&self) -> bool {
        true
    }
}

/// A learner, and all that was decided about what it offered.
struct Watched {
    learner: Box<dyn Companion>,
    decided: Vec<Decision>,
}

impl Companion for Watched {
    fn after_turn(&mut self, core: &mut Core, now_us: u64) {
        self.learner.after_turn(core, now_us);
        for decision in core.decisions() {
            if !self.decided.contains(decision) {
                self.decided.push(decision.clone());
            }
        }
    }
}

#[test]
fn a_network_that_tells_no_flow_from_another_is_replaced_by_one_that_has_seen_them() {
    let trial = Trial {
        fabric: Fabric::new(8, 200_000_000),
        sizes: FlowSizes::data_mining().at_most(300_000),
        load_ppm: 700_000,
        structure: Structure::new(8, PPM),
        playback: None,
        split: Split::Validation,
        seed: 1,
        warm_up_flows: 0,
        flows: 20_000,
        omniscient: None,
    };
    let algorithm: Arc<dyn Algorithm> = Arc::new(Ignorant::new());
    let learner = beside(&algorithm, 1, LearnMode::Twin).unwrap();
    let mut watched = Watched { learner, decided: Vec::new() };
    let periods = Config { batch_us: 20_000, slots_every_us: 20_000, ..Config::default() };
    trial.run_beside(&[Arc::clone(&algorithm)], "size", periods, Some(&mut watched)).unwrap();
    let told: Vec<String> =
        watched.decided.iter().map(|d| format!("{} {:?}", d.verdict, d.comparison)).collect();
    let promoted = watched.decided.iter().find(|decision| decision.verdict == Verdict::Promoted);
    let promoted = promoted.unwrap_or_else(|| panic!("{told:#?}"));
    let Origin::Learned(evidence) = promoted.origin else { panic!("{promoted:?}") };
    assert!(evidence.converged && evidence.safe && evidence.gain.unwrap() > 1.0, "{evidence:?} {told:#?}");
    // Where flows recover before the first pair of windows, there is nothing to compare any more.
    let is_better = promoted.comparison.is_none_or(|comparison| comparison.difference > 0.0);
    assert!(is_better, "completion times are shorter: {promoted:?}");
}
