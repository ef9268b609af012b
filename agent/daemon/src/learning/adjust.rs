//! Policies beside a known one, which differ in a few numbers: how much each kind of input counts, from where, and how far actions go.
//!
//! A policy learns for many links at once and each flow for itself. On one path another balance is better for all of its flows
//! together, and few numbers tell which: an evolution strategy of one parent and one child, whose step grows by success and
//! shrinks without (Rechenberg, 1973), finds them by play in seconds. A network with its first and last layer
//! changed so has the shape that it had.

use ccplane_learn::{LearnError, Policy, PolicyError, Rng};
use ccplane_quantize::Mlp;
use ccplane_snapshot::Feature;

/// Standard deviations of a first step: of factors' logarithms, of where inputs count from, and of what is added to actions.
const FACTORS: f64 = 0.3;
const SHIFTS: f64 = 0.03;
const ADDED: f64 = 0.3;
/// Factors of a step after a success and after a failure, and the step's bounds.
const GROWS: f64 = 1.5;
const SHRINKS: f64 = 0.93;
const STEPS: (f64, f64) = (0.1, 1.5);
/// Factors stay this near to 1, natural logarithms: a policy must still be able to do both, more and less.
const MOST_FACTOR: f64 = 2.0;
/// Most that is added to an action, and from 0 that an input counts from.
const MOST_ADDED: f64 = 1.5;

/// An adjustment of the three kinds of input and of the actions.
pub(super) type Start = ([(f64, f64); 3], (f64, f64));

/// Adjustments tried first: for inflation, ratio and sending rate the logarithm of a factor and from where it counts,
/// then the same of actions. Found by such searches on links of seed 100: the first two cost next to nothing on any
/// link. The others are calmer where few packets fill a link, and the last is bolder where much is lost.
pub(super) const TWIN_STARTS: [Start; 6] = [
    ([(-0.29, 0.0), (0.12, 0.0), (0.03, -0.087)], (-0.22, 0.95)),
    ([(-0.25, 0.0), (0.80, 0.0), (0.51, -0.015)], (-0.62, 0.3)),
    ([(0.26, 0.0), (0.34, 0.0), (0.18, -0.05)], (-0.69, 0.2)),
    ([(0.26, 0.0), (0.26, 0.0), (0.26, -0.08)], (-1.05, -0.3)),
    ([(0.18, 0.0), (0.26, 0.0), (0.26, -0.03)], (-0.92, -0.2)),
    ([(0.26, 0.0), (0.26, 0.0), (0.0, 0.02)], (-0.36, 0.3)),
];

/// Adjustments that live flows try first, where no simulator tells: to weigh less of how round trips change within an interval, and of how long they
/// are, as where acknowledgements come in lumps; then bolder and calmer than the known policy.
pub(super) const LIVE_STARTS: [Start; 5] = [
    ([(-2.0, 0.0), (-1.0, 0.0), (0.0, 0.0)], (0.0, 0.3)),
    ([(-2.0, 0.0), (0.0, 0.0), (0.0, 0.0)], (0.0, 0.0)),
    ([(-2.0, 0.0), (-2.0, 0.0), (0.0, 0.0)], (0.0, 0.6)),
    ([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)], (0.0, 0.4)),
    ([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)], (-0.4, -0.4)),
];

/// A change of a policy.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Adjustment {
    /// Of each kind of input: logarithm of its factor, and from where it counts, normalised.
    inputs: Vec<(f64, f64)>,
    /// Of actions: logarithm of their factor, and what is added.
    action: (f64, f64),
}

impl Adjustment {
    /// Another one, drawn around this.
    fn near(&self, step: f64, rng: &mut Rng) -> Adjustment {
        let mut moved = |(factor, offset): (f64, f64), offsets: f64| {
            let factor = factor + step * FACTORS * rng.normal();
            let offset = offset + step * offsets * rng.normal();
            (factor.clamp(-MOST_FACTOR, MOST_FACTOR), offset.clamp(-MOST_ADDED, MOST_ADDED))
        };
        Adjustment {
            inputs: self.inputs.iter().map(|input| moved(*input, SHIFTS)).collect(),
            action: moved(self.action, ADDED),
        }
    }

    /// The policy changed so; `kinds` names each input's kind by its place.
    fn of(&self, policy: &Policy, kinds: &[usize]) -> Result<Policy, LearnError> {
        let mut layers = policy.actor().layers().to_vec();
        if let Some(first) = layers.first_mut() {
            let rows = first.weights.chunks_mut(first.inputs.max(1)).zip(&mut first.bias);
            for (weights, bias) in rows {
                for ((weight, kind), feature) in weights.iter_mut().zip(kinds).zip(policy.spec().inputs()) {
                    let Some((factor, from)) = self.inputs.get(*kind) else { continue };
                    // An input x counts as zero + factor (x - zero - from).
                    let (factor, zero, was) = (factor.exp(), zero(feature), f64::from(*weight));
                    *weight = (was * factor) as f32;
                    *bias += (was * (zero - factor * (zero + from))) as f32;
                }
            }
        }
        if let Some(last) = layers.last_mut() {
            let (factor, added) = (self.action.0.exp() as f32, self.action.1 as f32);
            last.weights.iter_mut().for_each(|weight| *weight *= factor);
            last.bias.iter_mut().for_each(|bias| *bias = *bias * factor + added);
        }
        let actor = Mlp::new(layers).map_err(PolicyError::from)?;
        Ok(policy.with_parameters(actor, policy.critic().clone(), policy.log_std())?)
    }
}

/// Returns the normalised value of an input of 0.
fn zero(feature: &Feature) -> f64 {
    let (lo, hi) = (f64::from(feature.lo), f64::from(feature.hi));
    (2.0 * (0.0 - lo) / (hi - lo) - 1.0).clamp(-1.0, 1.0)
}

/// A search that is under way.
pub(super) struct Search {
    base: Policy,
    /// Each input's kind, by its place.
    kinds: Vec<usize>,
    best: Adjustment,
    tried: Option<Adjustment>,
    step: f64,
    /// Adjustments that are tried first, and policies that were tried.
    starts: &'static [Start],
    tries: usize,
    rng: Rng,
}

impl Search {
    /// Beside `base`, from `starts` on.
    pub(super) fn beside(base: Policy, starts: &'static [Start], rng: Rng) -> Search {
        let mut names: Vec<&str> = Vec::new();
        let kinds = base.spec().inputs().iter().map(|feature| {
            let name = feature.name.split('[').next().unwrap_or_default();
            names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        });
        let kinds = kinds.collect();
        let best = Adjustment { inputs: vec![(0.0, 0.0); names.len()], action: (0.0, 0.0) };
        Search { base, kinds, best, tried: None, step: 1.0, starts, tries: 0, rng }
    }

    /// The next policy to be tried.
    ///
    /// # Errors
    /// Numbers that are none.
    pub(super) fn next(&mut self) -> Result<Policy, LearnError> {
        let tried = match self.starts.get(self.tries) {
            Some((inputs, action)) => Adjustment { inputs: inputs.to_vec(), action: *action },
            None => self.best.near(self.step, &mut self.rng),
        };
        self.tries += 1;
        let policy = tried.of(&self.base, &self.kinds);
        self.tried = Some(tried);
        policy
    }

    /// Hears whether the policy that was tried last is the best so far.
    pub(super) fn on_verdict(&mut self, is_best: bool) {
        if self.tries > self.starts.len() {
            let factor = if is_best { GROWS } else { SHRINKS };
            self.step = (self.step * factor).clamp(STEPS.0, STEPS.1);
        }
        let tried = self.tried.take();
        if is_best {
            self.best = tried.unwrap_or_else(|| self.best.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::Algorithm;
    use ccplane_quantize::Scratch;

    fn shipped() -> Policy {
        let source = ccplane_algs::Aurora::default().policies().into_iter().next().unwrap();
        Policy::from_bytes(&source.policy).unwrap()
    }

    fn action(policy: &Policy, inputs: &[f32]) -> f64 {
        f64::from(policy.actor().forward(inputs, &mut Scratch::default()))
    }

    /// The changed network decides as the old one does on inputs that are changed by hand.
    #[test]
    fn a_changed_network_sees_and_does_what_the_adjustment_says() {
        let policy = shipped();
        let search = Search::beside(policy.clone(), &TWIN_STARTS, Rng::new(1, &[]));
        let adjustment =
            Adjustment { inputs: vec![(0.4, 0.0), (-0.7, 0.0), (0.2, 0.05)], action: (-0.9, 0.25) };
        let changed = adjustment.of(&policy, &search.kinds).unwrap();
        let mut rng = Rng::new(2, &[]);
        for _ in 0..100 {
            // Inflation and what was sent are 0 in the middle of their ranges, the ratio at its lower end.
            let inputs: Vec<f32> = (0..30).map(|_| (rng.uniform() - 0.5) as f32).collect();
            let by_hand = |(n, x): (usize, &f32)| match n % 3 {
                0 => *x * 0.4f32.exp(),
                1 => -1.0 + (-0.7f32).exp() * (*x + 1.0),
                _ => 0.2f32.exp() * (*x - 0.05),
            };
            let by_hand: Vec<f32> = inputs.iter().enumerate().map(by_hand).collect();
            let expected = (-0.9f64).exp() * action(&policy, &by_hand) + 0.25;
            let found = action(&changed, &inputs);
            assert!((found - expected).abs() < 1e-3 * expected.abs().max(1.0), "{found} for {expected}");
        }
    }

    /// A search for an adjustment finds the one that turns a policy into another, given only which of two is better.
    #[test]
    fn a_search_finds_what_is_better() {
        let policy = shipped();
        let mut search = Search::beside(policy.clone(), &TWIN_STARTS, Rng::new(3, &[]));
        let wanted = Adjustment { inputs: vec![(0.3, 0.0), (0.5, 0.0), (-0.3, 0.05)], action: (-0.9, -0.4) };
        let wanted = wanted.of(&policy, &search.kinds).unwrap();
        let mut rng = Rng::new(4, &[]);
        let states: Vec<Vec<f32>> =
            (0..50).map(|_| (0..30).map(|_| (rng.uniform() - 0.5) as f32).collect()).collect();
        let apart = |policy: &Policy| {
            states.iter().map(|s| (action(policy, s) - action(&wanted, s)).powi(2)).sum::<f64>()
        };
        let before = apart(&policy);
        let mut least = before;
        for _ in 0..100 {
            let found = apart(&search.next().unwrap());
            search.on_verdict(found < least);
            least = least.min(found);
        }
        assert!(least < before / 4.0, "{least} of {before}");
    }
}
