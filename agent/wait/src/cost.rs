//! The processor time of sleeps on this machine.

use crate::waiter::{Mode, Waiter};
use nix::poll::ppoll;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::time::Duration;

/// Sleeps that are measured: enough for a mean, in some milliseconds.
const SLEEPS: u32 = 32;
/// Sleeps before them, after which code and kernel are warm.
const WARM: u32 = 4;
/// The shortest and the longest time of a sleep that is believed, nanoseconds.
const BELIEVED_NS: (u64, u64) = (300, 30_000);
/// The delay with which the kernel may end a sleep of this thread, nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;

/// The processor time that the calling thread has used.
///
/// # Errors
/// The error of clock_gettime(2).
pub fn thread_time() -> io::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}

/// Measures the processor time of one sleep that ends by itself, nanoseconds.
///
/// # Errors
/// The error of a system call.
pub fn measure_sleep() -> io::Result<u64> {
    let sleep = || ppoll(&mut [], Some(TimeSpec::from_duration(Duration::from_nanos(1))), None);
    for _ in 0..WARM {
        sleep()?;
    }
    let before = thread_time()?;
    for _ in 0..SLEEPS {
        sleep()?;
    }
    let took = thread_time()?.saturating_sub(before) / SLEEPS;
    let (least, most) = BELIEVED_NS;
    Ok(u64::try_from(took.as_nanos()).unwrap_or(most).clamp(least, most))
}

/// Prepares the calling thread to wait so: where its mode depends on it, sleeps end on time, and their cost is known.
///
/// # Errors
/// The error of a system call; the waiter works then with what sleeps usually take.
pub fn prepare(waiter: &mut Waiter) -> io::Result<()> {
    if waiter.wake().mode() == Mode::Auto {
        sleep_exactly()?;
        waiter.set_sleep_cost(measure_sleep()?);
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
