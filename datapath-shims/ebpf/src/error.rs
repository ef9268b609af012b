//! Errors of attaching, reading and removing the datapath.

use std::path::PathBuf;

use crate::btf::BtfError;
use ccplane_contract::DatapathError;
use ccplane_nn_codegen::asm::AsmError;

/// Reasons why the datapath could not be attached, read or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EbpfError {
    /// Another agent holds the lock.
    #[error("another agent{} steers this kernel's flows ({} is locked)", pid.map(|p| format!(" (pid {p})")).unwrap_or_default(), lock.display())]
    Busy {
        /// The holder's process number, if its lock file has it.
        pid: Option<u32>,
        lock: PathBuf,
    },
    /// The lock cannot be taken.
    #[error(transparent)]
    Lock(#[from] ccplane_files::LockError),
    /// Another agent has started while this one's lock file was gone.
    #[error("{} was replaced while this agent ran: what is attached is left to the agent that holds it now", .0.display())]
    Replaced(PathBuf),
    /// No datapath is pinned in this directory.
    #[error("no datapath is attached ({} does not exist)", .0.display())]
    NotAttached(PathBuf),
    /// Another version of ccplane pinned the datapath.
    #[error("the datapath pinned in {} has layout {found}, this ccplane has {ours}: an agent of this version replaces it, `ccplane doctor --clean` removes it", dir.display())]
    OtherVersion {
        dir: PathBuf,
        /// The layout version of the pinned datapath.
        found: u64,
        /// The layout version of this program.
        ours: u64,
    },
    /// An option is out of range.
    #[error("{field} = {value}: {limit}")]
    BadOption {
        field: &'static str,
        value: String,
        /// The allowed values.
        limit: String,
    },
    /// The kernel lacks a type, field or function.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// A program of this crate could not be assembled.
    #[error(transparent)]
    Asm(#[from] AsmError),
    /// The verifier refused a program of this crate.
    #[error("the kernel refused `{program}`: {source}\n{log}")]
    Verifier {
        program: String,
        source: std::io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: String,
        source: std::io::Error,
    },
}

/// The datapath's error of a system call that failed.
pub(crate) fn os_error(what: &str, e: &std::io::Error) -> DatapathError {
    DatapathError::Os { what: what.into(), errno: e.kind() }
}

/// Adds the operation to an I/O error.
pub(crate) fn os<T>(what: impl Into<String>, r: std::io::Result<T>) -> Result<T, EbpfError> {
    r.map_err(|source| EbpfError::Os { what: what.into(), source })
}
