//! Counted fuzzing on stable Rust: inputs are drawn from a corpus and changed; those that are taken in a new way join it.
//!
//! A target's corpus is a file of one input a line, in hexadecimal digits, below its crate's `tests/corpus`. `cargo test`
//! replays it and draws [`PART`] inputs more from a fixed seed; `.ci/fuzz` asks for more by the variables below. Sequences have
//! one, too: some bytes are a step.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::time::Instant;

/// The environment variable for the number of inputs to draw.
pub const EXECUTIONS: &str = "CCPLANE_FUZZ_EXECUTIONS";
/// The environment variable that seeds the inputs; 1 unless given.
pub const SEED: &str = "CCPLANE_FUZZ_SEED";
/// A file to which counts are appended: target, executions, seed, seconds.
pub const COUNTS: &str = "CCPLANE_FUZZ_COUNTS";
/// Set: the corpus file is written anew, with what was found.
pub const KEEP: &str = "CCPLANE_FUZZ_KEEP";

/// Inputs that `cargo test` draws.
pub const PART: u64 = 20_000;
/// Counts are appended each so many inputs, so that a run that is stopped has counted.
const CHUNK: u64 = 1 << 20;
/// Inputs of a corpus while it is drawn from, at most.
const MAX_CORPUS: usize = 512;
/// Inputs that are kept in a corpus's file, at most.
pub const MAX_KEPT: usize = 48;
/// Bytes of a corpus's file, at most.
pub const MAX_FILE_BYTES: usize = 128 << 10;
/// The longest input that joins a corpus, bytes, unless a target sets another limit.
const MAX_KEPT_BYTES: usize = 1024;
/// Changes to one input, at most.
const MAX_CHANGES: u64 = 6;

/// Tokens for mutations of JSON.
pub const JSON: &[&str] = &["{", "}", "[", "]", "\"", ":", ",", "null", "true", "-1", "1e999"];
/// Tokens for mutations of TOML.
pub const TOML: &[&str] = &["\n", "=", "[", "]", "{", "}", "\"", ",", "true", "1", "-1", "nan", "1e999"];

/// A fuzz target with its corpus and its limits.
pub struct Fuzz {
    name: &'static str,
    file: PathBuf,
    corpus: Vec<Vec<u8>>,
    tokens: Vec<Vec<u8>>,
    max_bytes: usize,
    max_kept_bytes: usize,
    executions: Option<u64>,
}

/// Hashes the variant of an enum value, without its fields.
pub fn shape<T>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    Hash::hash::<DefaultHasher>(&discriminant(value) as &Discriminant<T>, &mut hasher);
    hasher.finish()
}

/// Hashes the words of a refusal, without what it quotes of the input, beside the line that it names.
pub fn words(line: usize, reason: &str) -> u64 {
    let words = reason.split('`').step_by(2).flat_map(str::bytes).filter(u8::is_ascii_lowercase);
    words.take(40).fold(line.min(4) as u64, |way, byte| way.wrapping_mul(31).wrapping_add(byte.into()))
}

/// A random number generator: SplitMix64.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// Draws 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number from 0 on, below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A normal number of deviation 1 around 0 (Irwin-Hall of twelve).
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Prints what made a target panic.
struct Watch<'a> {
    target: &'a str,
    input: Vec<u8>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("fuzz target {}: input {}", self.target, to_hex(&self.input));
        }
    }
}

impl Fuzz {
    /// A target of the crate whose manifest is in `manifest_dir`; names are unique.
    pub fn new(name: &'static str, manifest_dir: &str) -> Fuzz {
        let file = PathBuf::from(manifest_dir).join("tests/corpus").join(format!("{name}.hex"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let corpus = text.lines().map(|line| from_hex(line).expect("a corpus is of hexadecimal digits"));
        let corpus = corpus.collect();
        let (max_bytes, max_kept_bytes) = (1 << 14, MAX_KEPT_BYTES);
        Fuzz { name, file, corpus, tokens: Vec::new(), max_bytes, max_kept_bytes, executions: None }
    }

    /// Good inputs to begin with.
    #[must_use]
    pub fn seeds<S: AsRef<[u8]>>(mut self, seeds: impl IntoIterator<Item = S>) -> Fuzz {
        self.corpus.extend(seeds.into_iter().map(|seed| seed.as_ref().to_vec()));
        self
    }

    /// Pieces that are put into inputs, beside those that were given before.
    #[must_use]
    pub fn tokens<S: AsRef<[u8]>>(mut self, tokens: impl IntoIterator<Item = S>) -> Fuzz {
        self.tokens.extend(tokens.into_iter().map(|token| token.as_ref().to_vec()));
        self
    }

    /// Limits the length of inputs, bytes.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: usize) -> Fuzz {
        self.max_bytes = max_bytes;
        self
    }

    /// Longest input that joins the corpus, bytes: for targets whose smallest good input is longer than others'.
    #[must_use]
    pub fn max_kept_bytes(mut self, max_kept_bytes: usize) -> Fuzz {
        self.max_kept_bytes = max_kept_bytes;
        self
    }

    /// Sets the number of inputs that `cargo test` draws, where [`PART`] takes too long.
    #[must_use]
    pub fn part(mut self, executions: u64) -> Fuzz {
        self.executions = Some(executions);
        self
    }

    /// Runs `body` on the corpus, then on inputs drawn from it. `body` says in which way it took an input: those taken in a
    /// way that none was before join the corpus.
    pub fn run(mut self, mut body: impl FnMut(&[u8]) -> u64) {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let executions = number(EXECUTIONS).unwrap_or(self.executions.unwrap_or(PART));
        let seed = number(SEED).unwrap_or(1);
        if self.corpus.is_empty() {
            self.corpus.push(Vec::new());
        }
        let mut watch = Watch { target: self.name, input: Vec::new() };
        let mut ways = HashSet::new();
        let mut found: Vec<Vec<u8>> = Vec::new();
        for input in &self.corpus {
            watch.input.clone_from(input);
            if ways.insert(body(input)) && input.len() <= self.max_kept_bytes {
                found.push(input.clone());
            }
        }
        let mut draw = Draw::new(seed);
        let (mut since, mut counted) = (Instant::now(), 0);
        for n in 1..=executions {
            self.draw(&mut draw, &mut watch.input);
            let way = body(&watch.input);
            if ways.len() < MAX_CORPUS && ways.insert(way) && watch.input.len() <= self.max_kept_bytes {
                self.corpus.push(watch.input.clone());
                found.push(watch.input.clone());
            }
            if n.is_multiple_of(CHUNK) || n == executions {
                self.count(n - counted, seed, since);
                (since, counted) = (Instant::now(), n);
            }
        }
        if std::env::var_os(KEEP).is_some() {
            self.keep(&mut found);
        }
    }

    /// One of the corpus, changed in a few places.
    fn draw(&self, draw: &mut Draw, input: &mut Vec<u8>) {
        input.clear();
        input.extend_from_slice(&self.corpus[draw.below(self.corpus.len())]);
        for _ in 0..=draw.next_u64() % MAX_CHANGES {
            self.change(draw, input);
        }
        input.truncate(self.max_bytes);
    }

    fn change(&self, draw: &mut Draw, input: &mut Vec<u8>) {
        const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];
        let at = draw.below(input.len() + 1);
        let len = draw.below((input.len() - at).min(64) + 1);
        match draw.below(10) {
            0 => input.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << draw.below(8)),
            1 => input.get_mut(at).into_iter().for_each(|byte| *byte = draw.next_u64() as u8),
            2 => input.insert(at, draw.next_u64() as u8),
            3 => drop(input.drain(at..at + len)),
            4 => input.truncate(at),
            5 => {
                // A piece of it, once more.
                let end = input.len();
                input.extend_from_within(at..at + len);
                input[at..].rotate_right(len.min(end - at));
            }
            6 => {
                let bytes = NUMBERS[draw.below(NUMBERS.len())].to_le_bytes();
                let width = 1 << draw.below(4);
                input.iter_mut().skip(at).zip(&bytes[..width]).for_each(|(to, from)| *to = *from);
            }
            7 => {
                let other = &self.corpus[draw.below(self.corpus.len())];
                let from = draw.below(other.len() + 1);
                let piece = &other[from..other.len().min(from + 64)];
                input.splice(at..at + len, piece.iter().copied());
            }
            _ if self.tokens.is_empty() => input.push(draw.next_u64() as u8),
            _ => {
                let token = &self.tokens[draw.below(self.tokens.len())];
                let end = if draw.one_in(2) { at } else { at + len };
                input.splice(at..end, token.iter().copied());
            }
        }
    }

    fn count(&self, executions: u64, seed: u64, since: Instant) {
        let Some(path) = std::env::var_os(COUNTS) else { return };
        let line = format!("{} {executions} {seed} {:.1}\n", self.name, since.elapsed().as_secs_f64());
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Saves the shortest of the found inputs, as many as there is room for.
    fn keep(&self, found: &mut Vec<Vec<u8>>) {
        found.retain(|input| !input.is_empty());
        found.sort();
        found.dedup();
        found.sort_by_key(Vec::len);
        found.truncate(MAX_KEPT);
        let mut room = MAX_FILE_BYTES;
        found.retain(|input| {
            let left = room.checked_sub(2 * input.len() + 1);
            room = left.unwrap_or(room);
            left.is_some()
        });
        found.sort();
        let lines: String = found.iter().map(|input| to_hex(input) + "\n").collect();
        let written = fs::create_dir_all(self.file.parent().expect("it is in a folder"));
        written
            .and_then(|()| fs::write(&self.file, lines))
            .unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(*pair.get(1)?)?).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_in_a_new_way_is_built_upon() {
        // Four right bytes in a row are found one after the other, where blind draws would take 2^32.
        let mut deepest = 0;
        Fuzz::new("test", "/nonexistent").part(200_000).run(|input| {
            let depth = input.iter().zip(b"CCPL").take_while(|(a, b)| a == b).count();
            deepest = deepest.max(depth);
            depth as u64
        });
        assert_eq!(deepest, 4);
    }

    /// Of a target whose good inputs are long, what is built upon is long.
    #[test]
    fn long_inputs_are_built_upon_where_a_target_says_so() {
        let longest = |target: Fuzz| {
            let mut longest = 0;
            target.tokens([vec![0; 2 * MAX_KEPT_BYTES]]).max_bytes(1 << 16).part(20_000).run(|input| {
                longest = longest.max(input.len());
                input.len() as u64 / 1024
            });
            longest
        };
        let target = || Fuzz::new("test", "/nonexistent");
        assert!(longest(target()) <= MAX_KEPT_BYTES + MAX_CHANGES as usize * (2 * MAX_KEPT_BYTES + 64));
        assert_eq!(longest(target().max_kept_bytes(1 << 16)), 1 << 16);
    }

    #[test]
    fn a_corpus_keeps_the_shortest_inputs_that_it_has_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |found: &mut Vec<Vec<u8>>| {
            Fuzz::new("test", dir.path().to_str().unwrap()).keep(found);
            let target = Fuzz::new("test", dir.path().to_str().unwrap());
            assert!(fs::metadata(&target.file).unwrap().len() <= MAX_FILE_BYTES as u64);
            target.corpus
        };
        assert_eq!(kept(&mut vec![vec![3], vec![], vec![1, 2], vec![3]]), [vec![1, 2], vec![3]]);
        let many = |bytes: usize| (1..=64_u8).map(|n| vec![n; bytes + usize::from(n)]).collect::<Vec<_>>();
        assert_eq!(kept(&mut many(0)), many(0)[..MAX_KEPT]);
        let long = kept(&mut many(3000));
        assert!(long.len() > 10 && long == many(3000)[..long.len()], "{}", long.len());
    }

    #[test]
    fn draws_are_the_same_from_one_seed() {
        let drawn = || {
            let mut all = Vec::new();
            Fuzz::new("test", "/nonexistent").seeds(["seed"]).tokens(["token"]).part(100).run(|input| {
                all.push(input.to_vec());
                0
            });
            all
        };
        assert_eq!(drawn(), drawn());
        assert_eq!(from_hex(&to_hex(b"\x00\xffa")).unwrap(), b"\x00\xffa");
        assert!(from_hex("0").is_none() && from_hex("zz").is_none());
    }
}
