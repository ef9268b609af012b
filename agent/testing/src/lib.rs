//! What tests say beside pass and fail: checks that were skipped, tries that missed, and how long an attack lasts.
//!
//! The test runner captures what a passing test prints, so [`skipped`] and [`missed`] write one line each to the standard
//! error descriptor itself and to the file that [`LOG`] names. `make test` prints that file at its end.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// The environment variable that names the file to which skips and misses are appended.
pub const LOG: &str = "CCPLANE_TEST_LOG";
/// The environment variable that `make attack` sets, so that attacks run in full.
pub const ATTACK: &str = "CCPLANE_ATTACK";

/// Says that a check could not run here.
pub fn skipped(check: &str, why: impl Display) {
    say(&format!("SKIPPED: {check}: {why}"));
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
    log(&line(format_args!("TRIED: {check}: held at try {n} of {tries}")));
    held
}

/// The first try that held and what it gave, or what each try measured.
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

/// How much of an attack to run: `full` under `make attack`, else the `part` that `make test` has time for.
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
mod tests {
    use super::*;

    #[test]
    fn a_check_that_holds_at_its_second_try_has_one_miss() {
        let mut misses = Vec::new();
        let held = repeat(3, |n| if n == 2 { Ok("held") } else { Err("too slow") }, |n, _| misses.push(n));
        assert_eq!((held, misses), (Ok((2, "held")), vec![1]));
    }

    #[test]
    fn a_check_that_never_holds_tells_what_each_try_measured() {
        let held = repeat(2, |n| Err::<(), _>(format!("{n} of 10")), |_, _| {});
        assert_eq!(held, Err(vec!["1 of 10".to_owned(), "2 of 10".to_owned()]));
    }
}
