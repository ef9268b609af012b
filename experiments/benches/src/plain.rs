//! Baselines that any machine has: their speed tells how fast the host is at the moment.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::io::{PipeReader, PipeWriter};
use std::io::{Read, Write, pipe};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::error::{BenchError, context};

/// Entries of the heap: a handful for each of some flows.
const HEAP: u64 = 64;
const HEAP_TURNS: u64 = 1_000_000;

/// What [`Pipe`] is called in figures.
pub const PIPE: &str = "a byte to another thread over a pipe, and back";
/// What [`heap_turns_per_s`] is called in figures.
pub const HEAP_TURN: &str = "turns of a plain binary heap of 64 numbers";

/// A thread that sends back each byte that it gets over a pipe.
pub struct Pipe {
    to: Option<PipeWriter>,
    from: PipeReader,
    echo: Option<JoinHandle<()>>,
}

impl Pipe {
    pub fn start() -> Result<Pipe, BenchError> {
        let (mut read, to) = context("make a pipe", pipe())?;
        let (from, mut write) = context("make a pipe", pipe())?;
        let echo = std::thread::spawn(move || {
            let mut byte = [0];
            while read.read_exact(&mut byte).is_ok() && write.write_all(&byte).is_ok() {}
        });
        Ok(Pipe { to: Some(to), from, echo: Some(echo) })
    }

    /// Microseconds of a byte's way to the thread and back.
    pub fn round_trip_us(&mut self) -> Result<f64, BenchError> {
        let start = Instant::now();
        let mut byte = [0];
        if let Some(to) = &mut self.to {
            context("write to a pipe", to.write_all(&[1]))?;
        }
        context("read from a pipe", self.from.read_exact(&mut byte))?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The thread finds the pipe's end.
        drop(self.to.take());
        let _ = self.echo.take().map(JoinHandle::join);
    }
}

/// How often per second a plain heap gives up its smallest number and takes another: what an event queue does at least.
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
    fn a_pipe_answers_and_ends() {
        let mut pipe = Pipe::start().unwrap();
        assert!((0..3).all(|_| pipe.round_trip_us().unwrap() > 0.0));
        assert!(heap_turns_per_s() > 0.0);
    }
}
