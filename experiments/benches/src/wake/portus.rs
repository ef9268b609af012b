//! `wake.portus`: half of a report's way to portus and its update's way back, against half of a trip over two pipes.
//!
//! A foreign process does not tell when it woke. A round trip has two wakes, portus's and the datapath's, and portus's own
//! work between them; its half is what compares with one wake.

use super::ways::Place;
use super::{LOADS, Load, MeasuredWakes, ROUNDS, Rounds, beside, time_of_others};
use crate::agent::{PORTUS, Portus};
use crate::cores::OneCore;
use crate::error::{BenchError, context, tell_lack};
use crate::figure::{Figure, in_turn};
use crate::oracle;
use crate::processor;
use crate::proof::Proof;
use crate::v1::V1;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

const SID: u32 = 1;
/// The words for the baseline.
const PIPES: &str = "half of a trip over two pipes";

pub(super) fn run() -> Result<Vec<Figure>, BenchError> {
    if let Err(error) = oracle::find(PORTUS) {
        tell_lack("wake", "wake.portus", error);
        return Ok(Vec::new());
    }
    let cores = OneCore::all();
    let folder = context("create a folder", tempfile::tempdir())?;
    let mut figures = Vec::new();
    for (place, core) in [(Place::SameCore, 0), (Place::OtherCore, 1)] {
        let there = OneCore::nth_of(&cores, core);
        let portus = Portus::tagged("-wake")?;
        drop(there);
        let _here = OneCore::nth_of(&cores, 0);
        let mut v1 = V1::start(&portus.socket, folder.path().join("datapath.sock"))?;
        v1.start_flow(SID)?;
        let process = portus.process.0.id();
        for load in &LOADS {
            let (mut through, mut pipes): (Rounds, Rounds) = Default::default();
            for round in 0..ROUNDS {
                let spent = || processor::of_process(process);
                let ours = || trips(load, || v1.round_trip(SID), spent, "updates of portus");
                let (one, other) = in_turn(round, ours, || over_pipes(load, &cores, core))?;
                through.push(one);
                pipes.push(other);
            }
            let cell = format!("{}.{}.1", place.name(), load.name);
            figures.extend(beside("portus", &cell, &through, &pipes, PIPES)?);
        }
    }
    Ok(figures)
}

/// Makes trips, nanoseconds each, under a load; `spent` reads the processor time of the other side so far.
fn trips(
    load: &Load,
    mut trip: impl FnMut() -> Result<u64, BenchError>,
    spent: impl Fn() -> Result<Duration, BenchError>,
    what: &'static str,
) -> Result<MeasuredWakes, BenchError> {
    let mut one = || {
        if !load.gap.is_zero() {
            std::thread::sleep(load.gap);
        }
        trip()
    };
    let start = Instant::now();
    while start.elapsed() < load.warm {
        one()?;
    }
    let (before, since) = (spent()?, Instant::now());
    let halves_us: Vec<f64> =
        (0..load.events).map(|_| one().map(|ns| ns as f64 / 2.0 / 1e3)).collect::<Result<_, BenchError>>()?;
    let spent = spent()?.saturating_sub(before);
    let proof = Proof::counted(what, halves_us.len() as u64)?;
    Ok(MeasuredWakes::new(halves_us, spent, since.elapsed(), proof))
}

/// Trips over two pipes, with a thread on a core that sends back what it gets.
fn over_pipes(load: &Load, cores: &[usize], core: usize) -> Result<MeasuredWakes, BenchError> {
    let (mut there, mut to) = context("open a pipe", io::pipe())?;
    let (mut from, mut back) = context("open a pipe", io::pipe())?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> io::Result<()> {
            let _core = OneCore::nth_of(cores, core);
            let mut byte = [0];
            while there.read(&mut byte)? > 0 {
                back.write_all(&byte)?;
            }
            Ok(())
        });
        let trip = || -> Result<u64, BenchError> {
            let start = Instant::now();
            context("write to a pipe", to.write_all(&[1]))?;
            context("read from a pipe", from.read_exact(&mut [0]))?;
            Ok(start.elapsed().as_nanos() as u64)
        };
        let spent = || context("read processor time", time_of_others());
        let measured = trips(load, trip, spent, "trips over pipes");
        // The other thread reads the end of its pipe.
        drop(to);
        let ended = echo.join().map_err(|_| BenchError::Missing("an echo panicked".into()))?;
        context("echo over pipes", ended)?;
        measured
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_trip_is_halved_and_counted() {
        let load = Load { name: "test", gap: Duration::ZERO, events: 3, warm: Duration::ZERO };
        let mut ns = 0;
        let trip = || {
            ns += 2_000;
            Ok(ns)
        };
        let measured = trips(&load, trip, || Ok(Duration::ZERO), "trips").unwrap();
        assert_eq!(measured.latencies_us, [1.0, 2.0, 3.0]);
        assert_eq!(measured.proof.counts().collect::<Vec<_>>(), [("trips", 3)]);
    }

    #[test]
    fn bytes_come_back_over_two_pipes() {
        let load = Load { name: "test", gap: Duration::ZERO, events: 20, warm: Duration::from_millis(1) };
        let cores = OneCore::all();
        let measured = over_pipes(&load, &cores, cores.len() - 1).unwrap();
        assert_eq!(measured.latencies_us.len(), 20);
        assert!(measured.latencies_us.iter().all(|us| *us > 0.0));
    }
}
