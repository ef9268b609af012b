//! The agent's clock.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, microseconds: the clock that Linux datapaths stamp events with.
pub(crate) fn now_us() -> u64 {
    // With this clock the call cannot fail (clock_gettime(2)).
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1000
}
