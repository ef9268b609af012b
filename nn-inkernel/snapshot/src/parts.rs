//! The parts of a snapshot.

use crate::{Calibration, Fidelity, Network, PolicySpec, Provenance};
use ccplane_infer::MAX_INPUTS;
use serde::{Deserialize, Serialize};

/// Limits at which a datapath's monitor steps in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Guards {
    /// The penalty at which a flow falls back; 0 for never. Each bad decision adds
    /// [`PENALTY_UP`](ccplane_infer::image::PENALTY_UP), each good one takes 1 away.
    pub trip_limit: u32,
    /// A decision with more inputs than this outside their range counts as bad.
    pub clip_limit: u32,
}

impl Guards {
    /// The largest trip limit.
    pub const MAX_TRIP_LIMIT: u32 = 1 << 24;

    /// Default limits for a policy with this many inputs.
    ///
    /// A flow falls back after 16 bad decisions in a row, or when more than one in five is bad; half of the inputs may
    /// be out of range.
    pub fn for_inputs(inputs: usize) -> Guards {
        Guards { trip_limit: 64, clip_limit: (inputs.min(MAX_INPUTS) / 2) as u32 }
    }
}

/// The parts of a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct Parts {
    pub spec: PolicySpec,
    pub network: Network,
    pub guards: Guards,
    /// The ranges that visited states reach.
    pub calibration: Calibration,
    /// The error against the float network.
    pub fidelity: Fidelity,
    /// The snapshot's origin.
    pub provenance: Provenance,
}
