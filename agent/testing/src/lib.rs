//! Messages of tests beside pass and fail: skipped checks, failed tries, and the scale of attacks.
//!
//! The test runner captures what a passing test prints. So [`skipped`] and [`missed`] write one line each to the
//! standard error descriptor itself and to the file that [`LOG`] names. `make test` prints that file at its end.
#![forbid(unsafe_code)]

pub mod document;
pub mod fuzz;
pub mod guest;
pub mod killed;
mod process;
mod wait;

pub use process::Ended;
pub use wait::{PATIENCE, poll_within, wait_for, wait_for_ok, wait_until, wait_within};

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable that names the file to which skips and misses are appended.
pub const LOG: &str = "CCPLANE_TEST_LOG";
/// The environment variable that `make attack` sets, so that attacks run in full.
pub const ATTACK: &str = "CCPLANE_ATTACK";

/// Says that a check could not run here.
pub fn skipped(check: &str, why: impl Display) {
    say(&format!("SKIPPED: {check}: {why}"));
}

/// Says that a check could not run here where something that it needs is missing; returns whether that is so.
#[must_use]
pub fn lacks(check: &str, missing: Option<impl Display>) -> bool {
    missing.inspect(|missing| skipped(check, missing)).is_some()
}

/// Returns what a check needs, or says that it could not run here.
pub fn found<T>(check: &str, needed: Result<T, impl Display>) -> Option<T> {
    needed.inspect_err(|missing| skipped(check, missing)).ok()
}

/// Says that one try of a check did not hold, with what was measured.
pub fn missed(check: &str, miss: u32, tries: u32, measured: impl Display) {
    say(&format!("MISSED: {check}: try {miss} of {tries}: {measured}"));
}

/// Repeats a check until it holds, at most `tries` times, and says each try that did not. The try counts from 1; an error
/// says what was measured.
///
/// # Panics
/// Where no try held, with what each one measured.
#[track_caller]
pub fn within_tries<T, E: Display>(check: &str, tries: u32, try_once: impl FnMut(u32) -> Result<T, E>) -> T {
    let held = repeat(tries, try_once, |n, measured| missed(check, n, tries, measured));
    let (n, held) = held.unwrap_or_else(|misses| {
        panic!("{check}: in none of {tries} tries: {}", misses.join("; "));
    });
    tried(check, n, tries);
    held
}

/// Notes at which try a check that may take several has held: for checks that repeat themselves in another way than
/// [`within_tries`] does. The miss before each later one is said by [`missed`].
pub fn tried(check: &str, held: u32, tries: u32) {
    log(&line(format_args!("TRIED: {check}: held at try {held} of {tries}")));
}

/// Repeats a try until one holds; returns its number and result, or the measurements of all that failed.
fn repeat<T, E: Display>(
    tries: u32,
    mut try_once: impl FnMut(u32) -> Result<T, E>,
    mut on_miss: impl FnMut(u32, &E),
) -> Result<(u32, T), Vec<String>> {
    let mut misses = Vec::new();
    for n in 1..=tries {
        match try_once(n) {
            Ok(held) => return Ok((n, held)),
            Err(measured) => {
                on_miss(n, &measured);
                misses.push(measured.to_string());
            }
        }
    }
    Err(misses)
}

/// The longest time, microseconds, in which something did not grow from `from_us` to its last sample: pairs of a time and how
/// much there was, in order of time. Growth counts from when it is first seen, so that samples that come late make it longer.
pub fn longest_stall_us(samples: impl IntoIterator<Item = (u64, u64)>, from_us: u64) -> u64 {
    let (mut had, mut grew_us, mut longest_us) = (None, from_us, 0);
    for (at_us, has) in samples {
        if at_us >= from_us {
            longest_us = longest_us.max(at_us - grew_us);
            if had.is_none_or(|had| has > had) {
                grew_us = at_us;
            }
        }
        had = had.max(Some(has));
    }
    longest_us
}

/// Longest stall that a mishap of its agent may cost a flow. It waits for nobody: a retransmission timeout (200 ms), a round trip
/// with a full queue, and what a loaded machine holds up whoever carries or samples it.
pub const STALL: Duration = Duration::from_secs(1);

/// The time for which a flow is watched after its last mishap: longer than an agent's silence goes unnoticed here, and
/// a stall after that.
pub const WATCHED: Duration = Duration::from_secs(2);

/// A fault that a test injects, and its time on the clock of the flow's samples.
pub struct Mishap {
    /// The fault in words.
    pub what: String,
    pub at_us: u64,
}

/// Holds a flow's samples (when, and bytes acknowledged) against a limit: from each mishap to the next, and from the last to the
/// last sample, it is never without progress for longer.
///
/// # Panics
/// Where it is, with what happened and the time.
#[track_caller]
pub fn assert_never_stalled(samples: &[(u64, u64)], mishaps: &[Mishap], limit: Duration) {
    let ends = mishaps.iter().skip(1).map(|next| next.at_us).chain([u64::MAX]);
    for (Mishap { what, at_us }, end_us) in mishaps.iter().zip(ends) {
        let until = samples.iter().copied().take_while(|(sampled_us, _)| *sampled_us <= end_us);
        let stall = Duration::from_micros(longest_stall_us(until, *at_us));
        assert!(stall <= limit, "{what}: the flow stalls for {stall:?}, more than {limit:?}");
        log(&line(format_args!("STALLED: {what}: {} ms of {}", stall.as_millis(), limit.as_millis())));
    }
}

/// The environment variable for how often each mishap is repeated.
pub const REPEATS: &str = "CCPLANE_REPEATS";
/// The number of repeats under `make attack`.
const ATTACK_REPEATS: u32 = 10;

/// Repeats what happens to a flow, each time to a new one: `part` times in `make test`, ten times in `make attack`, or as often as
/// [`REPEATS`] says. `None` ends it: the machine cannot run it, which was said.
pub fn repeated(part: u32, mut once: impl FnMut() -> Option<()>) {
    /// Says in which one it was.
    struct Round(u32, u32);
    impl Drop for Round {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("in repeat {} of {}", self.0, self.1);
            }
        }
    }
    let asked = std::env::var(REPEATS).ok().map(|text| text.parse().expect("a number of repeats"));
    let repeats = asked.unwrap_or(attack_scale(part, part.max(ATTACK_REPEATS)));
    for n in 1..=repeats {
        let _round = Round(n, repeats);
        if once().is_none() {
            break;
        }
    }
}

/// Waits for a place of which the machine has one, such as a fixed name of a socket; tests of other processes wait until this is dropped.
///
/// # Panics
/// The lock's file cannot be made.
pub fn alone_at(place: &str) -> File {
    let path = lock_of(place);
    // Whoever comes first makes it; it may be another user.
    let file = File::open(&path).or_else(|_| File::create_new(&path)).or_else(|_| File::open(&path));
    let locked = file.and_then(|file| file.lock().map(|()| file));
    locked.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lock_of(place: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ccplane-alone-at-{place}"))
}

/// Makes a test of each of these functions of the module around, which [`repeated`] repeats so many times in `make test`.
#[macro_export]
macro_rules! mishaps {
    ($($part:literal $name:ident,)*) => {
        $(#[test]
        fn $name() {
            $crate::repeated($part, super::$name);
        })*
    };
}

/// Returns the amount of an attack to run: `full` under `make attack`, else the `part` that `make test` has
/// time for.
pub fn attack_scale<T>(part: T, full: T) -> T {
    if std::env::var_os(ATTACK).is_some() { full } else { part }
}

fn say(text: &str) {
    let line = line(text);
    // `eprintln!` would be captured; one write a line keeps lines of tests that run at once apart.
    let _ = std::io::stderr().write_all(line.as_bytes());
    log(&line);
}

fn line(text: impl Display) -> String {
    format!("{}\n", text.to_string().trim_end().replace('\n', ", "))
}

fn log(line: &str) {
    if let Some(path) = std::env::var_os(LOG) {
        let log = OpenOptions::new().append(true).create(true).open(&path);
        log.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_holds_at_its_second_try_has_one_miss() {
        let mut misses = Vec::new();
        let held = repeat(3, |n| if n == 2 { Ok("held") } else { Err("too slow") }, |n, _| misses.push(n));
        assert_eq!((held, misses), (Ok((2, "held")), vec![1]));
    }

    #[test]
    fn a_stall_is_counted_from_the_mishap_to_the_next_growth_or_the_end() {
        let grows = [(0, 10), (10, 20), (20, 20), (40, 30), (50, 40)];
        assert_eq!(longest_stall_us(grows, 0), 30);
        assert_eq!(longest_stall_us(grows, 15), 25);
        assert_eq!(longest_stall_us(grows, 45), 5);
        let ends = grows.into_iter().chain([(90, 40)]);
        assert_eq!(longest_stall_us(ends, 15), 40);
        let never = [(0, 5), (100, 5), (20_000_000, 5)];
        assert_eq!(longest_stall_us(never, 50), 19_999_950);
        assert_eq!(longest_stall_us([], 50), 0);
    }

    #[test]
    fn a_mishap_is_repeated_until_it_cannot_be() {
        let mut count = 0;
        repeated(3, || {
            count += 1;
            (count < 2).then_some(())
        });
        assert_eq!(count, 2);
    }

    #[test]
    #[should_panic = "second: the flow stalls for 20s"]
    fn each_mishap_has_its_own_stall() {
        let samples = [(0, 1), (1000, 2), (2000, 3), (20_002_000, 4)];
        let at = |what: &str, at_us| Mishap { what: what.to_owned(), at_us };
        assert_never_stalled(&samples, &[at("first", 0), at("second", 2000)], Duration::from_secs(2));
    }

    #[test]
    fn a_place_is_one_tests_at_a_time() {
        let place = format!("test-{}", std::process::id());
        let held = alone_at(&place);
        let other = File::open(lock_of(&place)).unwrap();
        assert!(other.try_lock().is_err(), "another one has it");
        drop(held);
        other.try_lock().unwrap();
        std::fs::remove_file(lock_of(&place)).unwrap();
    }

    #[test]
    fn a_check_that_never_holds_tells_what_each_try_measured() {
        let held = repeat(2, |n| Err::<(), _>(format!("{n} of 10")), |_, _| {});
        assert_eq!(held, Err(vec!["1 of 10".to_owned(), "2 of 10".to_owned()]));
    }
}
