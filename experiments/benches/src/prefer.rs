//! `learn.prefer`: MOCC learns preferences that it has not seen, beside learning them from nothing (Ma et al., EuroSys 2022,
//! section 6.3).

use ccplane_alg::Algorithm;
use ccplane_algs::Mocc;
use ccplane_env::recipe::{Adaptation, Recipe};
use ccplane_learn::{Policy, Preference};

use crate::error::BenchError;
use crate::figure::Figure;

/// Throughput, latency, loss, in percent: none is a landmark.
const UNSEEN: [[f32; 3]; 3] = [[85.0, 10.0, 5.0], [5.0, 85.0, 10.0], [35.0, 30.0, 35.0]];

/// Decisions until 90 % of the reward that learning from nothing reaches, and what the old preferences lose.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::Missing(format!("learn.prefer: {error}"));
    let shipped = Mocc::default().policies();
    let source = shipped.first().ok_or_else(|| BenchError::Missing("MOCC ships without a policy".into()))?;
    let policy = Policy::from_bytes(&source.policy).map_err(|e| failed(&e))?;
    let recipe = Recipe::mocc().map_err(|e| failed(&e))?;
    let mut adaptations = Vec::new();
    for [throughput, latency, loss] in UNSEEN {
        let preference = Preference::new(throughput, latency, loss)
            .ok_or_else(|| BenchError::Missing("a preference is not one".into()))?;
        adaptations.push(recipe.adapt(&policy, preference).map_err(|e| failed(&e))?);
    }
    Ok(figures(&adaptations))
}

fn figures(adaptations: &[Adaptation]) -> Vec<Figure> {
    let all = adaptations.len();
    let at_once = adaptations.iter().filter(|a| a.adapted_steps_to_90 == Some(0)).count();
    let never = adaptations.iter().filter(|a| a.adapted_steps_to_90.is_none()).count();
    let steps: Vec<(f64, f64)> = adaptations
        .iter()
        .map(|a| {
            let adapted = within(a.adapted_steps_to_90, &a.adapted_curve);
            (adapted, within(a.scratch_steps_to_90, &a.scratch_curve))
        })
        .collect();
    let rewards: Vec<(f64, f64)> =
        adaptations.iter().map(|a| (f64::from(a.adapted_reward), f64::from(a.scratch_reward))).collect();
    let old: Vec<(f64, f64)> =
        adaptations.iter().map(|a| (f64::from(a.old_after), f64::from(a.old_before))).collect();
    vec![
        Figure::paired("learn.prefer.steps", "decisions", "a policy from nothing", &steps).noted(format!(
            "to 90 % of the latter's reward; there at once: {at_once} of {all}; never, and counted as all that it learned from: \
             {never}"
        )),
        Figure::paired("learn.prefer.reward", "", "a policy from nothing", &rewards),
        Figure::paired("learn.prefer.old", "", "old preferences before", &old),
    ]
}

/// Who never got there needs more than all that it learned from: at least that counts.
fn within(reached: Option<u64>, curve: &[(u64, f32)]) -> f64 {
    let last = curve.last().map_or(0, |(steps, _)| *steps);
    reached.unwrap_or(last) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptation(adapted: Option<u64>, scratch: Option<u64>) -> Adaptation {
        Adaptation {
            preference: [1.0, 0.0, 0.0],
            scratch_reward: 0.5,
            scratch_steps_to_90: scratch,
            before_reward: 0.25,
            adapted_reward: 0.5,
            adapted_steps_to_90: adapted,
            old_before: 0.5,
            old_after: 0.5,
            scratch_curve: vec![(0, 0.0), (100_000, 0.5)],
            adapted_curve: vec![(0, 0.25), (8_000, 0.5)],
        }
    }

    #[test]
    fn at_once_is_nothing_and_never_is_all() {
        let of = |all: &[Adaptation]| figures(all).remove(0);
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
        assert_eq!((figure.value, figure.baseline), (8_000.0, Some(40_000.0)));
        assert_eq!(figure.ratio, Some(0.1), "of 0.08, 0.1 and 0.2");
    }
}
