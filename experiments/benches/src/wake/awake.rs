//! `wake.WAY.awake`: a way with idle cores kept awake by `/dev/cpu_dma_latency`, against the same way without.
//!
//! Only across cores: on the producer's own core nothing idles. While the limit holds, a guest's idle core polls and does
//! not halt.

use super::ways::{Place, WAYS, Way};
use super::{LOADS, Load, MeasuredWakes, ROUNDS, Rounds, beside, block};
use crate::error::{BenchError, context, tell_lack};
use crate::figure::{Figure, in_turn};
use crate::proof::Proof;
use ccplane_wait::{AwakeCores, CPU_DMA_LATENCY};
use std::fs::File;
use std::io::{self, Read};

/// The ways that are measured so: two that sleep, and the one that chooses.
const AWAKE_WAYS: [&str; 3] = ["futex", "unix-datagram", "auto"];

/// Reads the latency that idle cores may have now, microseconds.
fn allowed_us() -> io::Result<i32> {
    let mut bytes = [0; size_of::<i32>()];
    File::open(CPU_DMA_LATENCY)?.read_exact(&mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

pub(super) fn run() -> Result<Vec<Figure>, BenchError> {
    match allowed_us() {
        Ok(0) => {
            tell_lack("wake", ".awake", "another process keeps idle cores awake already");
            return Ok(Vec::new());
        }
        Ok(_) => {}
        Err(error) => {
            tell_lack("wake", ".awake", format_args!("{CPU_DMA_LATENCY}: {error}"));
            return Ok(Vec::new());
        }
    }
    let mut figures = Vec::new();
    for way in WAYS.iter().filter(|way| AWAKE_WAYS.contains(&way.name)) {
        for load in &LOADS {
            figures.extend(measure(way, load)?);
        }
    }
    Ok(figures)
}

fn measure(way: &Way, load: &Load) -> Result<Vec<Figure>, BenchError> {
    let place = Place::OtherCore;
    let (mut awake, mut without): (Rounds, Rounds) = Default::default();
    for round in 0..ROUNDS {
        let kept = || -> Result<MeasuredWakes, BenchError> {
            let mut cores = context("open /dev/cpu_dma_latency", AwakeCores::open())?;
            context("keep idle cores awake", cores.event(0))?;
            let allowed_us = context("read the latency of idle cores", allowed_us())?;
            let held = Proof::counted("blocks with idle cores awake", u64::from(allowed_us == 0))?;
            let measured = block(way, place, load, 1)?;
            Ok(MeasuredWakes { proof: measured.proof.clone().and(&held), ..measured })
        };
        let (with, plain) = in_turn(round, kept, || block(way, place, load, 1))?;
        awake.push(with);
        without.push(plain);
    }
    let cell = format!("{}.{}.1", place.name(), load.name);
    let words = format!("{} without", way.name);
    beside(&format!("{}.awake", way.name), &cell, &awake, &without, &words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_holds_is_seen_by_another_reader() {
        let mut cores = match AwakeCores::open() {
            Ok(cores) => cores,
            Err(error) => return ccplane_testing::skipped("idle cores that are kept awake", error),
        };
        cores.event(0).unwrap();
        assert_eq!(allowed_us().unwrap(), 0);
    }

    #[test]
    fn the_ways_that_are_kept_awake_are_there() {
        assert_eq!(WAYS.iter().filter(|way| AWAKE_WAYS.contains(&way.name)).count(), AWAKE_WAYS.len());
    }
}
