//! The time that an update takes by either back end, in turns: 2048 rows, 4 epochs, Aurora's networks and larger ones.
//!
//! `LIBTORCH=$(readlink -f target/torch) cargo run --release -p ccplane-learn --features torch --example back_ends`
#![allow(clippy::unwrap_used)]

use ccplane_learn::{
    Actor, Architecture, BackEnd, Batch, End, Policy, PpoConfig, Recorder, Rng, TorchOptions,
};
use ccplane_quantize::Activation;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec};
use std::time::Instant;

const ROWS: usize = 2048;
const TURNS: usize = 15;

fn policy(hidden: &[usize]) -> Policy {
    let architecture =
        Architecture { inputs: 30, hidden: hidden.to_vec(), activation: Activation::Tanh, preference: None };
    let feature = |n| Feature { name: format!("x{n}"), lo: -1000, hi: 1000 };
    let action =
        Action { map: ActionMap::None, bound_q16: 1 << 16, step_q20: 1 << 20, knob_min: 1, knob_max: 2 };
    let spec = PolicySpec::new("timed", (0..30).map(feature).collect(), action).unwrap();
    Policy::initial(architecture, spec, 0.0, 1).unwrap()
}

fn batch(policy: &Policy) -> Batch {
    let mut rng = Rng::new(1, &[]);
    let mut recorder = Recorder::new(policy, &PpoConfig::default(), Rng::new(2, &[]));
    let mut observation = [0.0; 30];
    for _ in 0..ROWS {
        observation.fill_with(|| (rng.uniform() * 2.0 - 1.0) as f32);
        let action = recorder.act(0, &observation);
        recorder.outcome(0, -(action - observation[0]).abs(), End::No, &observation);
    }
    recorder.take()
}

fn main() {
    println!("{:<16} {:>9} {:>10} {:>10}  median ms of {TURNS}", "hidden", "minibatch", "native", "torch");
    for (hidden, minibatch) in [
        (vec![32, 16], 64),
        (vec![32, 16], 256),
        (vec![64, 32], 256),
        (vec![256, 256], 256),
        (vec![512, 512, 256], 256),
    ] {
        let policy = policy(&hidden);
        let batch = batch(&policy);
        let config = PpoConfig { minibatch, epochs: 4, target_kl: None, ..PpoConfig::default() };
        let back_ends = [BackEnd::Native, BackEnd::Torch(TorchOptions::default())];
        let mut learners = back_ends.map(|back_end| back_end.learner(&policy, config).unwrap());
        let mut times = [const { Vec::new() }; 2];
        for turn in 0..TURNS as u64 {
            for (learner, times) in learners.iter_mut().zip(&mut times) {
                let start = Instant::now();
                learner.update(&batch, 1e-4, &mut Rng::new(turn, &[])).unwrap();
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let [native, torch] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[TURNS / 2]
        });
        println!("{:<16} {minibatch:>9} {native:>10.2} {torch:>10.2}", format!("{hidden:?}"));
    }
}
