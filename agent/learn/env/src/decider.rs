//! The policies that answer a program's `(policy slot)`.

use ccplane_infer::{Control, FlowPolicy, Level, Shape, Slot, Verdict, image};
use ccplane_learn::{Actor, End};
use ccplane_program::vm::{Decision, Knobs};
use ccplane_snapshot::PolicySpec;

/// Decides for all flows of an episode.
pub trait Decider {
    /// Flow `agent` asks, with these history cells.
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision;

    /// Called with the reward of `agent`'s last action but one; `cells` is the observation that followed, on which it
    /// has decided by now.
    fn outcome(&mut self, agent: usize, reward: f32, cells: &[i32]) {
        let _ = (agent, reward, cells);
    }

    /// Whether it wants to hear rewards before it decides, which costs each asked ACK a second run of its program.
    fn foresees(&self) -> bool {
        false
    }

    /// Called just before `agent` decides, with the reward of its last action: the same that [`Decider::outcome`] brings later.
    fn foreseen(&mut self, agent: usize, reward: f32) {
        let _ = (agent, reward);
    }
}

/// A learner's actor decides: its float policy, exploring or not.
pub struct Learning<'a> {
    spec: &'a PolicySpec,
    actor: &'a mut dyn Actor,
    moves: ActionMap,
    observation: Vec<f32>,
}

impl<'a> Learning<'a> {
    /// `actor` decides by observations and actions of `spec`.
    pub fn new(spec: &'a PolicySpec, actor: &'a mut dyn Actor) -> Learning<'a> {
        Learning { spec, actor, moves: ActionMap::new(spec), observation: vec![0.0; spec.inputs().len()] }
    }
}

impl Decider for Learning<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        self.spec.normalise(cells, &mut self.observation);
        let action = self.actor.act(agent, &self.observation);
        let bound = i64::from(self.spec.action().bound_q16);
        let action_q16 = ((f64::from(action) * 65536.0).round() as i64).clamp(-bound, bound);
        self.moves.apply(action_q16, knobs);
        Decision::Action { action_q16, snapshot: 1 }
    }

    fn outcome(&mut self, agent: usize, reward: f32, cells: &[i32]) {
        self.spec.normalise(cells, &mut self.observation);
        self.actor.outcome(agent, reward, End::No, &self.observation);
    }
}

/// An action map: does what a datapath does of an action, bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct ActionMap {
    /// The header of an image, which holds the action map.
    header: [u64; image::FEATURES / 8],
}

impl ActionMap {
    /// Makes the moves of `spec`'s action.
    pub fn new(spec: &PolicySpec) -> ActionMap {
        let (action, mut header) = (spec.action(), [0; image::FEATURES / 8]);
        image::set_u32(&mut header, image::MAP, action.map.code());
        image::set_u64(&mut header, image::STEP_Q20, action.step_q20.into());
        image::set_u64(&mut header, image::KNOB_MIN, action.knob_min as u64);
        image::set_u64(&mut header, image::KNOB_MAX, action.knob_max as u64);
        ActionMap { header }
    }

    /// ActionMap the rate or the window by an action that is within its bound.
    pub fn apply(&self, action_q16: i64, knobs: &mut Knobs) {
        let mut theirs = datapath_knobs(knobs);
        ccplane_infer::apply(&self.header, action_q16, &mut theirs);
        (knobs.cwnd_bytes, knobs.rate_bytes_per_s) = (theirs.cwnd_bytes, theirs.rate_bytes_per_s);
    }
}

fn datapath_knobs(knobs: &Knobs) -> ccplane_infer::Knobs {
    ccplane_infer::Knobs { cwnd_bytes: knobs.cwnd_bytes, rate_bytes_per_s: knobs.rate_bytes_per_s }
}

/// An integer snapshot decides, as in a datapath.
pub struct Integer<'a> {
    shape: Shape,
    image: &'a [u64],
    flows: Vec<FlowPolicy>,
    /// Sum and number of rewards.
    pub rewards: (f64, usize),
}

impl<'a> Integer<'a> {
    /// Makes a decider that runs this image of that shape.
    pub fn new(shape: Shape, image: &'a [u64]) -> Integer<'a> {
        Integer { shape, image, flows: Vec::new(), rewards: (0.0, 0) }
    }

    /// Decisions out of bounds, of all.
    pub fn saturated(&self) -> (u32, u32) {
        self.flows.iter().fold((0, 0), |(s, n), flow| (s + flow.saturated, n + flow.decisions))
    }

    /// Flows that the monitor has taken from the snapshot.
    pub fn fallen(&self) -> usize {
        self.flows.iter().filter(|flow| flow.level != Level::Chosen).count()
    }
}

impl Decider for Integer<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        if agent >= self.flows.len() {
            self.flows.resize(agent + 1, FlowPolicy::default());
        }
        let control = Control { active: Some(0), ..Control::EMPTY };
        let slot = Slot { shape: &self.shape, control, images: [self.image, &[], &[], &[]] };
        let mut theirs = datapath_knobs(knobs);
        match slot.decide(agent as u64, &mut self.flows[agent], cells, &mut theirs) {
            Verdict::Decided { action_q16, uid } => {
                (knobs.cwnd_bytes, knobs.rate_bytes_per_s) = (theirs.cwnd_bytes, theirs.rate_bytes_per_s);
                Decision::Action { action_q16, snapshot: uid }
            }
            Verdict::Native => Decision::Native,
        }
    }

    fn outcome(&mut self, _agent: usize, reward: f32, _cells: &[i32]) {
        self.rewards = (self.rewards.0 + f64::from(reward), self.rewards.1 + 1);
    }
}
