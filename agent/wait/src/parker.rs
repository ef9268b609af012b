//! The place where one thread sleeps until it is called, on a futex.

use crate::atomic::Ordering;
use crate::futex::Futex;
use std::time::{Duration, Instant};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const CALLED: u32 = 2;

/// The place of one thread, which others call. A call that comes while the thread is awake ends its next sleep.
#[derive(Debug)]
pub struct Parker {
    state: Futex,
}

impl Default for Parker {
    fn default() -> Parker {
        Parker::new()
    }
}

impl Parker {
    /// Creates the place of a thread that is awake.
    pub fn new() -> Parker {
        Parker { state: Futex::new(AWAKE) }
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
        let parker = Parker::new();
        assert!(!parker.call() && !parker.call());
        assert!(parker.is_called());
        assert!(parker.wait(Duration::MAX));
        assert!(!parker.is_called() && !parker.take_call());
    }

    #[test]
    fn without_a_call_the_sleep_ends_by_itself() {
        let start = Instant::now();
        let parker = Parker::new();
        assert!(!parker.wait(Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(!parker.call(), "it is awake");
    }

    #[test]
    fn each_of_many_sleeps_is_ended_by_its_call() {
        const CALLS: u32 = 2_000;
        let parkers = Arc::new([Parker::new(), Parker::new()]);
        let theirs = Arc::clone(&parkers);
        let thread = std::thread::spawn(move || {
            for _ in 0..CALLS {
                assert!(theirs[1].wait(ccplane_testing::PATIENCE));
                theirs[0].call();
            }
        });
        for n in 0..CALLS {
            parkers[1].call();
            assert!(parkers[0].wait(ccplane_testing::PATIENCE), "answer {n}");
        }
        thread.join().unwrap();
    }
}
