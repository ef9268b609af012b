//! The libtorch back end held against the native one: the same weights, batches and orders of rows, so the same policies
//! but for rounding.
#![allow(clippy::unwrap_used)]

use ccplane_learn::{
    Actor, ActorCritic, Architecture, BackEnd, Batch, Device, End, Environment, LearnError, Learner, Native,
    Policy, PpoConfig, Recorder, Rng, Torch, TorchOptions, UpdateStats,
};
use ccplane_quantize::{Activation, quantize};
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec};

const RATE: f32 = 1e-3;

fn policy(architecture: Architecture, seed: u64) -> Policy {
    let feature = |n| Feature { name: format!("x{n}"), lo: -1000, hi: 1000 };
    let action =
        Action { map: ActionMap::None, bound_q16: 1 << 16, step_q20: 1 << 20, knob_min: 1, knob_max: 2 };
    let spec = PolicySpec::new("toy", (0..architecture.inputs).map(feature).collect(), action).unwrap();
    Policy::initial(architecture, spec, 0.0, seed).unwrap()
}

fn architecture(inputs: usize, hidden: &[usize], activation: Activation) -> Architecture {
    Architecture { inputs, hidden: hidden.to_vec(), activation, preference: None }
}

fn torch(policy: &Policy, config: PpoConfig) -> Torch {
    Torch::new(policy, config, TorchOptions::default()).unwrap()
}

/// Rows as a policy makes them, with advantages and returns of no environment.
fn batch(policy: &Policy, rows: usize, seed: u64) -> Batch {
    let mut rng = Rng::new(seed, &[]);
    let inputs = policy.architecture().inputs;
    let mut recorder = Recorder::new(policy, &PpoConfig::default(), Rng::new(seed, &[1]));
    let mut observation = vec![0.0; inputs];
    for row in 0..rows {
        observation.fill_with(|| (rng.uniform() * 2.0 - 1.0) as f32);
        let action = recorder.act(0, &observation);
        let end = if row % 100 == 99 { End::Truncated } else { End::No };
        recorder.outcome(0, (observation[0] - action * observation[inputs - 1]).sin(), end, &observation);
    }
    recorder.take()
}

/// Actor's weights and biases, the critic's, `log_std`.
fn parameters(policy: &Policy) -> Vec<f32> {
    let layers = policy.actor().layers().iter().chain(policy.critic().layers());
    layers.flat_map(|l| l.weights.iter().chain(&l.bias)).copied().chain([policy.log_std()]).collect()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn agree(a: &UpdateStats, b: &UpdateStats) {
    assert_eq!(a.epochs, b.epochs);
    // Of a row at the very edge rounding may decide.
    assert!((a.clip_fraction - b.clip_fraction).abs() < 1e-3, "{a:?} and {b:?}");
    for (name, a, b) in [
        ("policy loss", a.policy_loss, b.policy_loss),
        ("value loss", a.value_loss, b.value_loss),
        ("entropy", a.entropy, b.entropy),
        ("KL", a.approx_kl, b.approx_kl),
        ("explained variance", a.explained_variance, b.explained_variance),
        ("gradient's norm", a.grad_norm, b.grad_norm),
    ] {
        assert!((a - b).abs() <= 1e-5 * a.abs() + 1e-6, "{name}: {a} and {b}");
    }
}

/// Returns architectures and settings that cover the special cases of an update.
fn cases() -> Vec<(Architecture, PpoConfig)> {
    let base = PpoConfig { minibatch: 64, target_kl: None, ..PpoConfig::default() };
    vec![
        (Architecture::aurora(), base),
        (Architecture::mocc(), base),
        (architecture(12, &[48, 40, 24, 8], Activation::Relu), base),
        (architecture(1, &[3], Activation::Tanh), PpoConfig { max_grad_norm: None, ..base }),
        (Architecture::aurora(), PpoConfig { target_kl: Some(1e-4), minibatch: 200, epochs: 10, ..base }),
        (Architecture::aurora(), PpoConfig { normalise_advantages: false, entropy_coef: 0.1, ..base }),
        (Architecture::aurora(), PpoConfig { log_std_range: (-0.001, 0.001), clip: 0.02, ..base }),
    ]
}

#[test]
fn one_update_is_the_same() {
    for (seed, (architecture, config)) in (1..).zip(cases()) {
        let policy = policy(architecture, seed);
        // Not a multiple of the minibatch: the last one is shorter.
        let batch = batch(&policy, 530, seed);
        let (mut native, mut torch) = (Native::new(&policy, config).unwrap(), torch(&policy, config));
        assert_eq!(torch.policy(), &policy);
        let (mut rng, mut same) = (Rng::new(seed, &[2]), Rng::new(seed, &[2]));
        let stats = native.update(&batch, RATE, &mut rng).unwrap();
        agree(&stats, &torch.update(&batch, RATE, &mut same).unwrap());
        assert_eq!(rng, same, "both drew as much");
        let apart = furthest(&parameters(native.policy()), &parameters(torch.policy()));
        assert!(apart <= 1e-5, "case {seed}: parameters {apart} apart");
        assert!(furthest(&parameters(native.policy()), &parameters(&policy)) > 1e-3, "nothing was learned");
    }
}

#[test]
fn many_updates_lead_to_the_same_policy() {
    for (seed, (architecture, config)) in (1..).zip(cases()).take(3) {
        // Rounding grows from update to update. It may also turn a rectifier on or off for a row, and then training goes
        // a way of its own from there.
        let within = if architecture.activation == Activation::Relu { 1e-3 } else { 1e-5 };
        let policy = policy(architecture, seed);
        let (mut native, mut torch) = (Native::new(&policy, config).unwrap(), torch(&policy, config));
        let probe = batch(&policy, 1000, 7).observations;
        let before = evaluated(&mut native, &probe);
        let (mut rng, mut same) = (Rng::new(seed, &[3]), Rng::new(seed, &[3]));
        for n in 0..20 {
            let batch = batch(native.policy(), 512, 100 + n);
            native.update(&batch, RATE, &mut rng).unwrap();
            torch.update(&batch, RATE, &mut same).unwrap();
        }
        let (native, torch) = (evaluated(&mut native, &probe), evaluated(&mut torch, &probe));
        for (what, before, native, torch) in
            [("means", before.0, native.0, torch.0), ("values", before.1, native.1, torch.1)]
        {
            let (apart, learned) = (furthest(&native, &torch), furthest(&native, &before));
            assert!(learned > 1.0, "case {seed}: {what} moved by {learned}");
            assert!(apart <= within * learned, "case {seed}: {what} {apart} apart, moved by {learned}");
        }
    }
}

fn evaluated(learner: &mut dyn Learner, observations: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut means, mut values) = (Vec::new(), Vec::new());
    learner.evaluate(observations, &mut means, &mut values);
    (means, values)
}

#[test]
fn what_does_not_exist_stays_away() {
    let (architecture, config) = cases().swap_remove(1);
    let mut torch = torch(&policy(architecture, 1), config);
    for n in 0..3 {
        // A policy with a weight outside its preference block would be refused here.
        torch.update(&batch(torch.policy(), 256, n), RATE, &mut Rng::new(n, &[])).unwrap();
    }
    let moments = torch.state().moments;
    let weights = moments.second.iter().filter(|m| **m == 0.0).count();
    assert_eq!(weights, 2 * (16 * 30 + 48 * 3), "moments of what is no weight");
}

#[test]
fn resumes_to_the_same_bits() {
    let (architecture, config) = cases().swap_remove(1);
    let policy = policy(architecture, 5);
    let batches: Vec<Batch> = (0..4).map(|n| batch(&policy, 300, n)).collect();
    let mut rng = Rng::new(1, &[]);
    let mut one = torch(&policy, config);
    for batch in &batches[..2] {
        one.update(batch, RATE, &mut rng).unwrap();
    }
    let mut other = torch(&policy, config);
    let mut native = Native::new(&policy, config).unwrap();
    other.restore(&one.state()).unwrap();
    native.restore(&one.state()).unwrap();
    assert_eq!(other.state(), one.state());
    assert_eq!(native.state(), one.state());
    for batch in &batches[2..] {
        let (mut again, mut third) = (rng, rng);
        let stats = one.update(batch, RATE, &mut rng).unwrap();
        assert_eq!(other.update(batch, RATE, &mut again).unwrap(), stats);
        // Either back end goes on from the other's checkpoint.
        agree(&native.update(batch, RATE, &mut third).unwrap(), &stats);
    }
    assert_eq!(other.state(), one.state());
    other.load(&policy).unwrap();
    assert_eq!(other.state(), torch(&policy, config).state());
}

/// A point that drifts and is to be held at 0, by pushing it.
struct Hold;

impl Environment for Hold {
    fn observation_len(&self) -> usize {
        2
    }

    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor) {
        let mut rng = Rng::new(seed, &[]);
        let (mut at, drift) = (rng.uniform() as f32 - 0.5, 0.2 * (rng.uniform() as f32 - 0.5));
        for step in 0..max_steps {
            let action = actor.act(0, &[at, drift * 10.0]).clamp(-1.0, 1.0);
            at = (at + drift + 0.2 * action).clamp(-1.0, 1.0);
            let end = if step + 1 == max_steps { End::Truncated } else { End::No };
            actor.outcome(0, -at.abs(), end, &[at, drift * 10.0]);
        }
    }
}

/// The mean rewards before and after.
fn train(learner: &mut dyn Learner) -> (f32, f32) {
    let mut first = None;
    let mut last = 0.0;
    for n in 0..40 {
        let mut recorder = Recorder::new(learner.policy(), learner.config(), Rng::new(9, &[n]));
        for episode in 0..16 {
            Hold.episode(1000 * n + episode, 32, &mut recorder);
        }
        let batch = recorder.take();
        last = batch.mean_reward();
        first.get_or_insert(last);
        learner.update(&batch, 3e-3, &mut Rng::new(9, &[n, 1])).unwrap();
    }
    (first.unwrap(), last)
}

#[test]
fn both_learn_and_what_torch_learned_runs_natively() {
    let config = PpoConfig { minibatch: 64, ..PpoConfig::default() };
    let policy = policy(architecture(2, &[16, 16], Activation::Tanh), 3);
    let mut native = Native::new(&policy, config).unwrap();
    let mut torch = BackEnd::Torch(TorchOptions::default()).learner(&policy, config).unwrap();
    let (of_native, of_torch) = (train(&mut native), train(torch.as_mut()));
    assert_eq!(of_native.0, of_torch.0, "they begin alike");
    assert!(of_torch.1 > 0.5 * of_torch.0, "{of_torch:?}: nothing was learned");
    assert!((of_native.1 - of_torch.1).abs() < 0.1 * of_native.0.abs(), "{of_native:?} and {of_torch:?}");

    let file = Policy::from_bytes(&torch.policy().to_bytes().unwrap()).unwrap();
    assert_eq!(&file, torch.policy());
    let probe = batch(&policy, 500, 1).observations;
    let (mut means, expected) = (Vec::new(), evaluated(torch.as_mut(), &probe).0);
    ActorCritic::new(&file).means(&probe, &mut means);
    assert!(furthest(&means, &expected) < 1e-5);

    let visited: Vec<Vec<i32>> =
        probe.chunks(2).map(|row| row.iter().map(|x| (x * 1000.0).round() as i32).collect()).collect();
    let snapshot = quantize(file.actor(), file.spec(), &visited, &Default::default()).unwrap();
    assert!(snapshot.fidelity().visited_mean_error < 0.01, "{:?}", snapshot.fidelity());
}

#[test]
fn large_networks_learn() {
    let policy = policy(architecture(30, &[512, 512, 256], Activation::Relu), 1);
    let config = PpoConfig { minibatch: 256, epochs: 2, target_kl: None, ..PpoConfig::default() };
    let mut torch = torch(&policy, config);
    let batch = batch(&policy, 512, 1);
    let losses: Vec<f32> =
        (0..6).map(|n| torch.update(&batch, RATE, &mut Rng::new(n, &[])).unwrap().value_loss).collect();
    assert!(losses[5] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn refuses_what_cannot_be() {
    let config = PpoConfig::default();
    let policy_ = policy(Architecture::aurora(), 1);
    let new = |config, options| Torch::new(&policy_, config, options).map(|_| ());
    let absent = TorchOptions { device: Device::Cuda(4096), ..TorchOptions::default() };
    assert!(matches!(new(config, absent), Err(LearnError::BackEnd { .. })));
    assert!(matches!(
        new(config, TorchOptions { threads: 0, ..TorchOptions::default() }),
        Err(LearnError::BackEnd { .. })
    ));
    assert!(matches!(
        new(PpoConfig { epochs: 0, ..config }, TorchOptions::default()),
        Err(LearnError::Config(_))
    ));
    new(config, TorchOptions { device: Device::Auto, ..TorchOptions::default() }).unwrap();

    let mut torch = torch(&policy_, config);
    let before = torch.state();
    let other = policy(architecture(2, &[16, 16], Activation::Tanh), 1);
    assert!(matches!(torch.load(&other), Err(LearnError::Architecture { .. })));
    let mut rng = Rng::new(1, &[]);
    assert!(matches!(torch.update(&batch(&other, 10, 1), RATE, &mut rng), Err(LearnError::Batch { .. })));
    assert_eq!(torch.update(&Batch::new(30), RATE, &mut rng), Err(LearnError::Empty));
    let mut poisoned = batch(&policy_, 100, 1);
    poisoned.returns[50] = f32::NAN;
    assert_eq!(torch.update(&poisoned, RATE, &mut rng), Err(LearnError::Diverged { rows: 100 }));
    // And goes on from where it was.
    assert_eq!(torch.state(), before);
    torch.update(&batch(&policy_, 100, 1), RATE, &mut rng).unwrap();
}
