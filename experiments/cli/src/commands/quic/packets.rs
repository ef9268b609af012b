//! Decisions about this command's packets on their way out, by an agent of its own.

use super::QuicError;
use super::wire::kind;
use crate::cli::QuicSteering;
use ccplane_agent::agent::{OwnLoop, waker};
use ccplane_agent::failure::Failure;
use ccplane_agent::place::Located;
use ccplane_engine::{EngineConfig, PacketsConfig, engine};
use ccplane_quic::Packets;

/// An engine that decides about packets, and its agent.
pub(super) struct PacketsWithAgent {
    packets: Packets,
    own: OwnLoop,
}

impl PacketsWithAgent {
    /// Starts both, where the flags name an algorithm.
    pub(super) fn start(args: &QuicSteering, located: &Located) -> Result<Option<PacketsWithAgent>, Failure> {
        let Some(name) = &args.packets else { return Ok(None) };
        let all = ccplane_algs::on_packets();
        let Some(algorithm) = all.iter().find(|algorithm| algorithm.name() == name) else {
            let known = all.iter().map(|algorithm| algorithm.name()).collect();
            return Err(Failure::input(QuicError::NoPackets { name: name.clone(), known }));
        };
        let section = &located.config.datapath.packets;
        let flowlet_us = section.flowlet_gap_us.get();
        let config = EngineConfig {
            heartbeat_timeout_us: located.config.agent.heartbeat_timeout_ms.get() * 1000,
            packets: Some(PacketsConfig { flowlet_us, ..PacketsConfig::default() }),
            ..EngineConfig::new(kind(args))
        };
        let (wake, woken) = waker();
        let (engine, datapath) = engine(config, wake);
        let file = args.place.config.as_deref();
        let own = OwnLoop::start_embedded_packets(located, file, algorithm, Box::new(datapath), woken)?;
        Ok(Some(PacketsWithAgent { packets: Packets { engine, code_points: section.code_points() }, own }))
    }

    /// The decisions that an endpoint is made with.
    pub(super) fn packets(&self) -> Packets {
        self.packets.clone()
    }

    /// Ends the agent, and so the decisions.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.own.stop()
    }
}
