//! Decisions of a waiting thread, without I/O: the caller has the clock, the polls and the sleeps.

use crate::auto::Auto;
use crate::plan::{SleepCosts, Window};
use crate::step::WaitStep;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The time for which `spin` polls where none is given, microseconds.
const SPIN_US: u32 = 50;
/// The longest time for which `spin` may poll, microseconds.
const MAX_SPIN_US: u32 = 1_000_000;
/// Share of a core that `auto` may poll where none is given, percent.
const CPU_PERCENT: u8 = 10;
/// All of a core, percent.
const WHOLE_CORE_PERCENT: u8 = 100;

/// A way to wait, by its name in configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Blocks until it is woken.
    Sleep,
    /// Polls for a while after the last event, then sleeps.
    Spin,
    /// Polls without pause.
    Busy,
    /// Sleeps while a [`Dispatcher`](crate::Dispatcher) polls for it.
    Dispatch,
    /// Chooses when to poll by the gaps between events, within a budget.
    Auto,
}

/// The ways in which a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Sleeps until it is woken.
    Sleep,
    /// Polls without pause for so long after the last event, then sleeps.
    Spin { us: u32 },
    /// Polls without pause.
    Busy,
    /// Sleeps while a [`Dispatcher`](crate::Dispatcher) polls for it.
    Dispatch,
    /// Polls where that meets most events, for at most this share of a core beyond what sleeping takes.
    Auto { cpu_percent: u8 },
}

/// A text is no name of a way to wait.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{found}` is none of sleep, spin, busy, dispatch, auto")]
pub struct ModeError {
    /// The text.
    pub found: String,
}

/// A text is no way to wait.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WakeError {
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The time to poll is no number, or out of range.
    #[error("spin takes 1 to {MAX_SPIN_US} microseconds")]
    SpinUs,
    /// The share of a core is no number, or out of range.
    #[error("auto takes 1 to {WHOLE_CORE_PERCENT} percent of a core")]
    CpuPercent,
    /// The way has no figure.
    #[error("{} takes no figure", .0.name())]
    Figure(Mode),
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Mode, ModeError> {
        match text {
            "sleep" => Ok(Mode::Sleep),
            "spin" => Ok(Mode::Spin),
            "busy" => Ok(Mode::Busy),
            "dispatch" => Ok(Mode::Dispatch),
            "auto" => Ok(Mode::Auto),
            found => Err(ModeError { found: found.to_owned() }),
        }
    }
}

impl Mode {
    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sleep => "sleep",
            Mode::Spin => "spin",
            Mode::Busy => "busy",
            Mode::Dispatch => "dispatch",
            Mode::Auto => "auto",
        }
    }

    /// The way to wait of this name, with its figure where it has one.
    pub fn with(self, spin_us: u32, cpu_percent: u8) -> Wake {
        match self {
            Mode::Sleep => Wake::Sleep,
            Mode::Spin => Wake::Spin { us: spin_us },
            Mode::Busy => Wake::Busy,
            Mode::Dispatch => Wake::Dispatch,
            Mode::Auto => Wake::Auto { cpu_percent },
        }
    }
}

impl Wake {
    /// The way in which another process is asked to wait: asleep where its own budget or dispatcher would have to serve.
    pub fn asked_of_peer(self) -> Wake {
        match self {
            Wake::Sleep | Wake::Dispatch | Wake::Auto { .. } => Wake::Sleep,
            Wake::Spin { .. } | Wake::Busy => self,
        }
    }

    /// Returns the way's name, without its figure.
    pub fn mode(self) -> Mode {
        match self {
            Wake::Sleep => Mode::Sleep,
            Wake::Spin { .. } => Mode::Spin,
            Wake::Busy => Mode::Busy,
            Wake::Dispatch => Mode::Dispatch,
            Wake::Auto { .. } => Mode::Auto,
        }
    }
}

/// A mode's name, behind which `spin` may have its microseconds and `auto` its percentage: `spin:20`, `auto:5`.
impl FromStr for Wake {
    type Err = WakeError;

    fn from_str(text: &str) -> Result<Wake, WakeError> {
        let (name, figure) = text.split_once(':').map_or((text, None), |(name, figure)| (name, Some(figure)));
        match (name.parse::<Mode>()?, figure) {
            (mode, None) => Ok(mode.with(SPIN_US, CPU_PERCENT)),
            (Mode::Spin, Some(figure)) => match figure.parse() {
                Ok(us @ 1..=MAX_SPIN_US) => Ok(Wake::Spin { us }),
                _ => Err(WakeError::SpinUs),
            },
            (Mode::Auto, Some(figure)) => match figure.parse() {
                Ok(cpu_percent @ 1..=WHOLE_CORE_PERCENT) => Ok(Wake::Auto { cpu_percent }),
                _ => Err(WakeError::CpuPercent),
            },
            (mode @ (Mode::Sleep | Mode::Busy | Mode::Dispatch), Some(_)) => Err(WakeError::Figure(mode)),
        }
    }
}

/// The thread's occupation since the last call.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Work,
    Polls { since_ns: u64 },
    Sleeps { until_ns: Option<u64> },
}

/// Decides how one thread waits. All times are of one clock that never goes back, nanoseconds.
#[derive(Clone, Debug)]
pub struct Waiter {
    wake: Wake,
    event_ns: u64,
    doing: Doing,
    auto: Option<Auto>,
}

impl Waiter {
    /// Creates the waiter of a thread that has just had an event.
    pub fn new(wake: Wake, now_ns: u64) -> Waiter {
        let auto = match wake {
            Wake::Auto { cpu_percent } => Some(Auto::new(cpu_percent, now_ns)),
            Wake::Sleep | Wake::Spin { .. } | Wake::Busy | Wake::Dispatch => None,
        };
        Waiter { wake, event_ns: now_ns, doing: Doing::Work, auto }
    }

    /// The way in which the thread waits.
    pub fn wake(&self) -> Wake {
        self.wake
    }

    /// Changes the way to wait; nothing happens where it is the same.
    pub fn set_wake(&mut self, wake: Wake, now_ns: u64) {
        if self.wake != wake {
            *self = Waiter::new(wake, now_ns);
        }
    }

    /// Sets the processor time that sleeps take here, as [`measure_sleeps`](crate::measure_sleeps) finds it.
    pub fn set_sleep_costs(&mut self, costs: SleepCosts) {
        if let Some(auto) = &mut self.auto {
            auto.set_sleep_costs(costs);
        }
    }

    /// The part of a gap in which `auto` polls now; `None` in other modes.
    pub fn window(&self) -> Option<Window> {
        self.auto.as_ref().map(Auto::window)
    }

    /// Returns the number of times that `auto` has changed its window.
    pub fn changes(&self) -> u64 {
        self.auto.as_ref().map_or(0, Auto::changes)
    }

    /// Notes that something was there to do.
    pub fn event(&mut self, now_ns: u64) {
        self.settle(now_ns);
        let gap_ns = now_ns.saturating_sub(self.event_ns);
        self.event_ns = now_ns;
        if let Some(auto) = &mut self.auto {
            auto.event(gap_ns, now_ns);
        }
    }

    /// Says what to do, as there is nothing to do now.
    pub fn next(&mut self, now_ns: u64) -> WaitStep {
        self.settle(now_ns);
        let step = match (self.wake, &mut self.auto) {
            (_, Some(auto)) => auto.next(self.event_ns, now_ns),
            (Wake::Spin { us }, None) => {
                let until_ns = self.event_ns.saturating_add(u64::from(us) * 1000);
                if now_ns < until_ns {
                    WaitStep::Poll { until_ns }
                } else {
                    WaitStep::Sleep { until_ns: None }
                }
            }
            (Wake::Busy, None) => WaitStep::Poll { until_ns: u64::MAX },
            (Wake::Sleep | Wake::Dispatch | Wake::Auto { .. }, None) => WaitStep::Sleep { until_ns: None },
        };
        self.doing = match step {
            WaitStep::Poll { .. } => Doing::Polls { since_ns: now_ns },
            WaitStep::Sleep { until_ns } => Doing::Sleeps { until_ns },
        };
        step
    }

    /// Books the time since the last call on the account.
    fn settle(&mut self, now_ns: u64) {
        let done = std::mem::replace(&mut self.doing, Doing::Work);
        let Some(auto) = &mut self.auto else { return };
        match done {
            Doing::Work => {}
            Doing::Polls { since_ns } => auto.polled(now_ns.saturating_sub(since_ns), now_ns),
            Doing::Sleeps { until_ns } => {
                auto.slept(until_ns.and_then(|until_ns| now_ns.checked_sub(until_ns)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_by_their_names() {
        for mode in [Mode::Sleep, Mode::Spin, Mode::Busy, Mode::Dispatch, Mode::Auto] {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert_eq!("often".parse::<Mode>(), Err(ModeError { found: "often".to_owned() }));
    }

    #[test]
    fn ways_are_read_with_their_figures() {
        for (text, wake) in [
            ("sleep", Wake::Sleep),
            ("spin", Wake::Spin { us: SPIN_US }),
            ("spin:1", Wake::Spin { us: 1 }),
            ("spin:1000000", Wake::Spin { us: MAX_SPIN_US }),
            ("busy", Wake::Busy),
            ("dispatch", Wake::Dispatch),
            ("auto", Wake::Auto { cpu_percent: CPU_PERCENT }),
            ("auto:100", Wake::Auto { cpu_percent: WHOLE_CORE_PERCENT }),
        ] {
            assert_eq!(text.parse(), Ok(wake), "{text}");
        }
        for (text, error) in [
            ("spin:0", WakeError::SpinUs),
            ("spin:1000001", WakeError::SpinUs),
            ("spin:", WakeError::SpinUs),
            ("auto:0", WakeError::CpuPercent),
            ("auto:101", WakeError::CpuPercent),
            ("busy:1", WakeError::Figure(Mode::Busy)),
            ("often:1", WakeError::Mode(ModeError { found: "often".to_owned() })),
        ] {
            assert_eq!(text.parse::<Wake>(), Err(error), "{text}");
        }
    }

    #[test]
    fn each_mode_does_as_its_name_says() {
        let next = |wake, now_ns| Waiter::new(wake, 1_000_000).next(now_ns);
        let asleep = WaitStep::Sleep { until_ns: None };
        for now_ns in [1_000_000, 1_049_999, 5_000_000_000] {
            assert_eq!(next(Wake::Sleep, now_ns), asleep);
            assert_eq!(next(Wake::Dispatch, now_ns), asleep);
            assert_eq!(next(Wake::Busy, now_ns), WaitStep::Poll { until_ns: u64::MAX });
        }
        let spin = Wake::Spin { us: 50 };
        assert_eq!(next(spin, 1_049_999), WaitStep::Poll { until_ns: 1_050_000 });
        assert_eq!(next(spin, 1_050_000), asleep);
    }

    #[test]
    fn spinning_counts_from_the_last_event() {
        let mut waiter = Waiter::new(Wake::Spin { us: 10 }, 0);
        assert_eq!(waiter.next(20_000), WaitStep::Sleep { until_ns: None });
        waiter.event(1_000_000);
        assert_eq!(waiter.next(1_001_000), WaitStep::Poll { until_ns: 1_010_000 });
    }
}
