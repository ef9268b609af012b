//! The processor time of sleeps on this machine.

use crate::futex::Futex;
use crate::plan::SleepCosts;
use crate::waiter::{Mode, Waiter};
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
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
/// The shortest and the longest time of a sleep that is believed, nanoseconds.
const BELIEVED_NS: (u64, u64) = (300, 100_000);
/// The delay with which the kernel may end a sleep of this thread, nanoseconds.
const TIMER_SLACK_NS: u64 = 1_000;
/// Values of the word on which the measured thread sleeps.
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The processor time that the calling thread has used.
///
/// # Errors
/// The error of clock_gettime(2).
pub fn thread_time() -> io::Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}

/// Returns the processor time of one sleep, the mean of some, nanoseconds.
fn mean(mut sleep: impl FnMut()) -> io::Result<u64> {
    (0..WARM).for_each(|_| sleep());
    let before = thread_time();
    (0..SLEEPS).for_each(|_| sleep());
    let took = thread_time()?.saturating_sub(before?) / SLEEPS;
    let (least, most) = BELIEVED_NS;
    Ok(u64::try_from(took.as_nanos()).unwrap_or(most).clamp(least, most))
}

/// Wakes the thread that sleeps on `word`, each time that it does.
fn wake_each(word: &Futex) {
    for _ in 0..WARM + SLEEPS {
        while word.value().load(Ordering::Acquire) != ASLEEP {
            thread::yield_now();
        }
        word.wait(ASLEEP, Some(ASLEEP_FOR));
        word.value().store(AWAKE, Ordering::Release);
        word.wake(1);
    }
}

/// Measures the processor time of sleeps, by a second thread that ends some of them.
///
/// # Errors
/// The error of a system call.
pub fn measure_sleeps() -> io::Result<SleepCosts> {
    let word = Futex::new(AWAKE);
    let timed_ns = mean(|| word.wait(AWAKE, Some(TIMED)))?;
    let woken_ns = thread::scope(|scope| {
        thread::Builder::new().name("ccp-measure".to_owned()).spawn_scoped(scope, || wake_each(&word))?;
        // Nothing ends this early: the other thread waits for each of these sleeps.
        mean(|| {
            word.value().store(ASLEEP, Ordering::Release);
            while word.value().load(Ordering::Acquire) == ASLEEP {
                word.wait(ASLEEP, None);
            }
        })
    })?;
    Ok(SleepCosts { woken_ns, timed_ns: timed_ns.max(woken_ns) })
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
            None => *MEASURED.get_or_init({
                let costs = measure_sleeps()?;
                move || costs
            }),
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
