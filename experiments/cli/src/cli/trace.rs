//! Flags of `ccplane trace`.

use super::seconds_long;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Check, summarise, plot, generate and convert link traces; read what mm-link logs.
///
/// A trace is mahimahi's: one whole millisecond a line, not decreasing; each line is an opportunity to deliver 1504 bytes, and at its end
/// it starts over. FILE may be `-` for standard input.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) command: TraceCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum TraceCommand {
    /// Say whether files are traces: exit code 2, the line and what would be right if one is not.
    Check {
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Print duration, mean rate, longest outage, and percentiles of the rates over 100 ms and 1 s.
    Summarise {
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,

        /// One JSON object a file, each on one line.
        #[arg(long)]
        json: bool,
    },
    /// Draw the rate over time: as a line in the terminal, or as an SVG file.
    Plot {
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Write an SVG document here; `-` for standard output.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    Generate(GenerateArgs),
    Convert(ConvertArgs),
    Log(LogArgs),
}

/// Make a trace: a plain shape, or a cellular link.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    pub(crate) shape: ShapeCommand,
}

/// The length of a trace, and the file that it goes to.
#[derive(Args, Debug)]
pub(crate) struct Made {
    /// Length of the trace.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds_long)]
    pub(crate) duration_s: f64,

    /// The file to write to; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ShapeCommand {
    /// A trace of one rate.
    Constant {
        /// The trace's rate, megabits per second.
        #[arg(value_name = "MBIT_PER_S")]
        mbit: f64,
        #[command(flatten)]
        made: Made,
    },
    /// Rates in turn, again and again.
    Step {
        /// The rates, with commas between.
        #[arg(value_name = "MBIT_PER_S", value_delimiter = ',', required = true)]
        mbit: Vec<f64>,
        /// The time for which each rate holds, seconds.
        #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds_long)]
        every_s: f64,
        #[command(flatten)]
        made: Made,
    },
    /// From one rate straight up to another, then down at once, again and again.
    Sawtooth {
        /// The lowest rate, megabits per second.
        #[arg(value_name = "LOW_MBIT_PER_S")]
        low_mbit: f64,
        /// The highest rate, megabits per second.
        #[arg(value_name = "HIGH_MBIT_PER_S")]
        high_mbit: f64,
        /// From one fall to the next.
        #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_long)]
        period_s: f64,
        #[command(flatten)]
        made: Made,
    },
    Cellular(CellularArgs),
}

/// A cellular link: a random walk between two rates, or a Markov chain fitted to a trace.
///
/// A fit sorts the trace's windows into states, by their rate and by how good the second around them is. It counts
/// which state follows which; generated traces have about the mean, the variance and the autocorrelation of the fitted
/// one.
#[derive(Args, Debug)]
pub(crate) struct CellularArgs {
    /// Fit a chain to this trace.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) fit: Option<PathBuf>,

    /// A chain that was fitted before, as --print-model prints it.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,

    /// Print the fitted chain in place of a trace: TOML if the output ends in .toml, else JSON.
    #[arg(long, requires = "fit")]
    pub(crate) print_model: bool,

    /// Without a chain: the slowest rate.
    #[arg(long, value_name = "MBIT_PER_S", default_value_t = 1.0, conflicts_with_all = ["fit", "model"])]
    pub(crate) low_mbit: f64,

    /// Without a chain: the fastest rate.
    #[arg(long, value_name = "MBIT_PER_S", default_value_t = 12.0, conflicts_with_all = ["fit", "model"])]
    pub(crate) high_mbit: f64,

    /// The time for which a rate holds; 100 for a fit, 200 without.
    #[arg(long, value_name = "MILLISECONDS", conflicts_with = "model", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) step_ms: Option<u32>,

    /// Seeds the random choices; the same seed makes the same trace.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) made: Made,
}

/// Turn a series of numbers into a trace, or a trace into a series.
///
/// A series has one number a line, each for the interval, or `time,value` lines with times in seconds; `#` starts a comment.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("direction").required(true).args(["from", "to"])))]
pub(crate) struct ConvertArgs {
    /// The file is a series of these; make a trace.
    #[arg(long, value_name = "UNIT")]
    pub(crate) from: Option<SeriesUnit>,

    /// The file is a trace; make a series of these.
    #[arg(long, value_name = "UNIT")]
    pub(crate) to: Option<SeriesUnit>,

    /// The time for which each number holds. Times in the file go before it. Making a series: 100 if left
    /// out.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400_000))]
    pub(crate) interval_ms: Option<u32>,

    /// Making a series: `time,value` lines.
    #[arg(long, requires = "to")]
    pub(crate) times: bool,

    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The file to write to; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The unit in which a series counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SeriesUnit {
    /// Packets of 1504 bytes per second.
    Pps,
    Mbps,
}

/// Print the figures of an mm-link log, as mahimahi's mm-throughput-graph and mm-delay-graph compute them.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// A log that `mm-link --uplink-log` or `--downlink-log` wrote, ccplane's or mahimahi's.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Width of the bins of rates over time.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub(crate) bin_ms: u32,

    /// One JSON object, rates over time included.
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw throughput and delay over time as an SVG document.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
