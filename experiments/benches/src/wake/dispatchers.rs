//! `wake.dispatch.queues`: a dispatcher of 10, 100 and 1,000 queues, against one that looks at each queue in turn.
//!
//! FastWake's dispatcher looks at its queues one after the other, so that its time grows with their number. Ours looks at
//! a bitmap of those that are ready. `look` is the time of one event alone, without threads: put, found and taken.

use super::ways::{Channel, Consumer, Count, Owner, Place, WAYS, Way};
use super::{Load, QUANTILES, ROUNDS, block, proof_of};
use crate::error::{BenchError, context};
use crate::figure::{Block, Figure, Pair, in_turn};
use crate::proof::Proof;
use ccplane_wait::affinity::Pinned;
use ccplane_wait::{Class, DispatchError, Parker, Ready, begin};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Queues of one dispatcher.
const QUEUES: [usize; 3] = [10, 100, 1000];
/// Looks of one block.
const LOOKS: u32 = 20_000;
/// Blocks of looks, each beside one of scans.
const BLOCKS: usize = 5;
/// Scans without an event after which the core is offered to others.
const SCANS_PER_YIELD: u32 = 64;
const LOAD: Load =
    Load { name: "1ms", gap: Duration::from_millis(1), events: 300, warm: Duration::from_millis(200) };
const SCANNING: Way = Way {
    name: "scanning",
    open: |queues, _, core| {
        Ok(Box::new(context("start a scanning dispatcher", Scanning::open(queues, core))?))
    },
};

pub(super) fn run() -> Result<Vec<Figure>, BenchError> {
    let ours = WAYS.iter().find(|way| way.name == "dispatch");
    let ours = ours.ok_or_else(|| BenchError::Missing("the way `dispatch`".into()))?;
    let mut figures = Vec::new();
    for queues in QUEUES {
        figures.extend(wakes(ours, queues)?);
        figures.push(event_times(queues)?);
    }
    Ok(figures)
}

fn wakes(ours: &Way, queues: usize) -> Result<Vec<Figure>, BenchError> {
    let (mut blocks, mut rounds): (Vec<Block>, Vec<_>) = Default::default();
    for round in 0..ROUNDS {
        let (one, other) = in_turn(
            round,
            || block(ours, Place::OtherCore, &LOAD, queues),
            || block(&SCANNING, Place::OtherCore, &LOAD, queues),
        )?;
        blocks.push((one.latencies_us.clone(), other.latencies_us));
        rounds.push(one);
    }
    let proof = proof_of(&rounds)?;
    let figures = QUANTILES.iter().map(|(q, label)| {
        let name = format!("wake.dispatch.queues.{queues}.{label}");
        Figure::blocks(name, "us", format!("a dispatcher that looks at each, {label}"), (&blocks, *q), &proof)
    });
    Ok(figures.collect())
}

/// The time of one event, from its putting to its taking, on one thread.
fn event_times(queues: usize) -> Result<Figure, BenchError> {
    let ready = Ready::new(queues).map_err(|error| BenchError::Missing(error.to_string()))?;
    let counts: Vec<Count> = (0..queues).map(|_| Count::default()).collect();
    let (mut taken, mut found, mut seen) = (vec![0_u32; queues], 0_u64, 0_u64);
    let queue = |n: u32| n as usize * 37 % queues;
    let mut pairs: Vec<Pair> = Vec::new();
    for round in 0..BLOCKS {
        let marks = || -> Result<f64, BenchError> {
            let start = Instant::now();
            for n in 0..LOOKS {
                ready.mark(queue(n));
                found += ready.take(|queue| _ = black_box(queue)) as u64;
            }
            Ok(start.elapsed().as_nanos() as f64 / f64::from(LOOKS))
        };
        let scans = || -> Result<f64, BenchError> {
            let start = Instant::now();
            for n in 0..LOOKS {
                counts[queue(n)].0.fetch_add(1, Ordering::Release);
                seen += scan(&counts, &mut taken, |queue| _ = black_box(queue));
            }
            Ok(start.elapsed().as_nanos() as f64 / f64::from(LOOKS))
        };
        pairs.push(in_turn(round, marks, scans)?);
    }
    let looks = u64::from(LOOKS) * BLOCKS as u64;
    let proof = Proof::exactly("marks that were taken", found, looks)?.and(&Proof::exactly(
        "scans that found an event",
        seen,
        looks,
    )?);
    let name = format!("wake.dispatch.look.{queues}");
    Ok(Figure::paired(name, "ns", "a look at each queue", &pairs, &proof))
}

/// Looks at each queue, and hands over those with new events; returns how many there were.
fn scan(counts: &[Count], taken: &mut [u32], mut each: impl FnMut(usize)) -> u64 {
    let mut found = 0;
    for (queue, (count, taken)) in counts.iter().zip(taken).enumerate() {
        let now = count.0.load(Ordering::Acquire);
        if now != *taken {
            *taken = now;
            found += 1;
            each(queue);
        }
    }
    found
}

/// State that a scanning dispatcher shares with its owners and producers.
struct Queues {
    counts: Vec<Count>,
    parkers: Vec<Parker>,
    stop: AtomicBool,
    found: AtomicU64,
}

/// Threads, one a queue, that a dispatcher calls which looks at each queue.
struct Scanning {
    queues: Arc<Queues>,
    core: usize,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Puts the calling thread on a core, under SCHED_FIFO where that is allowed, as our dispatcher's threads are.
fn seated(core: usize) -> Result<Pinned, DispatchError> {
    begin(core, Class::Fifo).or_else(|_| begin(core, Class::Fair))
}

impl Scanning {
    fn open(queues: usize, core: usize) -> io::Result<Scanning> {
        let queues = Arc::new(Queues {
            counts: (0..queues).map(|_| Count::default()).collect(),
            parkers: (0..queues).map(|_| Parker::new()).collect(),
            stop: AtomicBool::new(false),
            found: AtomicU64::new(0),
        });
        let shared = Arc::clone(&queues);
        let thread = std::thread::Builder::new().spawn(move || {
            let _pinned = seated(core).map_err(io::Error::other)?;
            shared.dispatch();
            Ok(())
        })?;
        Ok(Scanning { queues, core, thread: Some(thread) })
    }
}

impl Queues {
    fn dispatch(&self) {
        let (mut taken, mut scans) = (vec![0_u32; self.counts.len()], 0_u32);
        while !self.stop.load(Ordering::Relaxed) {
            let found = scan(&self.counts, &mut taken, |queue| _ = self.parkers[queue].call());
            self.found.fetch_add(found, Ordering::Relaxed);
            scans = scans.wrapping_add(1);
            if found > 0 || scans.is_multiple_of(SCANS_PER_YIELD) {
                // The owners are on this core, and run now.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Channel for Scanning {
    fn consumers(&self) -> usize {
        self.queues.parkers.len()
    }

    fn raise(&self, queue: usize) -> io::Result<()> {
        self.queues.counts[queue].0.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn consumer(&self, n: usize) -> io::Result<Box<dyn Consumer + '_>> {
        let pinned = seated(self.core).map_err(io::Error::other)?;
        Ok(Box::new(Owner::new(&self.queues.parkers[n], &self.queues.counts[n], pinned)))
    }

    fn called(&self) -> Option<(&'static str, u64)> {
        Some(("events that the scans found", self.queues.found.load(Ordering::Relaxed)))
    }
}

impl Drop for Scanning {
    fn drop(&mut self) {
        self.queues.stop.store(true, Ordering::Relaxed);
        if let Some(Err(error)) = self.thread.take().and_then(|thread| thread.join().ok()) {
            eprintln!("ccplane: wake: a scanning dispatcher: {error}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cores::OneCore;

    #[test]
    fn a_scan_finds_each_queue_with_something_new_once() {
        let counts: Vec<Count> = (0..5).map(|_| Count::default()).collect();
        let (mut taken, mut found) = (vec![0; 5], Vec::new());
        counts[1].0.store(1, Ordering::Relaxed);
        counts[4].0.store(7, Ordering::Relaxed);
        assert_eq!(scan(&counts, &mut taken, |queue| found.push(queue)), 2);
        assert_eq!(scan(&counts, &mut taken, |queue| found.push(queue)), 0);
        assert_eq!(found, [1, 4]);
    }

    #[test]
    fn a_scanning_dispatcher_calls_the_owners() {
        if OneCore::all().len() < 2 {
            return ccplane_testing::skipped("a scanning dispatcher", "one core");
        }
        let _alone = crate::cores::alone();
        let load = Load { name: "test", gap: Duration::ZERO, events: 30, warm: Duration::from_millis(1) };
        let measured = block(&SCANNING, Place::OtherCore, &load, 10).unwrap();
        assert!(measured.proof.counts().any(|(what, n)| what == "events that the scans found" && n >= 30));
    }

    #[test]
    fn every_mark_is_taken_by_one_scan() {
        let figure = event_times(10).unwrap();
        let counts: Vec<_> = figure.proof.counts().collect();
        assert_eq!(counts, [("marks that were taken", 100_000), ("scans that found an event", 100_000)]);
    }
}
