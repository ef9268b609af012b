//! The next thing that a waiting thread does.

use std::time::Duration;

/// The next thing that a thread without work does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStep {
    /// Looks for events without pause until this time, which is later than now.
    Poll { until_ns: u64 },
    /// Sleeps until an event comes, or until this time.
    Sleep { until_ns: Option<u64> },
}

/// The time from `now_ns` to the end that a sleep has of its own, but at most `longest`.
pub fn sleep_time(until_ns: Option<u64>, now_ns: u64, longest: Duration) -> Duration {
    let own = until_ns.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(now_ns)));
    own.map_or(longest, |own| own.min(longest))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_at_its_own_time_or_the_callers() {
        let ns = Duration::from_nanos;
        assert_eq!(sleep_time(None, 0, ns(5)), ns(5));
        assert_eq!(sleep_time(Some(3), 1, ns(5)), ns(2));
        assert_eq!(sleep_time(Some(90), 1, ns(5)), ns(5));
        assert_eq!(sleep_time(Some(1), 4, ns(5)), Duration::ZERO);
    }
}
