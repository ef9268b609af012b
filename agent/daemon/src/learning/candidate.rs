//! From a float policy to a candidate: quantised on the states that live flows visit, and held against what is deployed.

use ccplane_core::{Candidate, Evidence, Origin};
use ccplane_infer::{Bits, Model};
use ccplane_learn::{Policy, Rng};
use ccplane_quantize::{Options, QuantizeError, Width, quantize};
use ccplane_snapshot::{Admission, DeployOptions, Feature, PolicySpec, Provenance, Snapshot, Trust};
use std::collections::VecDeque;

/// The least number of visited states with which a snapshot is offered: fewer say nothing about live flows.
pub(super) const LEAST_STATES: usize = 64;
/// The distances by which inputs are moved to the ends of their ranges, as shares of the way.
const WIDENED: [f64; 2] = [0.25, 0.5];
/// States that are kept.
const MAX_STATES: usize = 2048;
/// Decisions at the action's bound, or with inputs out of range, that are still safe: a share of the visited states. The
/// datapath's monitor falls back at one in five.
const MAX_BAD_SHARE: f64 = 0.1;
/// The same of corners of the inputs' ranges, where good policies are at the bound at times, too.
const MAX_BAD_CORNERS: f64 = 0.5;
/// The number of corners that are drawn at random, beside those where all inputs, or all but one, are at the same end.
const DRAWN_CORNERS: usize = 256;
const CORNERS_SEED: u64 = 1;

/// Recent inputs of live flows, as history cells.
#[derive(Default)]
pub(super) struct States(VecDeque<Vec<i32>>);

impl States {
    pub(super) fn push(&mut self, cells: &[i32]) {
        if self.0.len() >= MAX_STATES {
            self.0.pop_front();
        }
        self.0.push_back(cells.to_vec());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds other states to these.
    pub(super) fn with(&self, others: Vec<Vec<i32>>) -> States {
        States(self.0.iter().cloned().chain(others).collect())
    }

    /// These and the latest one with every input moved this share of the way to either end of its range: flows that stay where they
    /// are visit too little to tell whether a policy still speeds up and slows down.
    pub(super) fn widened(&self, inputs: &[Feature]) -> States {
        let latest = self.0.back().map_or(&[][..], Vec::as_slice);
        let moved = |share: f64, end: fn(&Feature) -> i32| {
            let cell = |(cell, feature): (&i32, &Feature)| {
                let (from, to) = (f64::from(*cell), f64::from(end(feature)));
                (from + share * (to - from)) as i32
            };
            latest.iter().zip(inputs).map(cell).collect()
        };
        let wide = WIDENED.iter().flat_map(|share| [moved(*share, |f| f.lo), moved(*share, |f| f.hi)]);
        self.with(wide.collect())
    }

    /// Forgets states that were seen under other conditions.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A learner's expectation of its candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) converged: bool,
    pub(super) stability: f64,
    pub(super) gain: Option<f64>,
    /// Whether its actions steer a rate: then a safe policy can both speed up and slow down.
    pub(super) steers: bool,
}

/// Makes a candidate that is to replace `deployed`.
///
/// # Errors
/// The integer network is not true enough to `policy`, or is none.
pub(super) fn candidate(
    policy: &Policy,
    deployed: &Snapshot,
    states: &States,
    claim: Claim,
) -> Result<Candidate, QuantizeError> {
    let visited: Vec<Vec<i32>> = states.0.iter().cloned().collect();
    // A slot takes one shape.
    let bits = match deployed.shape().bits() {
        Bits::W8 => Width::W8,
        Bits::W16 => Width::W16,
    };
    let provenance = Provenance {
        command: "ccplane agent".to_owned(),
        parent: Some(deployed.hash()),
        ..policy.snapshot_provenance()
    };
    let options = Options { bits, provenance, guards: Some(deployed.guards()), ..Options::default() };
    let snapshot = quantize(policy.actor(), policy.spec(), &visited, &options)?;
    let found = compare(&snapshot, deployed, &visited);
    let fidelity = snapshot.fidelity();
    let error = fidelity.visited_mean_error.max(deployed.fidelity().visited_mean_error);
    let is_steerable = !claim.steers || fidelity.both_signs();
    let evidence = Evidence {
        converged: claim.converged,
        stability: claim.stability,
        fidelity_min: found.min,
        fidelity_mean: found.mean,
        safe: is_steerable && found.bad <= MAX_BAD_SHARE && found.bad_corners <= MAX_BAD_CORNERS,
        quantisation_error: error * found.bounds_per_range,
        gain: claim.gain,
        states: visited.len() as u64,
    };
    let snapshot = Trust::OURS.admit(snapshot, &Admission::default())?;
    Ok(Candidate { snapshot, origin: Origin::Learned(evidence) })
}

/// The range that actions are held against is at least this share of what their bound allows.
const LEAST_RANGE: f64 = 0.02;

struct Compared {
    /// The differences of bounded actions, as shares of the range that both policies' actions span on these states. The
    /// bound itself says little, since actions hardly reach it.
    min: f64,
    mean: f64,
    /// The bound, in such ranges.
    bounds_per_range: f64,
    /// Shares of the candidate's decisions, on these states and at corners.
    bad: f64,
    bad_corners: f64,
}

fn compare(new: &Snapshot, old: &Snapshot, visited: &[Vec<i32>]) -> Compared {
    let image = |s: &Snapshot| s.image(&DeployOptions::ONLY);
    let (image_new, image_old) = (image(new), image(old));
    let bound = i64::from(new.spec().action().bound_q16);
    let mut compared =
        Compared { min: f64::INFINITY, mean: 0.0, bounds_per_range: 0.0, bad: 1.0, bad_corners: 1.0 };
    let (mut lowest, mut highest) = (bound, -bound);
    let models = Model::new(new.shape(), &image_new).zip(Model::new(old.shape(), &image_old));
    let Some((model_new, model_old)) = models else { return compared };
    for cells in visited {
        let (a, b) = (model_new.infer(cells), model_old.infer(cells));
        let (of_new, of_old) = (a.action_q16.clamp(-bound, bound), b.action_q16.clamp(-bound, bound));
        lowest = lowest.min(of_new).min(of_old);
        highest = highest.max(of_new).max(of_old);
        let apart = (of_new - of_old).unsigned_abs() as f64;
        compared.min = compared.min.min(apart);
        compared.mean += apart;
    }
    let count = visited.len().max(1) as f64;
    let bounds = 2.0 * bound as f64;
    let range = ((highest - lowest) as f64).max(LEAST_RANGE * bounds).max(1.0);
    compared.bounds_per_range = bounds / range;
    compared.min /= range;
    compared.mean /= count * range;
    let is_bad = |cells: &&Vec<i32>| {
        let decided = model_new.infer(cells);
        decided.action_q16.abs() > bound || decided.clipped_inputs > new.guards().clip_limit
    };
    let bad = |states: &[Vec<i32>]| states.iter().filter(is_bad).count() as f64 / states.len().max(1) as f64;
    (compared.bad, compared.bad_corners) = (bad(visited), bad(&corners(new.spec())));
    compared
}

/// States whose inputs are each at an end of its range.
fn corners(spec: &PolicySpec) -> Vec<Vec<i32>> {
    let inputs = spec.inputs();
    let mut rng = Rng::new(CORNERS_SEED, &[]);
    let corner = |is_high: &mut dyn FnMut(usize) -> bool| -> Vec<i32> {
        inputs.iter().enumerate().map(|(n, f)| if is_high(n) { f.hi } else { f.lo }).collect()
    };
    let mut all = vec![corner(&mut |_| false), corner(&mut |_| true)];
    for other in 0..inputs.len() {
        all.extend([corner(&mut |n| n == other), corner(&mut |n| n != other)]);
    }
    all.extend((0..DRAWN_CORNERS).map(|_| corner(&mut |_| rng.uniform() < 0.5)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::Algorithm;
    use ccplane_algs::{Aurora, Mocc};
    use ccplane_core::PushRules;
    use ccplane_quantize::{Dense, Mlp, Scratch};

    const CLAIM: Claim = Claim { converged: true, stability: 0.0, gain: Some(1.0), steers: true };

    /// Returns the policy and snapshot that ship with an algorithm.
    fn shipped(algorithm: &dyn Algorithm) -> (Policy, Snapshot) {
        let source = algorithm.policies().into_iter().next().unwrap();
        (Policy::from_bytes(&source.policy).unwrap(), Snapshot::built_in(source.snapshot).unwrap())
    }

    /// Returns states at distance `share` from the middle of the inputs' ranges, as a share of those.
    fn around(policy: &Policy, share: f64, seed: u64) -> States {
        let mut rng = Rng::new(seed, &[]);
        let mut states = States::default();
        for _ in 0..256 {
            let cell = |f: &ccplane_snapshot::Feature| {
                let (lo, span) = (f64::from(f.lo), f64::from(f.hi) - f64::from(f.lo));
                (lo + span * (0.5 + share * (rng.uniform() - 0.5))) as i32
            };
            states.push(&policy.spec().inputs().iter().map(cell).collect::<Vec<_>>());
        }
        states
    }

    fn evidence(policy: &Policy, deployed: &Snapshot, states: &States) -> Evidence {
        let candidate = candidate(policy, deployed, states, CLAIM).unwrap();
        *candidate.origin.evidence().unwrap()
    }

    /// The same policy is rounded for the states that it visited when it was made, and for those that it visits now.
    #[test]
    fn what_rounding_brings_makes_no_push_necessary() {
        let rules = PushRules { alpha: 0.01, ..PushRules::default() };
        let mut beyond_alpha = 0;
        for algorithm in [&Aurora::default() as &dyn Algorithm, &Mocc::default()] {
            let (policy, deployed) = shipped(algorithm);
            for share in [1.0, 0.1, 0.01, 0.001] {
                let found = evidence(&policy, &deployed, &around(&policy, share, 2));
                beyond_alpha += u32::from(found.fidelity_mean > rules.alpha);
                assert!(!rules.is_necessary(&found), "{share}: {found:?}");
            }
        }
        assert!(beyond_alpha > 0, "nothing is shown");
    }

    /// The policy with its output layer changed.
    fn changed(policy: &Policy, change: impl Fn(&mut Dense)) -> Policy {
        let mut layers = policy.actor().layers().to_vec();
        change(layers.last_mut().unwrap());
        let actor = Mlp::new(layers).unwrap();
        policy.with_parameters(actor, policy.critic().clone(), policy.log_std()).unwrap()
    }

    #[test]
    fn what_decides_otherwise_is_necessary() {
        let (policy, deployed) = shipped(&Aurora::default());
        let other = changed(&policy, |layer| layer.bias[0] += 1.0);
        let found = evidence(&other, &deployed, &around(&policy, 1.0, 1));
        assert!(PushRules::default().is_necessary(&found), "{found:?}");
    }

    #[test]
    fn what_is_at_its_bound_in_corners_is_not_safe() {
        const STEEPER: f32 = 16.0;
        let (policy, _) = shipped(&Aurora::default());
        let states = around(&policy, 0.02, 1);
        let visited: Vec<Vec<i32>> = states.0.iter().cloned().collect();
        let options = Options { bits: Width::W16, ..Options::default() };
        let deployed = quantize(policy.actor(), policy.spec(), &visited, &options).unwrap();
        assert!(evidence(&policy, &deployed, &states).safe);
        // Many times as steep, and nothing in the middle of what it visits.
        let mut input = vec![0.0; policy.spec().inputs().len()];
        let mut action = |cells: &Vec<i32>| {
            policy.spec().normalise(cells, &mut input);
            policy.actor().forward(&input, &mut Scratch::default())
        };
        let middle = states.0.iter().map(&mut action).sum::<f32>() / states.len() as f32;
        let steep = changed(&policy, |layer| {
            layer.weights.iter_mut().for_each(|w| *w *= STEEPER);
            layer.bias[0] = STEEPER * (layer.bias[0] - middle);
        });
        let candidate = candidate(&steep, &deployed, &states, CLAIM).unwrap();
        let found = compare(&candidate.snapshot, &deployed, &visited);
        assert!(
            found.bad <= MAX_BAD_SHARE && found.bad_corners > MAX_BAD_CORNERS,
            "{} {}",
            found.bad,
            found.bad_corners
        );
        assert!(candidate.snapshot.fidelity().both_signs());
        assert!(!candidate.origin.evidence().unwrap().safe);
    }

    #[test]
    fn corners_are_told_apart() {
        let (policy, _) = shipped(&Mocc::default());
        let corners = corners(policy.spec());
        let inputs = policy.spec().inputs();
        assert_eq!(corners.len(), 2 + 2 * inputs.len() + DRAWN_CORNERS);
        assert!(corners.iter().all(|c| c.iter().zip(inputs).all(|(x, f)| *x == f.lo || *x == f.hi)));
        let different: std::collections::BTreeSet<&Vec<i32>> = corners.iter().collect();
        assert_eq!(different.len(), corners.len());
    }
}
