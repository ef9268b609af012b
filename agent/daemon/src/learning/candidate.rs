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
    let evidence = Evidence {
        converged: claim.converged,
        stability: claim.stability,
        fidelity_min: found.min,
        fidelity_mean: found.mean,
        safe: fidelity.both_signs() && found.bad_share <= MAX_BAD_SHARE,
        quantisation_error: fidelity.visited_mean_error,
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
    /// Of the candidate's decisions.
    bad_share: f64,
}

fn compare(new: &Snapshot, old: &Snapshot, visited: &[Vec<i32>]) -> Compared {
    let image = |s: &Snapshot| s.image(&DeployOptions { uid: 1, noise_q16: 0, pin: false });
    let (image_new, image_old) = (image(new), image(old));
    let bound = i64::from(new.spec().action().bound_q16);
    let mut compared = Compared { min: f64::INFINITY, mean: 0.0, bad_share: 0.0 };
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
    let range = ((highest - lowest) as f64).max(LEAST_RANGE * 2.0 * bound as f64).max(1.0);
    compared.min /= range;
    compared.mean /= count * range;
    compared.bad_share /= count;
    compared
}

#[cfg(test)]
mod tmp {
    use super::*;
    use ccplane_alg::Algorithm;
    use ccplane_learn::{Rng, ActorCritic};
    use std::sync::Arc;
    use ccplane_env::Links; use ccplane_learn::Environment;
    struct Rec { n: ActorCritic, spec: ccplane_snapshot::PolicySpec, states: Vec<Vec<i32>> }
    impl ccplane_learn::Actor for Rec {
        fn act(&mut self, _: usize, o: &[f32]) -> f32 {
            self.states.push(o.iter().zip(self.spec.inputs()).map(|(x, f)| f.lo + ((f64::from(*x) + 1.0) / 2.0 * f64::from(f.hi - f.lo)).round() as i32).collect());
            self.n.mean(o)
        }
        fn outcome(&mut self, _: usize, _: f32, _: ccplane_learn::End, _: &[f32]) {}
    }
    #[test]
    fn tmp() {
        let algs: Vec<Arc<dyn Algorithm>> = vec![Arc::new(ccplane_algs::Aurora::default()), Arc::new(ccplane_algs::Mocc::default())];
        for a in algs {
            let src = a.policies().into_iter().next().unwrap();
            let policy = Policy::from_bytes(&src.policy).unwrap();
            let shipped = Snapshot::parse(&src.snapshot).unwrap();
            println!("{} bits {:?} bound {} fid {:?} guards {:?}", a.name(), shipped.shape().bits(), shipped.spec().action().bound(), shipped.fidelity(), shipped.guards());
            let path = crate::learning::estimate::Path { bytes_per_s: 5e6, flows: 1, rtt_us: 40_000.0, queue_bdp: 1.0, loss: 0.0, variation: 0.0 };
            let mut links = Links::new(a.clone(), None, crate::learning::twin::family_of(&path), policy.spec().clone()).unwrap();
            let mut rec = Rec { n: ActorCritic::new(&policy), spec: policy.spec().clone(), states: vec![] };
            for e in 0..8 { links.episode(e, 256, &mut rec); }
            for (what, skip) in [("all", 0usize), ("steady", 1500)] {
            let visited = &rec.states[skip.min(rec.states.len()-200)..];
            let mut states = States::default();
            visited.iter().for_each(|s| states.push(s));
            let c = candidate(&policy, &shipped, &states, Claim { converged: true, stability: 0.0, gain: None }).unwrap();
            let image = c.snapshot.image(&DeployOptions { uid: 1, noise_q16: 0, pin: false });
            let model = Model::new(c.snapshot.shape(), &image).unwrap();
            let acts: Vec<i64> = visited.iter().map(|s| model.infer(s).action_q16).collect();
            println!("{what} {} range {} {} evidence {:?}", visited.len(), acts.iter().min().unwrap(), acts.iter().max().unwrap(), c.origin.evidence());
            let mut rng = Rng::new(1, &[]);
            let b = i64::from(c.snapshot.spec().action().bound_q16);
            let mut bad = 0; let mut signs=(0,0);
            for _ in 0..4096 {
                let cells: Vec<i32> = policy.spec().inputs().iter().map(|f| if rng.uniform() < 0.5 { f.lo } else { f.hi }).collect();
                let d = model.infer(&cells);
                if d.action_q16.abs() > b { bad += 1; if d.action_q16 > 0 { signs.0 += 1 } else { signs.1 += 1 } }
            }
            let lo: Vec<i32> = policy.spec().inputs().iter().map(|f| f.lo).collect();
            let hi: Vec<i32> = policy.spec().inputs().iter().map(|f| f.hi).collect();
            println!("corners bad {} of 4096 {:?}; lo {} hi {} of bound {}", bad, signs, model.infer(&lo).action_q16, model.infer(&hi).action_q16, b);
            }
        }
    }
}
