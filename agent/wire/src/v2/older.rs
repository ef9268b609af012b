//! Conversion of newer messages to those that an agent of an older minor version knows.

use ccplane_contract::{DatapathError, FlowStats};

use super::SLOTS_MINOR;

/// A refusal, as an agent that speaks `minor` understands it: before slots were on the wire, those about them are
/// `Refused` in words.
pub fn refusal_for(minor: u8, error: DatapathError) -> DatapathError {
    match error {
        DatapathError::NoSlot(_)
        | DatapathError::OtherShape { .. }
        | DatapathError::NoSnapshot { .. }
        | DatapathError::SlotBusy { .. }
        | DatapathError::BadImage { .. }
            if minor < SLOTS_MINOR =>
        {
            DatapathError::Refused { at: None, reason: error.to_string() }
        }
        error => error,
    }
}

/// A flow's statistics, as an agent that speaks `minor` understands them: before slots were on the wire, without its
/// policy.
pub fn stats_for(minor: u8, stats: FlowStats) -> FlowStats {
    if minor < SLOTS_MINOR { FlowStats { policy: None, ..stats } } else { stats }
}
