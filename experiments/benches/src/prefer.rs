//! `learn.prefer`: MOCC learns preferences that it has not seen, beside learning them from nothing (Ma et al., EuroSys 2022,
//! section 6.3).

use ccplane_alg::Algorithm;
use ccplane_algs::Mocc;
use ccplane_env::recipe::{Adaptation, Recipe};
use ccplane_learn::{Policy, Preference};

use crate::error::BenchError;
use crate::figure::{Figure, Pair};
use crate::proof::Proof;

/// Throughput, latency, loss, in percent: none is a landmark.
const UNSEEN: [[f32; 3]; 3] = [[85.0, 10.0, 5.0], [5.0, 85.0, 10.0], [35.0, 30.0, 35.0]];

/// Decisions until 90 % of the reward that learning from nothing reaches, and the loss of the old preferences.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::Missing(format!("learn.prefer: {error}"));
    let shipped = Mocc::default().policies();
    let source = shipped.first().ok_or_else(|| BenchError::Missing("MOCC ships without a policy".into()))?;
    let policy = Policy::from_bytes(&source.policy).map_err(|e| failed(&e))?;
    let mut recipe = Recipe::mocc().map_err(|e| failed(&e))?;
    recipe.train.threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut adaptations = Vec::new();
    for [throughput, latency, loss] in UNSEEN {
        let preference = Preference::new(throughput, latency, loss)
            .ok_or_else(|| BenchError::Missing("a preference is not one".into()))?;
        adaptations.push(recipe.adapt(&policy, preference).map_err(|e| failed(&e))?);
    }
    let decisions =
        adaptations.iter().flat_map(|a| [&a.adapted_curve, &a.scratch_curve]).map(|c| last(c)).sum();
    Ok(figures(&adaptations, &Proof::counted("decisions learned from", decisions)?))
}

fn figures(adaptations: &[Adaptation], proof: &Proof) -> Vec<Figure> {
    let to_90: Vec<_> =
        adaptations.iter().map(|a| (a, [a.scratch_steps_to_90, a.adapted_steps_to_90])).collect();
    let to_gain: Vec<_> = adaptations.iter().map(|a| (a, a.steps_to_gain())).collect();
    let rewards = |name: &str, baseline: &str, of: fn(&Adaptation) -> (f32, f32)| {
        let pairs: Vec<Pair> =
            adaptations.iter().map(of).map(|(new, old)| (new.into(), old.into())).collect();
        Figure::paired(name, "", baseline, &pairs, proof)
    };
    let most = |of: fn(&Adaptation) -> f32| adaptations.iter().map(of).fold(f32::NEG_INFINITY, f32::max);
    vec![
        steps("learn.prefer.steps", "of the latter's reward", &to_90, proof),
        steps("learn.prefer.gain", "of what the latter gained over what knows nothing", &to_gain, proof),
        rewards("learn.prefer.reward", "a policy from nothing", |a| (a.adapted_reward, a.scratch_reward))
            .with_note(format!(
                "on held-out links; from nothing, the last tenth of evaluations is at most {:.1} % better than the tenth before",
                100.0 * most(|a| a.scratch_rise)
            )),
        rewards("learn.prefer.old", "old preferences before", |a| (a.old_after, a.old_before)).with_note(
            format!("on held-out links; the one that loses most loses {:.1} %", 100.0 * most(|a| a.old_worst_loss)),
        ),
    ]
}

/// Decisions until 90 % of something, beside those from nothing, which each has first.
fn steps(name: &str, of: &str, all: &[(&Adaptation, [Option<u64>; 2])], proof: &Proof) -> Figure {
    let pairs: Vec<Pair> = all
        .iter()
        .map(|(a, [scratch, adapted])| {
            (within(*adapted, &a.adapted_curve), within(*scratch, &a.scratch_curve))
        })
        .collect();
    let at_once = all.iter().filter(|(_, [_, adapted])| *adapted == Some(0)).count();
    let never = all.iter().filter(|(_, [_, adapted])| adapted.is_none()).count();
    Figure::paired(name, "decisions", "a policy from nothing", &pairs, proof).or_zero().with_note(format!(
        "to 90 % {of}; there at once: {at_once} of {}; never, and counted as all that it learned from: {never}",
        all.len()
    ))
}

/// The steps until the target was reached; all steps of the curve where it never was, a lower bound.
fn within(reached: Option<u64>, curve: &[(u64, f32)]) -> f64 {
    reached.unwrap_or(last(curve)) as f64
}

fn last(curve: &[(u64, f32)]) -> u64 {
    curve.last().map_or(0, |(steps, _)| *steps)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn proof() -> Proof {
        Proof::counted("decisions learned from", 1).unwrap()
    }

    fn adaptation(adapted: Option<u64>, scratch: Option<u64>) -> Adaptation {
        Adaptation {
            preference: [1.0, 0.0, 0.0],
            scratch_reward: 0.5,
            scratch_best: 0.5,
            scratch_rise: 0.0,
            scratch_steps_to_90: scratch,
            before_reward: 0.25,
            adapted_reward: 0.5,
            adapted_steps_to_90: adapted,
            old_before: 0.5,
            old_after: 0.5,
            old_worst_loss: 0.02,
            scratch_curve: vec![(0, 0.0), (100_000, 0.5)],
            adapted_curve: vec![(0, 0.25), (8_000, 0.5)],
        }
    }

    #[test]
    fn at_once_is_nothing_and_never_is_all() {
        let of = |all: &[Adaptation]| figures(all, &proof()).remove(0);
        let figure = of(&[adaptation(Some(0), Some(40_000)), adaptation(None, Some(40_000))]);
        assert_eq!((figure.value, figure.samples, figure.spread), (0.0, 2, [0.0, 8_000.0]));
        assert_eq!(figure.ratio, Some(0.0));
        assert!(
            figure.note.is_some_and(|note| note.contains("at once: 1 of 2") && note.ends_with("from: 1"))
        );
        let figure = of(&[
            adaptation(None, None),
            adaptation(Some(4_000), Some(40_000)),
            adaptation(None, Some(40_000)),
        ]);
        assert_eq!((figure.value, figure.baseline), (8_000.0, 40_000.0));
        assert_eq!(figure.ratio, Some(0.1), "of 0.08, 0.1 and 0.2");
    }

    #[test]
    fn a_gain_is_above_what_knows_nothing() {
        let mut one = adaptation(Some(0), Some(0));
        one.scratch_curve = vec![(0, 0.46), (50_000, 0.49), (100_000, 0.5)];
        one.adapted_curve = vec![(0, 0.46), (4_000, 0.497)];
        let all = figures(&[one], &proof());
        assert_eq!((all[0].value, all[0].baseline), (0.0, 0.0), "both begin with 90 % of the reward");
        assert_eq!((all[1].value, all[1].baseline), (4_000.0, 100_000.0));
        assert!(all[3].note.as_ref().is_some_and(|note| note.ends_with("loses 2.0 %")), "{:?}", all[3].note);
    }

    #[test]
    fn the_policy_has_not_seen_them() {
        for unseen in UNSEEN {
            let [throughput, latency, loss] = unseen;
            let unseen = Preference::new(throughput, latency, loss).unwrap();
            assert!(
                ccplane_learn::landmarks().iter().all(|seen| seen.distance(&unseen) > 0.05),
                "{unseen:?}"
            );
        }
    }
}
