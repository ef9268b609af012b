//! From a float policy to a candidate: quantised on the states that live flows visit, and held against what is deployed.

use ccplane_core::{Candidate, Evidence, Origin};
use ccplane_infer::{Bits, Model};
use ccplane_learn::Policy;
use ccplane_quantize::{Options, QuantizeError, Width, quantize};
use ccplane_snapshot::{DeployOptions, Provenance, Snapshot};
use std::collections::VecDeque;
use std::sync::Arc;

/// States without which nothing is offered: less says nothing of what flows do.
pub(super) const LEAST_STATES: usize = 64;
/// States that are kept.
const MAX_STATES: usize = 2048;
/// Decisions at the action's bound, or with inputs out of range, that are still safe: a share of the visited states. The
/// datapath's monitor falls back at one in five.
const MAX_BAD_SHARE: f64 = 0.1;

/// What live flows have seen of late, as history cells.
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

    /// What was seen under other conditions says nothing of these.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What a learner knows of its candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) converged: bool,
    pub(super) stability: f64,
    pub(super) gain: Option<f64>,
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
        algorithm: policy.spec().algorithm().to_owned(),
        seed: policy.provenance.seed,
        steps: policy.provenance.steps,
        command: "ccplane agent".to_owned(),
        parent: Some(deployed.hash()),
        created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    let options = Options { bits, provenance, guards: Some(deployed.guards()), ..Options::default() };
    let snapshot = quantize(policy.actor(), policy.spec(), &visited, &options)?;
    let found = compare(&snapshot, deployed, &visited);
    let fidelity = snapshot.fidelity();
    let error = fidelity.visited_mean_error.max(deployed.fidelity().visited_mean_error);
    let evidence = Evidence {
        converged: claim.converged,
        stability: claim.stability,
        fidelity_min: found.min,
        fidelity_mean: found.mean,
        safe: fidelity.both_signs() && found.bad_share <= MAX_BAD_SHARE,
        quantisation_error: error * found.bounds_per_range,
        gain: claim.gain,
        states: visited.len() as u64,
    };
    Ok(Candidate { snapshot: Arc::new(snapshot), origin: Origin::Learned(evidence) })
}

/// The range that actions are held against is at least this share of what their bound allows.
const LEAST_RANGE: f64 = 0.02;

struct Compared {
    /// Differences of bounded actions, in shares of the range that both policies' actions span on these states: a bound
    /// is there for what hardly happens, and says little of what a policy does.
    min: f64,
    mean: f64,
    /// What the bound allows, in such ranges.
    bounds_per_range: f64,
    /// Of the candidate's decisions.
    bad_share: f64,
}

fn compare(new: &Snapshot, old: &Snapshot, visited: &[Vec<i32>]) -> Compared {
    let image = |s: &Snapshot| s.image(&DeployOptions { uid: 1, noise_q16: 0, pin: false });
    let (image_new, image_old) = (image(new), image(old));
    let bound = i64::from(new.spec().action().bound_q16);
    let mut compared = Compared { min: f64::INFINITY, mean: 0.0, bounds_per_range: 0.0, bad_share: 0.0 };
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
        let bad = a.action_q16.abs() > bound || a.clipped_inputs > new.guards().clip_limit;
        compared.bad_share += f64::from(u8::from(bad));
    }
    let count = visited.len().max(1) as f64;
    let bounds = 2.0 * bound as f64;
    let range = ((highest - lowest) as f64).max(LEAST_RANGE * bounds).max(1.0);
    compared.bounds_per_range = bounds / range;
    compared.min /= range;
    compared.mean /= count * range;
    compared.bad_share /= count;
    compared
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::Algorithm;
    use ccplane_algs::{Aurora, Mocc};
    use ccplane_core::PushRules;
    use ccplane_learn::Rng;
    use ccplane_quantize::Mlp;

    const CLAIM: Claim = Claim { converged: true, stability: 0.0, gain: Some(1.0) };

    /// What ships with an algorithm.
    fn shipped(algorithm: &dyn Algorithm) -> (Policy, Snapshot) {
        let source = algorithm.policies().into_iter().next().unwrap();
        (Policy::from_bytes(&source.policy).unwrap(), Snapshot::parse(&source.snapshot).unwrap())
    }

    /// This far from the middle of the inputs' ranges, as a share of them.
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

    /// The same policy, rounded once on what it visited when it was made and once on what it visits now.
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

    #[test]
    fn what_decides_otherwise_is_necessary() {
        let (policy, deployed) = shipped(&Aurora::default());
        let actor = policy.actor().clone();
        let mut layers = actor.layers().to_vec();
        layers.last_mut().unwrap().bias[0] += 0.5;
        let other =
            policy.with_parameters(Mlp::new(layers).unwrap(), policy.critic().clone(), policy.log_std());
        let found = evidence(&other.unwrap(), &deployed, &around(&policy, 1.0, 1));
        assert!(PushRules::default().is_necessary(&found), "{found:?}");
    }
}
