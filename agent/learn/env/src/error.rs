//! Reasons why there is no such environment.

use ccplane_alg::ParameterError;
use ccplane_netsim::ConfigError;

/// The reason why there is no such environment.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EnvError {
    /// A program does not compile.
    #[error("program {program}: {count} errors")]
    Program { program: &'static str, count: usize },
    /// The algorithm's programs ask no policy.
    #[error("{algorithm} asks no policy: there is nothing to learn")]
    NoPolicy { algorithm: &'static str },
    /// The policy sees other numbers than the program keeps.
    #[error("the policy has {found} inputs, the program keeps {expected}")]
    Inputs { found: usize, expected: usize },
    /// The algorithm has one reward, whatever is preferred.
    #[error("{algorithm} takes no preference: {source}")]
    Preference { algorithm: &'static str, source: ParameterError },
    /// No scenario has a flow.
    #[error("no scenario has a flow")]
    NoFlows,
    /// A flow of an algorithm that there is not.
    #[error("a scenario's flow has algorithm {found}, counted from 0; there are {known}")]
    Algorithm { found: usize, known: usize },
    /// A scenario outside the simulator's limits.
    #[error(transparent)]
    Simulator(#[from] ConfigError),
    /// A range of a family that is none, or goes beyond what is simulated.
    #[error("{field}: {low} to {high}; a range within {min} to {max} is needed")]
    Range { field: &'static str, low: f64, high: f64, min: f64, max: f64 },
}
