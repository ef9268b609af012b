//! Flags of `ccplane league`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Rank algorithms on links that are drawn from families by number.
///
/// Every algorithm is simulated on the same links, on all cores; the same command gives the same table. Prints a table, a summary, a heat
/// map by family, and the worst links of the first algorithm with a command that replays each; writes all cells as JSON Lines and a
/// page of HTML. Training, validation and test links share no seed; the test ones are played by --final only, which is written down.
#[derive(Args, Debug)]
pub(crate) struct LeagueArgs {
    #[command(flatten)]
    pub(crate) place: super::AgentPlace,

    /// The algorithms; without it the heuristics and the learned ones that come with ccplane. NAME@FILE is an algorithm under a
    /// network or a program of your own, such as aurora@my.snapshot or cubic@my.fold.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) algorithm: Vec<String>,

    /// The families; all without it.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) family: Vec<String>,

    /// The set that the links are drawn from.
    #[arg(long, value_name = "SET", value_enum, default_value_t = OpenSet::Validation)]
    pub(crate) set: OpenSet,

    /// The test links. Writes the use down before it plays them, and nothing may be chosen by them.
    #[arg(long = "final", conflicts_with_all = ["set", "link", "show", "plots"])]
    pub(crate) test: bool,

    /// The file in which uses of the test links are written down: a file that git has in its index.
    #[arg(long, value_name = "FILE", default_value = "experiments/league/uses.jsonl", requires = "test")]
    pub(crate) book: PathBuf,

    /// Links of each family.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=i64::from(ccplane_league::MAX_LINKS)))]
    pub(crate) links: u32,

    /// Play one link only, such as steady/validation/3.
    #[arg(long, value_name = "LINK", conflicts_with_all = ["family", "links", "set"])]
    pub(crate) link: Option<String>,

    /// Print a link's plan, as `ccplane run` takes it where it has no drawn trace, and exit.
    #[arg(long, value_name = "LINK")]
    pub(crate) show: Option<String>,

    /// Draw the link's plots: flows over time, throughput against delay, as `ccplane run` draws them.
    #[arg(long, requires = "link", conflicts_with = "live")]
    pub(crate) plots: bool,

    /// The folder with mahimahi's recorded traces; without them the family `recorded` is left out.
    #[arg(long, value_name = "DIR", default_value = "target/traces")]
    pub(crate) traces: PathBuf,

    /// Repeat this share of the links on emulated ones with kernel flows, 0 to 1, and say how well the two agree.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = super::share)]
    pub(crate) live: f64,

    /// Simulated at the same time; all processors without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) cores: Option<u16>,

    /// The directory for the cells and the page; it is made if it is missing.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) results: PathBuf,

    /// One JSON object on one line: the table and the summary.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The sets whose links may be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OpenSet {
    Training,
    Validation,
}
