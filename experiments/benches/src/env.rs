//! `sim.env`: the time of a training step.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ccplane_algs::{Aurora, AuroraConfig};
use ccplane_env::{Family, Links, PublishedLinks, spec};
use ccplane_learn::{Actor, ActorCritic, Architecture, End, Environment, Policy};

use crate::error::BenchError;
use crate::figure::Figure;
use crate::proof::{self, Proof};

const RUNS: u64 = 9;
/// Episodes of a run, and decisions of each: as published.
const EPISODES: u64 = 40;
const STEPS: usize = 400;
/// Steps per second of the published Python simulator (PCC-RL, `network_sim.py`), on such a machine, on another day.
const PUBLISHED_STEPS_PER_S: f64 = 880.0;

/// Runs of the network alone that one baseline takes.
const FORWARDS: u64 = 100_000;

/// A network that decides as in training; outcomes are counted.
struct Counting {
    networks: ActorCritic,
    steps: u64,
    outcomes: u64,
    /// The last inputs of the network.
    seen: Vec<f32>,
}

impl Actor for Counting {
    fn act(&mut self, _agent: usize, observation: &[f32]) -> f32 {
        self.steps += 1;
        if self.seen.is_empty() {
            self.seen = observation.to_vec();
        }
        self.networks.mean(observation)
    }

    fn outcome(&mut self, _agent: usize, _reward: f32, _end: End, _observation: &[f32]) {
        self.outcomes += 1;
    }
}

impl Counting {
    /// Runs of the network per second, without a link.
    fn forwards_per_s(&mut self) -> f64 {
        let began = Instant::now();
        for _ in 0..FORWARDS {
            black_box(self.networks.mean(black_box(&self.seen)));
        }
        FORWARDS as f64 / began.elapsed().as_secs_f64()
    }
}

/// Decisions per second of one Aurora flow on published links, its packets simulated, on one core.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::Missing(format!("sim.env: {error}"));
    let spec = spec::aurora(spec::Steps::PUBLISHED).map_err(|e| failed(&e))?;
    let policy = Policy::initial(Architecture::aurora(), spec.clone(), 0.0, 1).map_err(|e| failed(&e))?;
    let aurora = Arc::new(Aurora { config: AuroraConfig::published() });
    let family = Family::Published(PublishedLinks::default());
    let mut links = Links::new(aurora, None, family, spec).map_err(|e| failed(&e))?;
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let mut actor =
            Counting { networks: ActorCritic::new(&policy), steps: 0, outcomes: 0, seen: Vec::new() };
        let began = Instant::now();
        (0..EPISODES).for_each(|n| links.episode(run * EPISODES + n, STEPS, &mut actor));
        let per_second = actor.steps as f64 / began.elapsed().as_secs_f64();
        proofs.push(Proof::exactly("decisions rewarded", actor.outcomes, EPISODES * STEPS as u64)?);
        pairs.push((per_second, actor.forwards_per_s()));
    }
    let note = format!("PCC-RL's simulator made {PUBLISHED_STEPS_PER_S} on such a machine, not beside this");
    let baseline = "runs of the network alone";
    Ok(vec![Figure::paired("sim.env", "steps/s", baseline, &pairs, &proof::all(&proofs)?).with_note(note)])
}
