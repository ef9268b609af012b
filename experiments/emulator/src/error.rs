//! Errors of links and shells, with the values that explain them.

use std::path::PathBuf;

use ccplane_netsim::trace::TraceError;
use nix::errno::Errno;

use crate::refusal::ConfigError;

/// The result of fallible functions in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of namespaces, devices and links.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is refused; nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A trace is refused; nothing was changed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The kernel refused an operation.
    #[error("{action} {subject}: {errno}")]
    Kernel {
        /// The operation that failed.
        action: &'static str,
        /// The object of the operation.
        subject: String,
        errno: Errno,
    },
    /// An ordinary user could not get a user namespace.
    #[error("cannot make a user namespace: {errno}; {hint}")]
    UserNamespace {
        /// The missing permission or module.
        hint: &'static str,
        errno: Errno,
    },
    /// The capabilities of a user namespace could not be passed on to the command.
    #[error("cannot pass capabilities on to the command: {source}")]
    Capability { source: caps::errors::CapsError },
    /// TUN devices cannot be made.
    #[error("cannot use /dev/net/tun: {errno}; {hint}")]
    TunDevice {
        /// The missing permission or setting.
        hint: String,
        errno: Errno,
    },
    /// A log file could not be written.
    #[error("{}: {source}", path.display())]
    Log { path: PathBuf, source: std::io::Error },
    /// A command could not be started or waited for.
    #[error("{command}: {source}")]
    Command {
        /// The first word of the command.
        command: String,
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
        /// The block in which one was sought.
        within: crate::block::Block,
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
