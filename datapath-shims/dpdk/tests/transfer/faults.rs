//! A wire that loses, repeats and reorders what arrives.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use ccplane_quic::{Datagram, Forward, Wire};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// The longest time for which a datagram is held back.
const HELD: Duration = Duration::from_millis(5);

/// Faults per thousand datagrams.
#[derive(Clone, Default, Debug)]
pub struct Faults {
    pub lost: u32,
    pub repeated: u32,
    /// Datagrams held back for up to [`HELD`], so that others overtake them.
    pub held: u32,
}

impl Faults {
    pub fn over<W: Wire>(self, wire: W, seed: u64) -> BadWire<W> {
        BadWire { wire, faults: self, rng: ChaCha8Rng::seed_from_u64(seed), held: VecDeque::new() }
    }
}

pub struct BadWire<W> {
    wire: W,
    faults: Faults,
    rng: ChaCha8Rng,
    held: VecDeque<(Instant, Datagram)>,
}

fn again(datagram: &Datagram) -> Datagram {
    Datagram { payload: datagram.payload.clone(), ..*datagram }
}

impl<W: Wire> Forward for BadWire<W> {
    type Inner = W;

    fn inner(&self) -> &W {
        &self.wire
    }

    fn inner_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    fn forward_receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let BadWire { wire, faults, rng, held } = self;
        let now = Instant::now();
        let mut chance = |of_thousand| rng.next_u32() % 1000 < of_thousand;
        let mut count = 0;
        for _ in 0..held.len() {
            let Some((until, datagram)) = held.pop_front() else { break };
            if until <= now {
                count += 1;
                each(datagram);
            } else {
                held.push_back((until, datagram));
            }
        }
        count += wire.receive(&mut |datagram| {
            if chance(faults.lost) {
                return;
            }
            if chance(faults.repeated) {
                held.push_back((now + HELD, again(&datagram)));
            }
            if chance(faults.held) {
                held.push_back((now + HELD / 2, datagram));
            } else {
                each(datagram);
            }
        })?;
        Ok(count)
    }

    fn forward_wait(&mut self, timeout: Duration) -> io::Result<()> {
        let first = self.held.iter().map(|(until, _)| until.saturating_duration_since(Instant::now())).min();
        self.wire.wait(first.map_or(timeout, |first| first.min(timeout)))
    }
}
