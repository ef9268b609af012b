//! The clock of the agent and of Linux datapaths.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in microseconds: the clock that TCP's `tcp_mstamp` counts and Linux datapaths stamp events with.
pub fn monotonic_us() -> u64 {
    // With this clock the call cannot fail (clock_gettime(2)).
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1000
}
