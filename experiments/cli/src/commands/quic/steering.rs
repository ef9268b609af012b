//! The agent that steers this command's flows: the machine's, or one of its own.

use super::QuicError;
use super::packets::PacketsWithAgent;
use super::served::{MachineAgent, serve};
use super::trace::Trace;
use super::wire::kind;
use crate::cli::QuicSteering;
use ccplane_agent::agent::{Learns, OwnLoop, waker};
use ccplane_agent::config::Agent as AgentConfig;
use ccplane_agent::control::{LearnerRecord, Request, Response, ask};
use ccplane_agent::failure::Failure;
use ccplane_agent::learning::resume;
use ccplane_agent::owned::Folder;
use ccplane_agent::place::Located;
use ccplane_agent::sequences::{Admissions, default_state};
use ccplane_alg::Algorithm;
use ccplane_core::Rules;
use ccplane_engine::{Engine, EngineConfig, engine};
use ccplane_quic::{Control, Packets};
use ccplane_snapshot::Hash;
use ccplane_wait::Mode;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The name of these flows' datapath in the agent's list.
const NAME: &str = "ccplane-quic";
/// The algorithm for which the command binds a socket in the run directory.
const PORTUS: &str = "portus";

/// Whether its flows' policies are learned, as the flags say.
#[derive(Clone, Copy, Debug)]
pub(super) enum LearnsAs<'a> {
    No,
    /// Learned snapshots end with the command.
    Forgets,
    /// Promoted snapshots are kept in this folder.
    Keeps {
        path: &'a Path,
        /// Also begins with a signed snapshot that is older than one that was taken, or has expired.
        allow_older: bool,
    },
}

/// An engine and its agent.
pub(super) struct EngineWithAgent {
    engine: Engine,
    agent: Agent,
    /// Decisions about packets, where the flags or the configuration ask for them.
    packets: Option<PacketsWithAgent>,
    trace: Option<Arc<Mutex<Trace>>>,
    /// The kept snapshot that its flows begin with, if there was one.
    kept: Option<Hash>,
}

enum Agent {
    Own(OwnLoop),
    Machine(MachineAgent),
}

/// The configuration, and whether the machine's agent runs, as a process sees it that has not changed its user yet.
pub(super) struct Environment {
    located: Located,
    /// Whether an agent runs that this user may ask.
    agent_runs: bool,
}

impl Environment {
    /// Reads the configuration, and finds whether an agent runs.
    pub(super) fn read(
        args: &QuicSteering,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Environment, Failure> {
        // The configuration may name algorithms that decide about packets, too.
        let on_packets = ccplane_algs::on_packets();
        let known: Vec<&'static str> = algorithms.iter().chain(&on_packets).map(|a| a.name()).collect();
        let located = args.place.locate(Some(&known))?;
        let timeout = located.config.control.timeout_ms.millis();
        let asked = || ask(&located.control_socket, timeout, &Request::Version);
        // With a named algorithm the answer is not needed.
        let agent_runs = args.algorithm.is_none() && matches!(asked(), Ok(Response::Version(_)));
        Ok(Environment { located, agent_runs })
    }

    /// Whether flows are left to the machine's agent.
    fn leaves_to_machine(&self, args: &QuicSteering, learns: LearnsAs<'_>) -> bool {
        args.agent || (matches!(learns, LearnsAs::No) && self.agent_runs)
    }

    /// The setting of the configuration by which [`EngineWithAgent::start`] takes rights of root's, if there is one.
    pub(super) fn needs_root(&self, args: &QuicSteering, learns: LearnsAs<'_>) -> Option<&'static str> {
        let has_own_loop = !self.leaves_to_machine(args, learns) || args.packets.is_some();
        if has_own_loop { needs_root(&self.located.config.agent) } else { None }
    }

    /// The files, folders and sockets that [`EngineWithAgent::start`] opens.
    pub(super) fn opened_at_start(
        &self,
        args: &QuicSteering,
        learns: LearnsAs<'_>,
    ) -> Result<Vec<PathBuf>, Failure> {
        let learn = &self.located.config.learn;
        let mut opened: Vec<PathBuf> = args.qlog.iter().cloned().collect();
        if !matches!(learns, LearnsAs::No) {
            opened.extend(learn.decision_log.clone());
        }
        if let LearnsAs::Keeps { path, .. } = learns {
            opened.push(path.to_owned());
            if learn.require_signed {
                opened.extend(learn.state.clone().or_else(default_state));
            }
        }
        if self.leaves_to_machine(args, learns) {
            // An agent hears its own user and root only.
            opened.push(self.located.datapath_socket()?);
        } else if args.algorithm.as_deref().unwrap_or(&self.located.config.default_algorithm) == PORTUS {
            match &self.located.config.portus.own {
                Some(folder) => opened.push(folder.clone()),
                None => opened.push(self.located.run_dir()?.to_owned()),
            }
        }
        Ok(opened)
    }
}

/// Returns the setting by which an agent's loops take rights of root's when they start, if there is one.
fn needs_root(agent: &AgentConfig) -> Option<&'static str> {
    if agent.wake == Mode::Dispatch && agent.dispatch_fifo {
        return Some("[agent] dispatch_fifo");
    }
    agent.keep_cores_awake.then_some("[agent] keep_cores_awake")
}

impl EngineWithAgent {
    /// Starts the engine and its agent, as the flags say. Learning runs in this process, never in the machine's agent.
    pub(super) fn start(
        args: &QuicSteering,
        learns: LearnsAs<'_>,
        algorithms: &[Arc<dyn Algorithm>],
        around: Environment,
    ) -> Result<EngineWithAgent, Failure> {
        let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
        let to_machine = around.leaves_to_machine(args, learns);
        let Environment { located, agent_runs } = around;
        let name = match &args.algorithm {
            Some(name) => name.as_str(),
            None => &located.config.default_algorithm,
        };
        let packets = PacketsWithAgent::start(args, &located, to_machine)?;
        let heartbeat_timeout_us = located.config.agent.heartbeat_timeout_ms.get() * 1000;
        let config = EngineConfig { heartbeat_timeout_us, ..EngineConfig::new(kind(args)) };
        if to_machine {
            let socket = located.datapath_socket()?;
            let (engine, link) = serve(config, NAME, &socket)?;
            let agent = Agent::Machine(MachineAgent::new(link, socket, agent_runs));
            return Ok(EngineWithAgent { engine, agent, packets, trace: trace(args, "agent")?, kept: None });
        }
        let chosen = algorithms
            .iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| Failure::input(QuicError::Algorithm { name: name.to_owned(), known }))?;
        if !matches!(learns, LearnsAs::No) && !chosen.learns() {
            let known = algorithms.iter().filter(|a| a.learns()).map(|a| a.name()).collect();
            return Err(Failure::input(QuicError::NoPolicy { name: name.to_owned(), known }));
        }
        let learns = match learns {
            LearnsAs::No => Learns::No,
            LearnsAs::Forgets => Learns::Forgets,
            LearnsAs::Keeps { path, allow_older } => keeps(&located, &**chosen, path, allow_older)?,
        };
        let kept = match &learns {
            Learns::Keeps(_, Some(beginning)) => Some(beginning.snapshot.hash()),
            _ => None,
        };
        let (wake, woken) = waker();
        let (engine, datapath) = engine(config, wake);
        let rules = Rules::all(name);
        let own = OwnLoop::start_embedded(
            &located,
            &rules,
            std::slice::from_ref(chosen),
            Box::new(datapath),
            woken,
            learns,
        )?;
        let trace = trace(args, chosen.name())?;
        Ok(EngineWithAgent { engine, agent: Agent::Own(own), packets, trace, kept })
    }

    /// The control of flows that endpoints are made with.
    pub(super) fn control(&self) -> Control {
        Control::Engine { engine: self.engine.clone(), observer: self.trace.as_ref().map(Trace::observer) }
    }

    /// The decisions about packets that endpoints are made with.
    pub(super) fn packets(&self) -> Option<Packets> {
        self.packets.as_ref().map(PacketsWithAgent::packets)
    }

    /// The snapshot that its flows begin with, where one was kept.
    pub(super) fn kept(&self) -> Option<Hash> {
        self.kept
    }

    /// Says why the machine's agent does not steer, where it does not; to be called regularly.
    pub(super) fn check_agent(&mut self) {
        if let Agent::Machine(machine) = &mut self.agent {
            machine.check();
        }
    }

    /// The record of each learner so far.
    pub(super) fn learners(&self) -> Vec<LearnerRecord> {
        match &self.agent {
            Agent::Own(own) => own.learners(),
            Agent::Machine(_) => Vec::new(),
        }
    }

    /// Ends the agents that are its own, and the trace.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.packets.map_or(Ok(()), PacketsWithAgent::stop)?;
        if let Agent::Own(own) = self.agent {
            own.stop()?;
        }
        self.trace.as_ref().map_or(Ok(()), Trace::finish)
    }
}

/// Opens the folder and the kept snapshot that flows begin with; a refused one is reported.
fn keeps(
    located: &Located,
    algorithm: &dyn Algorithm,
    path: &Path,
    allow_older: bool,
) -> Result<Learns, Failure> {
    let folder = Folder::open(path).map_err(Failure::input)?;
    let learn = &located.config.learn;
    let admissions = Admissions::open(learn.trust(), learn.state.as_deref()).map_err(Failure::input)?;
    let beginning = resume(algorithm, &folder, &admissions, allow_older).unwrap_or_else(|error| {
        // A closed standard error is no failure.
        let _ = writeln!(stderr(), "ccplane quic: flows begin with the snapshot that ships: {error}");
        None
    });
    Ok(Learns::Keeps(folder, beginning.map(Box::new)))
}

fn trace(args: &QuicSteering, algorithm: &'static str) -> Result<Option<Arc<Mutex<Trace>>>, Failure> {
    let Some(path) = &args.qlog else { return Ok(None) };
    let failed = |source| Failure::runtime(QuicError::File { path: path.clone(), source });
    Ok(Some(Trace::create(path, algorithm).map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_need_root_for_cores_that_stay_awake_and_for_threads_that_go_first() {
        let needed = |wake, dispatch_fifo, keep_cores_awake| {
            needs_root(&AgentConfig { wake, dispatch_fifo, keep_cores_awake, ..AgentConfig::default() })
        };
        assert_eq!(needed(Mode::Dispatch, false, false), None);
        assert_eq!(needed(Mode::Spin, true, false), None, "there is no dispatcher");
        assert_eq!(needed(Mode::Dispatch, true, false), Some("[agent] dispatch_fifo"));
        assert_eq!(needed(Mode::Sleep, false, true), Some("[agent] keep_cores_awake"));
    }
}
