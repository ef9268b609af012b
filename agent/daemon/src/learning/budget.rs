//! A learner's processor time, by a token bucket.
//!
//! The bucket fills at the steady share and holds [`BURST`]. What a learner uses comes out of it: while it adapts, up
//! to the burst share of a core as long as the bucket lasts; after that, and whenever it does not adapt, at the steady
//! share. So within any time `t` it uses at most `steady * t + BURST` and at most `burst * t`, however often paths
//! change. Each may grow by what one step takes beyond its end: 10 % of a core and 60 s are 11.7 % over an hour in
//! which they never stop changing.
//!
//! A training takes 5 to 20 s of a core, so a full bucket lasts for three or more. An emptied bucket is full again
//! after ten minutes.

use crate::config::Learn as LearnConfig;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time beyond the steady share that a learner may have saved up.
pub(super) const BURST: Duration = Duration::from_secs(60);

/// The need for processor time that a learner states.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Pressure {
    /// The learner waits for rows, under conditions that it knows.
    Steady,
    /// The learner learns conditions that have changed.
    Adapting,
}

/// Shares of one core, percent; [`Budget`] bounds the use of bursts beyond the steady share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shares {
    /// In the steady state.
    pub(crate) steady_percent: u32,
    /// The share of a core while it adapts, percent.
    pub(crate) burst_percent: u32,
}

impl Shares {
    /// Returns the shares that the configuration sets.
    pub(super) fn of(config: &LearnConfig) -> Shares {
        Shares {
            steady_percent: config.cpu_percent.get() as u32,
            burst_percent: config.burst_cpu_percent.get() as u32,
        }
    }
}

/// Processor time that may be used. The clock is the caller's.
#[derive(Debug)]
pub(super) struct Budget {
    shares: Shares,
    /// Tokens in the bucket, nanoseconds; below 0 after a step that took longer than what was left.
    tokens_ns: i64,
    filled_at: Duration,
}

impl Budget {
    /// Makes a bucket that is full.
    pub(super) fn new(shares: Shares, now: Duration) -> Budget {
        Budget { shares, tokens_ns: nanos(BURST), filled_at: now }
    }

    /// Books the processor time of a turn from `began` to `now`, and returns the rest until the next turn.
    pub(super) fn rest(
        &mut self,
        used: Duration,
        began: Duration,
        now: Duration,
        pressure: Pressure,
    ) -> Duration {
        let steady = self.shares.steady_percent.max(1);
        let since = now.saturating_sub(self.filled_at);
        self.filled_at = now;
        let filled = self.tokens_ns.saturating_add(nanos(since * steady / 100));
        self.tokens_ns = filled.min(nanos(BURST)).saturating_sub(nanos(used));
        let percent = match pressure {
            Pressure::Adapting => self.shares.burst_percent.max(1),
            Pressure::Steady => steady,
        };
        // What a turn lay waiting for a core counts.
        let turn = (used * 100 / percent).saturating_sub(now.saturating_sub(began));
        let debt = Duration::from_nanos(self.tokens_ns.min(0).unsigned_abs()) * 100 / steady;
        turn.max(debt)
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the processor time that this thread has used.
pub(super) fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARES: Shares = Shares { steady_percent: 10, burst_percent: 90 };
    const STEP: Duration = Duration::from_millis(5);

    /// Steps of a learner under a clock that nothing but it moves: when each began, and what it used.
    fn steps(
        until: Duration,
        mut next: impl FnMut(u64) -> (Duration, Pressure),
    ) -> Vec<(Duration, Duration)> {
        let (mut budget, mut now, mut done) =
            (Budget::new(SHARES, Duration::ZERO), Duration::ZERO, Vec::new());
        while now < until {
            let (used, pressure) = next(done.len() as u64);
            done.push((now, used));
            let began = now;
            now += used;
            now += budget.rest(used, began, now, pressure).max(Duration::from_micros(1));
        }
        done
    }

    fn used(steps: &[(Duration, Duration)], from: Duration, to: Duration) -> Duration {
        steps.iter().filter(|(at, _)| *at >= from && *at < to).map(|(_, used)| *used).sum()
    }

    #[test]
    fn who_never_stops_adapting_has_one_burst_and_then_the_steady_share() {
        let hour = Duration::from_secs(3600);
        let steps = steps(hour, |_| (STEP, Pressure::Adapting));
        let all = used(&steps, Duration::ZERO, hour).as_secs_f64();
        assert!((419.0..=420.1).contains(&all), "a tenth of an hour and a minute: {all} s");
        // 90 % until what fills the bucket meanwhile is gone, too: after 60 s / (0.9 - 0.1).
        let minute = used(&steps, Duration::ZERO, Duration::from_secs(60)).as_secs_f64();
        assert!((53.9..=54.1).contains(&minute), "{minute} s");
        let last = used(&steps, hour / 2, hour).as_secs_f64();
        assert!((179.0..=180.1).contains(&last), "{last} s of 1800 s");
    }

    #[test]
    fn who_does_not_adapt_keeps_to_the_steady_share_though_the_bucket_is_full() {
        let minute = Duration::from_secs(60);
        let steps = steps(minute, |_| (STEP, Pressure::Steady));
        let all = used(&steps, Duration::ZERO, minute).as_secs_f64();
        assert!((5.9..=6.01).contains(&all), "{all} s");
    }

    /// Time in which it did nothing fills the bucket, and no more than that.
    #[test]
    fn who_has_rested_for_hours_has_one_burst_and_no_more() {
        let mut budget = Budget::new(SHARES, Duration::ZERO);
        let rested = STEP + budget.rest(STEP, Duration::ZERO, STEP, Pressure::Steady);
        let begun = rested + Duration::from_secs(5 * 3600);
        let (mut now, mut used) = (begun, Duration::ZERO);
        while now < begun + Duration::from_secs(120) {
            let began = now;
            now += STEP;
            used += STEP;
            now += budget.rest(STEP, began, now, Pressure::Adapting).max(Duration::from_micros(1));
        }
        let used = used.as_secs_f64();
        assert!((71.9..=72.1).contains(&used), "a minute and a tenth of two: {used} s");
    }

    proptest! {
        /// Whatever a learner does, and whichever part of it is looked at.
        #[test]
        fn no_time_sees_more_than_its_share(
            // Steps in ms, runs of the same pressure, and where the window is.
            lengths in prop::collection::vec(0u64..80, 1..50),
            adapting in prop::collection::vec(any::<bool>(), 1..20),
            from_s in 0u64..500,
            window_s in 1u64..400,
        ) {
            let until = Duration::from_secs(900);
            let steps = steps(until, |n| {
                let used = Duration::from_millis(lengths[n as usize % lengths.len()]).max(Duration::from_micros(500));
                let adapts = adapting[n as usize / 200 % adapting.len()];
                (used, if adapts { Pressure::Adapting } else { Pressure::Steady })
            });
            let longest = Duration::from_millis(80);
            let (from, window) = (Duration::from_secs(from_s), Duration::from_secs(window_s));
            let used = used(&steps, from, from + window);
            prop_assert!(used <= window / 10 + BURST + longest, "{used:?} in {window:?}");
            prop_assert!(used <= window * 9 / 10 + longest, "{used:?} in {window:?}");
        }
    }
}
