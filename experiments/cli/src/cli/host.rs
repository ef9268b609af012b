//! Flags of `ccplane host`.

use ccplane_host::{BadModelSize, ModelSize, WantedKnob};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Show and change what decides how this host works on its packets: interrupts, queues, coalescing, buffers.
///
/// Nothing is changed without `--apply`. The old value of each change is on the disk before the change is made. So
/// `ccplane host undo` takes all of them back, whatever became of the process that made them. Settings do not outlive a
/// reboot.
#[derive(Args, Debug)]
pub(crate) struct HostArgs {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum HostCommand {
    Show(HostShowArgs),
    Measure(HostMeasureArgs),
    Learn(HostLearnArgs),
    Tune(HostTuneArgs),
    Set(HostSetArgs),
    Undo(HostUndoArgs),
}

/// Show processors, interfaces, interrupts and settings, and why a setting cannot be changed here.
#[derive(Args, Debug)]
pub(crate) struct HostShowArgs {
    /// One interface, with its interrupts, alone.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// Also write a picture of the host, as SVG, to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Also write a page with the picture and all settings to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The host to measure: this one over a veth pair of its own, this one over an interface, or a model.
#[derive(Args, Debug)]
pub(crate) struct SubjectArgs {
    /// A model of a host with so many memory nodes and cores on each, such as 2x16; nothing is measured then.
    #[arg(long, value_name = "NODESxCORES", value_parser = model_size, conflicts_with_all = ["interface", "knob"])]
    pub(crate) model: Option<ModelSize>,

    /// The interface that receives; without one, a veth pair in network namespaces of its own.
    #[arg(long, value_name = "NAME", requires = "peer")]
    pub(crate) interface: Option<String>,

    /// The network namespace behind the interface, as `ip netns` names it, which sends.
    #[arg(long, value_name = "NAMESPACE", requires = "interface")]
    pub(crate) peer: Option<String>,

    /// A setting of the interface and the values to try, beside the one that is found; may be repeated. Without it, the usual ones.
    #[arg(long, value_name = "SETTING=VALUE,VALUE")]
    pub(crate) knob: Vec<WantedKnob>,

    /// Flows at the same time: 1, and 4 in a model, unless said otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) flows: Option<u32>,

    /// The length of one measurement, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    pub(crate) duration_ms: u64,

    /// The seed of all that is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// End after so many seconds; what was measured is kept.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) budget_s: Option<u64>,

    /// Change the settings of the interface that is named; without it, print the commands. A pair of its own needs no permission.
    #[arg(long)]
    pub(crate) apply: bool,
}

fn model_size(text: &str) -> Result<ModelSize, BadModelSize> {
    text.parse()
}

/// Measure placements of application, interrupt and flow, and settings, with bulk TCP flows.
///
/// Goes on where it was when it was stopped. The results hold throughput, interrupts, drops and softirqs of each
/// combination. They hold bytes per instruction where the processor counts them, and bytes per processor second where
/// not. All settings are as they were afterwards.
#[derive(Args, Debug)]
pub(crate) struct HostMeasureArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,

    /// Combinations to measure, drawn at random; all of them where there are fewer.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cells: u64,

    /// Measurements of each combination.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: u32,

    /// The file of results, JSON Lines.
    #[arg(long, value_name = "FILE", default_value = "results/host.jsonl")]
    pub(crate) results: PathBuf,

    /// Also write the results as CSV to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Also write a page with the results and a picture of the host to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Also draw flame graphs of the defaults and of the best combination into FOLDER, by perf.
    #[arg(long, value_name = "FOLDER", conflicts_with = "model")]
    pub(crate) flames: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}

/// Learn from measurements: groups of settings, the counters that tell them apart, predictions, the best coalescing.
///
/// Reads what `ccplane host measure` writes, and CSV files of others. The error of predictions is that on settings that were not learned from.
#[derive(Args, Debug)]
pub(crate) struct HostLearnArgs {
    /// The measurements: JSON Lines of ours, or CSV with a head line.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Groups that settings are divided into.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) groups: usize,

    /// Predict from the settings alone, or also from what the host counted meanwhile. With the latter the error says how
    /// much of the result the counters explain; what was not measured cannot be predicted so.
    #[arg(long, value_enum, default_value_t = FeaturesName::Settings)]
    pub(crate) features: FeaturesName,

    /// The seed of the division, of k-means and of the networks.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Columns of a CSV file that say what was set; without it, guessed from their names.
    #[arg(long, value_name = "COLUMN,COLUMN", value_delimiter = ',')]
    pub(crate) input: Vec<String>,

    /// The column of a CSV file with the throughput.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) throughput: Option<String>,

    /// The column of a CSV file with the efficiency.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) efficiency: Option<String>,

    /// The processors of each memory node of a CSV file's host, such as 0-7:8-15.
    #[arg(long, value_name = "LIST:LIST", value_delimiter = ':')]
    pub(crate) nodes: Vec<String>,

    /// Also write a page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Quantities that predictions are made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FeaturesName {
    Settings,
    /// The settings, and what the host counted.
    Counters,
}

/// A way to choose what is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SearchName {
    /// Perceptrons predict; what promises most, or is least known, is next.
    Perceptron,
    Random,
    /// Every combination is measured.
    Exhaustive,
}

/// The quantity that is made as large as possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ObjectiveName {
    Throughput,
    Efficiency,
}

/// Search for settings that carry more than those in force.
///
/// A setting that lowers the throughput by more than noise is taken back at once. The best one is held against the defaults in turn before it
/// counts; where it does not beat them by more than noise, there is nothing to do, and all is as it was.
#[derive(Args, Debug)]
pub(crate) struct HostTuneArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,

    /// The way in which combinations are chosen.
    #[arg(long, value_enum, default_value_t = SearchName::Perceptron)]
    pub(crate) search: SearchName,

    /// The quantity to make as large as possible.
    #[arg(long, value_enum, default_value_t = ObjectiveName::Throughput)]
    pub(crate) objective: ObjectiveName,

    /// Combinations that are tried; an exhaustive search tries all.
    #[arg(long, value_name = "N", default_value_t = ccplane_host::DEFAULT_TRIALS, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) trials: u64,

    /// Also write a page with the search and a picture of the host to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}

/// The place where changes are recorded.
#[derive(Args, Debug)]
pub(crate) struct JournalArgs {
    /// The folder with the record of changes.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/ccplane")]
    pub(crate) journal: PathBuf,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change settings, all or none; without `--apply`, print the commands that would change them.
///
/// A change that the system refuses, or that comes out in another way than asked, takes back those before it.
#[derive(Args, Debug)]
pub(crate) struct HostSetArgs {
    /// Settings as `ccplane host show` names them, with the values they are to have.
    #[arg(value_name = "SETTING=VALUE", required = true)]
    pub(crate) changes: Vec<String>,

    /// Make the changes.
    #[arg(long)]
    pub(crate) apply: bool,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}

/// Take back every change, the newest first.
///
/// A setting that somebody else has changed since stays as it is, unless `--force` is given.
#[derive(Args, Debug)]
pub(crate) struct HostUndoArgs {
    /// Bring the old values back even where somebody else has changed a setting since.
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}
