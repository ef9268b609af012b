//! Flags of `ccplane predict`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Serve predictions: several integer networks, and a bandit that learns from feedback which of them to ask.
///
/// The protocol is UDP and fits a page (datapath-shims/docs/predict.md); a client in Python is beside it.
#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    #[command(subcommand)]
    pub(crate) command: PredictCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PredictCommand {
    Train(PredictTrainArgs),
    Serve(PredictServeArgs),
    Ask(PredictAskArgs),
    Bench(PredictBenchArgs),
}

/// The images that predictors learn from and are asked about.
#[derive(Args, Debug)]
pub(crate) struct PredictImages {
    /// Images as an IDX file, such as MNIST's; without, the handwritten digits that scikit-learn ships.
    #[arg(long, value_name = "FILE", requires = "labels")]
    pub(crate) images: Option<PathBuf>,

    /// The labels of these images, as an IDX file.
    #[arg(long, value_name = "FILE", requires = "images")]
    pub(crate) labels: Option<PathBuf>,
}

/// Train ten predictors, those of five optimisers after one and after ten epochs, and write them as snapshots.
///
/// Of every five images three are trained on, one is for validation, one for questions to a server (`ask`, `bench`). The same
/// seed gives the same bits.
#[derive(Args, Debug)]
pub(crate) struct PredictTrainArgs {
    #[command(flatten)]
    pub(crate) images: PredictImages,

    /// The folder that the snapshots are written to. A server that serves it takes them at once.
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,

    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// One JSON object a predictor.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The ways in which datagrams come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PredictWire {
    /// A socket, one system call a datagram.
    Socket,
    /// A socket by io_uring, many datagrams a system call.
    Uring,
    /// An AF_XDP socket on an interface, as root: the datagrams do not meet the kernel's network stack.
    Xdp,
    /// The interface's driver, as root: an XDP program answers and learns, and no process runs. No system call, no busy core.
    Kernel,
}

/// The ways in which a slot chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PredictChoice {
    /// One predictor is drawn, and only it runs.
    Exp3,
    /// All run; those that agree with the drawn one share its reward.
    Exp4,
}

/// Serve the predictors of a folder, until interrupted.
///
/// The folder is looked at each second: predictors that are written there answer from the next request on, and weights stay with
/// their names. Feedback on the earlier ones is refused from then on.
#[derive(Args, Debug)]
pub(crate) struct PredictServeArgs {
    /// The folder with the snapshots, at most 16; their order is that of their names.
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,

    /// The address and port to listen at.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4434")]
    pub(crate) listen: std::net::SocketAddr,

    #[arg(long, value_enum, default_value_t = PredictWire::Socket)]
    pub(crate) wire: PredictWire,

    /// The interface of `--wire xdp` and `--wire kernel`; it must have the address that is listened at, and no XDP program. With
    /// `xdp` one core is busy while there is work.
    #[arg(long, value_name = "INTERFACE", required_if_eq_any([("wire", "xdp"), ("wire", "kernel")]))]
    pub(crate) interface: Option<String>,

    /// Have `--wire kernel` answer behind the driver rather than in it: slower, but for any interface, such as one end of a virtual cable
    /// whose other end has no XDP program.
    #[arg(long)]
    pub(crate) generic: bool,

    /// The way in which each slot chooses, slot 0 first.
    #[arg(long, value_name = "CHOICES", value_enum, value_delimiter = ',', default_values = ["exp3", "exp4"])]
    pub(crate) slots: Vec<PredictChoice>,

    /// Keep the weights in this folder, each second and at the end, and begin with those that are there. The folder is made if
    /// need be, and must be this user's alone to write.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<PathBuf>,

    /// Serve only snapshots that are signed by the key in this file, and refuse those that are older than one that was taken; may be
    /// given again.
    #[arg(long, value_name = "KEY")]
    pub(crate) signed_by: Vec<PathBuf>,

    /// Remember in this folder, of this user's alone, which signed snapshots were taken. Left out: where the agent does.
    #[arg(long, value_name = "FOLDER", requires = "signed_by")]
    pub(crate) state: Option<PathBuf>,

    /// Serve also snapshots whose signature has expired, or which are older than one that was taken.
    #[arg(long, requires = "signed_by")]
    pub(crate) allow_older: bool,

    /// Print what happens as JSON, one object a line.
    #[arg(long)]
    pub(crate) json: bool,

    #[cfg(feature = "dpdk")]
    #[command(flatten)]
    pub(crate) port: super::QuicPort,
}

/// The slot of a server that is asked, and the images.
#[derive(Args, Debug)]
pub(crate) struct PredictAsked {
    /// The server's address and port.
    #[arg(value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4434")]
    pub(crate) server: std::net::SocketAddr,

    #[command(flatten)]
    pub(crate) images: PredictImages,

    #[arg(long, default_value_t = 0)]
    pub(crate) slot: u8,
}

/// Ask a server about images that no predictor has seen, and tell it what was true.
#[derive(Args, Debug)]
pub(crate) struct PredictAskArgs {
    #[command(flatten)]
    pub(crate) asked: PredictAsked,

    /// Number of images that are asked about, from the first on, and again from the first if there are fewer.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) count: u64,

    /// Do not tell what was true.
    #[arg(long)]
    pub(crate) no_feedback: bool,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Load a server with requests, and print how many it answers and how fast. `ccplane bench` compares datapaths.
#[derive(Args, Debug)]
pub(crate) struct PredictBenchArgs {
    #[command(flatten)]
    pub(crate) asked: PredictAsked,

    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::seconds)]
    pub(crate) seconds: f64,

    /// Send at this rate whatever comes back; without, one request is outstanding.
    #[arg(long, value_name = "PER-SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,

    /// Do not tell what was true.
    #[arg(long)]
    pub(crate) no_feedback: bool,

    /// Poll the socket rather than sleep in it: one core is busy.
    #[arg(long)]
    pub(crate) spin: bool,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}
