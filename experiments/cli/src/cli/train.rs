//! The flags of `ccplane train`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Train a policy from nothing, in simulated links under the datapath's own program.
///
/// Writes into the output directory: NAME.safetensors, the float policy, which learning on live flows goes on from;
/// NAME.snapshot, its integers, which datapaths decide by; NAME.json, what it is worth on held-out links beside other
/// algorithms; curves as JSON Lines (NAME.jsonl); NAME.checkpoint. The same seed gives
/// the same bits with any number of threads. SIGINT or SIGTERM ends the training after the update that is under way, with
/// exit code 1; --resume goes on from there. A second signal ends it at once. Neural's training has no curves; it may be ended at
/// any time, and --resume goes on after the last round that was done. Size's and path's have neither
/// curves nor a checkpoint.
#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    /// The algorithm that learns.
    #[arg(long, value_enum, default_value_t = Learns::Aurora)]
    pub(crate) algorithm: Learns,

    /// The links, and Aurora's reward and start: those that people have, or those published with it.
    #[arg(long, value_enum, default_value_t = Links::Real)]
    pub(crate) config: Links,

    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Decisions to learn from, at most; without it, as many as the recipe says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// The directory that its files are written to.
    #[arg(long, value_name = "DIR", default_value = "policies")]
    pub(crate) out: PathBuf,

    /// Threads that run episodes; without it, one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// The library that computes the updates.
    #[arg(long, value_enum, default_value_t = Backend::Native)]
    pub(crate) backend: Backend,

    /// Go on from the output directory's checkpoint.
    #[arg(long)]
    pub(crate) resume: bool,

    /// MOCC: teach the policy in the output directory a preference, percents of throughput, latency and loss, without
    /// forgetting the old ones; and compare with learning it from nothing.
    #[arg(long, value_name = "THR,LAT,LOSS", value_delimiter = ',', conflicts_with = "resume")]
    pub(crate) adapt: Option<Vec<u8>>,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The algorithms that can be trained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Learns {
    /// A policy for one objective.
    Aurora,
    /// Any preference between throughput, latency and loss.
    Mocc,
    /// Whether rivals share the path, on the league's training links.
    Neural,
    /// The sizes that flows will have, on simulated fabrics.
    Size,
    /// The time until a flow ends on each path, on simulated fabrics.
    Path,
}

/// The families of links to train on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Links {
    /// 1 to 200 Mb/s, 5 to 300 ms, changing, lossy, shared.
    Real,
    /// The same, with 0.5 to 20 % random loss on nine in ten.
    Lossy,
    /// Links as PCC-RL's simulator draws them.
    Published,
}

/// Back ends of a learner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Backend {
    /// Vector code of our own, which is fastest for small networks.
    Native,
    /// libtorch, where ccplane was built with it.
    Torch,
}
