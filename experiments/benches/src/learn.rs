//! `learn.native`: PPO on networks of Aurora's size, against what plain loops need for its forward runs alone.

use std::hint::black_box;
use std::time::Instant;

use ccplane_learn::{
    Actor, ActorCritic, Architecture, Batch, End, Learner, Native, Policy, PpoConfig, Recorder, Rng,
};
use ccplane_quantize::Scratch;

use crate::error::BenchError;
use crate::figure::Figure;
use crate::nn::spec;
use crate::proof::{Proof, Unproven};

const ROWS: usize = 2048;
const EPOCHS: usize = 4;
const ROUNDS: usize = 49;
/// Actions within this are the same.
const SAME: f32 = 1e-3;
const BASELINE: &str = "its forward runs alone, one row after the other, tanh from the library";

/// Measures `learn.native`: one PPO update, and one action of the network.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let missing = |e: &dyn std::fmt::Display| BenchError::Missing(e.to_string());
    let architecture = Architecture::aurora();
    let spec = spec(architecture.inputs).map_err(|e| missing(&e))?;
    let policy = Policy::initial(architecture, spec, 0.0, 1).map_err(|e| missing(&e))?;
    let batch = batch(&policy);
    let mut figures = Vec::new();
    for minibatch in [64, 256] {
        let config = PpoConfig { minibatch, epochs: EPOCHS, target_kl: None, ..PpoConfig::default() };
        let mut learner = Native::new(&policy, config).map_err(|e| missing(&e))?;
        let mut rng = Rng::new(1, &[]);
        let (mut pairs, mut changed) = (Vec::new(), 0);
        for _ in 0..ROUNDS {
            let before = learner.policy().to_bytes().map_err(|e| missing(&e))?;
            let start = Instant::now();
            learner.update(&batch, 1e-4, &mut rng).map_err(|e| missing(&e))?;
            let update_ms = start.elapsed().as_secs_f64() * 1e3;
            changed += u64::from(learner.policy().to_bytes().is_ok_and(|after| after != before));
            pairs.push((update_ms, forward_ms(&policy, &batch)));
        }
        let proof = Proof::exactly("updates that changed the policy", changed, ROUNDS as u64)?;
        figures.push(Figure::paired(
            format!("learn.native.update.{minibatch}"),
            "ms",
            BASELINE,
            &pairs,
            &proof,
        ));
    }
    let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| act_ns(&policy, &batch)).collect();
    let baseline = "plain loops, tanh from the library";
    figures.push(Figure::paired("learn.native.act", "ns", baseline, &pairs, &agreed(&policy, &batch)?));
    Ok(figures)
}

/// Both networks' outputs on every row, as often as an update needs them.
fn forward_ms(policy: &Policy, batch: &Batch) -> f64 {
    let (start, mut scratch) = (Instant::now(), Scratch::default());
    for row in (0..EPOCHS).flat_map(|_| batch.observations.chunks_exact(batch.observation_len)) {
        black_box(policy.actor().forward(row, &mut scratch));
        black_box(policy.critic().forward(row, &mut scratch));
    }
    start.elapsed().as_secs_f64() * 1e3
}

/// One action, by the learner's networks and by plain loops.
fn act_ns(policy: &Policy, batch: &Batch) -> (f64, f64) {
    let (mut networks, mut scratch) = (ActorCritic::new(policy), Scratch::default());
    let time = |act: &mut dyn FnMut(&[f32]) -> f32| {
        let start = Instant::now();
        for row in batch.observations.chunks_exact(batch.observation_len) {
            black_box(act(black_box(row)));
        }
        start.elapsed().as_nanos() as f64 / ROWS as f64
    };
    (time(&mut |row| networks.mean(row)), time(&mut |row| policy.actor().forward(row, &mut scratch)))
}

/// Checks that both give the same actions but for the rounding.
fn agreed(policy: &Policy, batch: &Batch) -> Result<Proof, Unproven> {
    let (mut networks, mut scratch) = (ActorCritic::new(policy), Scratch::default());
    let rows = batch.observations.chunks_exact(batch.observation_len);
    let mut same = |row: &&[f32]| {
        let (ours, plain) = (networks.mean(row), policy.actor().forward(row, &mut scratch));
        (ours - plain).abs() < SAME
    };
    let same = rows.filter(|row| same(row)).count();
    Proof::exactly("rows on which both act alike", same as u64, ROWS as u64)
}

fn batch(policy: &Policy) -> Batch {
    let mut rng = Rng::new(1, &[1]);
    let mut recorder = Recorder::new(policy, &PpoConfig::default(), Rng::new(1, &[2]));
    let mut observation = vec![0.0; policy.architecture().inputs];
    for _ in 0..ROWS {
        observation.fill_with(|| (rng.uniform() * 2.0 - 1.0) as f32);
        let action = recorder.act(0, &observation);
        recorder.outcome(0, -(action - observation[0]).abs(), End::No, &observation);
    }
    recorder.take()
}
