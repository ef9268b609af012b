//! Flags of `ccplane top` and `ccplane web`.

use super::AgentPlace;
use clap::Args;
use std::net::SocketAddr;

/// Watch the running agent on a terminal: flows, rates, round-trip times, arms, decisions, learning curves.
///
/// Keys: q or Ctrl-C leaves, up and down choose a flow, 1 to 4 or Tab choose the panel below, p pauses. Rates are of the
/// acknowledged bytes between two samples. A learning curve is the mean reward of the rows that came between two samples.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The time between two questions to the agent.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    pub(crate) every: f64,
}

/// Watch the running agent in a browser: what `ccplane top` shows, with plots and the evidence of trials.
///
/// Prints the address to open, with a token that is drawn for this run; whoever has it may look, nobody may change anything.
/// Serves this machine's own addresses only, until interrupted: from elsewhere go there by `ssh -L`.
#[derive(Args, Debug)]
pub(crate) struct WebArgs {
    #[command(flatten)]
    pub(crate) place: AgentPlace,

    /// The loopback address to listen at; with port 0 the system chooses a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4280")]
    pub(crate) listen: SocketAddr,

    /// The time between two questions to the agent.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    pub(crate) every: f64,
}
