//! Who steers this command's flows: the agent of the machine, or one of its own.

use super::QuicError;
use super::trace::Trace;
use super::wire::kind;
use crate::agent::{OwnLoop, waker};
use crate::cli::QuicSteering;
use crate::control::{Request, Response, ask};
use crate::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_channel::{Clock, Link, ServeOptions, spawn};
use ccplane_core::Rules;
use ccplane_engine::{Engine, EngineConfig, engine};
use ccplane_quic::Control;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What the agent's list of datapaths calls them.
const NAME: &str = "ccplane-quic";

/// An engine and its agent.
pub(super) struct Steering {
    engine: Engine,
    agent: Agent,
    trace: Option<Arc<Mutex<Trace>>>,
}

enum Agent {
    Own(OwnLoop),
    /// Kept: the agent is taken leave of when it goes.
    Machine(#[expect(dead_code)] Link),
}

impl Steering {
    /// Starts, as the flags say.
    pub(super) fn start(args: &QuicSteering, algorithms: &[Arc<dyn Algorithm>]) -> Result<Steering, Failure> {
        let known: Vec<&'static str> = algorithms.iter().map(|a| a.name()).collect();
        let located = args.place.locate(Some(&known))?;
        let timeout = located.config.control.timeout_ms.millis();
        let runs =
            || matches!(ask(&located.control_socket, timeout, &Request::Version), Ok(Response::Version(_)));
        let to_machine = args.agent || (args.algorithm.is_none() && runs());
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
            let link = spawn(&located.datapath_socket()?, Box::new(datapath), now_us, options)?;
            let trace = trace(args, "agent")?;
            return Ok(Steering { engine, agent: Agent::Machine(link), trace });
        }
        let chosen = algorithms
            .iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| Failure::input(QuicError::Algorithm { name: name.to_owned(), known }))?;
        let (wake, woken) = waker();
        let (engine, datapath) = engine(config, wake);
        let rules = Rules::all(name);
        let own = OwnLoop::start_embedded(
            &located,
            &rules,
            std::slice::from_ref(chosen),
            Box::new(datapath),
            woken,
            false,
        )?;
        Ok(Steering { engine, agent: Agent::Own(own), trace: trace(args, chosen.name())? })
    }

    /// What endpoints take.
    pub(super) fn control(&self) -> Control {
        Control::Engine { engine: self.engine.clone(), observer: self.trace.as_ref().map(Trace::observer) }
    }

    /// Ends the agent, if it is its own, and the trace.
    pub(super) fn stop(self) -> Result<(), Failure> {
        if let Agent::Own(own) = self.agent {
            own.stop();
        }
        self.trace.as_ref().map_or(Ok(()), Trace::finish)
    }
}

fn trace(args: &QuicSteering, algorithm: &'static str) -> Result<Option<Arc<Mutex<Trace>>>, Failure> {
    let Some(path) = &args.qlog else { return Ok(None) };
    let failed = |source| Failure::runtime(QuicError::File { path: path.clone(), source });
    Ok(Some(Trace::create(path, algorithm).map_err(failed)?))
}
