//! The flags of `ccplane snapshot`, where it needs no agent.

use super::{Learns, Links};
use ccplane_env::recipe::VISITED_EPISODES;
use clap::Args;
use std::path::PathBuf;

/// So that what a policy visits fits into memory.
const MAX_EPISODES: i64 = 1000;
/// A signature's longest validity, days.
const MAX_VALID_DAYS: u64 = 36_500;

/// Make a snapshot of a trained policy, or of a network from elsewhere.
///
/// A network from elsewhere is an ONNX model or a safetensors file of layers NAME.weight and NAME.bias: dense layers
/// with tanh or ReLU between them, one output. It sees what the algorithm's own policy sees: features in [-1, 1] in the
/// same order (`ccplane snapshot inspect` lists them). Its output is the action. The policy runs in simulated links
/// first; on the states that it visits there, and on others, the integer network is compared with the float network. It
/// is refused if the mean error is beyond the budget, in shares of the action's range.
#[derive(Args, Debug)]
pub(crate) struct SnapshotBuildArgs {
    /// A network from elsewhere: a file whose name ends in .onnx or .safetensors.
    #[arg(
        value_name = "MODEL",
        required_unless_present = "policy",
        conflicts_with = "policy",
        requires = "algorithm"
    )]
    pub(crate) model: Option<PathBuf>,

    /// The policy, a safetensors file from `ccplane train`.
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,

    /// The algorithm that MODEL decides for.
    #[arg(long, value_enum, conflicts_with = "policy")]
    pub(crate) algorithm: Option<Learns>,

    /// The activation between the layers of a MODEL in safetensors, which does not say it.
    #[arg(long, value_enum, conflicts_with = "policy")]
    pub(crate) activation: Option<ActivationArg>,

    /// Take the layers of a MODEL in safetensors whose names begin so.
    #[arg(long, value_name = "PREFIX", default_value = "", conflicts_with = "policy")]
    pub(crate) tensors: String,

    /// The file to write the snapshot to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,

    /// Width of its integers.
    #[arg(long, value_enum, default_value_t = BitsArg::Auto)]
    pub(crate) bits: BitsArg,

    /// Largest mean error on visited states.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = super::share)]
    pub(crate) budget: f64,

    /// Largest mean error on other states.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = super::share)]
    pub(crate) budget_off: f64,

    /// The links that it runs on; without it, those that the policy's own command names, else what people have.
    #[arg(long, value_enum)]
    pub(crate) config: Option<Links>,

    /// The number of episodes on these links.
    #[arg(long, value_name = "N", default_value_t = VISITED_EPISODES,
        value_parser = clap::value_parser!(u32).range(1..=MAX_EPISODES))]
    pub(crate) episodes: u32,

    /// Decides the links and the other states.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The activation of hidden layers.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActivationArg {
    Tanh,
    Relu,
}

/// Widths of a snapshot's integers.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BitsArg {
    /// 8 bits where the budget allows it.
    Auto,
    #[value(name = "8")]
    W8,
    #[value(name = "16")]
    W16,
}

/// Show what a snapshot is: its network, inputs, action, guard rails, fidelity and origin.
#[derive(Args, Debug)]
pub(crate) struct SnapshotInspectArgs {
    /// The snapshot file to read.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a snapshot: that it is whole, that no sum of its network can overflow, and who has signed it.
///
/// Exit code 0: all of that holds. 2: something does not. 3: it is whole, and its signature is by the key that it names, but
/// no --key says whose key that is.
#[derive(Args, Debug)]
pub(crate) struct SnapshotVerifyArgs {
    /// The snapshot file to read.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Demand a signature by this public key, or by one of several.
    #[arg(long = "key", value_name = "FILE")]
    pub(crate) keys: Vec<PathBuf>,

    /// Also if the signature has expired.
    #[arg(long)]
    pub(crate) allow_older: bool,
}

/// Make a key to sign snapshots with: FILE, which only its owner can read, and FILE.pub.
#[derive(Args, Debug)]
pub(crate) struct SnapshotKeygenArgs {
    /// The file to write the secret key to; must not exist.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Sign a snapshot. Its hash stays what it is.
///
/// What is signed beside it: a sequence number, below which agents refuse what they are given later, and an expiry.
#[derive(Args, Debug)]
pub(crate) struct SnapshotSignArgs {
    /// The snapshot file; it is replaced unless --out names another.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The secret key, which nobody but its owner may read.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,

    /// Its sequence number; the time in seconds since 1970 unless given.
    #[arg(long, value_name = "N")]
    pub(crate) sequence: Option<u64>,

    /// Days until the signature expires.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=MAX_VALID_DAYS))]
    pub(crate) valid_days: u64,

    /// The file to write the signed snapshot to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}
