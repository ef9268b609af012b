//! The command line: every flag, once.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// The congestion control plane: one agent learns, many datapaths decide.
///
/// `ccplane agent` steers the TCP flows of this machine, and those of other processes' datapaths, by fold programs
/// that run inside the datapath on every ACK. Packets never wait for the agent: without it, flows go on under a
/// native algorithm.
///
/// Exit codes: 0 done; 1 something failed at run time; 2 the input (arguments, configuration, program, trace) is
/// wrong: the message says where, and nothing was changed.
#[derive(Parser, Debug)]
#[command(name = "ccplane", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Agent(AgentArgs),
    Flows(FlowsArgs),
    Status(StatusArgs),
    Programs(ProgramsArgs),
    Reload(ReloadArgs),
    Stop(StopArgs),
}

/// How a command finds the agent.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// The agent's configuration file; without it /etc/ccplane.toml if there is one, else the defaults.
    #[arg(long, value_name = "FILE", env = "CCPLANE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The control socket; goes before the configuration's `control.socket`.
    #[arg(long, value_name = "PATH", env = "CCPLANE_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
}

/// Run the agent: attach to the datapaths, steer their flows, serve the other commands.
///
/// Runs in the foreground and logs to standard error. SIGTERM or SIGINT stops it gracefully: flows go over to their
/// native fallback, the datapaths are detached and the sockets removed; a second signal ends it at once. SIGHUP
/// reads the rules anew. Only one agent runs per control socket. Killed at whatever moment, it leaves flows running
/// natively; the next agent takes them over.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Print the default configuration, every key documented, and exit.
    #[arg(long)]
    pub(crate) print_default_config: bool,

    /// Print the names of the algorithms that rules may use, and exit.
    #[arg(long, conflicts_with = "print_default_config")]
    pub(crate) list_algorithms: bool,

    /// Check the configuration and exit: 0 if the agent would take it, 2 with the place of the mistake if not.
    #[arg(long, conflicts_with_all = ["print_default_config", "list_algorithms"])]
    pub(crate) check_config: bool,
}

/// List the flows that the agent steers, one line a flow and its figures below, as `ss -tin` does.
///
/// The figures are tcp_info's: cwnd and ssthresh in packets, rtt and minrtt in milliseconds, pacing_rate in bits per
/// second, bytes_acked, delivered, lost and unacked as the kernel counts them. `mode` says who steers the flow at the
/// moment: its program, or the native algorithm and why. If the agent does not answer, the figures are read from the
/// datapath itself, and the first line says so.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,

    /// List them again every SECONDS until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    pub(crate) watch: Option<f64>,
}

/// Show the agent's state: its process, rules, datapaths and counters.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the installed programs and the datapaths that hold them.
#[derive(Args, Debug)]
pub(crate) struct ProgramsArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Give the running agent the rules of its configuration file anew.
///
/// Only the rules and the default algorithm change, and only new flows follow them. A file with a mistake is refused
/// as a whole.
#[derive(Args, Debug)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Stop the running agent gracefully and wait until it is gone.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) place: Place,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(s),
        _ => Err("seconds, 0.1 to 3600".to_owned()),
    }
}
