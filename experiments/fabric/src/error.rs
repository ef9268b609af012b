//! The reasons for which nothing was simulated.

use ccplane_core::{AttachError, CatalogError, RulesError};
use ccplane_netsim::ConfigError;
use ccplane_netsim::workload::WorkloadError;
use ccplane_sim::SimError;

/// Why a trial could not be run.
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
}
