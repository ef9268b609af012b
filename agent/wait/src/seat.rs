//! The place where one thread sleeps until it is called, on a futex.

use crate::atomic::Ordering;
use crate::futex::Futex;
use std::time::{Duration, Instant};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const CALLED: u32 = 2;

/// The place of one thread, which others call. A call that comes while the thread is awake ends its next sleep.
#[derive(Debug)]
pub struct Seat {
    state: Futex,
}

impl Default for Seat {
    fn default() -> Seat {
        Seat::new()
    }
}

impl Seat {
    /// Creates the place of a thread that is awake.
    pub fn new() -> Seat {
        Seat { state: Futex::new(AWAKE) }
    }

    /// Calls the thread; true where it slept, which takes a system call.
    #[inline]
    pub fn call(&self) -> bool {
        let slept = self.state.value().swap(CALLED, Ordering::AcqRel) == ASLEEP;
        if slept {
            self.state.wake(1);
        }
        slept
    }

    /// Whether a call waits to be taken.
    #[inline]
    pub fn is_called(&self) -> bool {
        self.state.value().load(Ordering::Relaxed) == CALLED
    }

    /// Whether the thread sleeps now, and no call has come.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        // Whoever looks then sees all that the thread did before.
        self.state.value().load(Ordering::Acquire) == ASLEEP
    }

    /// Takes a call, if there is one; never sleeps.
    pub fn take_call(&self) -> bool {
        let taken = self.state.value().compare_exchange(CALLED, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Sleeps until the thread is called, at most for `timeout`; true where it was. A signal does not end the sleep.
    pub fn wait(&self, timeout: Duration) -> bool {
        let state = self.state.value();
        // A time beyond what the clock counts is none.
        let until = Instant::now().checked_add(timeout);
        if state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while state.load(Ordering::Acquire) == ASLEEP {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    break;
                }
                self.state.wait(ASLEEP, left);
            }
        }
        state.swap(AWAKE, Ordering::AcqRel) == CALLED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_call_before_the_sleep_ends_it() {
        let seat = Seat::new();
        assert!(!seat.call() && !seat.call());
        assert!(seat.is_called());
        assert!(seat.wait(Duration::MAX));
        assert!(!seat.is_called() && !seat.take_call());
    }

    #[test]
    fn without_a_call_the_sleep_ends_by_itself() {
        let start = Instant::now();
        let seat = Seat::new();
        assert!(!seat.wait(Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(!seat.call(), "it is awake");
    }

    #[test]
    fn each_of_many_sleeps_is_ended_by_its_call() {
        const CALLS: u32 = 2_000;
        let seats = Arc::new([Seat::new(), Seat::new()]);
        let theirs = Arc::clone(&seats);
        let thread = std::thread::spawn(move || {
            for _ in 0..CALLS {
                assert!(theirs[1].wait(ccplane_testing::PATIENCE));
                theirs[0].call();
            }
        });
        for n in 0..CALLS {
            seats[1].call();
            assert!(seats[0].wait(ccplane_testing::PATIENCE), "answer {n}");
        }
        thread.join().unwrap();
    }
}
