//! The format's version and the largest size of a snapshot.

/// The format version that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Largest size of a snapshot, bytes.
pub const MAX_SNAPSHOT_BYTES: usize = 1 << 16;
