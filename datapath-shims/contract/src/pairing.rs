//! Limits from which on the segments of a paced flow leave in pairs.

/// Pacing rate at which segments leave in pairs, bytes per second: two segments of 1500 bytes then take a millisecond.
pub const PAIRED_BYTES_PER_S: u32 = 3_000_000;
/// Queue of a flow with which its segments leave in pairs below [`PAIRED_BYTES_PER_S`], segments.
pub const PAIRED_QUEUE_SEGMENTS: u32 = 4;
