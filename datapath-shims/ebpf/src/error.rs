//! What can go wrong when the datapath is attached, read or removed.

use std::path::PathBuf;

use crate::btf::BtfError;
use ccplane_asm::AsmError;

/// Why the datapath could not be attached, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// Another agent holds it.
    #[error("another agent{} steers this kernel's flows ({} is locked)", pid.map(|p| format!(" (pid {p})")).unwrap_or_default(), lock.display())]
    Busy {
        /// The holder, if it said.
        pid: Option<u32>,
        /// Its lock file.
        lock: PathBuf,
    },
    /// A lock cannot be had.
    #[error(transparent)]
    Lock(#[from] ccplane_files::LockError),
    /// Another agent has started while this one's lock file was gone.
    #[error("{} was replaced while this agent ran: what is attached is left to the agent that holds it now", .0.display())]
    Replaced(PathBuf),
    /// Nothing is attached.
    #[error("no datapath is attached ({} does not exist)", .0.display())]
    NotAttached(PathBuf),
    /// What is pinned was made by another version of ccplane.
    #[error("the datapath pinned in {} has layout {found}, this ccplane has {ours}: run `ccplane doctor --clean`", dir.display())]
    OtherVersion {
        /// The pin directory.
        dir: PathBuf,
        /// The pinned datapath's layout version.
        found: u64,
        /// Ours.
        ours: u64,
    },
    /// An option is out of range.
    #[error("{field} = {value}: {limit}")]
    BadOption {
        /// The option.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        limit: String,
    },
    /// The kernel lacks something.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// A program of ours could not be assembled.
    #[error(transparent)]
    Asm(#[from] AsmError),
    /// The verifier refused a program of ours.
    #[error("the kernel refused `{program}`: {source}\n{log}")]
    Verifier {
        /// Which one.
        program: String,
        /// The error.
        source: std::io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The operating system said no.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The error.
        source: std::io::Error,
    },
}

/// Adds what was tried to an I/O error.
pub(crate) fn os<T>(what: impl Into<String>, r: std::io::Result<T>) -> Result<T, EbpfError> {
    r.map_err(|source| EbpfError::Os { what: what.into(), source })
}
