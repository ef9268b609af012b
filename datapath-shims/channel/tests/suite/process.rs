//! A process that dies while it writes: what it has published is whole, and what it has not is not there.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccplane_channel::ring::{self, MIN_BYTES, ReadError, Reader, WriteError, Writer};
use ccplane_channel::{RecordBuffer, SharedWords};
use ccplane_testing::Ended;

/// Tells the process that it is the one to die, where its memory is, and how.
const CHILD: &str = "CCPLANE_TEST_WRITER";
/// The offset of a ring's second line of data. Its number follows.
const SECOND: usize = 24;
const NUMBER: u64 = (MIN_BYTES / 64) as u64 + 1;

/// Of any length, and telling whether it is whole.
fn record(n: u64) -> Vec<u8> {
    let len = 8 + (n.wrapping_mul(2_654_435_761) % 3000) as usize;
    n.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Runs this program again, as the writer.
fn writer(file: &OwnedFd, how: &str) -> Ended {
    let memory = format!("{how} /proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::the_process_that_dies"]).env(CHILD, memory);
    Ended(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Not a test of its own: what the other tests' process does.
#[test]
fn the_process_that_dies() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (how, path) = told.split_once(' ').unwrap();
    let file: OwnedFd = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
    let memory = Arc::new(SharedWords::open(&file, ring::words_of(MIN_BYTES)).unwrap());
    let mut writer = Writer::new(Arc::clone(&memory), 0, MIN_BYTES).unwrap();
    match how {
        // Until it is killed.
        "endless" => {
            for n in 0.. {
                while writer.write(&record(n)) == Err(WriteError::Full) {
                    std::hint::spin_loop();
                }
            }
        }
        // One record, then half of one.
        "half" => {
            writer.write(&record(0)).unwrap();
            // All but its mark.
            memory.words()[SECOND + 1..SECOND + 16].iter().for_each(|word| word.store(1, Ordering::Relaxed));
        }
        // One record, then the mark of another line.
        _ => {
            writer.write(&record(0)).unwrap();
            memory.words()[SECOND].store(((NUMBER + 1) << 17) | 8, Ordering::Relaxed);
        }
    }
    std::process::abort();
}

fn shared() -> (OwnedFd, Reader) {
    let (memory, file) = SharedWords::create(ring::words_of(MIN_BYTES)).unwrap();
    (file, Reader::new(Arc::new(memory), 0, MIN_BYTES).unwrap())
}

#[test]
fn a_writer_that_is_killed_leaves_whole_records() {
    for n in 0..20_u64 {
        let (file, mut reader) = shared();
        let mut child = writer(&file, "endless");
        let mut into = RecordBuffer::default();
        let (mut next, start) = (0, Instant::now());
        let mut killed_at = None;
        loop {
            if reader.read(&mut into).unwrap() {
                assert_eq!(into.bytes(), record(next), "record {next}");
                next += 1;
                // Some while, counted from its first record, so that it dies at any point of one.
                killed_at = killed_at.or(Some(Instant::now() + Duration::from_micros(500 + 137 * n)));
            } else if child.0.try_wait().unwrap().is_some() && !reader.is_ready() {
                break;
            }
            if killed_at.take_if(|at| Instant::now() >= *at).is_some() {
                child.0.kill().unwrap();
                child.0.wait().unwrap();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the writer does nothing");
        }
        assert!(next > 0);
    }
}

/// A reader that has read the one whole record of a writer of this kind.
fn after_one(how: &str) -> (Reader, RecordBuffer) {
    let (file, mut reader) = shared();
    writer(&file, how).0.wait().unwrap();
    let mut into = RecordBuffer::default();
    assert!(reader.read(&mut into).unwrap());
    assert_eq!(into.bytes(), record(0));
    (reader, into)
}

#[test]
fn half_a_record_is_not_there() {
    let (mut reader, mut into) = after_one("half");
    assert_eq!(reader.read(&mut into), Ok(false));
}

#[test]
fn the_mark_of_another_line_ends_the_ring() {
    let (mut reader, mut into) = after_one("astray");
    assert_eq!(reader.read(&mut into), Err(ReadError::Position { found: NUMBER + 1, head: NUMBER }));
}
