//! Environments stepped from outside against those that ask.

use ccplane_env::recipe::Recipe;
use ccplane_env::{Ask, Links, Stepped};
use ccplane_learn::{Actor, End, Environment, Rng};

/// The observations, actions and rewards of flows, in the order of time.
#[derive(Default, PartialEq, Debug)]
struct Seen {
    asks: Vec<(usize, Vec<f32>, f32)>,
    rewards: Vec<(usize, f32)>,
}

fn action(rng: &mut Rng) -> f32 {
    rng.normal() as f32 * 3.0
}

/// Acts at random, and keeps what came of it.
struct Random {
    rng: Rng,
    seen: Seen,
}

impl Actor for Random {
    fn act(&mut self, agent: usize, observation: &[f32]) -> f32 {
        let action = action(&mut self.rng);
        self.seen.asks.push((agent, observation.to_vec(), action));
        action
    }

    fn outcome(&mut self, agent: usize, reward: f32, _end: End, _observation: &[f32]) {
        self.seen.rewards.push((agent, reward));
    }
}

fn called(links: &Links, seed: u64, max_steps: usize) -> Seen {
    let mut random = Random { rng: Rng::new(seed, &[]), seen: Seen::default() };
    links.clone().episode(seed, max_steps, &mut random);
    random.seen
}

fn stepped(stepped: &mut Stepped, seed: u64, max_steps: usize) -> Seen {
    let (mut rng, mut seen) = (Rng::new(seed, &[]), Seen::default());
    let mut ask = stepped.start(seed, max_steps);
    while let Some(Ask { agent, reward, last }) = ask {
        seen.rewards.extend(reward.map(|reward| (agent, reward)));
        let action = action(&mut rng);
        seen.asks.push((agent, stepped.observation().to_vec(), action));
        let of_agent = seen.asks.iter().filter(|(n, ..)| *n == agent).count();
        assert_eq!(last, of_agent > max_steps);
        ask = stepped.step(action);
    }
    seen
}

#[test]
fn a_stepped_episode_is_the_called_one_to_the_bit() {
    for recipe in [Recipe::aurora(), Recipe::published(), Recipe::mocc()] {
        let links = recipe.unwrap().links().unwrap();
        let mut outside = Stepped::new(links.clone());
        let mut shared = 0;
        for seed in 0..24 {
            let (called, stepped) = (called(&links, seed, 60), stepped(&mut outside, seed, 60));
            assert!(!called.rewards.is_empty(), "seed {seed}");
            shared += usize::from(called.asks.iter().any(|(agent, ..)| *agent > 0));
            assert_eq!(stepped, called, "seed {seed}");
        }
        assert!(shared > 0 || links.algorithms().len() == 1);
    }
}

#[test]
fn an_episode_that_is_given_up_leaves_nothing_behind() {
    let links = Recipe::published().unwrap().links().unwrap();
    let mut outside = Stepped::new(links);
    assert_eq!(outside.step(0.0), None, "before the first episode");
    let first = outside.start(7, 400);
    let seen = outside.observation().to_vec();
    for _ in 0..20 {
        outside.step(1.0);
    }
    // On another thread.
    let (again, outside) = std::thread::spawn(move || (outside.start(7, 400), outside)).join().unwrap();
    assert_eq!((again, outside.observation()), (first, &seen[..]));
}
