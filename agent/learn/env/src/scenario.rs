//! The link, the flows and the cross traffic of one episode.

use crate::error::EnvError;
use crate::link::EnvLink;
use ccplane_netsim::{Acks, CrossConfig, CrossPattern, LinkConfig, PathConfig};
use ccplane_sim::{FlowConfig, Source, Stack};

/// The number of the bottleneck in the network.
pub(crate) const BOTTLENECK: u8 = 0;
/// The number of the way back's link, where there is one.
const WAY_BACK: u8 = 1;

/// A flow's algorithm, start and path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSetup {
    /// The index of the flow's algorithm.
    pub algorithm: usize,
    /// The time when it starts, nanoseconds of virtual time.
    pub start_ns: u64,
    /// Round trip of an empty path, without the time that packets take into the link, nanoseconds.
    pub delay_ns: u64,
    /// Payload of a packet, bytes.
    pub mss_bytes: u64,
    /// Packets that an ACK waits for, at most 40 ms: 2, as receivers do.
    pub ack_every: u8,
    /// The way in which packets leave: each on its own, or in trains as Linux's segmentation offload makes them.
    pub stack: Stack,
    /// Rate that it starts with where its program takes one (`start_rate`), bytes per second.
    pub start_rate: Option<u64>,
    /// Payload after which it ends, bytes; `None`: it always has more to send.
    pub bytes: Option<u64>,
}

impl FlowSetup {
    fn config(&self) -> FlowConfig {
        let acks = Acks { every: self.ack_every, ..Acks::LINUX };
        FlowConfig {
            path: PathConfig { acks, ..PathConfig::new(vec![BOTTLENECK], self.delay_ns) },
            mss_bytes: self.mss_bytes as u32,
            stack: self.stack,
            ..FlowConfig::new(self.bytes.map_or(Source::Bulk, Source::Bytes), 0)
        }
    }
}

/// Traffic without congestion control that comes and goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnOff {
    /// Wire bytes per second while it is there.
    pub bytes_per_s: u64,
    /// Mean time for which it is there, nanoseconds.
    pub on_ns: u64,
    /// Mean time for which it is not.
    pub off_ns: u64,
}

impl OnOff {
    /// Returns the traffic as the network is given it; `None` where it sends nothing.
    pub fn config(&self) -> Option<CrossConfig> {
        let pattern = CrossPattern::OnOff { on_ns: self.on_ns.max(1), off_ns: self.off_ns.max(1) };
        let bit_per_s = self.bytes_per_s.saturating_mul(8);
        (bit_per_s > 0).then(|| CrossConfig { pattern, ..CrossConfig::new(vec![BOTTLENECK], bit_per_s) })
    }
}

/// One bottleneck and who shares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    pub link: EnvLink,
    /// The link that all flows' acknowledgements cross; `None`: their way is uncongested.
    pub way_back: Option<LinkConfig>,
    pub flows: Vec<FlowSetup>,
    pub cross: Option<OnOff>,
    /// The time when it ends at the latest, nanoseconds of virtual time.
    pub until_ns: u64,
}

impl Scenario {
    /// # Errors
    /// The first number that is outside the simulator's limits.
    pub fn check(&self) -> Result<(), EnvError> {
        self.link.check()?;
        self.way_back.iter().try_for_each(LinkConfig::check)?;
        let links = self.links().len();
        self.flows.iter().try_for_each(|flow| self.flow(flow).network_path().check(links))?;
        if let Some(cross) = self.cross.as_ref().and_then(OnOff::config) {
            cross.check(links)?;
        }
        Ok(())
    }

    /// Returns the links of the simulator's network, as they are in the first phase.
    pub fn links(&self) -> Vec<LinkConfig> {
        std::iter::once(self.link.config()).chain(self.way_back.clone()).collect()
    }

    /// Returns one of its flows as the simulated datapath is given one; when it starts is asked of the setup, to the nanosecond.
    pub fn flow(&self, setup: &FlowSetup) -> FlowConfig {
        let mut config = setup.config();
        config.path.return_links.extend(self.way_back.as_ref().map(|_| WAY_BACK));
        config
    }
}
