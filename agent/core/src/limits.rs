//! Bounds of everything that the core holds or takes at once.

/// Flows known at once, unless configured otherwise; further ones stay with their native algorithm.
pub const MAX_FLOWS: usize = 65_536;
/// Datapaths attached at once.
pub const MAX_DATAPATHS: usize = 4096;
/// Algorithms that one catalog registers.
pub const MAX_ALGORITHMS: usize = 256;
/// Fold programs of one algorithm.
pub const MAX_PROGRAMS: usize = 64;
/// Rules that one core has in force.
pub const MAX_RULES: usize = 1024;
/// Commands that an algorithm may give in one call.
pub const MAX_COMMANDS_PER_CALL: usize = 16;
/// Policies of one algorithm.
pub const MAX_POLICIES: usize = 4;
/// Rows of one slot that wait for its learner; the oldest make way.
pub const MAX_ROWS: usize = 8192;
/// Samples of flows' paths in one batch of rows; further flows are left out.
pub const MAX_MEASURES: usize = 1024;
/// Decisions that are kept to be looked at; the oldest make way.
pub const MAX_DECISIONS: usize = 256;
/// Fields of one command.
pub const MAX_FIELDS: usize = 64;
/// Updates and program changes queued for one datapath; those beyond are refused until it catches up.
pub const MAX_QUEUED_COMMANDS: usize = 2 * MAX_FLOWS;
/// Events that `drive` takes from a datapath at once.
pub const MAX_EVENTS_PER_DRIVE: usize = 1024;
