//! The part of a gap in which a thread polls: the choice that meets most events for what may be paid.

use crate::gaps::{Bin, Gaps};

/// The part of a gap, counted from the event that began it, in which the thread polls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Window {
    /// The thread sleeps before this time, nanoseconds.
    pub from_ns: u64,
    /// The thread sleeps from this time on, nanoseconds.
    pub until_ns: u64,
}

impl Window {
    /// The window of a thread that only sleeps.
    pub const NONE: Window = Window { from_ns: 0, until_ns: 0 };

    /// Whether the thread never polls.
    pub fn is_empty(&self) -> bool {
        self.from_ns >= self.until_ns
    }

    /// Whether an event after such a gap is met by a thread that polls.
    pub fn has(&self, gap_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&gap_ns)
    }
}

/// The processor time of one sleep and its end, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SleepCosts {
    /// Another thread ends the sleep.
    pub woken_ns: u64,
    /// The sleep ends by itself: a timer is set and interrupts, which is dear in a virtual machine.
    pub timed_ns: u64,
}

/// The costs and times of sleeps before a window, as measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sleeps {
    /// Processor time of one sleep and its end, nanoseconds.
    pub(crate) cost_ns: u64,
    /// The processor time by which a sleep that ends by itself exceeds that, nanoseconds.
    pub(crate) timer_ns: u64,
    /// The time by which a sleep is ended before its window so that it is seldom late, nanoseconds.
    pub(crate) early_ns: u64,
    /// The mean lateness of a sleep's end, nanoseconds.
    pub(crate) late_ns: u64,
}

/// The worth of a window, as weights of gaps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Worth {
    /// Weight of the gaps that end within the window.
    pub(crate) met: u64,
    /// Processor time for those that are met, beyond that of a thread that only sleeps, times weights.
    met_cost: u128,
    /// The same for those that come after the window.
    missed_cost: u128,
    /// The same for the timer before the window, in every gap.
    timer_cost: u128,
}

impl Worth {
    /// Processor time beyond that of a thread that only sleeps, times weights.
    pub(crate) fn cost(&self) -> u128 {
        self.met_cost + self.missed_cost + self.timer_cost
    }

    fn is_better_than(&self, other: &Worth) -> bool {
        self.met > other.met || (self.met == other.met && self.cost() < other.cost())
    }
}

/// Gaps with sums over all before each, so that a window's worth takes constant time.
pub(crate) struct Chart {
    bins: Vec<Bin>,
    /// The weight of the bins before each one, and of all.
    weights: Vec<u64>,
    /// Weighted gaps before each bin.
    gaps: Vec<u128>,
    /// Weighted gaps before each bin, each less the cost of a sleep.
    beyond_sleep: Vec<u128>,
    /// The time that passed, weighted as the gaps.
    passed: u64,
    sleeps: Sleeps,
}

impl Chart {
    pub(crate) fn of(gaps: &Gaps, sleeps: Sleeps) -> Chart {
        let bins: Vec<Bin> = gaps.bins().collect();
        let passed = gaps.passed();
        let mut chart =
            Chart { bins, weights: vec![0], gaps: vec![0], beyond_sleep: vec![0], passed, sleeps };
        let (mut weights, mut gaps, mut beyond_sleep) = (0, 0, 0);
        for bin in &chart.bins {
            let (weight, mid_ns) = (u128::from(bin.weight), bin.mid_ns());
            weights += bin.weight;
            gaps += weight * u128::from(mid_ns);
            beyond_sleep += weight * u128::from(mid_ns.saturating_sub(sleeps.cost_ns));
            chart.weights.push(weights);
            chart.gaps.push(gaps);
            chart.beyond_sleep.push(beyond_sleep);
        }
        chart
    }

    /// Weight of all gaps.
    pub(crate) fn total(&self) -> u64 {
        self.weights[self.bins.len()]
    }

    /// The cost that a share of the time pays for, times weights.
    pub(crate) fn affordable(&self, percent: u64) -> u128 {
        u128::from(self.passed) * u128::from(percent) / 100
    }

    /// The worth of any window, whose edges may lie within bins.
    pub(crate) fn worth(&self, window: Window) -> Worth {
        if window.is_empty() {
            return Worth::default();
        }
        let from = self.bins.partition_point(|bin| bin.mid_ns() < window.from_ns);
        let until = self.bins.partition_point(|bin| bin.mid_ns() < window.until_ns);
        self.between(from, until.max(from), window)
    }

    /// The worth of a window that holds the bins from `from` to before `until`.
    fn between(&self, from: usize, until: usize, window: Window) -> Worth {
        let met = self.weights[until] - self.weights[from];
        let missed = u128::from(self.total() - self.weights[until]);
        if window.from_ns == 0 {
            // Whoever finds an event by polling is spared a sleep.
            let met_cost = self.beyond_sleep[until];
            return Worth { met, met_cost, missed_cost: missed * u128::from(window.until_ns), timer_cost: 0 };
        }
        // It sleeps until the window, a little too early, and once more where nothing came by its end.
        let Sleeps { cost_ns, timer_ns, early_ns, late_ns } = self.sleeps;
        let begins_ns = window.from_ns.saturating_sub(early_ns.saturating_sub(late_ns));
        let met_gaps = self.gaps[until] - self.gaps[from];
        let met_cost = met_gaps.saturating_sub(u128::from(met) * u128::from(begins_ns));
        let missed_ns = window.until_ns.saturating_sub(begins_ns) + cost_ns;
        let timer_cost = u128::from(self.total()) * u128::from(timer_ns);
        Worth { met, met_cost, missed_cost: missed * u128::from(missed_ns), timer_cost }
    }

    /// The window that meets most events within `affordable`, the cheapest of equals.
    pub(crate) fn best(&self, affordable: u128) -> (Window, Worth) {
        let mut best = (Window::NONE, Worth::default());
        // Who polls at once does so for as long as a sleep costs: a sleeper sees short gaps as longer than they are.
        let least = self.bins.partition_point(|bin| bin.mid_ns() < self.sleeps.cost_ns);
        self.try_windows(0, least.max(1), 0, affordable, &mut best);
        // A sleep before the window has to be worth its while.
        let earliest_ns = self.sleeps.early_ns + 2 * self.sleeps.cost_ns;
        for (from, bin) in self.bins.iter().enumerate() {
            if bin.low_ns > earliest_ns {
                self.try_windows(from, from + 1, bin.low_ns, affordable, &mut best);
            }
        }
        best
    }

    /// Tries the windows that begin at `from_ns`, with one bin, and end behind the `least`th bin or a later one.
    fn try_windows(
        &self,
        from: usize,
        least: usize,
        from_ns: u64,
        affordable: u128,
        best: &mut (Window, Worth),
    ) {
        for until in least..=self.bins.len() {
            let until_ns = self.bins[until - 1].high_ns.max(self.sleeps.cost_ns);
            let window = Window { from_ns, until_ns };
            let worth = self.between(from, until, window);
            // Each further bin adds to the cost of what is met; that of what is not may fall.
            if worth.met_cost + worth.timer_cost > affordable {
                break;
            }
            if worth.cost() <= affordable && worth.is_better_than(&best.1) {
                *best = (window, worth);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEPS: Sleeps = Sleeps { cost_ns: 2_000, timer_ns: 1_000, early_ns: 60_000, late_ns: 40_000 };

    fn chart(gaps_ns: &[(u64, usize)]) -> Chart {
        let mut gaps = Gaps::new();
        for (gap_ns, count) in gaps_ns {
            for _ in 0..*count {
                gaps.pass(*gap_ns);
                gaps.add(*gap_ns);
            }
        }
        Chart::of(&gaps, SLEEPS)
    }

    fn best(gaps_ns: &[(u64, usize)], percent: u64) -> Window {
        let chart = chart(gaps_ns);
        chart.best(chart.affordable(percent)).0
    }

    #[test]
    fn short_gaps_are_polled_from_the_start() {
        let window = best(&[(1_500, 50)], 1);
        assert!(window.from_ns == 0 && window.has(1_500), "{window:?}");
    }

    #[test]
    fn regular_gaps_are_slept_through_until_shortly_before_their_end() {
        let window = best(&[(1_000_000, 50)], 10);
        assert!(window.has(1_000_000) && window.from_ns > 900_000, "{window:?}");
    }

    #[test]
    fn gaps_of_a_burst_are_polled_and_those_between_bursts_are_not() {
        let window = best(&[(3_000, 100), (20_000_000, 5)], 5);
        assert!(window.has(3_000) && window.until_ns < 1_000_000, "{window:?}");
    }

    #[test]
    fn without_a_budget_only_what_costs_no_more_than_a_sleep_is_polled() {
        assert_eq!(best(&[(1_000_000, 50)], 0), Window::NONE);
        assert!(best(&[(1_000, 50)], 0).has(1_000));
    }

    #[test]
    fn without_gaps_nothing_is_polled() {
        assert_eq!(best(&[], 50), Window::NONE);
    }

    /// No window of the bins' edges is better than the chosen one, by a search that shares no sum with it.
    #[test]
    fn the_chosen_window_is_the_best_of_all() {
        let gaps_ns = [(2_500, 20), (9_000, 7), (310_000, 30), (330_000, 40), (4_000_000, 12)];
        let chart = chart(&gaps_ns);
        let affordable = chart.affordable(8);
        let (window, worth) = chart.best(affordable);
        let cost_of = |gap_ns: u64, w: Window| -> i128 {
            let begins = w.from_ns.saturating_sub(if w.from_ns == 0 { 0 } else { 20_000 });
            let spared = if w.from_ns == 0 { SLEEPS.cost_ns } else { 0 };
            let again = SLEEPS.cost_ns - spared;
            let timer = if w.from_ns == 0 { 0 } else { i128::from(SLEEPS.timer_ns) };
            if gap_ns < w.from_ns {
                timer
            } else if gap_ns < w.until_ns {
                timer + i128::from(gap_ns.saturating_sub(begins).saturating_sub(spared))
            } else {
                timer + i128::from(w.until_ns - begins + again)
            }
        };
        let edges: Vec<u64> = chart.bins.iter().flat_map(|bin| [bin.low_ns, bin.high_ns]).collect();
        let starts = edges.iter().copied().filter(|ns| *ns > 64_000).chain([0]);
        let mut most_met = 0;
        for from_ns in starts {
            for until_ns in edges.iter().copied().filter(|ns| *ns > from_ns) {
                let window = Window { from_ns, until_ns };
                let sum = |of: &dyn Fn(&Bin) -> i128| chart.bins.iter().map(of).sum::<i128>();
                let cost = sum(&|bin| i128::from(bin.weight) * cost_of(bin.mid_ns(), window));
                let met = sum(&|bin| if window.has(bin.mid_ns()) { i128::from(bin.weight) } else { 0 });
                if cost <= affordable as i128 {
                    most_met = most_met.max(met);
                }
            }
        }
        assert!(worth.met > 0 && i128::from(worth.met) == most_met, "{window:?}: {worth:?}, {most_met}");
        assert_eq!(chart.worth(window), worth);
    }
}
