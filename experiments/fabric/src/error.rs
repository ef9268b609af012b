//! The reasons for which nothing was simulated, or carried.

use ccplane_core::{AttachError, CatalogError, RulesError};
use ccplane_ebpf::EbpfError;
use ccplane_netsim::ConfigError;
use ccplane_netsim::workload::WorkloadError;
use ccplane_sim::SimError;

/// Reasons why a trial could not be run.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A number of the network outside its limits.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A number of the simulation outside its limits.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A load or a structure outside its limits.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// An algorithm's program or policy is refused.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No algorithm of that name.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The core does not take the hosts' datapath.
    #[error("attach the hosts' datapath: {0}")]
    Attach(#[from] AttachError),
    /// The snapshot that comes with `size` cannot be read.
    #[error("the snapshot that comes with `size` cannot be read")]
    NoSnapshot,
    /// The fabric has more flows than a network carries.
    #[error("{found} flows, at most {max} are allowed")]
    Flows { found: usize, max: usize },
    /// The plan has no table `[live]`.
    #[error("the plan says nothing of live runs: it has no table [live]")]
    NotLive,
    /// No links could be emulated, or no namespaces made.
    #[error(transparent)]
    Emulator(#[from] ccplane_emulator::Error),
    /// Packets cannot be decided about here.
    #[error(transparent)]
    Packets(#[from] EbpfError),
    /// The agent did not start, or did not end well.
    #[error("the agent: {0}")]
    Agent(String),
    /// A flow could not be sent or taken.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("no flow was seen under its program")]
    Unsteered,
}
