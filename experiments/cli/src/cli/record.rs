//! Flags of `ccplane record`.

use super::seconds;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Record the TCP flows of programs: when they start and end, what they carry, in which bursts.
///
/// The recording is text, one JSON object a line; addresses become the numbers of hosts in order of appearance. It is what
/// simulated workloads read. Flows that were open before are left out. The flows themselves are not touched, and nothing
/// stays in the kernel, however the recording ends. Needs root (CAP_BPF, CAP_PERFMON).
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct RecordArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RecordCommand>,

    #[command(flatten)]
    pub(crate) new: NewRecordArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RecordCommand {
    /// Say what a recording holds.
    Show {
        /// The recording.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Print the thresholds between priorities that suit its flows, as lines for `[datapath.packets]` of an agent with `pias`
        /// or `size`: they are learned as PIAS does, from the sizes of all transfers.
        #[arg(long)]
        thresholds: bool,

        /// One JSON object on one line.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of a new recording: its scope, its end and its file.
#[derive(Args, Debug)]
pub(crate) struct NewRecordArgs {
    /// Write the recording to FILE, whole, when it ends.
    #[arg(short, long, value_name = "FILE", required = true)]
    pub(crate) output: Option<PathBuf>,

    /// Record the sockets of this network namespace, a name below /run/netns or a path; may be repeated. Unless a scope is
    /// given, that of this process.
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup")]
    pub(crate) netns: Vec<String>,

    /// Record the sockets of this cgroup (v2) and of those below it: the path of its directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,

    /// The silence that ends a burst, milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub(crate) burst_gap_ms: u32,

    /// End after this time, seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration_s: Option<f64>,

    /// Record while this command runs; else until interrupted.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) program: Vec<String>,
}
