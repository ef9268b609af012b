//! The flags of the agent, and how its commands find it.

use clap::{Args, Parser};
use std::path::PathBuf;

/// The configuration file and control socket through which a command reaches the agent.
#[derive(Args, Debug)]
pub struct AgentPlace {
    /// The agent's configuration file; without it /etc/ccplane.toml if there is one, else the defaults.
    #[arg(long, value_name = "FILE", env = "CCPLANE_CONFIG")]
    pub config: Option<PathBuf>,

    /// The control socket; goes before the configuration's `control.socket`.
    #[arg(long, value_name = "PATH", env = "CCPLANE_SOCKET")]
    pub socket: Option<PathBuf>,
}

/// Run the agent: attach to the datapaths, steer their flows, serve the other commands.
///
/// Runs in the foreground and logs to standard error. SIGTERM or SIGINT stops it gracefully: flows go over to their
/// native fallback, the datapaths are detached and the sockets removed. SIGUSR2 ends it and leaves its flows to the
/// next agent, as for an upgrade. SIGHUP reads the rules anew. Only one agent runs per control socket. Killed at
/// whatever moment, it leaves flows running natively; the next agent takes them over.
#[derive(Args, Debug)]
pub struct AgentArgs {
    #[command(flatten)]
    pub place: AgentPlace,

    /// Print the default configuration, every key documented, and exit.
    #[arg(long)]
    pub print_default_config: bool,

    /// Print the names of the algorithms that rules may use, and exit.
    #[arg(long, conflicts_with = "print_default_config")]
    pub list_algorithms: bool,

    /// Check the configuration and exit: 0 if the agent would take it, 2 with the place of the mistake if not.
    #[arg(long, conflicts_with_all = ["print_default_config", "list_algorithms"])]
    pub check_config: bool,
}

/// The agent of ccplane, as `ccplane agent` runs it.
#[derive(Parser, Debug)]
#[command(name = "ccplaned", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub agent: AgentArgs,
}
