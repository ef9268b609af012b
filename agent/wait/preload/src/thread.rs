//! The waits of one thread, by its own waiter.

use crate::mode::{POLLS, SLEEPS, mode};
use ccplane_wait::{WaitStep, Waiter};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Looks between two at the clock.
const LOOKS: u32 = 4;

static EPOCH: OnceLock<Instant> = OnceLock::new();

thread_local! {
    static WAITER: RefCell<Option<Waiter>> = const { RefCell::new(None) };
}

fn now_ns() -> u64 {
    u64::try_from(EPOCH.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The answer to one try of a call.
pub(crate) enum Answer<T> {
    /// The call's result: something is there, or it failed.
    Done(T),
    /// Nothing was there in that time; the result if time is up.
    Nothing(T),
}

/// Makes a call that may wait for `timeout` (`None`: for ever) by `try_for`, which takes the time that a try may wait.
///
/// A call from within a wait, as of a signal handler or of what the wait itself needs, goes to the system as it is.
pub(crate) fn wait<T>(
    timeout: Option<Duration>,
    mut try_for: impl FnMut(Option<Duration>) -> Answer<T>,
) -> T {
    let unchanged = |answer| match answer {
        Answer::Done(result) | Answer::Nothing(result) => result,
    };
    if timeout == Some(Duration::ZERO) {
        return unchanged(try_for(timeout));
    }
    let served = WAITER.try_with(|waiter| {
        let mut waiter = waiter.try_borrow_mut().ok()?;
        let waiter = waiter.get_or_insert_with(|| {
            let mut waiter = Waiter::new(mode(), now_ns());
            // Without it, what sleeps usually take is good enough.
            let _ = ccplane_wait::prepare(&mut waiter);
            waiter
        });
        Some(serve(waiter, timeout, &mut try_for))
    });
    match served {
        Ok(Some(result)) => result,
        // Within a wait, or at the thread's end.
        Ok(None) | Err(_) => unchanged(try_for(timeout)),
    }
}

fn serve<T>(
    waiter: &mut Waiter,
    timeout: Option<Duration>,
    try_for: &mut impl FnMut(Option<Duration>) -> Answer<T>,
) -> T {
    let start_ns = now_ns();
    let end_ns =
        timeout.map(|timeout| start_ns.saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)));
    let mut left = Some(Duration::ZERO);
    loop {
        let answer = try_for(left);
        let now_ns = now_ns();
        match answer {
            Answer::Done(result) => {
                waiter.event(now_ns);
                return result;
            }
            Answer::Nothing(result) if end_ns.is_some_and(|end_ns| now_ns >= end_ns) => return result,
            Answer::Nothing(_) => {}
        }
        left = match waiter.next(now_ns) {
            WaitStep::Poll { until_ns } => {
                POLLS.fetch_add(1, Ordering::Relaxed);
                let until_ns = end_ns.map_or(until_ns, |end_ns| end_ns.min(until_ns));
                if let Some(result) = poll(until_ns, try_for) {
                    waiter.event(self::now_ns());
                    return result;
                }
                Some(Duration::ZERO)
            }
            WaitStep::Sleep { until_ns } => {
                SLEEPS.fetch_add(1, Ordering::Relaxed);
                let until_ns = [until_ns, end_ns].into_iter().flatten().min();
                until_ns.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(now_ns)))
            }
        };
    }
}

/// Tries without waiting until this time.
fn poll<T>(until_ns: u64, try_for: &mut impl FnMut(Option<Duration>) -> Answer<T>) -> Option<T> {
    loop {
        for _ in 0..LOOKS {
            if let Answer::Done(result) = try_for(Some(Duration::ZERO)) {
                return Some(result);
            }
            std::hint::spin_loop();
        }
        if now_ns() >= until_ns {
            return None;
        }
        // Whoever is to bring the event may wait for this core.
        std::thread::yield_now();
    }
}
