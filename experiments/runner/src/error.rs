//! What can go wrong, with values.

use nix::errno::Errno;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an experiment could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such congestion control in this kernel.
    #[error(
        "congestion control {name:?} is not registered in this kernel (see net.ipv4.tcp_available_congestion_control)"
    )]
    NoCongestionControl {
        /// As asked for.
        name: String,
    },
    /// The congestion control is registered, but not for this caller.
    #[error("congestion control {name:?} is restricted: using it needs CAP_NET_ADMIN")]
    Restricted {
        /// As asked for.
        name: String,
    },
    /// A system call failed.
    #[error("{what}: {errno}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A stream failed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What came back.
        error: std::io::Error,
    },
    /// The receiver did not answer in time.
    #[error("no connection to {remote} within {timeout_ms} ms")]
    ConnectTimeout {
        /// The receiver.
        remote: std::net::SocketAddr,
        /// How long was waited.
        timeout_ms: u128,
    },
    /// A thread ended by a panic.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
    /// A configuration that cannot run; `field` names what is wrong.
    #[error("{field}: {reason}")]
    Config {
        /// The field.
        field: &'static str,
        /// What is wrong with it, and the limit.
        reason: String,
    },
    /// The link could not be made or changed.
    #[error(transparent)]
    Link(#[from] ccplane_emulator::Error),
    /// No algorithm of this name; a plan that was checked names none such.
    #[error("no algorithm is called `{name}`")]
    NoAlgorithm {
        /// The name.
        name: String,
    },
    /// A parameter that the algorithm does not take; a plan that was checked has none such.
    #[error(transparent)]
    Parameter(ccplane_alg::ParameterError),
    /// The agent could not start.
    #[error("the agent could not start: {0}")]
    Agent(Box<dyn std::error::Error + Send + Sync>),
    /// The machine let nothing run for so long that the run says nothing.
    #[error("the machine stood still for {ms} ms: it is too busy, or was suspended")]
    Stalled {
        /// How long.
        ms: u128,
    },
    /// iperf3 failed.
    #[error("iperf3: {why}")]
    Iperf3 {
        /// What it said, or how it ended.
        why: String,
    },
    /// A QUIC connection failed.
    #[error("QUIC: {why}")]
    Quic {
        /// What quinn or TLS said.
        why: String,
    },
    /// DPDK failed.
    #[error("DPDK: {why}")]
    Dpdk {
        /// What it said.
        why: String,
    },
    /// The simulator refused the scenario.
    #[error(transparent)]
    Sim(#[from] crate::sim::SimulateError),
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
    /// Something that the caller's hooks did failed.
    #[error("{0}")]
    Hook(Box<dyn std::error::Error + Send + Sync>),
}

/// Names what was tried.
pub(crate) trait Context<T> {
    fn context(self, what: &'static str) -> Result<T>;
}

impl<T> Context<T> for nix::Result<T> {
    fn context(self, what: &'static str) -> Result<T> {
        self.map_err(|errno| Error::Os { what, errno })
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: &'static str) -> Result<T> {
        self.map_err(|error| Error::Io { what, error })
    }
}
