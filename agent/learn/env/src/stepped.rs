//! An environment that is stepped from outside: the caller gives an action, and gets what follows it.
//!
//! An episode is a loop that asks for actions deep inside of a program's run. Here it runs on a stack of its own, which
//! is left and entered again at each of those questions. So it does exactly what it does under [`crate::run`].

use crate::decider::{Decider, Learning};
use crate::environment::Links;
use crate::measure::NoObserver;
use crate::world::run;
use ccplane_learn::{Actor, End};
use ccplane_program::vm::{Decision, Knobs};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;

/// A flow that asks for its next action.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    /// The flow's number, from 0.
    pub agent: usize,
    /// The reward of its last action; `None` before it has one.
    pub reward: Option<f32>,
    /// Whether it had all its decisions, so that the episode ends here.
    pub last: bool,
}

/// A buffer that the episode's stack and the caller's hand back and forth.
type Observation = Vec<f32>;
type Episode = Coroutine<(f32, Observation), (Ask, Observation), ()>;

/// One episode after the other on links of a family, a decision at a time.
pub struct Stepped {
    links: Links,
    episode: Option<Running>,
    observation: Observation,
}

/// An episode that waits for an action.
struct Running(Episode);

// SAFETY: an episode's stack holds what its closure took along and what `run` makes of it: a network and its flows, all of them
// `Send` (`assert_send` below checks what goes in); nothing of a thread, such as a guard or a thread-local, is alive
// across `suspend`, which only `Suspending::act` calls. It is entered through `&mut`, so by one thread at a time.
#[allow(unsafe_code)]
unsafe impl Send for Running {}

const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<(Links, u64, usize, Observation)>();
    assert_send::<Box<dyn ccplane_alg::Flow>>();
    assert_send::<(ccplane_netsim::Network, ccplane_sim::Transport)>();
};

impl Stepped {
    /// Steps through episodes on these links.
    #[must_use]
    pub fn new(links: Links) -> Stepped {
        let observation = vec![0.0; links.spec().inputs().len()];
        Stepped { links, episode: None, observation }
    }

    /// The links that episodes are drawn from.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The observation of the flow that asked last, each number in [-1, 1].
    #[must_use]
    pub fn observation(&self) -> &[f32] {
        &self.observation
    }

    /// Starts the episode drawn from `seed`, of at most `max_steps` decisions of each flow; one that runs is given up. `None` where no
    /// flow ever asks.
    pub fn start(&mut self, seed: u64, max_steps: usize) -> Option<Ask> {
        self.episode = None;
        let links = self.links.clone();
        let episode = Coroutine::new(move |yielder: &Yielder<_, _>, (_, observation)| {
            play(&links, seed, max_steps, yielder, observation);
        });
        self.episode = Some(Running(episode));
        self.resume(0.0)
    }

    /// Gives the flow that asked its action; `None` when the episode has ended, or none runs.
    pub fn step(&mut self, action: f32) -> Option<Ask> {
        self.resume(action)
    }

    fn resume(&mut self, action: f32) -> Option<Ask> {
        let Running(episode) = self.episode.as_mut()?;
        let observation = std::mem::take(&mut self.observation);
        let length = observation.len();
        match episode.resume((action, observation)) {
            CoroutineResult::Yield((ask, observation)) => {
                self.observation = observation;
                Some(ask)
            }
            CoroutineResult::Return(()) => {
                self.observation = vec![0.0; length];
                self.episode = None;
                None
            }
        }
    }
}

/// The stack's own loop: an episode whose actions come from outside.
fn play(
    links: &Links,
    seed: u64,
    max_steps: usize,
    yielder: &Yielder<(f32, Observation), (Ask, Observation)>,
    buffer: Observation,
) {
    let reward = Cell::new(None);
    let mut actor = Suspending { yielder, reward: &reward, buffer, asked: Vec::new(), max_steps };
    let mut decider = Foreseeing { learning: Learning::new(links.spec(), &mut actor), reward: &reward };
    let scenario = links.draw(seed, max_steps);
    // Nothing is refused here: links are checked when they are made.
    let _ = run(&scenario, links.algorithms(), seed, max_steps, &mut decider, &mut NoObserver);
}

/// Leaves the episode's stack for each action.
struct Suspending<'a> {
    yielder: &'a Yielder<(f32, Observation), (Ask, Observation)>,
    reward: &'a Cell<Option<f32>>,
    buffer: Observation,
    /// Questions of each flow so far.
    asked: Vec<usize>,
    max_steps: usize,
}

impl Actor for Suspending<'_> {
    fn act(&mut self, agent: usize, observation: &[f32]) -> f32 {
        if agent >= self.asked.len() {
            self.asked.resize(agent + 1, 0);
        }
        self.asked[agent] += 1;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend_from_slice(observation);
        let last = self.asked[agent] > self.max_steps;
        let (action, buffer) =
            self.yielder.suspend((Ask { agent, reward: self.reward.take(), last }, buffer));
        self.buffer = buffer;
        action
    }

    fn outcome(&mut self, _agent: usize, _reward: f32, _end: End, _observation: &[f32]) {}
}

/// A learner's actor that hears rewards before it acts.
struct Foreseeing<'a> {
    learning: Learning<'a>,
    reward: &'a Cell<Option<f32>>,
}

impl Decider for Foreseeing<'_> {
    fn decide(&mut self, agent: usize, cells: &[i32], knobs: &mut Knobs) -> Decision {
        self.learning.decide(agent, cells, knobs)
    }

    fn foresees(&self) -> bool {
        true
    }

    fn foreseen(&mut self, _agent: usize, reward: f32) {
        self.reward.set(Some(reward));
    }
}
