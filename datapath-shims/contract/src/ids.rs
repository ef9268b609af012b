//! Names of flows, programs and snapshots.

/// Names a flow within one datapath. Never reused while the datapath lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

/// Names an installed program. Chosen by the agent; never reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProgramUid(pub u32);

/// Names one snapshot pushed into one slot: what an image carries as its uid. Chosen by the agent, above 0; never
/// reused by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SnapshotUid(pub u32);
