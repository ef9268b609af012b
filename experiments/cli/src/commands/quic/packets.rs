//! Decisions about this command's packets on their way out: by an agent of its own, or by the machine's.

use super::QuicError;
use super::served::serve;
use crate::cli::QuicSteering;
use ccplane_agent::agent::{OwnLoop, waker};
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_channel::ServedLink;
use ccplane_engine::{EngineConfig, PacketsConfig, engine};
use ccplane_quic::Packets;

/// The kind of a datapath that decides about packets, as the kernel's is called, too.
const KIND: &str = "packets";
/// The name of this command's in the agent's list.
const NAME: &str = "ccplane-quic-packets";

/// An engine that decides about packets, and its agent.
pub(super) struct PacketsWithAgent {
    packets: Packets,
    agent: Agent,
}

enum Agent {
    Own(OwnLoop),
    Machine(ServedLink),
}

impl PacketsWithAgent {
    /// Starts both where the flags name an algorithm; where none is named, but flows are left to the machine's agent, that one is asked if
    /// the configuration names one.
    pub(super) fn start(
        args: &QuicSteering,
        located: &Located,
        to_machine: bool,
    ) -> Result<Option<PacketsWithAgent>, Failure> {
        let section = &located.config.datapath.packets;
        let flowlet_us = section.flowlet_gap_us.get();
        let config = EngineConfig {
            heartbeat_timeout_us: located.config.agent.heartbeat_timeout_ms.get() * 1000,
            packets: Some(PacketsConfig { flowlet_us, ..PacketsConfig::default() }),
            ..EngineConfig::new(KIND)
        };
        let (engine, agent) = match &args.packets {
            Some(name) => {
                let all = ccplane_algs::on_packets();
                let Some(algorithm) = all.iter().find(|algorithm| algorithm.name() == name) else {
                    let known = all.iter().map(|algorithm| algorithm.name()).collect();
                    return Err(Failure::input(QuicError::NoPackets { name: name.clone(), known }));
                };
                let (wake, woken) = waker();
                let (engine, datapath) = engine(config, wake);
                let file = args.place.config.as_deref();
                let own =
                    OwnLoop::start_embedded_packets(located, file, algorithm, Box::new(datapath), woken)?;
                (engine, Agent::Own(own))
            }
            None if to_machine && section.is_asked_of_peers(&located.config.rules) => {
                let (engine, link) = serve(config, NAME, &located.datapath_socket()?)?;
                (engine, Agent::Machine(link))
            }
            None => return Ok(None),
        };
        Ok(Some(PacketsWithAgent { packets: Packets { engine, code_points: section.code_points() }, agent }))
    }

    /// The decisions that an endpoint is made with.
    pub(super) fn packets(&self) -> Packets {
        self.packets.clone()
    }

    /// Ends the agent that is its own, or takes leave of the machine's, and so ends the decisions.
    pub(super) fn stop(self) -> Result<(), Failure> {
        match self.agent {
            Agent::Own(own) => own.stop(),
            Agent::Machine(link) => {
                drop(link);
                Ok(())
            }
        }
    }
}
