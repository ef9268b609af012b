//! The ways in which a flow is steered, as records and traces spell them.

use ccplane_contract::Mode;
use serde::{Deserialize, Serialize};

/// The ways in which a flow is steered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeName {
    Program,
    /// Natively: no program was set, or it waits for its first ACK.
    NativeNoProgram,
    /// Natively: the agent is silent.
    NativeAgentSilent,
    /// Natively: its policy had no answer.
    NativePolicy,
}

impl From<Mode> for ModeName {
    fn from(mode: Mode) -> ModeName {
        match mode {
            Mode::Program => ModeName::Program,
            Mode::NativeNoProgram => ModeName::NativeNoProgram,
            Mode::NativeAgentSilent => ModeName::NativeAgentSilent,
            Mode::NativePolicy => ModeName::NativePolicy,
        }
    }
}
