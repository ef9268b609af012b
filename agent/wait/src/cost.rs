//! The processor time of sleeps on this machine.

use crate::parker::Parker;
use crate::plan::SleepCosts;
use crate::waiter::{Mode, Waiter};
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// Sleeps that are measured: enough for a mean, in some milliseconds.
const SLEEPS: u32 = 32;
/// Sleeps before them, after which code and kernel are warm.
const WARM: u32 = 4;
/// The length of a measured sleep that ends by itself.
const TIMED: Duration = Duration::from_micros(50);
/// The time for which a thread is left asleep before it is woken.
const ASLEEP_FOR: Duration = Duration::from_micros(20);
/// The shortest processor time of a sleep that is believed, nanoseconds.
const LEAST_NS: u64 = 300;
/// The longest one where another thread ends the sleep, nanoseconds.
const MAX_WOKEN_NS: u64 = 30_000;
/// The longest one where the sleep ends by itself, nanoseconds.
const MAX_TIMED_NS: u64 = 100_000;
/// The delay with which the kernel may end a sleep of this thread, nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// The processor time that the calling thread has used.
///
/// # Errors
/// The error of clock_gettime(2).
pub fn thread_time() -> io::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}

/// Returns the processor time of one sleep, the mean of some, nanoseconds; `most` where it is longer.
fn mean(mut sleep: impl FnMut(), most: u64) -> io::Result<u64> {
    (0..WARM).for_each(|_| sleep());
    let before = thread_time();
    (0..SLEEPS).for_each(|_| sleep());
    let took = thread_time()?.saturating_sub(before?) / SLEEPS;
    Ok(u64::try_from(took.as_nanos()).unwrap_or(most).clamp(LEAST_NS, most))
}

/// Ends each sleep that is measured at this place.
fn call_each(place: &Parker) {
    for _ in 0..WARM + SLEEPS {
        while !place.is_asleep() {
            thread::yield_now();
        }
        Parker::new().wait(ASLEEP_FOR);
        place.call();
    }
}

/// Measures the processor time of sleeps, by a second thread that ends some of them.
///
/// # Errors
/// The error of a system call.
pub fn measure_sleeps() -> io::Result<SleepCosts> {
    let place = Parker::new();
    let sleep = |timeout| {
        place.wait(timeout);
    };
    let timed_ns = mean(|| sleep(TIMED), MAX_TIMED_NS)?;
    let woken_ns = thread::scope(|scope| {
        thread::Builder::new().name("ccp-measure".to_owned()).spawn_scoped(scope, || call_each(&place))?;
        // An early return would leave the other thread waiting for a sleep.
        mean(|| sleep(Duration::MAX), MAX_WOKEN_NS)
    })?;
    Ok(SleepCosts { woken_ns, timed_ns })
}

/// Prepares the calling thread to wait so: where its mode depends on it, sleeps end on time, and their costs are known. They are
/// measured once in a process.
///
/// # Errors
/// The error of a system call; the waiter works then with what sleeps usually take.
pub fn prepare(waiter: &mut Waiter) -> io::Result<()> {
    static MEASURED: OnceLock<SleepCosts> = OnceLock::new();
    if waiter.wake().mode() == Mode::Auto {
        sleep_exactly()?;
        let costs = match MEASURED.get() {
            Some(costs) => *costs,
            None => {
                let measured = measure_sleeps()?;
                *MEASURED.get_or_init(|| measured)
            }
        };
        waiter.set_sleep_costs(costs);
    }
    Ok(())
}

/// Has sleeps of the calling thread end on time, where the kernel would else collect those within 50 us.
///
/// # Errors
/// The error of prctl(2).
pub fn sleep_exactly() -> io::Result<()> {
    Ok(nix::sys::prctl::set_timerslack(TIMER_SLACK_NS)?)
}
