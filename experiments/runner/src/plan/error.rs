//! Reasons why a plan is refused.

use ccplane_files::document::DocumentError;
use ccplane_results::Datapath;

/// Reasons why a plan is refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Neither such a file nor such a shipped plan exists.
    #[error("no file `{name}`, and no plan of that name comes with ccplane; there are: {}", known.join(", "))]
    NoSuchPlan {
        name: String,
        /// The plans that are shipped.
        known: Vec<&'static str>,
    },
    /// The file cannot be read, or a field is wrong.
    #[error(transparent)]
    Refused(#[from] DocumentError),
}

/// Every contender of a plan is on a datapath that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("nothing is left: {}", why_not_there(*datapath))]
pub struct NothingLeft {
    pub datapath: Datapath,
}

/// The reason why contenders on a datapath are left out, and what would help.
#[must_use]
pub fn why_not_there(datapath: Datapath) -> &'static str {
    match datapath {
        Datapath::Dpdk => "this ccplane was built without DPDK (cargo build --release --features dpdk)",
        Datapath::Module => "the kernel module is not loaded (datapath-shims/module/README.md)",
        Datapath::Kernel | Datapath::Ebpf | Datapath::Sim | Datapath::Quic => "it is not here",
    }
}
