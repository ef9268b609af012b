//! `sim.env`: what a training step costs.

use std::sync::Arc;
use std::time::Instant;

use ccplane_algs::{Aurora, AuroraConfig};
use ccplane_env::{Family, Links, PublishedLinks, spec};
use ccplane_learn::{Actor, ActorCritic, Architecture, End, Environment, Policy};

use crate::error::BenchError;
use crate::figure::Figure;

const RUNS: u64 = 9;
/// Episodes of a run, and decisions of each: as published.
const EPISODES: u64 = 40;
const STEPS: usize = 400;
/// What the published Python simulator (PCC-RL, `network_sim.py`) made on such a machine, on another day.
const PUBLISHED_STEPS_PER_S: f64 = 880.0;

/// A network decides, as in training; what comes of it is counted.
struct Counting {
    networks: ActorCritic,
    steps: u64,
}

impl Actor for Counting {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        self.steps += 1;
        self.networks.mean(observation)
    }

    fn outcome(&mut self, _agent: usize, _reward: f32, _end: End, _observation: &[f32]) {}
}

/// Decisions per second of one Aurora flow on published links, its packets simulated, on one core.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::Missing(format!("sim.env: {error}"));
    let spec = spec::aurora(spec::Steps::PUBLISHED).map_err(|e| failed(&e))?;
    let policy = Policy::initial(Architecture::aurora(), spec.clone(), 0.0, 1).map_err(|e| failed(&e))?;
    let aurora = Arc::new(Aurora { config: AuroraConfig::published() });
    let family = Family::Published(PublishedLinks::default());
    let mut links = Links::new(aurora, None, family, spec).map_err(|e| failed(&e))?;
    let mut per_second = Vec::new();
    for run in 0..RUNS {
        let mut actor = Counting { networks: ActorCritic::new(&policy), steps: 0 };
        let began = Instant::now();
        (0..EPISODES).for_each(|n| links.episode(run * EPISODES + n, STEPS, &mut actor));
        per_second.push(actor.steps as f64 / began.elapsed().as_secs_f64());
    }
    let note = format!("PCC-RL's simulator made {PUBLISHED_STEPS_PER_S} on such a machine, not beside this");
    Ok(vec![Figure::alone("sim.env", "steps/s", &per_second).noted(note)])
}
