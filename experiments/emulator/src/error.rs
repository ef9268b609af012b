//! What can go wrong, with values.

use std::path::PathBuf;

use ccplane_netsim::trace::TraceError;
use nix::errno::Errno;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused configuration: the field, what was found, what would be right.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{field}: {found} is outside {low}..={high}{}{unit}", if unit.is_empty() { "" } else { " " })]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// Its value.
        found: f64,
        /// The smallest value allowed.
        low: f64,
        /// The largest.
        high: f64,
        /// The unit of all three.
        unit: &'static str,
    },
    /// Text that is no number.
    #[error("{field}: {found:?} is no number")]
    NotANumber {
        /// The argument.
        field: &'static str,
        /// Its text.
        found: String,
    },
    /// A link that is neither ever on nor ever off.
    #[error("mean on-time and mean off-time: not both can be 0")]
    NeverOnNorOff,
    /// A kind of queue that is not known.
    #[error("{field}: unknown queue {found:?}; expected infinite, droptail, drophead, codel or pie")]
    UnknownQueue {
        /// The flag or field.
        field: &'static str,
        /// Its value.
        found: String,
    },
    /// Queue arguments that cannot be read.
    #[error(
        "{field}: cannot take {found:?}; expected packets=N, bytes=N, for codel target=MS, interval=MS, for pie qdelay_ref=MS, max_burst=MS, separated by commas"
    )]
    QueueArgs {
        /// The flag or field.
        field: &'static str,
        /// The part that is wrong.
        found: String,
    },
    /// A dropping queue with no limit.
    #[error("{field}: a {kind} queue needs packets=N or bytes=N, above 0")]
    NoLimit {
        /// The flag or field.
        field: &'static str,
        /// mahimahi's name of the queue.
        kind: &'static str,
    },
    /// A PIE queue without a reference delay or a burst time.
    #[error("{field}: a pie queue needs qdelay_ref=MS and max_burst=MS, above 0")]
    PieArgs {
        /// The flag or field.
        field: &'static str,
    },
    /// An infinite queue with arguments.
    #[error("{field}: an infinite queue takes no arguments, found {found:?}")]
    NoArgs {
        /// The flag or field.
        field: &'static str,
        /// Its value.
        found: String,
    },
    /// A name that cannot be part of a namespace's name.
    #[error("tag: {found:?} is not 1 to {max} of the characters a-z, A-Z, 0-9, '-' and '_'", max = crate::netns::MAX_TAG)]
    Tag {
        /// The tag.
        found: String,
    },
    /// A log that cannot be created.
    #[error("{}: cannot create the log: {kind}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        kind: std::io::ErrorKind,
    },
    /// An address block, handed from shell to shell, that is not one.
    #[error("CCPLANE_SHELL_BLOCK: {found:?} is no block of 100.64.0.0/10")]
    Block {
        /// The variable's value.
        found: String,
    },
}

/// What can go wrong with namespaces, devices and links.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is refused; nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A trace is refused; nothing was changed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The kernel refused.
    #[error("{action} {subject}: {errno}")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// On what.
        subject: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// An ordinary user could not get a user namespace.
    #[error("cannot make a user namespace: {errno}; {hint}")]
    UserNamespace {
        /// What is missing.
        hint: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The capabilities of a user namespace could not be passed on to the command.
    #[error("cannot pass capabilities on to the command: {source}")]
    Capability {
        /// Why.
        source: caps::errors::CapsError,
    },
    /// TUN devices cannot be made.
    #[error("cannot use /dev/net/tun: {errno}; {hint}")]
    TunDevice {
        /// What is missing.
        hint: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// A log file could not be written.
    #[error("{}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A command could not be started or waited for.
    #[error("{command}: {source}")]
    Command {
        /// Its first word.
        command: String,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The forwarding thread has ended, by the error that it carries.
    #[error("the link has stopped: {0}")]
    Stopped(String),
    /// Every address block for another shell is in use, or shells are nested too deep.
    #[error("no address block for another link is free in {within}")]
    NoAddresses {
        /// Where one was sought.
        within: crate::Block,
    },
}

/// Puts an action and its subject to the kernel's reason.
pub(crate) trait Context<T> {
    fn context(self, action: &'static str, subject: impl ToString) -> Result<T>;
}

impl<T> Context<T> for nix::Result<T> {
    fn context(self, action: &'static str, subject: impl ToString) -> Result<T> {
        self.map_err(|errno| Error::Kernel { action, subject: subject.to_string(), errno })
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, action: &'static str, subject: impl ToString) -> Result<T> {
        self.map_err(|e| Error::Kernel {
            action,
            subject: subject.to_string(),
            errno: Errno::from_raw(e.raw_os_error().unwrap_or(nix::libc::EIO)),
        })
    }
}
