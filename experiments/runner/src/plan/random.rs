//! Links that change at random: `[random]` draws them from its seed, always the same ones.
//!
//! A run is cut into stretches of equal length. The first is drawn whole; each change redraws rate, delay and loss with
//! two chances in three each, and the rate where none of them came. Rates and delays are log-uniform, a third of all
//! losses are none, and a link has one, two or four flows. Seeds are kept apart, so that nothing is tuned on what it is
//! judged by: policies and the twin may be trained on those below 100, and constants may be chosen by those below 200.
//! Shipped plans, tests and figures use those from 200 on.

use super::number::Scaled;
use super::source::{ChangeSource, LinkSource, Mbit, Millis, RandomSource, Seconds, Share};

/// Bits per second, least and most.
const RATES: (u64, u64) = (4_000_000, 60_000_000);
/// Of each direction, microseconds.
const DELAYS: (u64, u64) = (5_000, 60_000);
/// The random losses of links that have any, millionths.
const LOSSES: (u64, u64) = (2_000, 80_000);
/// Of the first stretch's bandwidth-delay product, millionths.
const QUEUES: (u64, u64) = (500_000, 2_000_000);
/// The steps to which values are rounded: 0.1 Mb/s, 1 ms, 0.1 %, 0.1 bandwidth-delay products.
const ROUND: (u64, u64, u64, u64) = (100_000, 1_000, 1_000, 100_000);
const FLOWS: [u64; 3] = [1, 2, 4];
/// Halvings of a logarithmic range that a draw is exact to.
const BITS: u32 = 20;

/// The links, in their order.
pub(super) fn links(source: &RandomSource, duration_ms: u64) -> Vec<LinkSource> {
    let (seed, changes) = (source.seed.get(), source.changes.get());
    (0..source.links.get()).map(|n| link(seed, n, changes, duration_ms)).collect()
}

fn link(seed: u64, n: u64, changes: u64, duration_ms: u64) -> LinkSource {
    let mut draw = Draw::new(seed, n);
    let first = (draw.rate(), draw.delay(), draw.loss());
    let queue = draw.log(QUEUES, ROUND.3);
    let flows = FLOWS[draw.below(FLOWS.len() as u64) as usize];
    let change = |c: u64| {
        let [rate, delay, loss] = [draw.below(3), draw.below(3), draw.below(3)].map(|chance| chance > 0);
        // All are drawn, so that no value hangs on whether another is taken.
        let values = (draw.rate(), draw.delay(), draw.loss());
        ChangeSource {
            at_s: Seconds::nearest(duration_ms * c / (changes + 1)),
            rate_mbit: (rate || !delay && !loss).then_some(values.0),
            delay_ms: delay.then_some(values.1),
            loss: loss.then_some(values.2),
        }
    };
    let change = (1..=changes).map(change).collect();
    LinkSource {
        name: Some(format!("random {seed}.{n}")),
        rate_mbit: Some(first.0),
        delay_ms: Some(first.1),
        loss: Some(first.2),
        queue_bdp: Some(Scaled::nearest(queue)),
        flows: Some(Scaled::nearest(flows)),
        change,
        ..LinkSource::default()
    }
}

/// Draws of one link (splitmix64, Steele et al., OOPSLA 2014), in integers: the same on every machine.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, n: u64) -> Draw {
        let mut draw = Draw(seed << 32 | n);
        draw.bits();
        draw
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(count)) >> 64) as u64
    }

    /// Log-uniform: each bit takes the lower or the upper half of what is left, as ratios go.
    fn log(&mut self, (mut low, mut high): (u64, u64), round: u64) -> u64 {
        for _ in 0..BITS {
            let middle = (low * high).isqrt();
            if self.below(2) == 0 { high = middle } else { low = middle }
        }
        (low + round / 2) / round * round
    }

    fn rate(&mut self) -> Mbit {
        Mbit::nearest(self.log(RATES, ROUND.0))
    }

    fn delay(&mut self) -> Millis {
        Millis::nearest(self.log(DELAYS, ROUND.1))
    }

    fn loss(&mut self) -> Share {
        let (none, share) = (self.below(3) == 0, self.log(LOSSES, ROUND.2));
        Share::nearest(if none { 0 } else { share })
    }
}
