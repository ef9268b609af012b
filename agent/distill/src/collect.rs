//! Collects the inputs that flows meet, with the teacher's actions.

use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_env::{ActionMap, Decider, EnvError, Family, NoObserver, Prepared, RealLinks, run};
use ccplane_infer::Model;
use ccplane_learn::Policy;
use ccplane_program::vm::{Decision, Knobs};
use ccplane_quantize::Scratch;
use ccplane_snapshot::{DeployOptions, PolicySpec, Snapshot};

use crate::inputs::{Input, Inputs, Layout};
use crate::{DistillError, Student};

const ONE_Q16: f64 = 65536.0;

/// The network that is distilled.
pub enum Teacher {
    Snapshot(Box<Snapshot>, Vec<u64>),
    Policy(Box<Policy>),
}

impl From<Snapshot> for Teacher {
    fn from(snapshot: Snapshot) -> Teacher {
        let image = snapshot.image(&DeployOptions::ONLY);
        Teacher::Snapshot(Box::new(snapshot), image)
    }
}

impl From<Policy> for Teacher {
    fn from(policy: Policy) -> Teacher {
        Teacher::Policy(Box::new(policy))
    }
}

impl Teacher {
    /// Returns the meaning of the teacher's inputs and of its action.
    pub fn spec(&self) -> &PolicySpec {
        match self {
            Teacher::Snapshot(snapshot, _) => snapshot.spec(),
            Teacher::Policy(policy) => policy.spec(),
        }
    }

    /// Returns the teacher's action on a history, bounded, Q16.
    pub fn action_q16(&self, cells: &[i32]) -> i64 {
        let action = match self {
            Teacher::Snapshot(snapshot, image) => {
                Model::new(snapshot.shape(), image).map_or(0, |model| model.infer(cells).action_q16)
            }
            Teacher::Policy(policy) => {
                let mut observation = vec![0.0; policy.spec().inputs().len()];
                policy.spec().normalise(cells, &mut observation);
                let action = policy.actor().forward(&observation, &mut Scratch::default());
                (f64::from(action) * ONE_Q16).round() as i64
            }
        };
        let bound = i64::from(self.spec().action().bound_q16);
        action.clamp(-bound, bound)
    }
}

/// A state that was met.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) values: Vec<i64>,
    /// The teacher's action, Q16.
    pub(crate) action_q16: i64,
}

/// Flows of an algorithm in the environments that policies are trained in.
pub(crate) struct Ground {
    algorithms: Vec<Prepared>,
    family: Family,
    pub(crate) layout: Layout,
    pub(crate) candidates: Vec<Input>,
}

impl Ground {
    pub(crate) fn new(algorithm: Arc<dyn Algorithm>, layout: Layout) -> Result<Ground, DistillError> {
        let rival: Arc<dyn Algorithm> = Arc::new(ccplane_algs::CUBIC);
        let algorithms = vec![Prepared::new(algorithm)?, Prepared::new(rival)?];
        let candidates = Input::candidates(&layout);
        Ok(Ground { algorithms, family: Family::Real(RealLinks::default()), layout, candidates })
    }

    /// Episodes from `seed` on, under the student or, without one, the teacher: what was met, and the mean reward.
    ///
    /// # Errors
    /// A drawn link that is outside the simulator's limits, of which the family has none.
    pub(crate) fn walk(
        &self,
        teacher: &Teacher,
        student: Option<&Student>,
        seeds: std::ops::Range<u64>,
        steps: usize,
    ) -> Result<(Vec<Sample>, f64), EnvError> {
        let mut samples = Vec::new();
        let mut rewards = (0.0, 0usize);
        for seed in seeds {
            let scenario = self.family.draw(seed, steps, true);
            let mut walker =
                Walker { ground: self, teacher, student, flows: Vec::new(), samples: &mut samples, rewards };
            run(&scenario, &self.algorithms, seed, steps, &mut walker, &mut NoObserver)?;
            rewards = walker.rewards;
        }
        Ok((samples, rewards.0 / rewards.1.max(1) as f64))
    }
}

struct Walker<'a> {
    ground: &'a Ground,
    teacher: &'a Teacher,
    student: Option<&'a Student>,
    flows: Vec<Option<Inputs>>,
    samples: &'a mut Vec<Sample>,
    rewards: (f64, usize),
}

impl Decider for Walker<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        if agent >= self.flows.len() {
            self.flows.resize_with(agent + 1, || None);
        }
        let spec = self.teacher.spec();
        let inputs = self.flows[agent].get_or_insert_with(|| Inputs::new(self.ground.layout, spec));
        inputs.update(cells);
        let label = self.teacher.action_q16(cells);
        let values = self.ground.candidates.iter().map(|input| inputs.get(*input)).collect();
        self.samples.push(Sample { values, action_q16: label });
        let action_q16 = self.student.map_or(label, |student| student.action_q16(|input| inputs.get(input)));
        ActionMap::new(spec).apply(action_q16, knobs);
        Decision::Action { action_q16, snapshot: 1 }
    }

    fn outcome(&mut self, _agent: usize, reward: f32, _cells: &[i32]) {
        self.rewards = (self.rewards.0 + f64::from(reward), self.rewards.1 + 1);
    }
}
