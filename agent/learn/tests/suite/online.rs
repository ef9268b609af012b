//! Learning from rows as datapaths send them.

use crate::toys::Tastes;
use ccplane_learn::online::{NECESSITY, OnlineConfig, OnlineLearner, OnlineRow, RowCounts};
use ccplane_learn::{ActorCritic, Policy, PpoConfig, Preference, Rng};

const NOISE: f32 = 0.4;

fn config() -> OnlineConfig {
    let ppo = PpoConfig { gamma: 0.0, learning_rate: 3e-3, minibatch: 64, ..OnlineConfig::default().ppo };
    OnlineConfig { ppo, rows: 512, ..OnlineConfig::default() }
}

fn policy() -> Policy {
    crate::toys::policy(4, &[16, 16], Some(Tastes::PREFERENCE))
}

/// Flows that decide by a deployment and send their rows.
struct Flows {
    rng: Rng,
    deployed: ActorCritic,
    uid: u32,
    /// The reward of each flow's last action.
    rewards: Vec<f32>,
}

impl Flows {
    /// Eight of them, and the learner that hears of them.
    fn begin(config: OnlineConfig) -> (Flows, OnlineLearner) {
        let mut learner = OnlineLearner::new(&policy(), config).unwrap();
        let deployed = ActorCritic::new(&policy());
        let mut flows = Flows { rng: Rng::new(3, &[]), deployed, uid: 0, rewards: vec![0.0; 8] };
        flows.deploy(&mut learner);
        (flows, learner)
    }

    fn deploy(&mut self, learner: &mut OnlineLearner) -> Policy {
        let policy = learner.policy();
        self.uid += 1;
        self.deployed = ActorCritic::new(&policy);
        learner.deployed(self.uid, &policy, NOISE);
        policy
    }

    /// One interval of each flow; `best` is the action that it is rewarded for.
    fn interval(&mut self, learner: &mut OnlineLearner, preference: Preference, best: f32) {
        for flow in 0..self.rewards.len() {
            let observation = Tastes::see((self.rng.uniform() * 2.0 - 1.0) as f32, &preference);
            let cells = observation.map(|x| (x * 1000.0) as i32);
            let action = self.deployed.mean(&observation) + NOISE * self.rng.normal() as f32;
            let action_q16 = (action.clamp(-2.0, 2.0) * 65536.0) as i32;
            let reward = self.rewards[flow];
            learner.take(OnlineRow { flow: flow as u64, cells: &cells, action_q16, reward, uid: self.uid });
            self.rewards[flow] = -(action - best).powi(2);
        }
    }
}

fn preference() -> Preference {
    Preference::new(0.2, 0.7, 0.1).unwrap()
}

#[test]
fn converges_and_finds_a_push_necessary() {
    let (mut flows, mut learner) = Flows::begin(config());
    let (mut pushes, mut converged) = (0, Vec::new());
    for _ in 0..20_000 {
        flows.interval(&mut learner, preference(), 0.9);
        let Some(update) = learner.learn().unwrap() else { continue };
        assert!(update.rows >= 512 && update.replayed == 0 && update.shift < 0.2);
        assert!(update.effective_share > 0.2 && update.effective_share < 1.001, "{}", update.effective_share);
        let necessary = learner.fidelity_to(flows.uid).unwrap().update_is_necessary(NECESSITY);
        let stability = learner.stability();
        if update.update == 2 {
            assert!(!stability.converged);
        }
        // Until it has converged, push each necessary change: the flows' deployment follows the learner.
        if necessary {
            flows.deploy(&mut learner);
            pushes += 1;
            learner.unsettle();
        }
        converged.push(stability.converged);
    }
    assert!((2..=20).contains(&pushes), "{pushes}");
    let mean = flows.deployed.mean(&Tastes::see(0.3, &preference()));
    assert!((mean - 0.9).abs() < 0.15, "{mean}");
    assert!(converged.iter().rev().take(20).filter(|c| **c).count() > 10, "converged at the end");
    let counts = learner.counts();
    assert_eq!(counts, RowCounts { taken: 160_000, ..RowCounts::default() });
    assert_eq!(learner.policy().provenance.steps, 512 * converged.len() as u64);
}

#[test]
fn rows_that_teach_nothing_are_counted_and_break_trajectories() {
    let mut learner =
        OnlineLearner::new(&policy(), OnlineConfig { rows: 4, max_rows: 6, max_flows: 2, ..config() })
            .unwrap();
    let cells = [0, 100, 200, 300];
    let row = |flow, action_q16, reward, uid| OnlineRow { flow, cells: &cells, action_q16, reward, uid };
    assert!(!learner.take(row(1, 0, 0.0, 1)));
    learner.deployed(1, &policy(), NOISE);
    learner.deployed(2, &policy(), 0.0);
    assert!(learner.take(row(1, 0, 0.0, 1)) && learner.take(row(1, 0, 0.0, 1)));
    assert_eq!(learner.waiting(), 1, "the second row's outcome is yet to come");
    assert!(!learner.take(row(1, 0, 0.0, 2)), "no noise");
    assert!(!learner.take(row(1, 400_000, 0.0, 1)), "an action that this deployment would not take");
    assert!(!learner.take(row(1, 0, f32::NAN, 1)));
    for _ in 0..3 {
        assert!(learner.take(row(1, 0, 0.0, 1)));
    }
    assert_eq!(learner.waiting(), 3, "the first row after a gap brings no outcome");
    assert!(learner.take(row(2, 0, 0.0, 1)) && learner.take(row(1, 0, 0.0, 1)));
    assert!(learner.take(row(3, 0, 0.0, 1)), "a third flow, for which the second is forgotten");
    assert!(learner.take(row(2, 0, 0.0, 1)) && learner.waiting() == 4, "so this is its first row");
    learner.restart(&policy()).unwrap();
    for _ in 0..4 {
        assert!(learner.take(row(1, 0, 0.0, 1)));
    }
    assert_eq!(learner.learn().unwrap(), None);
    for _ in 0..3 {
        learner.take(row(1, 0, 0.0, 1));
    }
    assert_eq!(learner.waiting(), 6);
    assert!(!learner.take(row(1, 0, 0.0, 1)), "too many wait");
    let expected =
        RowCounts { taken: 16, unknown_deployment: 1, without_noise: 1, implausible: 2, overflowed: 1 };
    assert_eq!(learner.counts(), expected);
    assert_eq!(learner.learn().unwrap().map(|update| update.rows), Some(6));
    assert_eq!(learner.waiting(), 0);
}

#[test]
fn old_preferences_are_replayed_beside_a_new_one() {
    let first = Preference::new(0.7, 0.2, 0.1).unwrap();
    let run = |replayed_objectives| {
        let (mut flows, mut learner) = Flows::begin(OnlineConfig { replayed_objectives, ..config() });
        let mut replayed = 0;
        for preference in [first, preference()] {
            for _ in 0..60 {
                flows.deploy(&mut learner);
                for _ in 0..65 {
                    flows.interval(&mut learner, preference, 2.0 * Tastes::best(&preference));
                }
                let update = learner.learn().unwrap().unwrap();
                assert!(update.replayed == 0 || update.replayed == update.rows);
                replayed += usize::from(update.replayed > 0);
            }
        }
        let mut networks = ActorCritic::new(&learner.policy());
        let mut off = |p| (networks.mean(&Tastes::see(0.0, &p)) - 2.0 * Tastes::best(&p)).abs();
        (replayed, off(first), off(preference()))
    };
    let ((none, forgot, _), (some, kept, learned)) = (run(0), run(4));
    assert_eq!(none, 0);
    assert_eq!(some, 60);
    assert!(learned < 0.2, "{learned}");
    assert!(kept < 0.3 && kept < forgot, "{kept} off with replay, {forgot} without");
}

#[test]
fn fidelity_is_measured_on_the_batchs_inputs() {
    let (mut flows, mut learner) = Flows::begin(config());
    assert_eq!(learner.fidelity(|_| 0.0), None);
    for _ in 0..65 {
        flows.interval(&mut learner, preference(), 1.0);
    }
    learner.learn().unwrap().unwrap();
    let mut networks = ActorCritic::new(&learner.policy());
    let mut seen = Vec::new();
    let fidelity = learner
        .fidelity(|cells| {
            seen.push(cells.to_vec());
            let observation: Vec<f32> = cells.iter().map(|x| *x as f32 / 1000.0).collect();
            networks.mean(&observation) + 1.0
        })
        .unwrap();
    // Actions reach from -2 to 2.
    assert!((fidelity.min - 0.25).abs() < 1e-5 && (fidelity.max - 0.25).abs() < 1e-5, "{fidelity:?}");
    assert_eq!((fidelity.rows, seen.len()), (512, 512));
    assert_eq!(learner.fidelity_to(9), None);
    learner.restart(&policy()).unwrap();
    assert_eq!(learner.policy().actor(), policy().actor());
}

/// Whatever was chosen beyond the bound was done as the bound: how likely it was is not known.
#[test]
fn from_actions_at_the_bound_only_values_are_learned() {
    let learn = |action_q16: [i32; 2]| {
        let mut learner = OnlineLearner::new(&policy(), OnlineConfig { rows: 64, ..config() }).unwrap();
        learner.deployed(1, &policy(), NOISE);
        for n in 0..65 {
            let (cells, reward) = ([10 * n, 100, 200, 300], (n % 3) as f32);
            let action_q16 = action_q16[n as usize % 2];
            assert!(learner.take(OnlineRow { flow: 1, cells: &cells, action_q16, reward, uid: 1 }));
        }
        let update = learner.learn().unwrap().unwrap();
        (learner.policy(), update.effective_share)
    };
    let bound = policy().spec().action().bound_q16 as i32;
    let (learned, share) = learn([bound, -bound]);
    assert_eq!(learned.actor(), policy().actor());
    assert_ne!(learned.critic(), policy().critic());
    assert_eq!(share, 0.0);
    let (learned, share) = learn([bound - 1, 1 - bound]);
    assert_ne!(learned.actor(), policy().actor());
    assert!(share > 0.9, "{share}");
    let (learned, share) = learn([bound, 1 - bound]);
    assert_ne!(learned.actor(), policy().actor());
    assert!((share - 0.5).abs() < 0.05, "{share}");
}
