//! Errors of runs, with the values that explain them.

use nix::errno::Errno;

/// The result of fallible functions in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Reasons why an experiment could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such congestion control in this kernel.
    #[error(
        "congestion control {name:?} is not registered in this kernel (see net.ipv4.tcp_available_congestion_control)"
    )]
    NoCongestionControl { name: String },
    /// The congestion control is registered, but not for this caller.
    #[error("congestion control {name:?} is restricted: using it needs CAP_NET_ADMIN")]
    Restricted { name: String },
    /// A system call failed.
    #[error("{what}: {errno}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        errno: Errno,
    },
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        error: std::io::Error,
    },
    /// The receiver did not answer in time.
    #[error("no connection to {remote} within {timeout_ms} ms")]
    ConnectTimeout {
        remote: std::net::SocketAddr,
        /// The time that was waited.
        timeout_ms: u128,
    },
    /// A thread ended by a panic.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
    /// A configuration that cannot run; `field` names what is wrong.
    #[error("{field}: {reason}")]
    Config {
        field: &'static str,
        /// The violated limit, in words.
        reason: String,
    },
    /// The link could not be made or changed.
    #[error(transparent)]
    Link(#[from] ccplane_emulator::Error),
    /// No algorithm of this name; a plan that was checked names none such.
    #[error("no algorithm is called `{name}`")]
    NoAlgorithm { name: String },
    /// A parameter that the algorithm does not take; a plan that was checked has none such.
    #[error(transparent)]
    Parameter(ccplane_alg::ParameterError),
    /// The agent could not start.
    #[error("the agent could not start: {0}")]
    Agent(Box<dyn std::error::Error + Send + Sync>),
    /// The machine paused for so long that the run is worthless.
    #[error("the machine stood still for {ms} ms: it is too busy, or was suspended")]
    Stalled { ms: u128 },
    #[error("iperf3: {why}")]
    Iperf3 {
        /// Its message, or its exit status.
        why: String,
    },
    /// A QUIC connection failed.
    #[error("QUIC: {why}")]
    Quic {
        /// The message of quinn or TLS.
        why: String,
    },
    #[error("DPDK: {why}")]
    Dpdk { why: String },
    /// The simulator refused the scenario.
    #[error(transparent)]
    Sim(#[from] crate::sim::SimulateError),
    /// The caller asked to stop.
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
