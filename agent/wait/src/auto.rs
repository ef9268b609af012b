//! The choice between sleeping and polling, under a budget of processor time. Without I/O, clock or randomness.
//!
//! Each event begins a gap. In a part of the gap, the window, the thread polls; before and after it, it sleeps. The window
//! is chosen from a histogram of the last gaps ([`Gaps`]): the one that meets most events for what the budget pays on
//! average. So short gaps are polled through, regular ones are slept through until shortly before their end, and what
//! cannot be foreseen is slept through.
//!
//! The budget is kept by an account, whatever the gaps do: polled time is taken from it, and without credit nothing is
//! polled. It pays for what a thread that only sleeps would not have spent, so a gap shorter than a sleep's own cost is free.
//! A timer, which ends the sleep before a window, is not.
//!
//! A window is left for another one that would meet an eighth of all events more, or as many for an eighth less. It is
//! also left where it costs an eighth more than the budget; and not before it was kept for a time: 50 ms, half as much
//! more after each change, 1.6 s at most, and 50 ms again after a window that stayed.
//!
//! A thread that slept sees a gap with its own wake-up in it. So the wake-up's length is estimated, and taken off: no
//! wake-up takes longer than from the sleep's begin to its end, and one that seems to is longer than thought. Where
//! polling by that estimate was in vain, the gap is at least twice what was polled. The estimate is not raised again
//! for a while.

use crate::gaps::Gaps;
use crate::plan::{Chart, SleepCosts, Sleeps, Window};
use crate::step::WaitStep;

/// The longest polling that the account allows at once after a quiet time, nanoseconds. With less than a tenth of a second,
/// no second exceeds the budget by more than a tenth.
const BURST_NS: u64 = 95_000_000;
/// Events between two looks at the window.
const PLAN_EVENTS: u32 = 32;
/// Time after which fewer events are enough, nanoseconds.
const PLAN_WITHIN_NS: u64 = 200_000_000;
/// Least time between two looks at the window, nanoseconds.
const PLAN_EVERY_NS: u64 = 10_000_000;
/// Least time for which a window is kept, nanoseconds.
pub const DWELL_NS: u64 = 50_000_000;
/// The longest such time, after many changes, nanoseconds.
const MAX_DWELL_NS: u64 = 1_600_000_000;
/// A window that is kept for so many times the least time ends a row of changes.
const SETTLED_DWELLS: u64 = 4;
/// One part of so many is what another window has to be better by.
const BETTER_BY: u64 = 8;
/// Processor time of a sleep until it is measured, nanoseconds.
const SLEEP_COST_NS: u64 = 3_000;
/// The processor time by which a sleep that ends by itself exceeds it until that is measured, nanoseconds.
const TIMER_COST_NS: u64 = 3_000;
/// The lateness with which a sleep is taken to end until that is measured, nanoseconds.
const SLEEP_LATE_NS: u64 = 60_000;
/// The longest delay of a sleep's end that says something about sleeps, nanoseconds.
const MAX_LATE_NS: u64 = 1_000_000;
/// One part of so many of a new measurement goes into a mean.
const SMOOTHING: u64 = 16;
/// One part of so many of a longer wake-up goes into its estimate, which so tends to the shorter ones.
const WAKE_SMOOTHING: u64 = 64;
/// Time after a poll in vain in which the estimate of wake-ups is not raised, nanoseconds.
const DISTRUST_NS: u64 = 10_000_000_000;
/// A wake-up that takes less than so many sleeps' processor time is none: the event was there when the thread went to sleep.
const LEAST_WAKE_COSTS: u64 = 2;
/// A gap whose window was polled in vain is longer than the window by one part of so many, at least.
const BEYOND_WINDOW: u64 = 32;
/// The account's unit is a hundredth of a nanosecond, so that a percentage of time is exact.
const PERCENT: u64 = 100;

/// The lateness with which sleeps end, as smoothed mean and deviation.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    mean_ns: u64,
    deviation_ns: u64,
}

impl Lateness {
    fn add(&mut self, late_ns: u64) {
        let late_ns = late_ns.min(MAX_LATE_NS);
        let off_ns = late_ns.abs_diff(self.mean_ns);
        self.mean_ns = smoothed(self.mean_ns, late_ns);
        self.deviation_ns = smoothed(self.deviation_ns, off_ns);
    }
}

fn smoothed(mean: u64, sample: u64) -> u64 {
    (mean * (SMOOTHING - 1) + sample) / SMOOTHING
}

/// The work of the waiting thread in the gap so far.
#[derive(Clone, Copy, Default, Debug)]
struct Gap {
    polled_ns: u64,
    slept: bool,
    /// When the last sleep began, nanoseconds after the event; `None` where the thread polls since.
    asleep_ns: Option<u64>,
    /// Whether the sleep after the window has been charged.
    charged_sleep: bool,
}

/// The state of the choice, one for each waiting thread.
#[derive(Clone, Debug)]
pub(crate) struct Auto {
    percent: u64,
    gaps: Gaps,
    window: Window,
    changes: u64,
    lateness: Lateness,
    sleep_cost_ns: u64,
    /// The processor time by which a sleep that ends by itself exceeds one that is ended, nanoseconds.
    timer_cost_ns: u64,
    /// From an event to the end of the sleep that it ends, nanoseconds.
    wake_ns: u64,
    /// The estimate of wake-ups is not raised before this time.
    distrust_until_ns: u64,
    /// Processor time that may still be spent, hundredths of nanoseconds; less than nothing after a free poll in vain.
    credit: i64,
    credited_ns: u64,
    gap: Gap,
    events: u32,
    planned_ns: u64,
    changed_ns: u64,
    /// The least time for which the window is kept, nanoseconds.
    dwell_ns: u64,
}

impl Auto {
    pub(crate) fn new(percent: u8, now_ns: u64) -> Auto {
        let percent = u64::from(percent).min(PERCENT);
        Auto {
            percent,
            gaps: Gaps::new(),
            window: Window::NONE,
            changes: 0,
            lateness: Lateness { mean_ns: SLEEP_LATE_NS, deviation_ns: 0 },
            sleep_cost_ns: SLEEP_COST_NS,
            timer_cost_ns: TIMER_COST_NS,
            wake_ns: SLEEP_LATE_NS,
            distrust_until_ns: now_ns,
            credit: 0,
            credited_ns: now_ns,
            gap: Gap::default(),
            events: 0,
            planned_ns: now_ns,
            changed_ns: now_ns,
            dwell_ns: DWELL_NS,
        }
    }

    pub(crate) fn window(&self) -> Window {
        self.window
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn set_sleep_costs(&mut self, costs: SleepCosts) {
        self.sleep_cost_ns = costs.woken_ns;
        self.timer_cost_ns = costs.timed_ns.saturating_sub(costs.woken_ns);
    }

    fn sleeps(&self) -> Sleeps {
        let Lateness { mean_ns, deviation_ns } = self.lateness;
        Sleeps {
            cost_ns: self.sleep_cost_ns,
            timer_ns: self.timer_cost_ns,
            early_ns: mean_ns + 2 * deviation_ns,
            late_ns: mean_ns,
        }
    }

    /// Pays in the share of the time since the last call.
    fn earn(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.credited_ns).min(BURST_NS);
        self.credited_ns = now_ns.max(self.credited_ns);
        let most = (self.percent * BURST_NS) as i64;
        self.credit = (self.credit + (self.percent * passed_ns) as i64).min(most);
    }

    fn spend(&mut self, ns: u64) {
        self.credit = self.credit.saturating_sub_unsigned(ns.saturating_mul(PERCENT));
    }

    pub(crate) fn polled(&mut self, ns: u64, now_ns: u64) {
        self.earn(now_ns);
        self.spend(ns);
        self.gap.polled_ns = self.gap.polled_ns.saturating_add(ns);
    }

    /// A sleep has ended, so late where it had an end of its own and was not woken before.
    pub(crate) fn slept(&mut self, late_ns: Option<u64>) {
        self.gap.slept = true;
        if let Some(late_ns) = late_ns {
            self.lateness.add(late_ns);
        }
    }

    pub(crate) fn event(&mut self, gap_ns: u64, now_ns: u64) {
        self.earn(now_ns);
        let gap = std::mem::take(&mut self.gap);
        if !gap.slept {
            // It was spared the sleep that it would have had otherwise.
            let spared_ns = gap.polled_ns.min(self.sleep_cost_ns);
            let most = (self.percent * BURST_NS) as i64;
            self.credit = self.credit.saturating_add_unsigned(spared_ns * PERCENT).min(most);
        }
        self.gaps.pass(gap_ns);
        // What was there without a wait says nothing about waits.
        if gap.slept || gap.polled_ns > 0 {
            let arrived_ns = self.arrived_ns(gap, gap_ns, now_ns);
            self.gaps.add(arrived_ns);
        }
        self.events += 1;
        let since_ns = now_ns.saturating_sub(self.planned_ns);
        let is_due = self.events >= PLAN_EVENTS || since_ns >= PLAN_WITHIN_NS;
        if is_due && since_ns >= PLAN_EVERY_NS {
            (self.events, self.planned_ns) = (0, now_ns);
            self.plan(now_ns);
        }
    }

    /// The gap without the time that the thread took to wake, as far as that is known.
    fn arrived_ns(&mut self, gap: Gap, gap_ns: u64, now_ns: u64) -> u64 {
        let Some(asleep_ns) = gap.asleep_ns else { return gap_ns };
        let late_ns = gap_ns.saturating_sub(asleep_ns);
        if late_ns < LEAST_WAKE_COSTS * self.sleep_cost_ns {
            return gap_ns;
        }
        let polled_first = gap.polled_ns > 0 && self.window.from_ns == 0;
        let least_ns = match gap.polled_ns {
            0 => asleep_ns,
            _ if polled_first => 2 * asleep_ns,
            _ => asleep_ns + asleep_ns / BEYOND_WINDOW,
        };
        let guess_ns = gap_ns.saturating_sub(self.wake_ns);
        let arrived_ns = guess_ns.max(least_ns).min(gap_ns);
        let in_vain = polled_first && least_ns > guess_ns;
        if in_vain {
            self.distrust_until_ns = now_ns.saturating_add(DISTRUST_NS);
        }
        let wake_ns = if in_vain { gap_ns - arrived_ns } else { late_ns };
        if wake_ns < self.wake_ns {
            self.wake_ns -= (self.wake_ns - wake_ns) / SMOOTHING;
        } else if wake_ns <= SLEEP_LATE_NS && now_ns >= self.distrust_until_ns {
            self.wake_ns += (wake_ns - self.wake_ns) / WAKE_SMOOTHING;
        }
        arrived_ns
    }

    /// Changes the window where another one is better by enough.
    fn plan(&mut self, now_ns: u64) {
        let kept_ns = now_ns.saturating_sub(self.changed_ns);
        if kept_ns < self.dwell_ns {
            return;
        }
        if kept_ns >= SETTLED_DWELLS * self.dwell_ns {
            self.dwell_ns = DWELL_NS;
        }
        let chart = Chart::of(&self.gaps, self.sleeps());
        let affordable = chart.affordable(self.percent);
        let (window, best) = chart.best(affordable);
        let current = chart.worth(self.window);
        let part = u128::from(BETTER_BY);
        let meets_more = best.met > current.met + chart.total() / BETTER_BY;
        let is_cheaper = best.met >= current.met && best.cost() < current.cost() - current.cost() / part;
        let is_over = current.cost() > affordable + affordable / part;
        if window != self.window && (meets_more || is_cheaper || is_over) {
            self.window = window;
            self.changes += 1;
            self.changed_ns = now_ns;
            self.dwell_ns = (self.dwell_ns + self.dwell_ns / 2).min(MAX_DWELL_NS);
        }
    }

    pub(crate) fn next(&mut self, event_ns: u64, now_ns: u64) -> WaitStep {
        self.earn(now_ns);
        let elapsed_ns = now_ns.saturating_sub(event_ns);
        let step = self.step(event_ns, elapsed_ns, now_ns);
        self.gap.asleep_ns = matches!(step, WaitStep::Sleep { .. }).then_some(elapsed_ns);
        step
    }

    fn step(&mut self, event_ns: u64, elapsed_ns: u64, now_ns: u64) -> WaitStep {
        if self.percent == PERCENT {
            // A whole core is there for it.
            return WaitStep::Poll { until_ns: u64::MAX };
        }
        let Sleeps { cost_ns, timer_ns, early_ns, .. } = self.sleeps();
        let Window { from_ns, until_ns } = self.window;
        if self.window.is_empty() || elapsed_ns >= until_ns {
            return self.sleep_after_window(cost_ns);
        }
        let begins_ns = from_ns.saturating_sub(early_ns);
        let paid_ns = u64::try_from(self.credit).unwrap_or(0) / PERCENT;
        if elapsed_ns + cost_ns < begins_ns {
            if paid_ns < timer_ns {
                return self.sleep_after_window(cost_ns);
            }
            self.spend(timer_ns);
            return WaitStep::Sleep { until_ns: Some(event_ns + begins_ns) };
        }
        // A poll as long as a sleep's own cost is free where it finds something.
        let is_free = from_ns == 0 && elapsed_ns < cost_ns && self.credit >= 0;
        let free_until_ns = if is_free { event_ns + cost_ns } else { now_ns };
        // What is left of a spent account would be polled in vain.
        let paid_ns = if paid_ns < cost_ns { 0 } else { paid_ns };
        let poll_until_ns = (now_ns + paid_ns).max(free_until_ns).min(event_ns + until_ns);
        if poll_until_ns > now_ns {
            WaitStep::Poll { until_ns: poll_until_ns }
        } else {
            self.sleep_after_window(cost_ns)
        }
    }

    /// Sleeps until something comes; that is the gap's second sleep where there was one before the window.
    fn sleep_after_window(&mut self, cost_ns: u64) -> WaitStep {
        if self.gap.slept && self.gap.polled_ns > 0 && !self.gap.charged_sleep {
            self.gap.charged_sleep = true;
            self.spend(cost_ns);
        }
        WaitStep::Sleep { until_ns: None }
    }
}
