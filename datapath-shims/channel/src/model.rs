//! The ring's protocol under loom: every way in which two threads may run, and every value that its orderings let a load see.

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::Notify;
use loom::thread;

use crate::ring::{self, MIN_BYTES, Reader, RecordBuffer, WriteError, Writer};
use crate::sys::SharedWords;

/// Switches between threads that nothing asked for, in one run.
const PREEMPTIONS: usize = 3;

fn ends() -> (Writer, Reader) {
    let (memory, _) = SharedWords::create(ring::words_of(MIN_BYTES)).unwrap();
    let memory = Arc::new(memory);
    let writer = Writer::new(Arc::clone(&memory), 0, MIN_BYTES).unwrap();
    (writer, Reader::new(memory, 0, MIN_BYTES).unwrap())
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Two words each, so that the ring is full in between and comes round.
fn record(n: u64) -> [u8; 16] {
    let mut bytes = [n as u8; 16];
    bytes[8..].fill(!n as u8);
    bytes
}

#[test]
fn what_is_read_was_written_whole() {
    const RECORDS: u64 = 4;
    check(|| {
        let (mut writer, mut reader) = ends();
        let writing = thread::spawn(move || {
            for n in 0..RECORDS {
                loop {
                    match writer.write(&record(n)) {
                        Ok(_) => break,
                        Err(error) => assert_eq!(error, WriteError::Full),
                    }
                    thread::yield_now();
                }
            }
        });
        let mut into = RecordBuffer::default();
        for n in 0..RECORDS {
            while !reader.read(&mut into).unwrap() {
                thread::yield_now();
            }
            assert_eq!(into.bytes(), record(n));
        }
        assert!(!reader.is_ready());
        writing.join().unwrap();
    });
}

/// A reader sleeps whenever it may; loom says so if it never wakes.
#[test]
fn no_wake_up_is_lost() {
    const RECORDS: u64 = 2;
    check(|| {
        let (mut writer, mut reader) = ends();
        let bell = Arc::new(Notify::new());
        let rung = Arc::clone(&bell);
        let writing = thread::spawn(move || {
            for n in 0..RECORDS {
                if writer.write(&record(n)).unwrap() {
                    rung.notify();
                }
            }
        });
        let mut into = RecordBuffer::default();
        for n in 0..RECORDS {
            while !reader.read(&mut into).unwrap() {
                if reader.doze() {
                    bell.wait();
                    reader.awake();
                }
            }
            assert_eq!(into.bytes(), record(n));
        }
        writing.join().unwrap();
    });
}
