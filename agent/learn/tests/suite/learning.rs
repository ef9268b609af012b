//! PPO learns what is known to be best, the same bits from the same seed.

use crate::toys::{Tastes, Tracking};
use ccplane_learn::curves::JsonLines;
use ccplane_learn::{
    Actor, Checkpoint, Decay, End, Environment, Evaluation, Goals, Learner, Native, Observer, Plateau,
    Policy, PpoConfig, Preference, PreferenceError, Rng, Stop, TrainConfig, TrainError, TrainReport, Update,
    evaluate, landmarks, train,
};

fn ppo() -> PpoConfig {
    PpoConfig { gamma: 0.9, learning_rate: 3e-3, decay: Decay::Linear, minibatch: 64, ..PpoConfig::default() }
}

fn config(total_steps: u64) -> TrainConfig {
    TrainConfig {
        seed: 11,
        total_steps,
        episode_steps: 50,
        steps_per_update: 1000,
        eval_every: 5,
        eval_episodes: 20,
        checkpoint_every: 0,
        threads: 2,
        plateau: None,
        goals: Goals::Own,
        identity: "toys".to_owned(),
    }
}

fn tracking(environments: usize) -> Vec<Box<dyn Environment>> {
    (0..environments).map(|n| Box::new(Tracking { agents: 1 + n % 2 }) as Box<dyn Environment>).collect()
}

fn tastes() -> Vec<Box<dyn Environment>> {
    (0..4).map(|_| Box::new(Tastes::default()) as Box<dyn Environment>).collect()
}

fn run(config: &TrainConfig, environments: usize) -> (TrainReport, Native) {
    let mut learner = Native::new(&crate::toys::policy(2, &[16, 16], None), ppo()).unwrap();
    let report = train(&mut learner, &mut tracking(environments), config, None, &mut ()).unwrap();
    (report, learner)
}

/// Acts as well as can be.
#[derive(Default)]
struct Best {
    sum: f32,
    rewards: f32,
}

impl Actor for Best {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        Tracking::best(observation)
    }
    fn outcome(&mut self, _agent: usize, reward: f32, _end: End, _observation: &[f32]) {
        self.sum += reward;
        self.rewards += 1.0;
    }
}

#[test]
fn reaches_the_best_policy() {
    let (report, _) = run(&config(120_000), 3);
    assert_eq!(report.stop, Stop::Steps);
    let mut best = Best::default();
    (0..100).for_each(|seed| Tracking { agents: 1 }.episode(seed, 50, &mut best));
    let best = best.sum / best.rewards;
    let mean = |policy: &Policy| {
        let rewards = evaluate(policy, &mut tracking(1), &Goals::Own, 99, 100, 50, 1).unwrap();
        rewards.iter().sum::<f32>() / 100.0
    };
    let (before, after) = (mean(&crate::toys::policy(2, &[16, 16], None)), mean(&report.best));
    assert!(before < best - 0.3, "nothing to learn: {before} of {best}");
    assert!(after > best - 0.05, "{after}, the best is {best}");
    assert!(report.best.provenance.steps > 0 && report.best.provenance.steps <= report.progress.steps);
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let base = config(6_000);
    let (one, learner) = run(&TrainConfig { threads: 1, ..base.clone() }, 5);
    for threads in [2, 3, 8] {
        let (more, other) = run(&TrainConfig { threads, ..base.clone() }, 5);
        assert_eq!(one, more, "{threads} threads");
        assert_eq!(learner.state(), other.state());
    }
    let (other_seed, _) = run(&TrainConfig { seed: 12, ..base }, 5);
    assert_ne!(one.last, other_seed.last);
}

#[test]
fn the_same_bits_on_every_machine() {
    let (report, _) = run(&config(6_000), 2);
    assert_eq!(
        report.last.hash().unwrap(),
        "b2ec330403194c3d3a45199403a38a3161b77b7c2c560a0ae475f079f99f3ea8"
    );
}

/// Stops after an update; records what it observes.
#[derive(Default)]
struct Recorded {
    stop_after: Option<u64>,
    updates: Vec<Update>,
    evaluations: Vec<Evaluation>,
    checkpoints: Vec<Checkpoint>,
}

impl Observer for Recorded {
    fn updated(&mut self, update: &Update) -> std::io::Result<()> {
        self.updates.push(*update);
        Ok(())
    }
    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> std::io::Result<()> {
        self.evaluations.push(evaluation.clone());
        Ok(())
    }
    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> std::io::Result<()> {
        self.checkpoints.push(Checkpoint::from_bytes(&checkpoint.to_bytes().unwrap()).unwrap());
        Ok(())
    }
    fn stopped(&mut self) -> bool {
        self.stop_after.is_some_and(|n| self.updates.len() as u64 >= n)
    }
}

#[test]
fn a_resumed_training_is_an_uninterrupted_one() {
    let plateau = Some(Plateau { window: 1, patience: 1000, min_gain: 0.0 });
    let config = TrainConfig { eval_every: 2, plateau, ..config(14_000) };
    let learner = || Native::new(&crate::toys::policy(2, &[16, 16], None), ppo()).unwrap();
    let mut whole = Recorded::default();
    let report = train(&mut learner(), &mut tracking(3), &config, None, &mut whole).unwrap();
    for stop_after in [1, 4, 5] {
        let mut first = Recorded { stop_after: Some(stop_after), ..Recorded::default() };
        let stopped = train(&mut learner(), &mut tracking(3), &config, None, &mut first).unwrap();
        assert_eq!((stopped.stop, stopped.progress.updates), (Stop::Observer, stop_after));
        let from = first.checkpoints.last().unwrap();
        let mut second = Recorded::default();
        let resumed = train(&mut learner(), &mut tracking(3), &config, Some(from), &mut second).unwrap();
        assert_eq!(resumed, report);
        assert_eq!([first.updates, second.updates].concat(), whole.updates);
        assert_eq!([first.evaluations, second.evaluations].concat(), whole.evaluations);
        assert_eq!(second.checkpoints.last(), whole.checkpoints.last());
    }
    let others = [
        TrainConfig { episode_steps: 40, ..config.clone() },
        TrainConfig { identity: "toys by another back end".to_owned(), ..config },
    ];
    for other in others {
        let refused = train(&mut learner(), &mut tracking(3), &other, whole.checkpoints.last(), &mut ());
        assert!(matches!(refused, Err(TrainError::Resume { .. })));
    }
}

#[test]
fn stops_on_its_plateau() {
    let plateau = Some(Plateau { window: 2, patience: 3, min_gain: 0.02 });
    let (report, _) = run(&TrainConfig { plateau, eval_every: 4, ..config(2_000_000) }, 2);
    assert_eq!(report.stop, Stop::Plateau);
    assert!(report.progress.steps < 1_000_000);
    assert!(report.progress.best_reward.unwrap() > -0.35);
}

#[test]
fn refuses_what_does_not_fit() {
    let mut learner = Native::new(&crate::toys::policy(3, &[8], None), ppo()).unwrap();
    let refused = train(&mut learner, &mut tracking(1), &config(1000), None, &mut ());
    assert!(matches!(refused, Err(TrainError::Observations { index: 0, found: 2, expected: 3 })));
    let zero = TrainConfig { threads: 0, ..config(1000) };
    let refused = train(&mut learner, &mut tracking(1), &zero, None, &mut ());
    assert!(matches!(refused, Err(TrainError::Zero { name: "threads" })));
    let ppo = PpoConfig { clip: f32::NAN, ..ppo() };
    assert!(Native::new(&crate::toys::policy(2, &[8], None), ppo).is_err());
}

#[test]
fn curves_say_what_the_observer_hears() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("curves.jsonl");
    let config = TrainConfig { eval_every: 2, ..config(4_000) };
    let mut learner = Native::new(&crate::toys::policy(2, &[8], None), ppo()).unwrap();
    let mut observers: Vec<Box<dyn Observer>> =
        vec![Box::new(JsonLines::create(&path).unwrap()), Box::new(Recorded::default())];
    let report = train(&mut learner, &mut tracking(1), &config, None, &mut observers).unwrap();
    let mut again = Native::new(&crate::toys::policy(2, &[8], None), ppo()).unwrap();
    let mut recorded = Recorded::default();
    train(&mut again, &mut tracking(1), &config, None, &mut recorded).unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).cloned().collect::<Vec<_>>();
    let number = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap() as f32;
    assert_eq!((of("update").len(), of("evaluation").len()), (4, 2));
    for (line, update) in of("update").iter().zip(&recorded.updates) {
        assert_eq!(
            (line["update"].as_u64(), line["step"].as_u64()),
            (Some(update.update), Some(update.steps))
        );
        assert_eq!(number(line, "mean_reward"), update.mean_reward);
        assert_eq!(number(line, "value_loss"), update.stats.value_loss);
        assert_eq!(number(line, "entropy"), update.stats.entropy);
        assert!(number(line, "seconds") >= 0.0);
    }
    assert_eq!(number(&of("evaluation")[1], "mean_reward"), recorded.evaluations[1].mean_reward);
    assert_eq!(of("evaluation")[1]["rewards"].as_array().unwrap().len(), 20);

    for (line, evaluation) in of("evaluation").iter().zip(&recorded.evaluations) {
        assert_eq!(line["step"].as_u64(), Some(evaluation.steps));
    }
    assert_eq!(report.progress.steps, recorded.updates[3].steps);

    // Killed while it wrote the last line; then on from the second update, and from nothing.
    std::fs::write(&path, &text[..text.len() - 9]).unwrap();
    drop(JsonLines::resume(&path, recorded.updates[1].steps).unwrap());
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!((kept.lines().count(), text.starts_with(&kept)), (3, true));
    drop(JsonLines::resume(&path, u64::MAX).unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
    drop(JsonLines::create(&path).unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
}

fn worth(policy: &Policy, preference: Preference) -> f32 {
    let rewards = evaluate(policy, &mut tastes(), &Goals::One(preference), 5, 4, 50, 1).unwrap();
    rewards.iter().sum::<f32>() / 4.0
}

#[test]
fn landmarks_then_a_new_preference_without_forgetting() {
    let policy = crate::toys::policy(4, &[24, 16], Some(Tastes::PREFERENCE));
    let ppo = PpoConfig { gamma: 0.0, ..ppo() };
    let mut learner = Native::new(&policy, ppo).unwrap();
    let goals = Goals::Landmarks { bootstrap: 0.2 };
    let config = TrainConfig { goals, eval_episodes: 36, steps_per_update: 2000, ..config(400_000) };
    let report = train(&mut learner, &mut tastes(), &config, None, &mut ()).unwrap();
    let all = landmarks().map(|landmark| worth(&report.last, landmark));
    let worst = all.iter().copied().fold(0.0, f32::min);
    assert!(worst > -0.02, "{all:?}");

    let new = Preference::new(1.0, 0.0, 0.0).unwrap();
    let adapt = |old: Vec<Preference>| {
        let mut learner = Native::new(&report.last, PpoConfig { decay: Decay::Constant, ..ppo }).unwrap();
        let config = TrainConfig { goals: Goals::Adapt { new, old }, ..config.clone() };
        let config = TrainConfig { total_steps: 40_000, ..config };
        train(&mut learner, &mut tastes(), &config, None, &mut ()).unwrap().last
    };
    let with_replay = adapt(landmarks().to_vec());
    let gained = (worth(&report.last, new), worth(&with_replay, new));
    assert!(gained.1 > gained.0.min(-0.005), "{gained:?}");
    let forgot = |policy: &Policy| landmarks().iter().map(|l| worth(policy, *l)).fold(0.0, f32::min);
    assert!(forgot(&with_replay) > -0.03, "{}", forgot(&with_replay));
    let without = adapt(Vec::new());
    let between = |share: f32| report.last.towards(&without, share).unwrap();
    assert_eq!(between(0.0).actor(), report.last.actor());
    assert_eq!(between(1.0).actor(), without.actor());
    let on_the_way = [0.0, 0.25, 1.0].map(|share| forgot(&between(share)));
    assert!(on_the_way.is_sorted_by(|before, after| before > after), "{on_the_way:?}");
    assert!(forgot(&without) < forgot(&with_replay), "{} {}", forgot(&without), forgot(&with_replay));
}

/// An environment without preferences refuses to be trained for one.
#[test]
fn a_refused_preference_ends_a_training() {
    let goals = Goals::One(Preference::new(1.0, 1.0, 1.0).unwrap());
    let policy = crate::toys::policy(2, &[16, 16], None);
    let refused = evaluate(&policy, &mut tracking(1), &goals, 1, 1, 10, 1);
    assert!(matches!(refused, Err(PreferenceError::OneReward)), "{refused:?}");
    let mut learner = Native::new(&policy, ppo()).unwrap();
    let config = TrainConfig { goals, ..config(1000) };
    let ended = train(&mut learner, &mut tracking(1), &config, None, &mut ());
    assert!(matches!(ended, Err(TrainError::Preference(PreferenceError::OneReward))));
}

/// Keeps what it was asked to prefer, in evaluations too.
struct Asked(Tastes, std::sync::Arc<std::sync::Mutex<Vec<Preference>>>);

impl Environment for Asked {
    fn observation_len(&self) -> usize {
        self.0.observation_len()
    }

    fn prefer(&mut self, preference: Preference) -> Result<(), PreferenceError> {
        self.1.lock().unwrap().push(preference);
        self.0.prefer(preference)
    }

    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor) {
        self.0.episode(seed, max_steps, actor);
    }
}

/// The settings have as many updates and episodes as MOCC's recipe, and a hundredth of its decisions.
#[test]
fn landmarks_are_met_one_after_the_other() {
    let asked = std::sync::Arc::default();
    let mut worlds: Vec<Box<dyn Environment>> =
        vec![Box::new(Asked(Tastes::default(), std::sync::Arc::clone(&asked)))];
    let mut learner =
        Native::new(&crate::toys::policy(4, &[24, 16], Some(Tastes::PREFERENCE)), ppo()).unwrap();
    let config = TrainConfig {
        goals: Goals::Landmarks { bootstrap: 0.3 },
        steps_per_update: 40,
        episode_steps: 4,
        eval_every: 10_000,
        eval_episodes: 1,
        ..config(40_000)
    };
    train(&mut learner, &mut worlds, &config, None, &mut ()).unwrap();
    let (asked, all) = (asked.lock().unwrap(), landmarks());
    let first = |landmark: &Preference| asked.iter().position(|p| p == landmark).unwrap() / config.episodes();
    let met: Vec<usize> = all.iter().map(first).collect();
    let expected = |n: usize| if n < 3 { 0 } else { 300 + (n - 3) * 4 };
    assert_eq!(met, (0..36).map(expected).collect::<Vec<_>>());
}

#[test]
fn the_preference_block_stays_apart() {
    let policy = crate::toys::policy(4, &[24, 16], Some(Tastes::PREFERENCE));
    let mut learner = Native::new(&policy, ppo()).unwrap();
    let config = TrainConfig { goals: Goals::Landmarks { bootstrap: 0.5 }, ..config(10_000) };
    let report = train(&mut learner, &mut tastes(), &config, None, &mut ()).unwrap();
    let first = &report.last.actor().layers()[0];
    for (n, weight) in first.weights.iter().enumerate() {
        let (neuron, input) = (n / 4, n % 4);
        assert_eq!(*weight != 0.0, (neuron < 8) == (input >= 1), "{neuron} {input}");
    }
    assert_ne!(first.weights, policy.actor().layers()[0].weights);
}

#[test]
fn a_learner_that_diverges_says_so() {
    let mut learner = Native::new(&crate::toys::policy(2, &[8], None), ppo()).unwrap();
    let mut batch = ccplane_learn::Batch::new(2);
    batch.observations = vec![f32::NAN; 2];
    for column in [
        &mut batch.actions,
        &mut batch.log_probs,
        &mut batch.rewards,
        &mut batch.values,
        &mut batch.advantages,
        &mut batch.returns,
    ] {
        column.push(1.0);
    }
    let diverged = learner.update(&batch, 1e-3, &mut Rng::new(1, &[]));
    assert!(matches!(diverged, Err(ccplane_learn::LearnError::Diverged { rows: 1 })), "{diverged:?}");
    batch.values.clear();
    let refused = learner.update(&batch, 1e-3, &mut Rng::new(1, &[]));
    assert!(matches!(refused, Err(ccplane_learn::LearnError::Batch { what: "values", found: 0, .. })));
}
