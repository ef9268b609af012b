//! Fuzz targets: whatever another process writes into shared memory or says over it, nothing panics, stalls or reads
//! beyond the memory.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-channel --test suite fuzz::a_damaged_ring_gives_no_record_beyond_its_limit` runs
//! one guided by coverage.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Agent, forget, toy};
use ccplane_channel::ring::{self, MAX_RECORD_BYTES, MIN_BYTES, Reader, Writer};
use ccplane_channel::{RecordBuffer, SharedWords, Transport};
use ccplane_testing::fuzz::Fuzz;
use ccplane_wire::v2::ToDatapath;

/// Runs a reader and a writer by turns on damaged memory; each operation is (kind, place, value).
fn check(memory: &Arc<SharedWords>, ops: &[(u8, u16, u64)]) {
    memory.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    let mut writer = Writer::new(Arc::clone(memory), 0, MIN_BYTES).unwrap();
    let mut reader = Reader::new(Arc::clone(memory), 0, MIN_BYTES).unwrap();
    let mut record = RecordBuffer::default();
    for (what, at, value) in ops {
        match what % 4 {
            0 => drop(writer.write(&value.to_le_bytes().repeat(usize::from(*at) % 64))),
            1 => {
                let words = memory.words();
                words[usize::from(*at) % words.len()].store(*value, Ordering::Relaxed);
            }
            // A mark of a line's own number, or one close to it: it passes more checks than any other word.
            2 => {
                let (line, lines) = (usize::from(*at) % 16, (MIN_BYTES / 64) as u64);
                let number = lines + line as u64 + value % 3;
                memory.words()[(2 + line) * 8].store((number << 17) | (value % 70_000), Ordering::Relaxed);
            }
            _ => {
                if reader.read(&mut record).is_ok() {
                    assert!(record.bytes().len() <= MAX_RECORD_BYTES);
                }
                let _ = reader.is_ready();
            }
        }
    }
}

#[test]
fn a_damaged_ring_gives_no_record_beyond_its_limit() {
    let (memory, _) = SharedWords::create(ring::words_of(MIN_BYTES)).unwrap();
    let memory = Arc::new(memory);
    bolero::check!().with_type::<Vec<(u8, u16, u64)>>().for_each(|ops| check(&memory, ops));
}

/// An agent that says anything, well framed or not, over either way: the datapath's end goes on, and is there for the
/// next one.
#[test]
fn whatever_an_agent_says_the_datapath_listens_to_the_next_one() {
    let mut agents = [Transport::Ring, Transport::Socket].map(Agent::new);
    let mut toy = toy();
    bolero::check!().with_type::<(u8, Vec<(u8, u8, Vec<u8>)>)>().for_each(|(which, said)| {
        let agent = &mut agents[usize::from(which % 2)];
        for (ty, minor, body) in said {
            let len = (16 + body.len()) as u32;
            let mut bytes = [&b"CCPL"[..], &[2, minor % 3, *ty, 0], &len.to_le_bytes(), &[0; 4]].concat();
            bytes.extend(body);
            // Some of it without a header.
            agent.say_bytes(if *ty == 0 { body } else { &bytes });
            agent.turn(&mut toy);
        }
        agent.connect(&mut toy);
        agent.say(&ToDatapath::Heartbeat { now_us: 1 }, 0);
        let before = toy.heartbeats;
        agent.turn(&mut toy);
        assert!(toy.heartbeats > before, "it still listens");
        agent.forget();
        forget(&mut toy);
    });
}

/// Sequences of writes, reads and changed words; nine bytes say one step.
#[test]
fn a_ring_with_drawn_damage_gives_no_record_beyond_its_limit() {
    const STEP_BYTES: usize = 9;
    let (memory, _) = SharedWords::create(ring::words_of(MIN_BYTES)).unwrap();
    let memory = Arc::new(memory);
    let step =
        |what: u8, at: u16, value: u64| [&[what][..], &at.to_le_bytes(), &value.to_le_bytes()[..6]].concat();
    let seeds = [
        [step(0, 3, 1), step(3, 0, 0)].concat(),
        [step(0, 63, 9), step(0, 63, 9), step(3, 0, 0), step(3, 0, 0), step(0, 1, 1)].concat(),
        [step(2, 0, 40), step(3, 0, 0), step(1, 9, u64::MAX), step(3, 0, 0)].concat(),
    ];
    let (mut ops, mut record) = (Vec::new(), RecordBuffer::default());
    Fuzz::new("ring", env!("CARGO_MANIFEST_DIR")).seeds(seeds).max_bytes(16 * STEP_BYTES).run(|bytes| {
        ops.clear();
        ops.extend(bytes.chunks_exact(STEP_BYTES).map(|step| {
            let mut value = [0; 8];
            value[..6].copy_from_slice(&step[3..]);
            (step[0], u16::from_le_bytes([step[1], step[2]]), u64::from_le_bytes(value))
        }));
        check(&memory, &ops);
        // What is left in it then, and what a reader that comes later makes of that.
        let mut reader = Reader::new(Arc::clone(&memory), 0, MIN_BYTES).unwrap();
        let mut way = 0;
        while let Ok(true) = reader.read(&mut record) {
            way += 1;
        }
        way
    });
}
