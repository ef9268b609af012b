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
    let never = adaptations.iter().filter(|a| a.adapted_steps_to_90.is_none()).count();
    // A policy that is there at once needs its first decision, for a ratio to exist.
    let steps = |steps: Option<u64>| steps.map(|n| n.max(1) as f64);
    let pairs: Vec<(f64, f64)> = adaptations
        .iter()
        .filter_map(|a| Some((steps(a.adapted_steps_to_90)?, steps(a.scratch_steps_to_90)?)))
        .collect();
    let rewards: Vec<(f64, f64)> =
        adaptations.iter().map(|a| (f64::from(a.adapted_reward), f64::from(a.scratch_reward))).collect();
    let old: Vec<(f64, f64)> =
        adaptations.iter().map(|a| (f64::from(a.old_after), f64::from(a.old_before))).collect();
    vec![
        Figure::paired("learn.prefer.steps", "decisions", "a policy from nothing", &pairs).noted(format!(
            "to 90 % of the latter's reward; never reached: {never} of {}",
            adaptations.len()
        )),
        Figure::paired("learn.prefer.reward", "", "a policy from nothing", &rewards),
        Figure::paired("learn.prefer.old", "", "old preferences before", &old),
    ]
}
