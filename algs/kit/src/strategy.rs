//! Random streams for property tests.

use crate::operation::Operation::{self, *};
use proptest::prelude::*;

/// Longest random stream, operations.
pub const MAX_OPERATIONS: usize = 24;

/// One operation. RTTs never fall below the default path's, and segments, which take longer to send as they grow, do not
/// grow: what a delay-based algorithm has seen as the smallest RTT it may rightly take for the path's own.
pub fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (1_000..200_000u32).prop_map(|us| Run { us }),
        3 => (1..40u16).prop_map(|packets| Loss { packets }),
        2 => (1..100u16).prop_map(|packets| Ecn { packets }),
        1 => Just(Timeout),
        2 => (1..10u16, 100..50_000u32).prop_map(|(packets, by_us)| Reorder { packets, by_us }),
        1 => (1..60u16).prop_map(|packets| AppLimit { packets }),
        2 => Just(Bulk),
        1 => (1_000..4_000_000u32).prop_map(|us| Idle { us }),
        1 => (500..=1_448u16).prop_map(|mss_bytes| Mtu { mss_bytes }),
        1 => (1_000..2_500_000u32).prop_map(|us| Blackout { us }),
        1 => (40_000..200_000u32).prop_map(|us| Rtt { us }),
        1 => (50_000..5_000_000u32).prop_map(|bytes_per_s| Rate { bytes_per_s }),
        1 => (0..20_000u32).prop_map(|us| Aggregate { us }),
        1 => (1_000..1_500_000u32).prop_map(|us| ClockJump { us }),
    ]
}

/// A stream. Shrinks to few and short operations.
pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..MAX_OPERATIONS)
}
