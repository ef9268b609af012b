//! The flags of `ccplane distill`.

use clap::Args;
use std::path::PathBuf;

/// Distil a learned policy into a plain program: a small tree of linear models, for datapaths without networks.
///
/// The policy labels what flows meet in simulated links, at first under itself, then under the tree; the tree then takes
/// the policy's place in the algorithm's program. What that lost is reported: distances between the two's actions as
/// shares of the action range, on states that flows visit and on random ones, and the rewards of both.
#[derive(Args, Debug)]
pub(crate) struct DistillArgs {
    /// The algorithm whose program asks the policy. Its own snapshot is distilled unless --policy or --snapshot says.
    #[arg(long, value_name = "NAME", default_value = "aurora")]
    pub(crate) algorithm: String,

    /// A policy file (safetensors) to distil.
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    pub(crate) policy: Option<PathBuf>,

    /// A snapshot file to distil.
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,

    /// The file that the program is written to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// The number of leaves of the tree, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    pub(crate) leaves: usize,

    /// Inputs of the tree: those that help most.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub(crate) inputs: usize,

    /// Seeds the episodes; the same seed makes the same program.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// The number of episodes in each round.
    #[arg(long, value_name = "COUNT", default_value_t = 60)]
    pub(crate) episodes: usize,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}
