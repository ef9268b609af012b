//! Reasons why the server could not be loaded, attached or changed.

use ccplane_infer::ImageError;
use ccplane_nn_codegen::asm::AsmError;

/// Lines of the verifier's log that an error quotes.
const LOG_LINES: usize = 6;

/// Reasons why the server could not be loaded, attached or changed.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// An option is out of range.
    #[error("{field} = {found}: {min} to {max} are allowed")]
    BadOption { field: &'static str, found: usize, min: usize, max: usize },
    /// An image is not one of the server's shape.
    #[error("predictor {predictor}: {source}")]
    Image { predictor: usize, source: ImageError },
    /// Predictors share the conversion of the inputs.
    #[error("predictor {predictor} has other input ranges than the first one")]
    Ranges { predictor: usize },
    /// There is no such predictor.
    #[error("there is no predictor {found}, only 0 to {max}")]
    NoPredictor { found: usize, max: usize },
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
