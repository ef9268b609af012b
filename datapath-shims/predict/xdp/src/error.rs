//! Reasons why the server could not be loaded, attached or changed.

use ccplane_nn_codegen::asm::AsmError;
use ccplane_predict::ServerError;

/// Lines of the verifier's log that an error quotes.
const LOG_LINES: usize = 6;

/// Reasons why the server could not be loaded, attached or changed.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// An option is out of range.
    #[error("{field} = {found}: {min} to {max} are allowed")]
    BadOption { field: &'static str, found: usize, min: usize, max: usize },
    /// A predictor's network differs from the others in its layers or the width of its numbers.
    #[error(
        "predictor {name} has another shape: the predictors of a server in XDP have one shape, and keep it"
    )]
    Shape { name: String },
    /// The predictors are not taken.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The program could not be assembled.
    #[error(transparent)]
    Asm(#[from] AsmError),
    /// The verifier refused a program.
    #[error("the kernel refused `{program}`: {source}\n{log}")]
    Verifier {
        program: &'static str,
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

impl XdpError {
    pub(crate) fn refused(program: &'static str, error: ccplane_bpf::LoadError) -> XdpError {
        let lines: Vec<&str> = error.log.lines().filter(|line| !line.is_empty()).collect();
        let log = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        XdpError::Verifier { program, source: error.errno, log }
    }
}

/// Adds the operation to an I/O error.
pub(crate) fn os<T>(what: impl Into<String>, result: std::io::Result<T>) -> Result<T, XdpError> {
    result.map_err(|source| XdpError::Os { what: what.into(), source })
}
