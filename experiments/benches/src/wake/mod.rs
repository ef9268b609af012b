//! `wake`: from an event to the first instruction of the thread that waits for it, by each way to wait.
//!
//! A producer raises one event at a time and waits until it was taken: at once, after a millisecond, or after
//! [`IDLE_GAP`]. The consumer is on the producer's core or on another one, and waits on one queue or on a hundred. Beside
//! the time there is the processor time of all that waits, a dispatcher included. Each cell's ways are measured in turn,
//! round by round, and the baseline is a plain pipe in the same cell and round.
//!
//! Beside the cells there are half of a round trip through portus (`wake.portus`) and ways with idle cores kept awake
//! (`wake.WAY.awake`). There are also a dispatcher of ten to a thousand queues (`wake.dispatch.queues`), and what
//! `auto` takes of its budget (`wake.auto.share`). All that is measured in a cell is in one table and one plot.
//!
//! iceoryx2 is not among the ways. Between processes its event is a unix datagram (from 0.10 on beside counters in
//! shared memory), and its samples are polled. So `unix-datagram` and `spin` stand for it.

mod awake;
mod dispatchers;
mod portus;
mod share;
pub mod table;
mod uring;
mod ways;

use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::figure::{Block, Figure, Pair, percentile};
use crate::proof::{self, Proof};
use ccplane_wait::thread_time;
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ways::{Place, WAYS, Way};

/// Rounds, in each of which every way is measured once a cell.
const ROUNDS: usize = 3;
/// The gap of a load that is all but idle.
const IDLE_GAP: Duration = Duration::from_millis(20);
/// An event that takes longer is lost.
const LOST: Duration = Duration::from_secs(2);
/// Looks for an answer between two at the clock.
const LOOKS: u32 = 1024;
/// The numbers of queues.
const QUEUES: [usize; 2] = [1, 100];
/// Quantiles of the time, each with its name.
const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];
/// The way that all others are measured beside.
const BASELINE: &str = "pipe";
/// The words for that way in the figures beside it.
const BASELINE_WORDS: &str = "a pipe";
/// The way that chooses among others.
const AUTO: &str = "auto";

/// The times at which events come.
struct Load {
    name: &'static str,
    gap: Duration,
    /// Measured events of one block.
    events: usize,
    /// Time of events before them, in which a way gets to know the load.
    warm: Duration,
}

const LOADS: [Load; 3] = [
    Load { name: "idle", gap: IDLE_GAP, events: 16, warm: Duration::from_millis(480) },
    Load { name: "1ms", gap: Duration::from_millis(1), events: 300, warm: Duration::from_millis(200) },
    Load { name: "back-to-back", gap: Duration::ZERO, events: 4000, warm: Duration::from_millis(200) },
];

/// State that producer and consumer share beside their way.
struct Exchange {
    epoch: Instant,
    /// When the last event was taken, nanoseconds.
    taken_ns: AtomicU64,
    taken: AtomicU64,
    stop: AtomicBool,
}

impl Exchange {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Waits until `count` events were taken.
    fn await_taken(&self, count: u64, place: Place) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.taken.load(Ordering::Acquire) >= count {
                    return Ok(());
                }
                match place {
                    // The consumer needs this core.
                    Place::SameCore => std::thread::yield_now(),
                    Place::OtherCore => std::hint::spin_loop(),
                }
            }
            if start.elapsed() > LOST {
                return Err(BenchError::Missing(format!("event {count} is not taken")));
            }
        }
    }
}

/// The times of one block's events.
struct MeasuredWakes {
    /// From an event to its taking, microseconds.
    latencies_us: Vec<f64>,
    /// Processor time of the waiting threads for each event, microseconds.
    cpu_us: f64,
    /// The same as a share of the time that passed, percent of a core.
    cpu_percent: f64,
    proof: Proof,
}

/// Processor time of all threads of this process but the calling one.
fn time_of_others() -> std::io::Result<Duration> {
    let all = Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?);
    Ok(all.saturating_sub(thread_time()?))
}

fn block(way: &Way, place: Place, load: &Load, queues: usize) -> Result<MeasuredWakes, BenchError> {
    let cores = OneCore::all();
    let consumer_core = match place {
        Place::SameCore => 0,
        Place::OtherCore => 1,
    };
    let channel = (way.open)(queues, place, cores[consumer_core])?;
    let exchange = Arc::new(Exchange {
        epoch: Instant::now(),
        taken_ns: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let _here = OneCore::nth_of(&cores, 0);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..channel.consumers())
            .map(|n| {
                let (channel, exchange, cores) = (&*channel, &*exchange, &cores);
                scope.spawn(move || -> std::io::Result<()> {
                    let _there = OneCore::nth_of(cores, consumer_core);
                    let mut consumer = channel.consumer(n)?;
                    loop {
                        consumer.wait()?;
                        if exchange.stop.load(Ordering::Acquire) {
                            return Ok(());
                        }
                        exchange.taken_ns.store(exchange.now_ns(), Ordering::Relaxed);
                        exchange.taken.fetch_add(1, Ordering::Release);
                    }
                })
            })
            .collect();
        let measured = produce(&*channel, &exchange, place, load, queues);
        exchange.stop.store(true, Ordering::Release);
        for n in 0..channel.consumers() {
            context("end a consumer", channel.raise(n))?;
        }
        for consumer in waiting {
            let ended = consumer.join().map_err(|_| BenchError::Missing("a consumer panicked".into()))?;
            context("wait for an event", ended)?;
        }
        measured
    })
}

fn produce(
    channel: &dyn ways::Channel,
    exchange: &Exchange,
    place: Place,
    load: &Load,
    queues: usize,
) -> Result<MeasuredWakes, BenchError> {
    let mut raised = 0;
    let mut one = || -> Result<u64, BenchError> {
        if !load.gap.is_zero() {
            std::thread::sleep(load.gap);
        }
        // Neighbouring events are in different words and cache lines.
        let queue = raised as usize * 37 % queues;
        let raised_ns = exchange.now_ns();
        context("raise an event", channel.raise(queue))?;
        raised += 1;
        exchange.await_taken(raised, place)?;
        Ok(exchange.taken_ns.load(Ordering::Relaxed).saturating_sub(raised_ns))
    };
    let start = Instant::now();
    while start.elapsed() < load.warm {
        one()?;
    }
    let (before, since) = (context("read processor time", time_of_others())?, Instant::now());
    let latencies: Result<Vec<u64>, BenchError> = (0..load.events).map(|_| one()).collect();
    let spent = context("read processor time", time_of_others())?.saturating_sub(before);
    let passed = since.elapsed();
    let latencies_us: Vec<f64> = latencies?.into_iter().map(|ns| ns as f64 / 1e3).collect();
    let taken = exchange.taken.load(Ordering::Acquire);
    let proof = Proof::exactly("wakes", taken, raised)?;
    let proof = match channel.called() {
        Some((what, count)) => proof.and(&Proof::counted(what, count)?),
        None => proof,
    };
    Ok(MeasuredWakes::new(latencies_us, spent, passed, proof))
}

impl MeasuredWakes {
    /// Events that took so long each, for which others worked for `spent` of the time that passed.
    fn new(latencies_us: Vec<f64>, spent: Duration, passed: Duration, proof: Proof) -> MeasuredWakes {
        let cpu_us = spent.as_secs_f64() * 1e6 / latencies_us.len() as f64;
        let cpu_percent = spent.as_secs_f64() / passed.as_secs_f64() * 100.0;
        MeasuredWakes { latencies_us, cpu_us, cpu_percent, proof }
    }
}

/// The blocks of one way in one cell, a round each.
type Rounds = Vec<MeasuredWakes>;

/// Measures `wake`: every way in every cell.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    if OneCore::all().len() < 2 {
        return Err(BenchError::Missing("wake needs two cores: a producer's and a consumer's".into()));
    }
    // First, so that it is known at once where a program is missing or a file may not be opened.
    let mut figures = portus::run()?;
    figures.extend(awake::run()?);
    figures.extend(dispatchers::run()?);
    figures.extend(share::run()?);
    let mut worst = None;
    for place in [Place::SameCore, Place::OtherCore] {
        for queues in QUEUES {
            for load in &LOADS {
                let cell = format!("{}.{}.{queues}", place.name(), load.name);
                let measured = measure(place, load, queues)?;
                figures.extend(rows(&cell, &measured)?);
                let chosen = versus_best(&cell, &measured)?;
                if worst.as_ref().is_none_or(|worst: &Figure| chosen.ratio > worst.ratio) {
                    worst = Some(chosen.clone());
                }
                figures.push(chosen);
            }
        }
    }
    figures.extend(worst.map(|worst| {
        let note = format!("the worst of all cells: {}", worst.name);
        worst.named("wake.auto.vs-best").with_note(note)
    }));
    Ok(figures)
}

/// All ways in one cell, in turn.
fn measure(place: Place, load: &Load, queues: usize) -> Result<BTreeMap<&'static str, Rounds>, BenchError> {
    let mut measured: BTreeMap<&'static str, Rounds> = BTreeMap::new();
    for round in 0..ROUNDS {
        // So that no way always follows the same one.
        let mut order: Vec<&Way> = WAYS.iter().collect();
        order.rotate_left(round * WAYS.len() / ROUNDS);
        for way in order {
            measured.entry(way.name).or_default().push(block(way, place, load, queues)?);
        }
    }
    Ok(measured)
}

fn proof_of(rounds: &Rounds) -> Result<Proof, BenchError> {
    Ok(proof::all(rounds.iter().map(|round| &round.proof))?)
}

/// A cell's rows: each way beside the pipe.
fn rows(cell: &str, measured: &BTreeMap<&'static str, Rounds>) -> Result<Vec<Figure>, BenchError> {
    let pipe = &measured[BASELINE];
    let mut figures = Vec::new();
    for (way, rounds) in measured.iter().filter(|(way, _)| **way != BASELINE) {
        figures.extend(beside(way, cell, rounds, pipe, BASELINE_WORDS)?);
    }
    Ok(figures)
}

/// A way's figures in a cell, each beside the rounds of what `words` name.
fn beside(
    way: &str,
    cell: &str,
    ours: &Rounds,
    theirs: &Rounds,
    words: &str,
) -> Result<Vec<Figure>, BenchError> {
    let proof = proof_of(ours)?;
    let both = || ours.iter().zip(theirs);
    let blocks: Vec<Block> =
        both().map(|(ours, theirs)| (ours.latencies_us.clone(), theirs.latencies_us.clone())).collect();
    let mut figures: Vec<Figure> = QUANTILES
        .iter()
        .map(|(q, label)| {
            let name = format!("wake.{way}.{cell}.{label}");
            Figure::blocks(name, "us", format!("{words}, {label}"), (&blocks, *q), &proof)
        })
        .collect();
    let cpu: Vec<Pair> = both().map(|(ours, theirs)| (ours.cpu_us, theirs.cpu_us)).collect();
    let name = format!("wake.{way}.{cell}.cpu");
    let words = format!("{words}, processor time a wake");
    figures.push(Figure::paired(name, "us", words, &cpu, &proof).or_zero());
    Ok(figures)
}

/// The median of `auto` beside that of whichever other way was best in the same round.
fn versus_best(cell: &str, measured: &BTreeMap<&'static str, Rounds>) -> Result<Figure, BenchError> {
    let median = |rounds: &Rounds, n: usize| percentile(&rounds[n].latencies_us, 0.5);
    let best = |n: usize| {
        let others = measured.iter().filter(|(way, _)| **way != AUTO);
        others.map(|(_, rounds)| median(rounds, n)).fold(f64::INFINITY, f64::min)
    };
    let auto = &measured[AUTO];
    let pairs: Vec<Pair> = (0..ROUNDS).map(|n| (median(auto, n), best(n))).collect();
    let name = format!("wake.auto.vs-best.{cell}");
    Ok(Figure::paired(name, "us", "the best other way, p50", &pairs, &proof_of(auto)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Every way moves events between two threads, and counts as many as were raised.
    #[test]
    fn each_way_takes_what_was_raised() {
        if OneCore::all().len() < 2 {
            return ccplane_testing::skipped("ways to wake", "one core");
        }
        let _alone = crate::cores::alone();
        let load = Load { name: "test", gap: Duration::ZERO, events: 50, warm: Duration::from_millis(1) };
        for way in WAYS {
            for (place, queues) in [(Place::OtherCore, 1), (Place::SameCore, 100)] {
                match block(way, place, &load, queues) {
                    Ok(measured) => {
                        assert_eq!(measured.latencies_us.len(), 50, "{}", way.name);
                        assert!(measured.proof.counts().any(|(what, n)| what == "wakes" && n >= 50));
                    }
                    Err(BenchError::Os { what, source }) => {
                        ccplane_testing::skipped(way.name, format_args!("{what}: {source}"));
                    }
                    Err(error) => panic!("{}, {queues} queues: {error}", way.name),
                }
            }
        }
    }

    fn measured(median_us: f64) -> MeasuredWakes {
        let time = Duration::from_micros(1);
        MeasuredWakes::new(vec![median_us], time, 4 * time, Proof::counted("wakes", 1).unwrap())
    }

    #[test]
    fn auto_is_held_against_the_best_of_each_round() {
        let rounds = |values: [f64; ROUNDS]| values.map(measured).into_iter().collect::<Rounds>();
        let cell = BTreeMap::from([
            (AUTO, rounds([3.0, 3.0, 3.0])),
            (BASELINE, rounds([2.0, 9.0, 6.0])),
            ("spin", rounds([8.0, 1.5, 1.5])),
        ]);
        let figure = versus_best("x", &cell).unwrap();
        assert_eq!((figure.value, figure.ratio), (3.0, Some(2.0)));
        assert_eq!(rows("x", &cell).unwrap().len(), 2 * (QUANTILES.len() + 1));
        assert_eq!((cell["spin"][0].cpu_us, cell["spin"][0].cpu_percent), (1.0, 25.0));
    }
}
