//! Who steers this command's flows: the agent of the machine, or one of its own.

use super::QuicError;
use super::trace::Trace;
use super::wire::kind;
use crate::agent::{Learns, OwnLoop, privileges, waker};
use crate::cli::QuicSteering;
use crate::control::{LearnerRecord, Request, Response, ask};
use crate::failure::Failure;
use crate::learning::resume;
use crate::owned::Folder;
use crate::place::Located;
use crate::sequences::Admissions;
use ccplane_alg::Algorithm;
use ccplane_channel::{Clock, Link, ServeOptions, spawn};
use ccplane_core::Rules;
use ccplane_engine::{Engine, EngineConfig, engine};
use ccplane_quic::Control;
use ccplane_snapshot::Hash;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the agent's list of datapaths calls them.
const NAME: &str = "ccplane-quic";
/// How long the machine's agent may take to answer before that is said.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether its flows' policies are learned, as the flags say.
#[derive(Clone, Copy, Debug)]
pub(super) enum LearnsAs<'a> {
    No,
    /// What is learned ends with the command.
    Forgets,
    /// What is promoted is kept in this folder.
    Keeps {
        path: &'a Path,
        /// Also begins with a signed snapshot that is older than one that was taken, or has expired.
        allow_older: bool,
    },
}

/// An engine and its agent.
pub(super) struct Steering {
    engine: Engine,
    agent: Agent,
    trace: Option<Arc<Mutex<Trace>>>,
    /// What its flows begin with, if that was kept.
    kept: Option<Hash>,
}

enum Agent {
    Own(OwnLoop),
    Machine(Machine),
}

/// The machine's agent, which is taken leave of when this goes.
struct Machine {
    link: Link,
    /// Until when nothing is said of it; `None` once it has answered, or something was said.
    patience: Option<Instant>,
    /// Where its datapaths' socket is.
    socket: PathBuf,
    /// Whether it runs, as its control socket says.
    runs: bool,
}

impl Machine {
    /// Says once that the agent does not answer.
    fn look(&mut self) {
        let Some(until) = self.patience else { return };
        if self.link.is_connected() {
            self.patience = None;
        } else if Instant::now() >= until {
            self.patience = None;
            // Whoever closed standard error wants to hear nothing.
            let _ = writeln!(stderr(), "ccplane quic: {}", self.missed());
        }
    }

    fn missed(&self) -> String {
        let socket = self.socket.display();
        if !self.runs {
            return format!("no agent at {socket}: flows run Reno until one starts");
        }
        let (beside, elsewhere) = (self.socket.parent().unwrap_or(&self.socket), std::env::temp_dir());
        format!(
            "the agent runs, but answers nothing at {socket}: flows run Reno until it does. It answers to a socket that this \
             process makes in {}, in $XDG_RUNTIME_DIR or in {}; from another network namespace or a container, let one \
             of them be writable here and the same folder for both, or steer with --algorithm, without the agent",
            beside.display(),
            elsewhere.display()
        )
    }
}

/// The configuration, and whether the machine's agent runs, as a process sees it that has not changed its user yet.
pub(super) struct Surroundings {
    located: Located,
    /// Of whoever may ask it.
    agent_runs: bool,
}

impl Surroundings {
    /// Reads the configuration, and finds whether an agent runs.
    pub(super) fn look(
        args: &QuicSteering,
        algorithms: &[Arc<dyn Algorithm>],
    ) -> Result<Surroundings, Failure> {
        let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
        let located = args.place.locate(Some(&known))?;
        let timeout = located.config.control.timeout_ms.millis();
        let asked = || ask(&located.control_socket, timeout, &Request::Version);
        // Where an algorithm is named, nobody needs to know.
        let agent_runs = args.algorithm.is_none() && matches!(asked(), Ok(Response::Version(_)));
        Ok(Surroundings { located, agent_runs })
    }
}

impl Steering {
    /// Starts, as the flags say. What learns does so beside the flows, which the machine's agent is not asked to.
    pub(super) fn start(
        args: &QuicSteering,
        learns: LearnsAs<'_>,
        algorithms: &[Arc<dyn Algorithm>],
        Surroundings { located, agent_runs }: Surroundings,
    ) -> Result<Steering, Failure> {
        let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
        let to_machine = args.agent || (matches!(learns, LearnsAs::No) && agent_runs);
        let name = match &args.algorithm {
            Some(name) => name.as_str(),
            None => &located.config.default_algorithm,
        };
        let heartbeat_timeout_us = located.config.agent.heartbeat_timeout_ms.get() * 1000;
        let config = EngineConfig { heartbeat_timeout_us, ..EngineConfig::new(kind(args)) };
        if to_machine {
            let options = ServeOptions { clock: Clock::Own, ..ServeOptions::new(NAME)? };
            let wake = options.waker.clone();
            let (engine, datapath) = engine(config, Arc::new(move || wake.wake()));
            let clock = engine.clone();
            let now_us = move || clock.now_us(Instant::now());
            let socket = located.datapath_socket()?;
            let link = without_capabilities(|| spawn(&socket, Box::new(datapath), now_us, options))?;
            let patience = Some(Instant::now() + PATIENCE);
            let agent = Agent::Machine(Machine { link, patience, socket, runs: agent_runs });
            return Ok(Steering { engine, agent, trace: trace(args, "agent")?, kept: None });
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
        Ok(Steering { engine, agent: Agent::Own(own), trace: trace(args, chosen.name())?, kept })
    }

    /// What endpoints take.
    pub(super) fn control(&self) -> Control {
        Control::Engine { engine: self.engine.clone(), observer: self.trace.as_ref().map(Trace::observer) }
    }

    /// The snapshot that its flows begin with, where one was kept.
    pub(super) fn kept(&self) -> Option<Hash> {
        self.kept
    }

    /// To be called now and then: says if the machine's agent does not answer.
    pub(super) fn look(&mut self) {
        if let Agent::Machine(machine) = &mut self.agent {
            machine.look();
        }
    }

    /// What learners have done so far.
    pub(super) fn learners(&self) -> Vec<LearnerRecord> {
        match &self.agent {
            Agent::Own(own) => own.learners(),
            Agent::Machine(_) => Vec::new(),
        }
    }

    /// Ends the agent, if it is its own, and the trace.
    pub(super) fn stop(self) -> Result<(), Failure> {
        if let Agent::Own(own) = self.agent {
            own.stop()?;
        }
        self.trace.as_ref().map_or(Ok(()), Trace::finish)
    }
}

/// Does this on a thread that has no capability, so that those that it starts have none either.
fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let work = || {
            privileges::keep(privileges::NOTHING);
            work()
        };
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The folder, and what flows begin with of what it keeps. What is not taken is said.
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
        // Whoever closed standard error wants to hear nothing.
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
