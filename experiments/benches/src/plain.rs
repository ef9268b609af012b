//! Baselines that any machine has: their speed shows how fast the host is at the moment.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::Instant;

use crate::error::{BenchError, context};

/// Entries of the heap: a handful for each of some flows.
const HEAP: u64 = 64;
const HEAP_TURNS: u64 = 1_000_000;

/// The name of [`Pipe::turn_us`] in figures.
pub const PIPE: &str = "a byte into a pipe and out of it";
/// The name of [`heap_turns_per_s`] in figures.
pub const HEAP_TURN: &str = "turns of a plain binary heap of 64 numbers";

/// Both ends of a pipe, in one thread: a wake-up would depend on where threads run.
pub struct Pipe {
    to: PipeWriter,
    from: PipeReader,
}

impl Pipe {
    /// Opens a pipe.
    pub fn new() -> Result<Pipe, BenchError> {
        let (from, to) = context("make a pipe", pipe())?;
        Ok(Pipe { to, from })
    }

    /// Microseconds of a byte's way into the pipe and out of it: two system calls.
    pub fn turn_us(&mut self) -> Result<f64, BenchError> {
        let (start, mut byte) = (Instant::now(), [1]);
        context("write to a pipe", self.to.write_all(&byte))?;
        context("read from a pipe", self.from.read_exact(&mut byte))?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    }
}

/// Measures how often per second a plain heap gives up its smallest number and takes another: the least work of an event queue.
pub fn heap_turns_per_s() -> f64 {
    let mut heap: BinaryHeap<Reverse<u64>> = (0..HEAP).map(Reverse).collect();
    let start = Instant::now();
    for n in 0..HEAP_TURNS {
        if let Some(Reverse(least)) = heap.pop() {
            heap.push(Reverse(black_box(least + 1 + n * 37 % HEAP)));
        }
    }
    HEAP_TURNS as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn baselines_take_time() {
        let mut pipe = Pipe::new().unwrap();
        assert!((0..3).all(|_| pipe.turn_us().unwrap() > 0.0));
        assert!(heap_turns_per_s() > 0.0);
    }
}
