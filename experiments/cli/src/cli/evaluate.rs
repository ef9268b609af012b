//! Flags of `ccplane evaluate`.

use clap::Args;
use std::path::PathBuf;

/// Evaluate algorithms by the criteria of RFC 9743, with a verdict on each.
///
/// Every criterion is a set of scenarios, drawn by number and simulated on all cores beside Reno, CUBIC and BBR; a verdict is pass or
/// concern by the interval of a mean, or not applicable and why. Writes RESULTS/ALGORITHM.html, .md and .json, and of several
/// algorithms a summary. Runs are kept in a file of cells: an interrupted evaluation goes on when the same command is run again, and
/// several share their references. Exit code 0 if the algorithms were evaluated, whatever the verdicts; 130 if it was interrupted.
#[derive(Args, Debug)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    pub(crate) place: super::AgentPlace,

    /// The algorithms, one report each.
    #[arg(value_name = "ALGORITHM", required_unless_present_any = ["all", "list"])]
    pub(crate) algorithms: Vec<String>,

    /// Evaluate every algorithm that is there.
    #[arg(long, conflicts_with = "algorithms")]
    pub(crate) all: bool,

    /// Say which criteria there are, what they ask and how they are checked.
    #[arg(long, conflicts_with_all = ["algorithms", "all"])]
    pub(crate) list: bool,

    /// The criteria; all without it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) criterion: Vec<String>,

    /// Cases of each set.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=i64::from(ccplane_evaluation::MAX_CASES)))]
    pub(crate) cases: u32,

    /// Four cases of each set, to try an algorithm: intervals are wide.
    #[arg(long, conflicts_with = "cases")]
    pub(crate) quick: bool,

    /// Repeat this share of the cases with kernel flows over emulated links, beside the kernel's own algorithms, 0 to 1; and compare
    /// with the kernel's algorithm of the same name. With --case, whatever share but 0 runs that case so. Needs root.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = super::share)]
    pub(crate) live: f64,

    /// Repeat one case alone, such as heavy-loss/3, and print its figures.
    #[arg(long, value_name = "CASE", conflicts_with_all = ["all", "criterion", "cases", "quick"])]
    pub(crate) case: Option<String>,

    /// Draw the case's plots: flows over time, throughput against delay, as `ccplane run` draws them.
    #[arg(long, requires = "case")]
    pub(crate) plots: bool,

    /// Write what the algorithm's flows and the agent tell each other in the case, as a qlog trace; in virtual time, or live.
    #[arg(long, value_name = "FILE", requires = "case", conflicts_with_all = ["plots", "show"])]
    pub(crate) qlog: Option<PathBuf>,

    /// Print the case's plan and exit: `ccplane run` takes it, unless it has a drawn trace.
    #[arg(long, requires = "case", conflicts_with_all = ["plots", "live"])]
    pub(crate) show: bool,

    /// Simulated at the same time; all processors without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) cores: Option<u16>,

    /// The directory for the reports; it is made if it is missing.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) results: PathBuf,

    /// The file in which simulated runs are kept, if not beside the reports.
    #[arg(long, value_name = "FILE")]
    pub(crate) cells: Option<PathBuf>,

    /// Start anew; the runs that are there are kept as .old.
    #[arg(long)]
    pub(crate) force: bool,

    /// One JSON object on one line for each algorithm: the report, as in its file.
    #[arg(long)]
    pub(crate) json: bool,
}
