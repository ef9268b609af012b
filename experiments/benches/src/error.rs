//! Reasons why a benchmark could not run.

/// Reasons why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No benchmark has this name.
    #[error("no benchmark is called `{0}`; `ccplane bench --list` names them")]
    Unknown(String),
    /// The machine lacks something.
    #[error("{0}")]
    Missing(String),
    /// The measured code did not run, or not as intended.
    #[error("no figure: {0}")]
    Unproven(#[from] crate::proof::Unproven),
    /// A shipped program does not compile.
    #[error("a shipped program does not compile: {}", .0.join("; "))]
    Program(Vec<String>),
    #[error(transparent)]
    Ebpf(#[from] ccplane_ebpf::EbpfError),
    /// A command to the datapath.
    #[error(transparent)]
    Datapath(#[from] ccplane_contract::DatapathError),
    #[error(transparent)]
    Sim(#[from] ccplane_sim::SimError),
    #[error(transparent)]
    Emulator(#[from] ccplane_emulator::Error),
    #[error(transparent)]
    Traffic(#[from] ccplane_runner::Error),
    #[error(transparent)]
    Log(#[from] ccplane_traces::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The action that failed.
        what: &'static str,
        source: std::io::Error,
    },
}

pub(crate) fn context<T>(what: &'static str, r: std::io::Result<T>) -> Result<T, BenchError> {
    r.map_err(|source| BenchError::Os { what, source })
}

/// Checks that namespaces can be made, which benchmarks over links of their own need.
pub(crate) fn check_namespaces() -> Result<(), BenchError> {
    if ccplane_emulator::netns::available() {
        return Ok(());
    }
    Err(BenchError::Missing("network namespaces need root".into()))
}

/// Says which rows a benchmark goes on without, and what they lack.
pub(crate) fn tell_lack(bench: &str, rows: &str, lack: impl std::fmt::Display) {
    eprintln!("ccplane: {bench}: no figures `{rows}`: {lack}");
}
