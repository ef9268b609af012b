//! A portfolio's knowledge as the content of a file: text, a line for each destination, least recently used first.
//!
//! ```text
//! ccplane portfolio 1
//! arms cubic copa
//! 192.0.2.0/24 alone 40000 1.5 300 | 1 3.2 1.6 4 0.5 0.2 1 | 0 0 0 0 0 0 0
//! crc32c 1a2b3c4d
//! ```
//!
//! After the prefix: the condition, the smallest round trip in microseconds, what trials have lost and how long flows ran in seconds. Then for
//! each condition the arm in use, and of each arm weight and sum of its rewards and the number of its intervals.

use super::path::{Condition, Expected, Known};
use super::prefix::Prefix;
use super::record::Record;
use ccplane_alg::{MAX_MEMORY_BYTES, MemoryError};
use ccplane_bandit::Estimate;
use std::fmt::Write as _;
use std::str::SplitWhitespace;

/// The first line, less the version.
const HEADER: &str = "ccplane portfolio ";
const VERSION: u64 = 1;
const ARMS: &str = "arms ";
const CHECKSUM: &str = "crc32c ";
const CONDITIONS: [(Condition, &str); 2] = [(Condition::Alone, "alone"), (Condition::Shared, "shared")];

pub(super) fn write<'a>(arms: &[&str], all: impl Iterator<Item = (&'a Prefix, &'a Known)>) -> Vec<u8> {
    let mut text = format!("{HEADER}{VERSION}\n{ARMS}{}\n", arms.join(" "));
    for (prefix, known) in all {
        let condition = CONDITIONS.iter().find(|(of, _)| *of == known.condition).map_or("", |(_, name)| name);
        let Known { min_rtt_us, lost_s, ran_s, .. } = known;
        let _ = write!(text, "{prefix} {condition} {min_rtt_us} {lost_s} {ran_s}");
        for record in &known.records {
            let _ = write!(text, " | {}", record.best);
            for (estimate, intervals) in record.estimates().iter().zip(&record.intervals) {
                let _ = write!(text, " {} {} {intervals}", estimate.weight, estimate.sum);
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{CHECKSUM}{:08x}", crc32c::crc32c(text.as_bytes()));
    text.into_bytes()
}

/// Reads the knowledge of these arms from a file; its lines of other arms are left out.
pub(super) fn read(
    content: &[u8],
    arms: &[&str],
    expected: &Expected,
) -> Result<Vec<(Prefix, Known)>, MemoryError> {
    if content.len() > MAX_MEMORY_BYTES {
        return Err(MemoryError::TooLarge { found: content.len() });
    }
    let text = std::str::from_utf8(content).map_err(|_| MemoryError::Header)?;
    let (version, body) =
        text.strip_prefix(HEADER).and_then(|rest| rest.split_once('\n')).ok_or(MemoryError::Header)?;
    let found: u64 = version.parse().map_err(|_| MemoryError::Header)?;
    if found != VERSION {
        return Err(MemoryError::Version { found, read: VERSION });
    }
    let at = text.rfind(CHECKSUM).ok_or(MemoryError::Checksum)?;
    let (summed, sum) = text.split_at(at);
    if format!("{CHECKSUM}{:08x}\n", crc32c::crc32c(summed.as_bytes())) != sum {
        return Err(MemoryError::Checksum);
    }
    let mut lines = body.lines();
    let theirs = lines.next().and_then(|line| line.strip_prefix(ARMS)).ok_or(MemoryError::Header)?;
    let theirs: Vec<&str> = theirs.split_whitespace().collect();
    let places: Vec<Option<usize>> =
        theirs.iter().map(|name| arms.iter().position(|arm| arm == name)).collect();
    let known = |(n, line): (usize, &str)| {
        destination(line, &places, arms.len(), expected)
            .map_err(|what| MemoryError::Line { line: n + 3, what })
    };
    // The last line is the checksum's.
    lines.take_while(|line| !line.starts_with(CHECKSUM)).enumerate().map(known).collect()
}

fn number<T: std::str::FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, &'static str> {
    words.next().and_then(|word| word.parse().ok()).ok_or("a number is missing or none")
}

fn seconds(words: &mut SplitWhitespace<'_>) -> Result<f64, &'static str> {
    Some(number::<f64>(words)?).filter(|s| s.is_finite() && *s >= 0.0).ok_or("a time is below 0 or infinite")
}

/// `places`: where each arm of the file is among ours.
fn destination(
    line: &str,
    places: &[Option<usize>],
    arms: usize,
    expected: &Expected,
) -> Result<(Prefix, Known), &'static str> {
    let mut parts = line.split('|');
    let mut words = parts.next().unwrap_or_default().split_whitespace();
    let prefix = words.next().and_then(|word| word.parse().ok()).ok_or("there is no prefix")?;
    let condition = words.next().and_then(|word| CONDITIONS.iter().find(|(_, name)| *name == word));
    let condition = condition.ok_or("there is no such condition")?.0;
    let min_rtt_us = number(&mut words)?;
    let (lost_s, ran_s) = (seconds(&mut words)?, seconds(&mut words)?);
    let fresh = expected.known().ok_or("there are no arms")?;
    let mut record = |fallback: &Record| {
        let mut words = parts.next().ok_or("a condition is missing")?.split_whitespace();
        let best: usize = number(&mut words)?;
        let mut estimates = vec![Estimate::default(); arms];
        let mut intervals = vec![0; arms];
        for place in places {
            let estimate = Estimate { weight: number(&mut words)?, sum: number(&mut words)? };
            let count: u64 = number(&mut words)?;
            let place = place.filter(|place| *place < arms);
            if let Some((to, of)) = place.and_then(|p| Some((estimates.get_mut(p)?, intervals.get_mut(p)?))) {
                (*to, *of) = (estimate, count);
            }
        }
        if words.next().is_some() {
            return Err("there is more than the arms have");
        }
        match places.get(best).ok_or("the arm in use is none")? {
            Some(best) => {
                Record::restore(&estimates, intervals, *best).ok_or("an arm's worth is out of range")
            }
            // It is no arm any more: worths relative to it mean nothing.
            None => Ok(fallback.clone()),
        }
    };
    let records = [record(&fresh.records[0])?, record(&fresh.records[1])?];
    if parts.next().is_some() {
        return Err("there are more conditions than two");
    }
    Ok((prefix, Known { records, condition, min_rtt_us, lost_s, ran_s }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_testing::fuzz::{Fuzz, shape};
    use proptest::prelude::*;

    const ARMS: [&str; 3] = ["dual", "copa", "cubic"];

    fn expected() -> Expected {
        Expected { priors: vec![0.9, 0.7, 0.5], teller: Some(0) }
    }

    fn learned() -> Vec<(Prefix, Known)> {
        let mut known = expected().known().unwrap();
        known.records[0].compared(1, 0.3);
        known.records[0].compared(2, -1.0 / 3.0);
        known.records[0].held();
        (known.min_rtt_us, known.lost_s, known.ran_s) = (40_000, 1.1, 300.7);
        let shared = Known { condition: Condition::Shared, ..expected().known().unwrap() };
        let prefix = |text: &str| Prefix::of(text.parse().unwrap());
        vec![(prefix("192.0.2.1"), known), (prefix("2001:db8::1"), shared)]
    }

    fn content() -> Vec<u8> {
        let all = learned();
        write(&ARMS, all.iter().map(|(prefix, known)| (prefix, known)))
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&content(), &ARMS, &expected()).unwrap(), learned());
        let empty = write(&ARMS, std::iter::empty());
        assert_eq!(read(&empty, &ARMS, &expected()).unwrap(), []);
    }

    #[test]
    fn arms_are_found_by_name_and_strange_ones_left_out() {
        let other = ["copa", "vegas"];
        let expected = Expected { priors: vec![0.7, 0.6], teller: None };
        let read = read(&content(), &other, &expected).unwrap();
        let record = &read[0].1.records[0];
        assert_eq!((record.best, record.intervals.clone()), (0, vec![2, 0]));
        assert!(record.mean(0).is_some() && record.mean(1).is_none());
        // The second path's arm in use, CUBIC, is no arm here.
        assert_eq!(read[1].1.records[1], expected.known().unwrap().records[1]);
    }

    #[test]
    fn what_was_cut_or_changed_is_refused() {
        let content = content();
        let refused = |content: &[u8]| read(content, &ARMS, &expected()).unwrap_err();
        assert_eq!(refused(b""), MemoryError::Header);
        assert_eq!(refused(b"ccplane portfolio x\n"), MemoryError::Header);
        assert_eq!(
            refused(b"ccplane portfolio 2\nanything"),
            MemoryError::Version { found: 2, read: VERSION }
        );
        assert_eq!(
            refused(&vec![b'x'; MAX_MEMORY_BYTES + 1]),
            MemoryError::TooLarge { found: MAX_MEMORY_BYTES + 1 }
        );
        for cut in HEADER.len() + "1\n".len()..content.len() {
            assert_eq!(refused(&content[..cut]), MemoryError::Checksum, "{cut}");
        }
        for at in 0..content.len() {
            let mut changed = content.clone();
            changed[at] ^= 1;
            read(&changed, &ARMS, &expected()).unwrap_err();
        }
    }

    #[test]
    fn lines_that_say_nonsense_are_named() {
        let wrong = |from: &str, to: &str| {
            let text = String::from_utf8(content()).unwrap().replacen(from, to, 1);
            let at = text.rfind(CHECKSUM).unwrap();
            let summed = format!("{}{CHECKSUM}{:08x}\n", &text[..at], crc32c::crc32c(&text.as_bytes()[..at]));
            read(summed.as_bytes(), &ARMS, &expected()).unwrap_err().to_string()
        };
        assert_eq!(wrong("192.0.2.0/24", "192.0.2.1/24"), "line 3: there is no prefix");
        assert_eq!(wrong(" alone ", " beside "), "line 3: there is no such condition");
        assert_eq!(wrong(" 1.1 ", " NaN "), "line 3: a time is below 0 or infinite");
        assert_eq!(wrong(" shared 0 0 0 | 0", " shared 0 0 0 | 9"), "line 4: the arm in use is none");
        assert_eq!(
            wrong(" shared 0 0 0 | 0 0", " shared 0 0 0 | 0 -1"),
            "line 4: an arm's worth is out of range"
        );
        assert_eq!(
            wrong(" shared 0 0 0 |", " shared 0 0 0 | 1 | 2 |"),
            "line 4: a number is missing or none"
        );
    }

    proptest! {
        /// Random content never panics.
        #[test]
        fn any_content_is_read_or_refused(content in prop::collection::vec(any::<u8>(), 0..500), body in "[a-z0-9./:| \n-]{0,300}") {
            let _ = read(&content, &ARMS, &expected());
            let text = format!("{HEADER}\n{}{body}\n", super::ARMS);
            let summed = format!("{text}{CHECKSUM}{:08x}\n", crc32c::crc32c(text.as_bytes()));
            let _ = read(summed.as_bytes(), &ARMS, &expected());
        }
    }

    /// Bodies between a header and a checksum that is right, as only our own program writes it.
    #[test]
    fn a_memory_that_is_read_is_written_as_the_same() {
        let whole = String::from_utf8(content()).unwrap();
        let at = whole.rfind(CHECKSUM).unwrap();
        let body = &whole[HEADER.len()..at];
        let tokens =
            ["\n", "|", "alone", "shared", "0", "-1", "inf", "1e308", "192.0.2.0/24", "::/48", "arms copa"];
        let target = Fuzz::new("portfolio-memory", env!("CARGO_MANIFEST_DIR")).seeds([body]).tokens(tokens);
        target.max_bytes(512).run(|bytes| {
            let mut text = HEADER.as_bytes().to_vec();
            text.extend(bytes);
            let sum = crc32c::crc32c(&text);
            text.extend(format!("{CHECKSUM}{sum:08x}\n").bytes());
            match read(&text, &ARMS, &expected()) {
                Ok(all) => {
                    let again = write(&ARMS, all.iter().map(|(prefix, known)| (prefix, known)));
                    assert_eq!(read(&again, &ARMS, &expected()).unwrap(), all);
                    1 + all.len().min(8) as u64
                }
                Err(MemoryError::Line { line, what }) => (what.len() * 8 + line.min(4)) as u64,
                Err(error) => shape(&error),
            }
        });
    }
}
