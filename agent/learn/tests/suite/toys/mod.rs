//! Small worlds whose best policies are known.

use ccplane_learn::{
    Actor, Architecture, End, Environment, Policy, PolicyError, Preference, PreferenceBlock, PreferenceError,
    Rng,
};
use ccplane_quantize::Activation;
use ccplane_snapshot::{Action, ActionMap, Feature, PolicySpec};

/// Returns a specification of so many inputs of -1000 to 1000, and actions of +-2.
pub fn spec(inputs: usize) -> PolicySpec {
    let feature = |n| Feature { name: format!("x[{n}]"), lo: -1000, hi: 1000 };
    let action = Action { map: ActionMap::None, bound_q16: 2 << 16, step_q20: 1, knob_min: 1, knob_max: 2 };
    PolicySpec::new("toy", (0..inputs).map(feature).collect(), action).unwrap()
}

/// A policy that has learned nothing.
pub fn policy(inputs: usize, hidden: &[usize], preference: Option<PreferenceBlock>) -> Policy {
    let hidden = hidden.to_vec();
    let architecture = Architecture { inputs, hidden, activation: Activation::Tanh, preference };
    initial(architecture).unwrap()
}

fn initial(architecture: Architecture) -> Result<Policy, PolicyError> {
    let spec = spec(architecture.inputs);
    Policy::initial(architecture, spec, -0.5, 7)
}

/// Points on a line that follow targets, which jump now and then: one agent a point, each with its own.
pub struct Tracking {
    pub agents: usize,
}

struct Point {
    at: f32,
    target: f32,
}

impl Tracking {
    const STEP: f32 = 0.2;

    fn see(point: &Point) -> [f32; 2] {
        [point.at, point.target]
    }

    /// The best that can be done: straight to the target.
    pub fn best(observation: &[f32]) -> f32 {
        ((observation[1] - observation[0]) / Tracking::STEP).clamp(-2.0, 2.0)
    }
}

impl Environment for Tracking {
    fn observation_len(&self) -> usize {
        2
    }

    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor) {
        let mut rng = Rng::new(seed, &[]);
        let mut place = move || (rng.uniform() * 2.0 - 1.0) as f32;
        let mut points: Vec<Point> =
            (0..self.agents).map(|_| Point { at: place(), target: place() }).collect();
        for step in 1..=max_steps {
            for (agent, point) in points.iter_mut().enumerate() {
                let action = actor.act(agent, &Tracking::see(point)).clamp(-2.0, 2.0);
                point.at = (point.at + Tracking::STEP * action).clamp(-1.0, 1.0);
                let reward = -(point.at - point.target).abs();
                if step % 10 == 0 {
                    point.target = place();
                }
                let end = if step == max_steps { End::Truncated } else { End::No };
                actor.outcome(agent, reward, end, &Tracking::see(point));
            }
        }
    }
}

/// One state; the best action is the weight of throughput less that of latency.
pub struct Tastes {
    pub preference: Preference,
}

impl Default for Tastes {
    fn default() -> Tastes {
        Tastes { preference: Preference { throughput: 0.8, latency: 0.1, loss: 0.1 } }
    }
}

impl Tastes {
    /// Returns an agent's observation: noise, then the preference, both in [-1, 1].
    pub fn see(noise: f32, preference: &Preference) -> [f32; 4] {
        let [throughput, latency, loss] = preference.weights().map(|w| 2.0 * w - 1.0);
        [noise, throughput, latency, loss]
    }

    pub fn best(preference: &Preference) -> f32 {
        preference.throughput - preference.latency
    }

    pub fn reward(preference: &Preference, action: f32) -> f32 {
        -(action - Tastes::best(preference)).powi(2)
    }

    pub const PREFERENCE: PreferenceBlock = PreferenceBlock { inputs: 3, width: 8 };
}

impl Environment for Tastes {
    fn observation_len(&self) -> usize {
        4
    }

    fn prefer(&mut self, preference: Preference) -> Result<(), PreferenceError> {
        self.preference = preference;
        Ok(())
    }

    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor) {
        let mut rng = Rng::new(seed, &[]);
        let mut see =
            move |preference: &Preference| Tastes::see((rng.uniform() * 2.0 - 1.0) as f32, preference);
        let mut observation = see(&self.preference);
        for step in 1..=max_steps {
            let action = actor.act(0, &observation).clamp(-2.0, 2.0);
            observation = see(&self.preference);
            let end = if step == max_steps { End::Truncated } else { End::No };
            actor.outcome(0, Tastes::reward(&self.preference, action), end, &observation);
        }
    }
}
