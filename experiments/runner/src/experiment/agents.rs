//! An agent that the caller brings steers a run's live flows by programs.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_contract::Datapath;
use ccplane_core::Companion;
pub use ccplane_engine::Waker;
use ccplane_results::{AgentUse, StateChange};

/// An error from the caller's code.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A rule that gives an algorithm to the flows of some ports.
#[derive(Clone)]
pub struct AgentRule {
    /// The receivers' ports.
    pub ports: RangeInclusive<u16>,
    /// The algorithm with its parameters.
    pub algorithm: Arc<dyn Algorithm>,
    /// Whether its policies are improved while these flows run.
    pub learning: bool,
}

/// The way in which programs get to the kernel's own flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InKernel {
    Bpf,
    Module,
}

/// Starts agents: one for each run that needs one, so that the baselines run without.
pub trait Agents {
    /// Attaches to the kernel and steers by `rules` until it is dropped; other flows run their native algorithm.
    ///
    /// # Errors
    /// It cannot be attached.
    fn start(&mut self, by: InKernel, rules: &[AgentRule]) -> Result<Box<dyn Agent>, BoxError>;

    /// Steers the flows of a datapath in this process by `rules` until it is dropped. `make` gets what the datapath is to call
    /// when it has something for the agent.
    ///
    /// # Errors
    /// No agent can be started.
    fn embed(
        &mut self,
        rules: &[AgentRule],
        make: &mut dyn FnMut(Waker) -> Box<dyn Datapath + Send>,
    ) -> Result<Box<dyn Agent>, BoxError>;

    /// Returns a learner that improves `algorithm`'s policies beside simulated flows, in their virtual time. All chance
    /// comes from `seed`.
    ///
    /// # Errors
    /// Nothing can be learned.
    fn learner(&mut self, algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Box<dyn Companion>, BoxError>;
}

/// An agent at work. Dropping it detaches.
pub trait Agent {
    /// TCP_CONGESTION of the flows that it is to steer.
    fn congestion(&self) -> &str;

    /// The flows that it knows, as they are now.
    fn flows(&mut self) -> Vec<AgentFlow>;

    /// Returns the number of reports since its start.
    fn reports(&mut self) -> u64;
}

/// A flow as an agent sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentFlow {
    /// The sender's address.
    pub local: SocketAddr,
    /// The receiver's address.
    pub remote: SocketAddr,
    /// Whether its program runs, or starts at its next ACK.
    pub steered: bool,
    /// The name of what decides for the flow, such as "program reno".
    pub steered_by: String,
    pub reports: u64,
    /// Saturations and divisions by zero in its programs.
    pub faults: u64,
    /// Its algorithm's own state, such as "competes".
    pub state: Option<String>,
}

/// No agent: plans whose contenders are the kernel's own or simulated.
pub struct NoAgents;

/// No agent is there.
#[derive(Debug, thiserror::Error)]
#[error("there is no agent to steer flows")]
pub struct NoAgent;

impl Agents for NoAgents {
    fn start(&mut self, _: InKernel, _: &[AgentRule]) -> Result<Box<dyn Agent>, BoxError> {
        Err(Box::new(NoAgent))
    }

    fn embed(
        &mut self,
        _: &[AgentRule],
        _: &mut dyn FnMut(Waker) -> Box<dyn Datapath + Send>,
    ) -> Result<Box<dyn Agent>, BoxError> {
        Err(Box::new(NoAgent))
    }

    fn learner(&mut self, _: &Arc<dyn Algorithm>, _: u64) -> Result<Box<dyn Companion>, BoxError> {
        Err(Box::new(NoAgent))
    }
}

/// An agent that several runs at once share; all are watched by one thread.
pub(super) type SharedAgent = Rc<RefCell<Box<dyn Agent>>>;

/// The time between two polls of the agent's flows.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// The time between two polls of the states of flows whose runs are shown.
const STATES_EVERY: Duration = Duration::from_millis(100);

/// Looks at the agent now and then, so that a figure is known to be the program's.
pub(super) struct Watch {
    agent: SharedAgent,
    /// Receivers' ports of the flows that it is to steer; their other ends are flows, too, and none of its business.
    ports: Vec<RangeInclusive<u16>>,
    next: Instant,
    /// The time of the next poll of states, and the origin of their times; `None` if states are not polled.
    states_at: Option<(Instant, Instant)>,
    /// Senders without their program at the last poll: a flow that has just started is excused once.
    suspects: HashSet<SocketAddr>,
    unsteered: HashSet<SocketAddr>,
    /// Each flow as it was seen last.
    seen: HashMap<SocketAddr, AgentFlow>,
    states: HashMap<SocketAddr, Vec<StateChange>>,
}

impl Watch {
    /// `shown_since`: the run's start, where its flows' states are of interest.
    pub(super) fn new(agent: SharedAgent, rules: &[AgentRule], shown_since: Option<Instant>) -> Watch {
        Watch {
            agent,
            ports: rules.iter().map(|r| r.ports.clone()).collect(),
            next: Instant::now() + POLL_EVERY,
            states_at: shown_since.map(|epoch| (Instant::now(), epoch)),
            suspects: HashSet::new(),
            unsteered: HashSet::new(),
            seen: HashMap::new(),
            states: HashMap::new(),
        }
    }

    /// The flow as it was seen last.
    pub(super) fn view(&self, local: SocketAddr) -> Option<&AgentFlow> {
        self.seen.get(&local)
    }

    /// `bulk`: senders of flows that must be there.
    pub(super) fn observe(&mut self, bulk: impl Iterator<Item = SocketAddr>) {
        let now = Instant::now();
        let for_states = self.states_at.filter(|(next, _)| now >= *next);
        if now < self.next && for_states.is_none() {
            return;
        }
        let mut flows = self.agent.borrow_mut().flows();
        flows.retain(|f| self.ports.iter().any(|ports| ports.contains(&f.remote.port())));
        if let Some((_, epoch)) = for_states {
            self.states_at = Some((now + STATES_EVERY, epoch));
            let t_ms = now.duration_since(epoch).as_millis() as u64;
            flows.iter().for_each(|flow| self.note_state(flow, t_ms));
        }
        let steered: HashSet<SocketAddr> = flows.iter().filter(|f| f.steered).map(|f| f.local).collect();
        if now >= self.next {
            self.next = now + POLL_EVERY;
            let seen = flows.iter().map(|f| f.local).chain(bulk);
            let suspects: HashSet<SocketAddr> = seen.filter(|local| !steered.contains(local)).collect();
            self.unsteered.extend(suspects.intersection(&self.suspects));
            self.suspects = suspects;
        }
        self.seen.extend(flows.into_iter().map(|flow| (flow.local, flow)));
    }

    fn note_state(&mut self, flow: &AgentFlow, t_ms: u64) {
        let Some(state) = &flow.state else { return };
        let states = self.states.entry(flow.local).or_default();
        if states.last().is_none_or(|last| last.state != *state) {
            states.push(StateChange { t_ms, state: state.clone() });
        }
    }

    /// Stops the agent and returns its counters, over all runs that share it, and the states of the flows.
    pub(super) fn finish(self) -> (AgentUse, HashMap<SocketAddr, Vec<StateChange>>) {
        let used = AgentUse {
            reports: self.agent.borrow_mut().reports(),
            faults: self.seen.values().map(|flow| flow.faults).sum(),
            unsteered_flows: self.unsteered.len() as u64,
        };
        (used, self.states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Vec<Vec<AgentFlow>>);

    impl Agent for Fake {
        fn congestion(&self) -> &str {
            "fake"
        }
        fn flows(&mut self) -> Vec<AgentFlow> {
            self.0.remove(0)
        }
        fn reports(&mut self) -> u64 {
            7
        }
    }

    #[test]
    fn a_flow_that_stays_unsteered_is_counted_once() {
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let flow = |port, steered, faults: u64| AgentFlow {
            local: at(port),
            remote: at(1),
            steered,
            steered_by: String::new(),
            reports: 0,
            faults,
            // It changes with the faults.
            state: Some(format!("after {faults}")),
        };
        let receiver = AgentFlow { local: at(1), remote: at(50), ..flow(1, false, 0) };
        let states = vec![
            vec![flow(1, false, 0), flow(2, false, 0), flow(3, true, 1)],
            vec![flow(1, true, 0), flow(2, false, 0), flow(3, true, 4), receiver.clone()],
            vec![flow(1, true, 0), flow(2, false, 0), flow(3, true, 4), receiver],
        ];
        let algorithm = ccplane_algs::all().remove(0);
        let agent: SharedAgent = Rc::new(RefCell::new(Box::new(Fake(states))));
        let epoch = Instant::now();
        let rules = [AgentRule { ports: 1..=2, algorithm, learning: false }];
        let mut watch = Watch::new(agent, &rules, Some(epoch));
        for _ in 0..3 {
            watch.next = Instant::now();
            watch.states_at = Some((Instant::now(), epoch));
            // 9 is not known to the agent at all.
            watch.observe([at(3), at(9)].into_iter());
        }
        let (used, states) = watch.finish();
        assert_eq!(used, AgentUse { reports: 7, faults: 4, unsteered_flows: 2 });
        let told: Vec<&str> = states[&at(3)].iter().map(|s| s.state.as_str()).collect();
        assert_eq!((told, states[&at(2)].len()), (vec!["after 1", "after 4"], 1));
    }
}
